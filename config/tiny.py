"""v5 in small, on the demo's text: Muon, the neighbor objective, local and global attention, WSD, EMA.

    torchrun --standalone --nproc_per_node=2 train.py config/tiny.py          # make demo runs this
    python train.py config/tiny.py --neighbor-head-kind projection --max_steps=100

Hardware: 2 CPU cores.
"""
data_dir = 'data/demo'
out_dir = 'out/tiny'
hidden = 128
n_layer = 4
n_head = 4
ffn = 341
window = 32
theta_global = 160_000.0
objective = 'mlm_neighbors'
seq_len = 128
batch_tokens = 2048
micro_tokens = 1024
mask_rate = 0.3
lr = 3e-3
warmup_steps = 50
decay_start = 900
ema_decay = 0.99
phases = [dict(name='stable', steps=900), dict(name='decay', steps=300)]
eval_interval = 300
save_interval = 300
log_interval = 50
eval_tokens = 20_000

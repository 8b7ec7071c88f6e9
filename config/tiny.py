"""The repaired objective in small, on the demo's text: projection heads (weight 0.25), Muon, local and global attention, WSD, EMA.

    torchrun --standalone --nproc_per_node=2 train.py config/tiny.py          # make demo runs this

Hardware: 2 CPU cores, 5 minutes. Expected: perplexity 58 and span-1 infill 38% on held-out hadith.
v5's fault in small: --neighbor-head-kind offset_emb --neighbor_weight=1 (and --out_dir=out/fault).
"""
data_dir = 'data/demo'
out_dir = 'out/tiny'
hidden = 128
n_layer = 4
n_head = 4
ffn = 341                      # 2/3 of 4 × 128
window = 32
theta_global = 160_000.0
objective = 'mlm_neighbors'
neighbor_head_kind = 'projection'
neighbor_weight = 0.25
neighbor_max_pairs = 128       # of about 165 in a micro-batch
seq_len = 128
batch_tokens = 2048
micro_tokens = 1024
mask_rate = 0.2
lr = 3e-3
warmup_steps = 50
decay_start = 450
ema_decay = 0.99
phases = [dict(name='stable', steps=450), dict(name='decay', steps=150)]
log_interval = 50
eval_interval = 300
eval_tokens = 20_000
save_interval = 200

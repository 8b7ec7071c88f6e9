"""The ablations' baseline, plain MLM, and all that its arms share: a 1.9 M encoder on classical hadith.

    python train.py config/ablation/mlm.py            # one run; python ablation.py runs all arms

Hardware: one CPU core, 5 minutes. Expected: 4.08 held-out nats, divergence 3.4 at d = 1 (mean of 5 seeds).
"""
data_dir = 'data/ablation'     # made by config/ablation/data.py
pinned = {
    'train/hadith_00000.bin': '67e4a844813b8b5db1d9d167ef9b24feeb38f754a0c80f48f565f0f2578fcce3',
    'train/tafsir_00000.bin': '07a85d9611600a5d8419d32665d540571d65effcf15d1d1846ef297c1a8ac134',
    'heldout/hadith_00000.bin': 'a568cf3ee9e9b40f2a23c15d6526ec92d0e3b3c79fc02b3cde9a31d47e1f2e19',
    'heldout/tafsir_00000.bin': '3cd01ea5dfc9730212c636935f3c92b36b44645ce798ddc2f122ef95548e4e13',
}
sources = {'hadith': 1.0}
mix_by = 'weight'
out_dir = 'out/ablation/mlm'
hidden = 128
n_layer = 4
n_head = 4
ffn = 341                      # 2/3 of 4 × 128
window = 32
theta_global = 160_000.0
seq_len = 128
batch_tokens = 1024
micro_tokens = 1024
mask_rate = 0.3
lr = 3e-3
warmup_steps = 40
decay_start = 450
ema_decay = 0.99
phases = [dict(name='stable', steps=450), dict(name='decay', steps=150)]
log_interval = 50
eval_interval = 30             # the alarm wants frequent looks
eval_tokens = 4_000
watch_n = 64
save_interval = 200

"""Plain MLM under AdamW.

    python train.py config/ablation/mlm_adamw.py

Hardware: one CPU core, 5 minutes. Expected: 4.66 held-out nats, divergence 2.2 at d = 1.
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/mlm_adamw'
optimizer = 'adamw'

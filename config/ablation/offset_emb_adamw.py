"""v5's objective under AdamW: is Muon cleared?

    python train.py config/ablation/offset_emb_adamw.py

Hardware: one CPU core, 5 minutes. Expected: 5.21 held-out nats, divergence 0.073 at d = 1.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/offset_emb_adamw'
optimizer = 'adamw'

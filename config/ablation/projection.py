"""A real projection per offset in place of v5's vector, nothing else.

    python train.py config/ablation/projection.py

Hardware: one CPU core, 5 minutes. Expected: 4.40 held-out nats, divergence 1.9 at d = 1 (mean of 5 seeds).
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/projection'
neighbor_head_kind = 'projection'

"""The projection at a quarter of the weight.

    python train.py config/ablation/projection_w025.py

Hardware: one CPU core, 5 minutes. Expected: 4.13 held-out nats, divergence 3 at d = 1.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_w025'
neighbor_weight = 0.25

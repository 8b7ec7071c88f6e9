"""The projection at a tenth of the weight: what config/v6.py takes.

    python train.py config/ablation/projection_w01.py

Hardware: one CPU core, 5 minutes. Expected: 4.08 held-out nats, divergence 3.1 at d = 1 (mean of 5 seeds).
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_w01'
neighbor_weight = 0.1

"""Heads h + W_j h with W_j zero at the start: as close to v5's start as a projection can be.

    python train.py config/ablation/projection_zero_residual.py

Hardware: one CPU core, 5 minutes. Expected: 4.40 held-out nats, divergence 1.8 at d = 1.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_zero_residual'
projection_init = 'zero_residual'

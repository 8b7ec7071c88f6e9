"""Projections that begin at random instead of the identity.

    python train.py config/ablation/projection_random.py

Hardware: one CPU core, 5 minutes. Expected: 4.31 held-out nats, divergence 2.5 at d = 1.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_random'
projection_init = 'random'

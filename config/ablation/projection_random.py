"""Projections that begin at random instead of the identity.

    python train.py config/ablation/projection_random.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_random'
projection_init = 'random'

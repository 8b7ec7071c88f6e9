"""Heads h + W_j h with W_j zero at the start: as close to v5's start as a projection can be.

    python train.py config/ablation/projection_zero_residual.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_zero_residual'
projection_init = 'zero_residual'

"""The projection at a quarter of the weight.

    python train.py config/ablation/projection_w025.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_w025'
neighbor_weight = 0.25

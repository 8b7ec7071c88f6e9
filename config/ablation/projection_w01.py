"""The projection at a tenth of the weight.

    python train.py config/ablation/projection_w01.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_w01'
neighbor_weight = 0.1

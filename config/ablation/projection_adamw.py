"""The projection under AdamW.

    python train.py config/ablation/projection_adamw.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/projection.py'
out_dir = 'out/ablation/projection_adamw'
optimizer = 'adamw'

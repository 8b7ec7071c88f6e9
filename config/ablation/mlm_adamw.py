"""Plain MLM under AdamW.

    python train.py config/ablation/mlm_adamw.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/mlm_adamw'
optimizer = 'adamw'

"""v5's objective under AdamW: is Muon cleared?

    python train.py config/ablation/offset_emb_adamw.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/offset_emb_adamw'
optimizer = 'adamw'

"""v5's heads without the consistency term.

    python train.py config/ablation/offset_emb_no_consistency.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/offset_emb_no_consistency'
consistency_lambda = 0.0

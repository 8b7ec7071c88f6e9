"""v5's heads at a quarter of the weight.

    python train.py config/ablation/offset_emb_w025.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/offset_emb_w025'
neighbor_weight = 0.25

"""v5's objective: a vector per offset before the shared decoder, weight 1.

    python train.py config/ablation/offset_emb.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/offset_emb'
objective = 'mlm_neighbors'
neighbor_head_kind = 'offset_emb'
neighbor_weight = 1.0

"""v5's objective: a vector per offset before the shared decoder, weight 1.

    python train.py config/ablation/offset_emb.py

Hardware: one CPU core, 5 minutes. Expected: 4.75 held-out nats, divergence 0.07 at d = 1 (mean of 5 seeds).
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/offset_emb'
objective = 'mlm_neighbors'
neighbor_head_kind = 'offset_emb'
neighbor_weight = 1.0

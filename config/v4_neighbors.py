"""v4 with v5's neighbor objective: the second of the four steps to v5, alone.

    torchrun --nproc_per_node=8 train.py config/v4_neighbors.py

Hardware: 1 to 8 H100/H200. Expected: v5's fault, about 0.24 nats of held-out loss; not yet run.
"""
base = 'config/v4.py'
out_dir = 'out/v4_neighbors'
objective = 'mlm_neighbors'
neighbor_head_kind = 'offset_emb'
neighbor_window = 2
neighbor_weight = 1.0
consistency_lambda = 0.1
neighbor_max_pairs = 4096

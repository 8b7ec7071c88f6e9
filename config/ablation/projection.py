"""A real projection per offset in place of v5's vector, nothing else.

    python train.py config/ablation/projection.py

Hardware: one CPU core. Not yet run to a figure.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/projection'
neighbor_head_kind = 'projection'

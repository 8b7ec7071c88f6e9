"""v5 with a real projection per offset ahead of the shared decoder, at a tenth of the weight: the repair.

    torchrun --nproc_per_node=8 train.py config/v6.py

Hardware: 1 to 8 H100/H200. Expected: separation at d = 1, 2 like v4's; not yet run. At weight 1 the projection
too bends the trunk, at 0.1 hardly (docs/POSTMORTEM_v5.md has both, on a desk).
"""
base = 'config/v5.py'
out_dir = 'out/v6'
neighbor_head_kind = 'projection'
neighbor_weight = 0.1

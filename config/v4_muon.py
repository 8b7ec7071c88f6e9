"""v4 with Muon for the hidden matrices: the first of the four steps to v5, alone.

    torchrun --nproc_per_node=8 train.py config/v4_muon.py

Hardware: 1 to 8 H100/H200. Expected: no worse than v4 (the published pilots clear Muon); not yet run.
"""
base = 'config/v4.py'
out_dir = 'out/v4_muon'
optimizer = 'muon'

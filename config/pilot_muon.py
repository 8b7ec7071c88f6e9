"""Pilot: config/pilot_mlm.py with Muon, nothing else.

    torchrun --nproc_per_node=8 train.py config/pilot_muon.py

Hardware: 1 to 8 H100/H200. Published: Muon slightly reduces the flattening; not yet run.
"""
base = 'config/pilot_mlm.py'
out_dir = 'out/pilot_muon'
optimizer = 'muon'

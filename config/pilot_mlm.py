"""Pilot: plain MLM with AdamW on v5's corpus, short. Its twin is config/pilot_muon.py.

    torchrun --nproc_per_node=8 train.py config/pilot_mlm.py

Hardware: 1 to 8 H100/H200. Expected: the control of the published pair; not yet run. The card does
not give the pilots' length; chosen: 20,000 steps, the last 4,000 of them decay.
"""
base = 'config/v4_corpus.py'
out_dir = 'out/pilot_mlm'
decay_start = 16_000
phases = [dict(name='stable', steps=16_000), dict(name='decay', steps=4_000)]

"""v4 for v5's number of steps, about 2 epochs: the last of the four steps to v5, alone.

    torchrun --nproc_per_node=8 train.py config/v4_epochs.py

Hardware: 1 to 8 H100/H200. Expected: unknown; not yet run.
"""
base = 'config/v4.py'
out_dir = 'out/v4_epochs'
decay_start = 264_000
phases = [
    dict(name='stable', steps=220_000, seq_len=1024, theta_global=10_000.0),
    dict(name='extension', steps=44_000, seq_len=4096, theta_global=160_000.0),
    dict(name='decay', steps=42_725, seq_len=4096, theta_global=160_000.0, sources={'aramix_v3_sd': 1.0}),
]

"""v4 on v5's corpus: the third of the four steps to v5, alone.

    torchrun --nproc_per_node=8 train.py config/v4_corpus.py

Hardware: 1 to 8 H100/H200. Expected: unknown; not yet run.
"""
base = 'config/v4.py'
out_dir = 'out/v4_corpus'
data_dir = 'data/v5'

"""AraNeoBERT v5, as published: the run whose neighbor heads were one head.

    torchrun --nproc_per_node=8 train.py config/v5.py

Hardware: 1 to 8 H100/H200; the published run took 19 days. Published: held-out perplexity Wikipedia
17.81, news 11.44; span-3 infill 24.7% at step 220,000, 3.7% at the end. Not yet run with this code.

Against v4 it moves four ideas at once: Muon, the neighbor objective, the corpus, the epochs. Each
alone is config/v4_*.py. Its incident is kept: out of memory at step 222,900, resumed from 222,000
with half the pairs. 306,725 steps are 80.4 B positions, 2.03 times 39.59 B tokens.
"""
base = 'config/v4.py'
data_dir = 'data/v5'
out_dir = 'out/v5'
optimizer = 'muon'
objective = 'mlm_neighbors'
neighbor_head_kind = 'offset_emb'
neighbor_window = 2
neighbor_weight = 1.0
consistency_lambda = 0.1
neighbor_max_pairs = 4096
decay_start = 264_000
phases = [
    dict(name='stable', steps=220_000, seq_len=1024, theta_global=10_000.0),
    dict(name='extension', steps=2_000, seq_len=4096, theta_global=160_000.0),
    dict(name='extension_2048', steps=42_000, seq_len=4096, theta_global=160_000.0, neighbor_max_pairs=2048),
    dict(name='decay', steps=42_725, seq_len=4096, theta_global=160_000.0, neighbor_max_pairs=2048,
         sources={'aramix_v3_sd': 1.0}),
]

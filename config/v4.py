"""AraNeoBERT v4: AdamW, plain MLM, the earlier corpus, 1.48 epochs.

    torchrun --nproc_per_node=8 train.py config/v4.py

Hardware: 1 to 8 H100/H200; hours: not measured here. Published: held-out perplexity Wikipedia 15.33,
news 7.85; span-3 infill 31.0%. Not yet run with this code.

The model card names neither v4's steps nor its learning rate. Chosen: v5's steps and phases times
1.48/1.97, v5's peak learning rate. Global theta rises with the longer rows; decay is on one source.
"""
data_dir = 'data/v4'
out_dir = 'out/v4'
sources = {'aramix_v3_sd': 1.0, 'aramix_v4_sd': 1.0, 'wikipedia': 1.0, 'shamela': 1.0,
           'dialect_tunisian': 1.0, 'dialect_other': 1.0}
whole_words = ['dialect_tunisian', 'dialect_other']
vocab_size = 64_256
optimizer = 'adamw'
objective = 'mlm'
mask_rate = 0.20
batch_tokens = 262_144
micro_tokens = 32_768
lr = 8e-4
warmup_steps = 2_000
decay_start = 198_336
ema_decay = 0.9999
phases = [
    dict(name='stable', steps=165_280, seq_len=1024, theta_global=10_000.0),
    dict(name='extension', steps=33_056, seq_len=4096, theta_global=160_000.0),
    dict(name='decay', steps=32_097, seq_len=4096, theta_global=160_000.0, sources={'aramix_v3_sd': 1.0}),
]
log_interval = 50
eval_interval = 5_000
save_interval = 1_000
compile_model = True

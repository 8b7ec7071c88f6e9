"""NeoBERT (arXiv 2502.19587): global attention in every layer, one theta, no QK-norm, AdamW, cosine.

    torchrun --nproc_per_node=8 train.py config/neobert.py

Hardware: the authors used 8 H100. Published: GLUE dev 89.0. Not yet run with this code; data/neobert
is to be prepared with a vocabulary of 30,522. 245,136,954 parameters, 221,665,536 of them the encoder.

Their second stage draws batches of long documents with some probability; here it takes all rows.
"""
data_dir = 'data/neobert'
out_dir = 'out/neobert'
vocab_size = 30_522
global_every = 1
qk_norm = False
decoder_bias = True
theta_global = 10_000.0
optimizer = 'adamw'
objective = 'mlm'
mask_rate = 0.20
batch_tokens = 2_097_152
micro_tokens = 32_768
lr = 6e-4
adam_betas = [0.9, 0.95]
weight_decay = 0.1
clip = 1.0
schedule = 'cosine'
warmup_steps = 2_000
decay_start = 2_000
decay_end = 945_000
min_lr_ratio = 0.1
phases = [dict(name='stable', steps=1_000_000, seq_len=1024), dict(name='extension', steps=50_000, seq_len=4096)]
log_interval = 50
eval_interval = 10_000
save_interval = 2_000
compile_model = True

"""v5's heads without the consistency term.

    python train.py config/ablation/offset_emb_no_consistency.py

Hardware: one CPU core, 5 minutes. Expected: 4.74 held-out nats, divergence 0.056 at d = 1.
"""
base = 'config/ablation/offset_emb.py'
out_dir = 'out/ablation/offset_emb_no_consistency'
consistency_lambda = 0.0

"""Plain MLM for as many steps as the neighbor heads' products would pay for: 26% more of them.

    python train.py config/ablation/mlm_equal_compute.py

Hardware: one CPU core, 5 minutes. Expected: 3.96 held-out nats, divergence 3.6 at d = 1 (mean of 2 seeds).
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/mlm_equal_compute'
decay_start = 567
phases = [dict(name='stable', steps=567), dict(name='decay', steps=189)]

"""The other finding: pre-train on two sources, raise theta, decay on one of them. Does the other one suffer?

    python train.py config/ablation/phase_switch.py

Hardware: one CPU core, 5 minutes. Expected: perplexity 71 on hadith, 424 on tafsir at the end.
"""
base = 'config/ablation/mlm.py'
out_dir = 'out/ablation/phase_switch'
sources = {'hadith': 1.0, 'tafsir': 1.0}
theta_global = 10_000.0
phases = [
    dict(name='stable', steps=300),
    dict(name='extension', steps=150, theta_global=160_000.0),
    dict(name='decay', steps=150, theta_global=160_000.0, sources={'hadith': 1.0}),
]

"""Its control: the same three phases, and the decay goes on with both sources.

    python train.py config/ablation/phase_both.py

Hardware: one CPU core, 5 minutes. Expected: perplexity 79 on hadith, 306 on tafsir at the end.
"""
base = 'config/ablation/phase_switch.py'
out_dir = 'out/ablation/phase_both'
phases = [
    dict(name='stable', steps=300),
    dict(name='extension', steps=150, theta_global=160_000.0),
    dict(name='decay', steps=150, theta_global=160_000.0),
]

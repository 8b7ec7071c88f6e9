"""How fast it is, beside what bounds it and what people would use instead.

    python bench.py --text='mine/*.jsonl' --tokenizer=data/mine/tokenizer.json     # writing shards, building batches

Every figure is a ratio of two measurements taken in turns, the median of `repeats`; memory is that of
fresh processes. Results go into docs/bench.json with the machine's name.
"""
import contextlib
import io
import json
import math
import multiprocessing
import os
import pathlib
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np
import tokenizers
from tokenizers import Tokenizer

import configurator
import corpus
import data
import prepare

text = []  # files to write into shards, as for prepare.py
tokenizer = ''  # the tokenizer.json to write them with
megabytes = 40.0  # at most this much of the text
seq_len = 1024  # of the batches
tokens = 4_194_304  # in batches
repeats = 5
out = 'docs/bench.json'


def in_turns(repeats, **works):
    """Runs each work() after the other, `repeats` times → {name: seconds of each run}."""
    seconds = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def memory(work, *args):
    """work(*args) in a fresh process → its peak, the largest of its own workers' peaks, and what it holds at the end
    apart from mapped files, MB."""
    ours, theirs = multiprocessing.get_context('spawn').Pipe(False)
    process = multiprocessing.get_context('spawn').Process(target=remembered, args=(theirs, work, args))
    process.start()
    process.join()
    return ours.recv()


def remembered(pipe, work, args):
    work(*args)
    anonymous = next(line for line in open('/proc/self/status') if line.startswith('RssAnon')).split()[1]
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    pipe.send([int(kb) // 1000 for kb in (*peaks, anonymous)])


# --------------------------------------------------------------------------------------- data

def spread(text, megabytes, folder, parts):
    """At most so much of the files' text, evenly from all of it, as `parts` .jsonl files → files, texts."""
    docs = [doc for path in corpus.find(text) for doc in corpus.read(path)]
    size = sum(len(body.encode()) for *_, body in docs)
    docs = docs[::max(1, math.ceil(size / megabytes / 1e6))]
    files = [pathlib.Path(folder, f'{i}.jsonl') for i in range(parts)]
    for i, file in enumerate(files):
        lines = (json.dumps(dict(source=source, text=body), ensure_ascii=False) for source, _, body in docs[i::parts])
        file.write_text('\n'.join(lines), 'utf-8')
    return files, [body for *_, body in docs]


def write_shards(files, tokenizer, out):
    """prepare.py on these files, in silence and from the start; one worker a core."""
    flags = [f'--text={",".join(map(str, files))}', f'--tokenizer={tokenizer}', f'--out_dir={out}', '--heldout=0']
    shutil.rmtree(out, ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()):
        prepare.prepare(configurator.load(vars(prepare), flags, paths=('text', 'out_dir', 'tokenizer')))


def build_batches(folder, seq_len, tokens):
    """So many tokens of a folder's rows, in batches of 64 rows with whole words masked, all sources by their size."""
    sources = {n: s for n, s in data.open_sources(folder, 'train').items() if s.n_tokens >= seq_len}
    mixture = data.Mixture(sources, {n: s.n_tokens for n, s in sources.items()}, seq_len, tokens // seq_len, 1, 0)
    for step in range(tokens // seq_len // 64):
        data.batch(mixture, step, step * 64, 0, 64, 1, mask_rate=0.2, whole_words=sources)


def bench_data(s):
    """Shards in MB/s beside `tokenizers`' encode_batch on the same text, batches in tokens/s beside what none does
    without, and the memory of both for a quarter of the text and for all of it."""
    cores, tokens = len(os.sched_getaffinity(0)), s['tokens']
    with tempfile.TemporaryDirectory() as folder:
        files, texts = spread(s['text'], s['megabytes'], folder, 4 * cores)
        tok, mb = Tokenizer.from_file(s['tokenizer']), sum(len(t.encode()) for t in texts) / 1e6
        rows = np.arange(64 * s['seq_len'])

        def encode_batch():  # on all cores, in the library's own threads
            for a in range(0, len(texts), 1000):
                tok.encode_batch(texts[a:a + 1000])

        def floor():  # a batch reads its ids, keeps what they were, and draws once for each
            rng = np.random.default_rng(1)
            for _ in range(tokens // len(rows)):
                ids = rows.astype(np.int64)
                ids.copy()[rng.random(len(ids)) < 0.2] = data.MASK
        seconds = in_turns(s['repeats'], shards=lambda: write_shards(files, s['tokenizer'], f'{folder}/out'),
                           encode_batch=encode_batch, batches=lambda: build_batches(f'{folder}/out', s['seq_len'], tokens),
                           floor=floor)
        t = {name: statistics.median(runs) for name, runs in seconds.items()}
        found = dict(megabytes=mb, cores=cores, shards_mb_per_s=mb / t['shards'], encode_batch_mb_per_s=mb / t['encode_batch'],
                     batch_tokens_per_s=tokens / t['batches'], floor_tokens_per_s=tokens / t['floor'])
        for name, part in (('quarter', files[::4]), ('all', files)):
            own, worker, _ = memory(write_shards, part, s['tokenizer'], f'{folder}/{name}')
            found[f'shards_peak_mb_{name}'], found[f'shards_worker_peak_mb_{name}'] = own, worker
            found[f'batch_mb_{name}'] = memory(build_batches, f'{folder}/{name}', s['seq_len'], tokens)[2]
    print(f'{mb:.1f} MB of text, {len(texts):,} documents, {cores} cores, medians of {s["repeats"]}\n'
          'text → shards {shards_mb_per_s:.2f} MB/s; encode_batch alone, all cores {encode_batch_mb_per_s:.2f} MB/s\n'
          'whole-word batches, one core {batch_tokens_per_s:,.0f} tokens/s; their floor {floor_tokens_per_s:,.0f}\n'
          'peak memory of prepare.py {shards_peak_mb_all} MB and {shards_worker_peak_mb_all} MB a worker (a quarter of the '
          'text: {shards_peak_mb_quarter} and {shards_worker_peak_mb_quarter})\n'
          'memory of batches beside the mapped files {batch_mb_all} MB (a quarter of the text: {batch_mb_quarter})'.format(**found))
    return found


def machine():
    cpu = next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), '')
    return dict(cpu=cpu or platform.processor(), cores=len(os.sched_getaffinity(0)), python=platform.python_version(),
                numpy=np.__version__, tokenizers=tokenizers.__version__)


if __name__ == '__main__':
    with configurator.user_errors():
        settings = configurator.load(globals(), sys.argv[1:], paths=('text', 'tokenizer', 'out'))
        if not settings['text'] or not settings['tokenizer']:
            raise ValueError("give --text='mine/*.jsonl' and --tokenizer=data/mine/tokenizer.json")
        results = dict(data=bench_data(settings), machine=machine())
    pathlib.Path(settings['out']).write_text(json.dumps(results, indent=1) + '\n', 'utf-8')

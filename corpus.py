"""Text files → documents → ids: the readers, the one normaliser, the tokenizers.

Normalisation is part of tokenizer.json; whoever meets text, in training or after it, goes through
the same file. A tokenizer has data.SPECIALS as ids 0 … 4.
"""
import array
import glob
import gzip
import json
import operator
import os
import pathlib
import re
import sys
import unicodedata
import zlib

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import data

KINDS = ('.jsonl', '.txt', '.parquet')

# ------------------------------------------------------------------------------------ readers

def parts(path):
    """a.jsonl.gz → ['a', '.jsonl'], in UTF-8 whatever the locale has made of the name."""
    name = os.fsencode(path.name).decode('utf-8', 'replace')
    return os.path.splitext(re.sub(r'\.(gz|zst)$', '', name))


def find(patterns):
    """Files and globs → paths, sorted inside a glob, each once."""
    paths = {}  # in order, as a set
    for pattern in patterns:
        found = {pathlib.Path(p): 0 for p in sorted({pattern, *glob.glob(pattern, recursive=True)}) if os.path.isfile(p)}
        if not found:
            raise FileNotFoundError(f"--text: no file matches {pattern!r}; give files or a glob in quotes, 'mine/*.jsonl'")
        paths |= found
    for path in paths:
        if parts(path)[1] not in KINDS:
            raise ValueError(f'{path}: not a kind that is read; make it .jsonl, .txt (both also .gz, .zst) or .parquet')
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


def unpacked(path):
    """A file as a stream of bytes, and what its unpacking raises where it is damaged."""
    if path.suffix == '.gz':
        return gzip.open(path, 'rb'), (EOFError, zlib.error, gzip.BadGzipFile)
    if path.suffix != '.zst':
        return open(path, 'rb'), ()
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd  # the same module
    except ImportError:
        raise ValueError(f'{path}: .zst is read with backports.zstd; pip install backports.zstd') from None
    return zstd.open(path, 'rb'), (EOFError, zstd.ZstdError)


def read_lines(path):
    """.jsonl and .txt, packed or not: (file:line, {'text': …}); blank lines are passed over."""
    n, plain = 0, parts(path)[1] == '.txt'
    file, damage = unpacked(path)
    with file:  # bytes: no locale, no U+2028
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
            of = 'utf-16' if raw[:2] in (b'\xff\xfe', b'\xfe\xff') else 'cp1256'
            raise ValueError(f'{path}:{n}: byte {raw[error.start]:#x} is not UTF-8; try iconv -f {of} -t utf-8') from None
        except damage as error:
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


def cut(body, megabytes):
    """A text → pieces of at most so many characters, cut at a blank or line's end where there is one."""
    longest = max(int(megabytes * 5e5), 1)
    while len(body) > longest:
        at = max(body.rfind(' ', 1, longest), body.rfind('\n', 1, longest))
        at = at if at > 0 else longest
        yield body[:at]
        body = body[at:]
    yield body


# ---------------------------------------------------------------------------------- tokenizer

# What no reader sees and every model meets: tatweel, bidi marks and embeddings, zero-width blank,
# joiner and non-joiner, word joiner, BOM, soft hyphen. ZWNJ goes too: Arabic does without it, and
# whatever loads this tokenizer.json does the same. (A Persian corpus would want it kept.)
_INVISIBLE = '\u0640\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\u00ad'
CHOICES = ('diacritics', 'dagger_alef', 'fold_alef', 'fold_maksura', 'fold_ta_marbuta', 'fold_hamza')


def normalizer(diacritics='drop', dagger_alef='drop', fold_alef=False, fold_maksura=False,
               fold_ta_marbuta=False, fold_hamza=False):
    """The one normaliser of a project, as a `tokenizers` chain to be kept inside tokenizer.json.

    NFKC would take a mark's isolated form (U+FC5E–FC63, U+FE70–FE7F, …) for blank + mark and cut the
    word there: these become bare marks first. Never NFD with accents stripped: أ would become ا.
    Invisible characters and dropped marks leave before NFKC, so that it composes what they kept apart.
    Whatever is asked for, a second pass changes nothing.
    """
    if not {diacritics, dagger_alef} <= {'drop', 'keep'}:
        raise ValueError(f"diacritics={diacritics!r}, dagger_alef={dagger_alef!r}: each is 'drop' or 'keep'")
    dropped = ''.join(map(chr, range(0x64B, 0x653))) * (diacritics == 'drop') + '\u0670' * (dagger_alef == 'drop')
    forms = {'': _INVISIBLE + dropped}  # what is to stay of a form → the forms, one pass over the text for each
    for c in map(chr, (*range(0xFB50, 0xFE00), *range(0xFE70, 0xFF00))):
        plain = unicodedata.normalize('NFKC', c)
        if plain[0] in ' \u0640' and plain[1:] and all(map(unicodedata.combining, plain[1:])):
            marks = ''.join(m for m in plain[1:] if m not in dropped)
            forms[marks] = forms.get(marks, '') + c
    folds = [('أإآ', 'ا')] * fold_alef + [('ى', 'ي')] * fold_maksura + [('ة', 'ه')] * fold_ta_marbuta
    folds += [('ؤ', 'و'), ('ئ', 'ي')] * fold_hamza
    # a loose madda or hamza (on no letter that has it) would join a folded letter at a second pass
    folds += [('\u0653-\u0655', '')] * (fold_alef or fold_maksura or fold_hamza)

    def replace(characters, by):  # written as escapes: no invisible character stands bare in tokenizer.json
        inside = ''.join(c if c == '-' else f'\\x{{{ord(c):04X}}}' for c in characters)
        return normalizers.Replace(Regex(f'[{inside}]'), by)
    return normalizers.Sequence([
        *(replace(c, marks) for marks, c in forms.items()), normalizers.NFKC(),
        *([replace(dropped, '')] if dropped else []), *(replace(*fold) for fold in folds)])


# A run of letters and marks, of digits, of anything else but blanks: with the blank before it
_WORDS = pre_tokenizers.Split(
    Regex(r' ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+'), 'isolated')
PRE_TOKENIZERS = {  # ByteLevel's own regex (GPT-2's) would cut a word at every haraka
    'bpe': [_WORDS, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    'unigram': [_WORDS, pre_tokenizers.Metaspace(prepend_scheme='never', split=False)],
    'wordpiece': [pre_tokenizers.WhitespaceSplit(), _WORDS],
}


def build_tokenizer(texts, vocab_size, kind='bpe', **choices):
    """Trains on an iterable of str → Tokenizer with data.SPECIALS as ids 0 … 4.

    vocab_size: pieces on top of the specials; fewer come out where the text has no more to give.
    kind: 'bpe' is byte-level, all 256 bytes in it: decode(encode(x)) is normalise(x), exactly.
    'unigram' and 'wordpiece' give it back up to white space and [UNK]. choices: see normalizer().
    """
    specials = [AddedToken(s, special=True, lstrip=s == '[MASK]') for s in data.SPECIALS]
    # [MASK] takes the blank before it: 'ذهب [MASK] الى' gives what a masked ' كتب' gave in training
    common = dict(vocab_size=vocab_size + len(specials), special_tokens=specials, show_progress=sys.stderr.isatty())
    if kind == 'bpe':
        tok, decoder = Tokenizer(models.BPE()), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **common)
    elif kind == 'unigram':
        tok, decoder = Tokenizer(models.Unigram()), decoders.Metaspace(prepend_scheme='never')
        trainer = trainers.UnigramTrainer(unk_token='[UNK]', **common)
    elif kind == 'wordpiece':
        tok, decoder = Tokenizer(models.WordPiece(unk_token='[UNK]')), decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(min_frequency=2, **common)
    else:
        raise ValueError(f"tokenizer_kind={kind!r}: choose 'bpe', 'unigram' or 'wordpiece'")
    tok.normalizer, tok.decoder = normalizer(**choices), decoder
    tok.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[kind])
    # what is longer than 1,000 characters is no word, and a trainer's work grows with the square of it
    tok.train_from_iterator((re.sub(r'\S{1000,}|\s{1000,}', lambda run: run[0][:1000], t) for t in texts), trainer)
    return tok


class _Kinds(dict):
    """For str.translate: a letter → 'l', a mark → nothing, all else → a blank."""
    def __missing__(self, point):
        category = unicodedata.category(chr(point))[0]
        return self.setdefault(point, {'L': 'l', 'M': None}.get(category, ' '))


def count_words(body, kinds=_Kinds()):
    """Runs of letters and marks that hold a letter."""
    return len(body.translate(kinds).split())


WHITE = ' \t\n\x0b\x0c\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000'  # \s of the tokenizer's regex
CHUNK = re.compile(f'[{WHITE}]*[^{WHITE}]+|[{WHITE}]+')
START = 1 << 31  # set in an id that begins a word
CACHED = 400_000  # chunks, about 100 MB


class Encoder:
    """tokenizer.json's text → normalise(text), and encode(texts) of texts that are normalised.

    For text of unknown origin: '[MASK]' in it is six ordinary characters; nothing is cut or padded.
    Normalising apart leaves the text to be hashed and counted. ValueError where the specials are amiss.

    Pre-tokenizers of this file cut before white space and look no further back, so the pieces of a
    chunk, the blanks before a run of other characters and that run, do not depend on what is before
    it: each chunk is encoded once and remembered. Other tokenizers get whole texts.
    """

    def __init__(self, tokenizer_json, name='tokenizer.json'):
        try:
            self.tok = tok = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f'{name}: not a tokenizer.json ({error})') from None
        first = [tok.id_to_token(i) for i in range(len(data.SPECIALS))]
        if first != data.SPECIALS:
            raise ValueError(f'{name}: its ids 0 … 4 are {first}, they must be {data.SPECIALS}; train one with prepare.py')
        self.normalise = tok.normalizer.normalize_str if tok.normalizer else str
        tok.normalizer, tok.encode_special_tokens = None, True
        tok.no_truncation(), tok.no_padding()
        ours = [pre_tokenizers.Sequence(p).__getstate__() for p in PRE_TOKENIZERS.values()]
        self.chunked = tok.pre_tokenizer is not None and tok.pre_tokenizer.__getstate__() in ours and \
            all(t.special for t in tok.get_added_tokens_decoder().values())
        self.known = {}  # chunk → (its ids as bytes, its words)

    def encode(self, texts):
        """Texts → ids (n,) uint32 of [CLS] text [SEP] [CLS] …, START set where a word, a number,
        a run of signs begins (all pieces of it share one; the specials have their own);
        tokens (d,) int64, words (d,) int64 of each text."""
        chunks = [CHUNK.findall(t) if self.chunked else [t] for t in texts]
        if len(self.known) > CACHED or not self.chunked:
            self.known = {}
        new = list(set().union(*chunks) - self.known.keys())
        for chunk, e in zip(new, self.tok.encode_batch(new, add_special_tokens=False)):
            of = e.word_ids  # the pre-token that a piece belongs to
            ids = array.array('I', [i | START * (a != b) for i, a, b in zip(e.ids, of, [None, *of])])
            self.known[chunk] = ids.tobytes(), count_words(chunk)
        cls, sep = (np.uint32(i | START).tobytes() for i in (data.CLS, data.SEP))
        found = [[*map(self.known.__getitem__, cs)] for cs in chunks]
        bodies = [b''.join((cls, *map(operator.itemgetter(0), one), sep)) for one in found]
        return (np.frombuffer(b''.join(bodies), np.uint32), np.array([len(b) // 4 for b in bodies], np.int64),
                np.array([sum(map(operator.itemgetter(1), one)) for one in found], np.int64))

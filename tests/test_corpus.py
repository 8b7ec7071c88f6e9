"""The readers, the normaliser, the three kinds of tokenizer, and the encoder with its cache."""
import functools
import gzip
import json
import os
import pathlib
import random
import re
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

import corpus
import data

WORDS = ('قال الرجل كتب ذهب الى المدينة سأل مؤمن شيئا آخر على'
         ' مستشفى رحمة كتاب و من في هذا الذي يكتبون (كتب) ، 12 abc').split()
STORIES = [' '.join(random.Random(i).choices(WORDS, k=5 + i % 17)) for i in range(150)]
VOCALISED = 'قَالَ الرَّجُلُ كَتَبَ إِنَّ هٰذَا شَيْئًا مُؤْمِنٌ رَحْمَةً عَلَىٰ يَكْتُبُونَ'.split()
MIXED = STORIES + [' '.join(random.Random(-i).choices(VOCALISED + WORDS, k=12)) for i in range(1, 100)]
INVISIBLE = ''.join(map(chr, [0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A),
                              0xFEFF, 0xAD, 0x640]))
# White_Space of the Unicode database, and the four that only Python takes for blanks
WHITE = '\t\n\x0b\x0c\r \x85\xa0\u1680' + ''.join(map(chr, range(0x2000, 0x200B))) + '\u2028\u2029\u202f\u205f\u3000'
POOLS = [
    'ابتثجحخدذرزسشصضطظعغفقكلمنهويىةءأإآؤئ', 'ًٌٍَُِّْٰٕٓٔۖ\u0301\u0323\u0308\u0657', '٠١٢٣۴012½²',
    WHITE + '\x1c\x1d\x1e\x1f   ',
    '،؛؟«».()[]!-_"…', 'ژپچگکی', 'abcXYZéñßﬁ', '🙂👩‍👩‍👧❤️🇪🇬', INVISIBLE, ''.join(map(chr, range(0xFE70, 0xFEFD))),
    ''.join(map(chr, range(0xFC50, 0xFD40))), '\u1100\u1161\u11a8가かが\u3099\u0b47\u0b3e']
ODD = st.lists(st.one_of(
    *(st.text(st.sampled_from(pool), min_size=1, max_size=6) for pool in POOLS), st.sampled_from(WORDS + VOCALISED),
    st.sampled_from(['  ', '[MASK]', ' [SEP]', '[CLS][PAD]', '[UNK]', '</s>', '▁', '\u3000 \u2028']),
    st.text(st.characters(exclude_categories=['Cs']), max_size=6)), max_size=12).map(''.join)
ZSTD = 'compression.zstd' if sys.version_info >= (3, 14) else 'backports.zstd'
quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def write_jsonl(path, rows):
    """Rows, or the texts of such, into a file → its path."""
    rows = (dict(text=r) if isinstance(r, str) else r for r in rows)
    path.write_text('\n'.join(json.dumps(r, ensure_ascii=False) for r in rows) + '\n', 'utf-8')
    return path


@functools.cache
def trained(kind, **choices):
    return corpus.build_tokenizer(MIXED, 400, kind, **choices)


@pytest.fixture(scope='module')
def tok():
    return corpus.build_tokenizer(STORIES, 400)


@pytest.fixture(params=['bpe', 'unigram', 'wordpiece'])
def kind(request):
    """A tokenizer that keeps all marks."""
    return request.param, trained(request.param, diacritics='keep', dagger_alef='keep')


def plain(tokenizer_json, text):
    """What Encoder.encode must give for one text: the whole of it through the library, no cache."""
    tok = Tokenizer.from_str(tokenizer_json)
    tok.normalizer, tok.encode_special_tokens = None, True
    e = tok.encode(text, add_special_tokens=False)
    begins = [a != b for a, b in zip(e.word_ids, [None, *e.word_ids])]
    return [data.CLS, *e.ids, data.SEP], [True, *begins, True]


def encoded(encoder, texts):
    """Encoder.encode → [(ids, starts, words) of a text]."""
    ids, tokens, words = encoder.encode(texts)
    assert ids.dtype == np.uint32 and len(tokens) == len(words) == len(texts) and tokens.sum() == len(ids)
    per_text = np.split(ids, np.cumsum(tokens)[:-1]) if texts else []
    return [((p & ~np.uint32(corpus.START)).tolist(), (p >= corpus.START).tolist(), w)
            for p, w in zip(per_text, words.tolist())]


# -------------------------------------------------------------------------------- the normaliser

def test_letters_keep_hamza():
    """tokenizers#399: only named harakat go; أ إ آ ؤ ئ stay what they are."""
    normalise = corpus.normalizer().normalize_str
    assert normalise('سأل مؤمن شيئاً آخر') == 'سأل مؤمن شيئا آخر'
    assert normalise('إِنَّ هٰذا') == 'إن هذا'
    marks = ''.join(map(chr, range(0x64B, 0x653)))
    assert normalise('ب' + marks + '\u0670') == 'ب'
    assert normalise('ب\u0653\u06d6') == 'ب\u0653\u06d6'  # other marks are not named, so they stay
    keep = corpus.normalizer(diacritics='keep').normalize_str
    assert keep('شيئاً هٰذا') == 'شيئاً هذا'
    assert corpus.normalizer(dagger_alef='keep').normalize_str('شيئاً هٰذا') == 'شيئا هٰذا'
    with pytest.raises(ValueError, match='diacritics'):
        corpus.normalizer(diacritics='none')


def test_folding_by_name():
    """linuxscout/pyarabic#39: alef folding leaves ى alone; each folding has a switch of its own."""
    text = 'على بغى مستشفى إلى أم آل مؤمن شيئا رحمة'
    assert corpus.normalizer().normalize_str(text) == text
    one = {'fold_alef': 'على بغى مستشفى الى ام ال مؤمن شيئا رحمة',
           'fold_maksura': 'علي بغي مستشفي إلي أم آل مؤمن شيئا رحمة',
           'fold_ta_marbuta': 'على بغى مستشفى إلى أم آل مؤمن شيئا رحمه',
           'fold_hamza': 'على بغى مستشفى إلى أم آل مومن شييا رحمة'}
    for name, right in one.items():
        assert corpus.normalizer(**{name: True}).normalize_str(text) == right, name


def test_invisible_characters(tok):
    """google/sentencepiece#1331: bidi controls, BOM, zero-width characters change no id. ZWNJ
    goes by the same rule, in training as later."""
    bare = tok.encode('قال الرجل').ids
    for c in INVISIBLE:
        assert tok.encode(f'قال {c}الرجل').ids == bare, hex(ord(c))
        assert tok.encode(f'{c}قال الر{c}جل{c}').ids == bare, hex(ord(c))


def test_presentation_forms_give_no_blank():
    """Isolated forms of marks: NFKC makes blank + mark of them and would cut the word."""
    keep = corpus.normalizer(diacritics='keep', dagger_alef='keep').normalize_str
    drop = corpus.normalizer().normalize_str
    for c in map(chr, (*range(0xFB50, 0xFE00), *range(0xFE70, 0xFF00))):
        form = unicodedata.normalize('NFKC', c)
        blanks = form.count(' ') if len(form) > 5 else 0  # U+FDFA and FDFB are whole phrases
        assert keep(f'كت{c}ب').count(' ') == blanks, hex(ord(c))
        assert 'ـ' not in keep(f'كت{c}ب')
        if form[0] in ' ـ' and len(form) > 1:
            assert keep(f'ب{c}') == 'ب' + form[1:]
            assert drop(f'ب{c}') == 'ب'
    assert keep('ﻻ ﷲ ﻛﺘﺎﺏ') == 'لا الله كتاب'


two = st.sampled_from(['drop', 'keep'])


@quick
@given(ODD, st.tuples(two, two, *[st.booleans()] * 4))
def test_a_second_pass_changes_nothing(x, choices):
    """Whatever is asked for; and no folded letter, no dropped mark is left."""
    normalise = corpus.normalizer(*choices).normalize_str
    once = normalise(x)
    assert normalise(once) == once
    gone = ['\u064b\u064e\u0651\u0652' * (choices[0] == 'drop'), '\u0670' * (choices[1] == 'drop')]
    gone += [letters * on for letters, on in zip(['أإآ', 'ى', 'ة', 'ؤئ'], choices[2:])]
    assert not set(once) & set(''.join(gone) + INVISIBLE)


def test_marks_that_would_join_at_a_second_pass():
    """A folded letter before a loose hamza, and two jamo with a haraka between them."""
    for choices, x, right in [(dict(fold_alef=True), 'أ\u0654\u0653ب', 'اب'), (dict(fold_hamza=True), 'ؤ\u0654', 'و'),
                              (dict(fold_maksura=True), 'ى\u0654', 'ي'), ({}, '\u1100\u064b\u1161', '가')]:
        normalise = corpus.normalizer(**choices).normalize_str
        assert normalise(x) == normalise(normalise(x)) == right


# -------------------------------------------------------------------------------- the tokenizers

def test_specials_come_first(kind):
    name, tok = kind
    assert [tok.id_to_token(i) for i in range(5)] == data.SPECIALS
    assert tok.get_vocab_size() <= 405
    if name == 'bpe':  # huggingface/course#775: all 256 bytes, though the text is of few letters
        assert set(tok.get_vocab()) >= set(pre_tokenizers.ByteLevel.alphabet()) and tok.get_vocab_size() == 405
    with pytest.raises(ValueError, match="tokenizer_kind='bert'"):
        corpus.build_tokenizer([], 10, 'bert')


@pytest.mark.parametrize('choices', [{}, dict(diacritics='keep', dagger_alef='keep'),
                                     dict(dagger_alef='keep', fold_maksura=True, fold_alef=True)], ids=str)
@quick
@given(ODD)
def test_bytes_give_the_text_back(choices, x):
    """huggingface/course#775: a BPE tokenizer gives back what it never saw, to the character, also
    with its normaliser set apart."""
    tok = trained('bpe', **choices)
    right = tok.normalizer.normalize_str(x)
    assert choices or tok.decode(tok.encode('ژ٣🙂').ids) == 'ژ٣🙂'
    (ids, *_), = encoded(corpus.Encoder(tok.to_str()), [right])
    assert tok.decode(ids[1:-1], skip_special_tokens=False) == right


@pytest.mark.parametrize('name', ['unigram', 'wordpiece'])
@quick
@given(ODD)
def test_text_comes_back_up_to_blanks_and_unknown(name, x):
    tok = trained(name, diacritics='keep', dagger_alef='keep')
    right = tok.normalizer.normalize_str(x)
    (ids, *_), = encoded(corpus.Encoder(tok.to_str()), [right])
    back, right = (re.sub(r'[\s▁]', '', t) for t in (tok.decode(ids[1:-1], skip_special_tokens=False), right))
    assert re.fullmatch('.*?'.join(map(re.escape, back.split('[UNK]'))), right, re.S), ascii((back, right))


@quick
@given(st.lists(st.one_of(st.sampled_from(VOCALISED + WORDS[:20]),  # letters first, then marks among them
                          st.tuples(st.sampled_from(POOLS[0]), st.text(st.sampled_from(POOLS[0] + POOLS[1]), max_size=9)
                                    ).map(''.join)), min_size=1, max_size=9))
def test_a_word_in_is_a_word_out(words):
    """Vocalised or bare, seen or not, of every kind."""
    for name in corpus.PRE_TOKENIZERS:
        encoder = corpus.Encoder(trained(name, diacritics='keep', dagger_alef='keep').to_str())
        text = encoder.normalise(' '.join(words))
        (_, starts, n), = encoded(encoder, [text])
        assert sum(starts) - 2 == n == len(words), name


def test_pieces_go_across_harakat(kind):
    """The pre-tokenizer does not cut at one: pieces are learnt that hold marks and letters."""
    pieces = [kind[1].decode([i]) for i in range(kind[1].get_vocab_size())]
    assert sum(bool(re.search('[ء-ي][\u064b-\u0652]|[\u064b-\u0652][ء-ي]', piece)) for piece in pieces) > 1


@pytest.mark.parametrize('run', ['ب', ' ', '\x85', '\u200f'], ids=ascii)
def test_a_run_without_end_trains(run, kind):
    """100,000 letters without a blank, or as many blanks: a trainer would work on it for minutes."""
    tok = corpus.build_tokenizer([*STORIES, f'كتب {run * 100_000}الرجل'] * 2, 400, kind[0])
    assert max(map(len, tok.get_vocab())) <= 2001  # of ' ' + 1,000 letters, two bytes each
    (ids, starts, _), = encoded(corpus.Encoder(tok.to_str()), [tok.normalizer.normalize_str(run * 100_000 + ' كتب')])
    assert len(ids) == len(starts) > 2


def test_mask_in_a_query(tok):
    """huggingface/transformers#12678: 'ذهب [MASK] الى' has around its mask the ids that training has
    around a masked word."""
    whole, before, after = (tok.encode(text).ids for text in ('ذهب كتب الى', 'ذهب', ' الى'))
    assert whole[:len(before)] == before and whole[-len(after):] == after
    assert tok.encode('ذهب [MASK] الى').ids == [*before, data.MASK, *after]
    assert tok.encode('(كتب [MASK]').ids == [*tok.encode('(كتب').ids, data.MASK]


def test_words():
    """Letters make a word; a number, a sign, a mark alone do not."""
    assert corpus.count_words('كتب (كَتَبَ)، 12 x-y ٣ َ — كـ') == 5
    assert corpus.count_words('') == corpus.count_words('12 ٣') == 0


# ----------------------------------------------------------------------------------- the encoder

def pre_token_starts(text):
    """Where words, numbers, punctuation and blanks begin, in bytes; written without a regex."""
    def kind(c):
        return 's' if c in WHITE else {'L': 'w', 'M': 'w', 'N': 'n'}.get(unicodedata.category(c)[0], 'o')
    starts, i = set(), 0
    while i < len(text):
        starts.add(len(text[:i].encode()))
        if text[i] == ' ' and i + 1 < len(text) and kind(text[i + 1]) != 's':
            i += 1
        k, j = kind(text[i]), i + 1
        while j < len(text) and kind(text[j]) == k:
            j += 1
        i = j - 1 if k == 's' and j < len(text) and j - i > 1 else j  # the last blank goes with the word
    return starts


@quick
@given(ODD)
def test_word_starts_against_reference(x):
    """huggingface/transformers#11768: words by a reference that knows no tokenizer."""
    encoder = corpus.Encoder(trained('bpe').to_str())
    body = ''.join(c for c in encoder.normalise(x) if unicodedata.category(c) != 'Cn')  # of a later Unicode
    (ids, starts, words), = encoded(encoder, [body])
    assert starts[0] and starts[-1] and len(ids) == len(starts)
    at, begin = 0, set()
    for i, start in zip(ids[1:-1], starts[1:-1]):
        if start:
            begin.add(at)
        at += len(encoder.tok.id_to_token(i))  # one character of a byte-level piece is one byte
    assert at == len(body.encode())
    assert begin == pre_token_starts(body), ascii(body)
    assert words == corpus.count_words(body)


def test_word_start_depends_on_context(tok):
    """The piece that starts a word after '(' continues one after a letter; the bytes of one
    letter share its bit; a vocalised word is one word."""
    found = encoded(corpus.Encoder(tok.to_str()), ['(ب', 'ژ🙂', 'كَتَبَ', '', 'ڤب'])
    paren, unseen, vocalised, empty, inside = (starts for _, starts, _ in found)
    assert all(paren) and unseen == [True, True, False, True, False, False, False, True]
    assert sum(vocalised) == sum(inside) == 3
    assert found[3][0] == [data.CLS, data.SEP] and empty == [True, True]


@pytest.mark.parametrize('cached', [corpus.CACHED, 3])
@pytest.mark.parametrize('name', corpus.PRE_TOKENIZERS)
@quick
@given(st.lists(ODD, max_size=4))
def test_the_cache_changes_nothing(name, cached, texts):
    """Chunk by chunk, remembered or forgotten again (more than `cached`): the ids and word starts
    of the whole text at once."""
    encoder = corpus.Encoder(trained(name, diacritics='keep', dagger_alef='keep').to_str())
    assert encoder.chunked
    texts = [encoder.normalise(t) for t in texts + texts[:1]]
    right = [plain(encoder.tok.to_str(), t) for t in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, 'CACHED', cached)
        for batch in (slice(0, 1), slice(1, None), slice(0, None)):
            assert [(ids, starts) for ids, starts, _ in encoded(encoder, texts[batch])] == right[batch]


@pytest.mark.parametrize('change', ['pre_tokenizer', 'none', 'added'])
@quick
@given(st.lists(ODD, min_size=1, max_size=3))
def test_foreign_tokenizers_get_whole_texts(change, texts):
    """What looks at the text before a chunk: GPT-2's own regex, no pre-tokenizer, a token with blanks in it."""
    tok = Tokenizer.from_str(trained('bpe').to_str())
    if change == 'added':
        tok.add_tokens(['كتب الرجل', 'ab'])
    else:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True) if change == 'pre_tokenizer' else None
    encoder = corpus.Encoder(tok.to_str())
    texts = [encoder.normalise(t) for t in [*texts, 'ذهب كتب الرجل ab الى']]
    assert not encoder.chunked
    assert [found[:2] for found in encoded(encoder, texts)] == [plain(encoder.tok.to_str(), t) for t in texts]


def test_literal_specials_are_text(kind):
    """tokenizers#1850: no special id in the body, the text comes back (blanks around it too). Truncation
    and padding that a file may carry from elsewhere do not matter."""
    name, tok = kind
    texts = ['اكتب [MASK] ثم </s> هنا', '[CLS][SEP]', 'كتب[PAD] [UNK]', '[MASK]', 'ا [MASK]   [SEP] ب', '［MASK］']
    other = Tokenizer.from_str(tok.to_str())
    other.enable_truncation(4)
    other.enable_padding(length=64)
    encoder = corpus.Encoder(other.to_str())
    right = [encoder.normalise(t) for t in texts]
    for text, (ids, *_) in zip(right, encoded(encoder, right)):
        assert (ids[0], ids[-1]) == (data.CLS, data.SEP)
        assert not {data.PAD, data.CLS, data.SEP, data.MASK} & set(ids[1:-1])
        assert name != 'bpe' or tok.decode(ids[1:-1], skip_special_tokens=False) == text and data.UNK not in ids


def test_wrong_tokenizers():
    for name, body, told in (('bad.json', Tokenizer(models.BPE(vocab={'a': 0}, merges=[])).to_str(), 'its ids 0 … 4'),
                             ('latin.json', '{"caf\udce9": 1}', 'not a tokenizer.json'),
                             ('a', '', 'not a tokenizer.json')):
        with pytest.raises(ValueError, match=f'^{name}: {told}'):
            corpus.Encoder(body, name)


# ----------------------------------------------------------------------------------- the readers

def write_parquet(path, **columns):
    pyarrow = pytest.importorskip('pyarrow')
    pytest.importorskip('pyarrow.parquet').write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def test_formats_give_the_same_text(tmp_path):
    """karpathy/nanoGPT#429: .txt, .jsonl, both packed, .parquet, with BOM and \\r\\n: the same documents.
    A .zst of two frames is read to its end."""
    zstd = pytest.importorskip(ZSTD)
    docs = [*STORIES[:40], 'سطر\u2028واحد', 'قَالَ\u0085و']  # no line ends here but \n
    lines = '\ufeff' + '\r\n'.join(docs) + '\r\n\r\n'
    rows = '\ufeff' + '\n\n'.join(json.dumps(dict(text=t)) for t in docs)
    pack = {'': bytes, '.gz': gzip.compress, '.zst': lambda b: zstd.compress(b[:999]) + zstd.compress(b[999:])}
    paths = [write_parquet(tmp_path / 'same.parquet', text=docs)]
    for ending, packed in pack.items():
        for name, body in (f'same.txt{ending}', lines), (f'same.jsonl{ending}', rows):
            paths.append(tmp_path / name)
            paths[-1].write_bytes(packed(body.encode()))
    for path in paths:
        assert list(corpus.read(path)) == [('same', '', t) for t in docs], path


def test_source_and_id(tmp_path):
    """Beside the text; an id's part before '#' is the parent."""
    rows = [dict(text='ا'), dict(text='ب', source='s', id='p#1'), dict(text='ج', source='', id=7),
            dict(text='د', id='#3')]
    assert list(corpus.read(write_jsonl(tmp_path / 'f.g.jsonl', rows))) == [
        ('f.g', '', 'ا'), ('s', 'p', 'ب'), ('f.g', '7', 'ج'), ('f.g', '', 'د')]
    path = write_parquet(tmp_path / 'p.parquet', text=STORIES[:20], source=['x', 'y'] * 10, id=list(range(20)))
    rows = list(corpus.read(path))
    assert rows[3] == ('y', '3', STORIES[3]) and len(rows) == 20
    with pytest.raises(ValueError, match='q.parquet: no column .text. .there are: body'):
        list(corpus.read(write_parquet(tmp_path / 'q.parquet', body=['a'])))
    (tmp_path / 'r.parquet').write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match='r.parquet: not a whole Parquet file'):
        list(corpus.read(tmp_path / 'r.parquet'))


def cut_zst(body):
    return pytest.importorskip(ZSTD).compress(body)[:-9]


WRONG = {  # what stands in the file of this name, and what the line must name
    'json': ('a.jsonl', b'{"text": "\xd9\x83"}\n{"text": ', ['a.jsonl:2', 'not JSON']),
    'array': ('a.jsonl', b'["text"]', ['a.jsonl:1', 'no object']),
    'deep': ('a.jsonl', b'[' * 200_000, ['a.jsonl:1', 'not JSON']),
    'no text': ('a.jsonl', b'{"text": "b"}\n\n{"body": "b"}', ['a.jsonl:3', "'text'", 'body']),
    'null': ('a.jsonl', b'{"text": null}', ['a.jsonl:1', "'text'"]),
    'source': ('a.jsonl', b'{"text": "b", "source": "x/y"}', ['a.jsonl:1', "'x/y'"]),
    'number': ('a.jsonl', b'{"text": "b", "source": 3}', ['a.jsonl:1', 'source 3']),
    'surrogate': ('a.jsonl', b'{"text": "b \\ud83d"}', ['a.jsonl:1', 'surrogate']),
    'cp1256': ('a.txt', 'كتب'.encode() + b'\n' + 'كتب'.encode('cp1256'), ['a.txt:2', '0xdf', 'iconv -f cp1256']),
    'utf-16': ('a.txt', 'كتب\nذهب'.encode('utf-16'), ['a.txt:1', 'UTF-8', 'iconv -f utf-16 -t utf-8']),
    'gzip': ('a.txt.gz', gzip.compress(STORIES[0].encode())[:-9], ['a.txt.gz', 'damaged']),
    'no gzip': ('a.txt.gz', STORIES[0].encode(), ['a.txt.gz', 'damaged after line 0']),
    'zst': ('a.txt.zst', cut_zst, ['a.txt.zst', 'damaged']),
    'no zst': ('a.txt.zst', STORIES[0].encode(), ['a.txt.zst', 'damaged after line 0']),
}


@pytest.mark.parametrize('name, body, told', WRONG.values(), ids=WRONG)
def test_wrong_input(name, body, told, tmp_path):
    """One line with the file, its line, and what to do."""
    (tmp_path / name).write_bytes(body('\n'.join(STORIES).encode()) if callable(body) else body)
    if name.endswith('zst'):
        pytest.importorskip(ZSTD)
    with pytest.raises(ValueError) as error:
        list(corpus.read(tmp_path / name))
    assert [part for part in told if part not in str(error.value)] == [] and '\n' not in str(error.value)


@pytest.mark.parametrize('module, name', [(ZSTD.split('.')[0], 'a.txt.zst'), ('pyarrow.parquet', 'a.parquet')])
def test_what_reads_a_format_may_be_missing(module, name, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b'')
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f'{name}.*pip install (backports.zstd|pyarrow)'):
        list(corpus.read(tmp_path / name))


def test_find(tmp_path, monkeypatch):
    """Sorted inside a glob, each file once, no folders; a name with brackets is itself."""
    monkeypatch.chdir(tmp_path)
    for name in ('b.txt', 'a.jsonl.gz', 'c[1].txt.zst', 'sub/d.parquet'):
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        pathlib.Path(name).touch()
    os.mkdir('e.txt')
    found = corpus.find(['b*', '*.*', 'c[1].txt.zst', './b.txt', '**/*.parquet'])
    assert [p.as_posix() for p in found] == ['b.txt', 'a.jsonl.gz', 'c[1].txt.zst', 'sub/d.parquet']
    with pytest.raises(FileNotFoundError, match="no file matches 'n[*]'"):
        corpus.find(['b.txt', 'n*'])
    pathlib.Path('a.pdf').touch()
    with pytest.raises(ValueError, match=r'^a.pdf: not a kind that is read; make it .jsonl'):
        corpus.find(['*'])


@pytest.mark.parametrize('body', ['', 'ا', 'كتب ذهب', 'كتب\nذهب قال', 'ا' * 9, '  ' * 5])
def test_cut(body):
    """Down to a character at a time: no piece too long, none lost, an end in any case."""
    for n in (0, 1, 4, 7, 100):
        pieces = list(corpus.cut(body, n / 5e5))
        assert ''.join(pieces) == body and max(map(len, pieces)) <= max(n, 1) and all(pieces) >= bool(body)

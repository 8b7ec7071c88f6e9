"""The shards of a corpus: all of it, each document once, the same by any way; and what users get wrong."""
import fcntl
import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import refused
from test_corpus import STORIES, encoded, write_jsonl
from tokenizers import Tokenizer

import configurator
import corpus
import data
import prepare

REPO = configurator.REPO


def run(out, *text, **given):
    """prepare.prepare() with defaults for a small corpus → its report."""
    s = configurator.load(vars(prepare), [], paths=('text', 'out_dir', 'tokenizer'))
    s.update(dict(out_dir=str(out), text=[str(t) for t in text], vocab_size=400, heldout=0.0, workers=1) | given)
    return prepare.prepare(s)


def documents(out, split):
    """[(source, ids, word starts) of a document] over all shards of a split."""
    return [(shard.info['source'], shard.ids[a:b].tolist(), shard.starts(a, b).tolist())
            for shard in map(data.Shard, sorted((out / split).glob('*.bin')))
            for a, b in zip(shard.offsets[:-1], shard.offsets[1:])]


def texts_of(out, split):
    tok = Tokenizer.from_file(str(out / 'tokenizer.json'))
    return [tok.decode(ids[1:-1], skip_special_tokens=False) for _, ids, _ in documents(out, split)]


def files_of(out):
    """{name: content} of all that training reads."""
    assert not (out / 'unfinished').exists()
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob('*.*')) if p.name != 'report.json'}


@pytest.fixture(scope='module')
def tok_json(tmp_path_factory):
    path = tmp_path_factory.mktemp('tok') / 'tok.json'
    corpus.build_tokenizer(STORIES, 400).save(str(path))
    return str(path)


# --------------------------------------------------------------------------- what is in the shards

def check_report(out, report):
    """Every number of the report, counted again from the shards."""
    tok = Tokenizer.from_file(str(out / 'tokenizer.json'))
    for source, of in report['sources'].items():
        kept = [of[split]['documents'] for split in ('train', 'heldout') if split in of]
        assert of['read'] + of['cut'] == of['empty'] + of['copies'] + sum(kept)
        for split in set(of) & {'train', 'heldout'}:
            n, found = of[split], [ids for name, ids, _ in documents(out, split) if name == source]
            bodies = [tok.decode(ids[1:-1], skip_special_tokens=False) for ids in found]
            assert n['documents'] == len(found) and n['tokens'] == sum(map(len, found))
            assert n['chars'] == sum(map(len, bodies)) and n['bytes'] == sum(len(b.encode()) for b in bodies)
            assert n['words'] == sum(map(corpus.count_words, bodies))
            assert n['unknown'] == sum(ids.count(data.UNK) for ids in found)
            inside = n['tokens'] - 2 * len(found)
            assert n['tokens_per_word'] == inside / n['words'] and n['unknown_rate'] == n['unknown'] / inside
            shards = [s for s in data.open_sources(out, split)[source].shards]
            assert n['shards'] == len(shards)
            for name in ('words', 'chars', 'bytes', 'unknown', 'tokens', 'documents'):
                assert n[name] == sum(s.info[name] for s in shards), name


def test_shards_hold_every_document(tmp_path):
    """trl#4554: every document, none cut, none twice, over several shards, shuffled; its word bits;
    everything counted."""
    out, stories = tmp_path / 'out', sorted(set(STORIES))
    a = write_jsonl(tmp_path / 'a.jsonl', stories)
    b = write_jsonl(tmp_path / 'b.jsonl', [dict(text=f'{t} {i}', source='ab'[i % 2]) for i, t in enumerate(stories)])
    report = run(out, a, b, heldout=0.2, shard_tokens=500)
    encoder = corpus.Encoder((out / 'tokenizer.json').read_text('utf-8'))
    texts = {split: texts_of(out, split) for split in ('train', 'heldout')}
    assert len(list((out / 'train').glob('a_*.bin'))) > 2
    assert sorted(sum(texts.values(), [])) == sorted(stories + [f'{t} {i}' for i, t in enumerate(stories)])
    order = [stories.index(t) for t in texts['train'] if t in stories]
    assert order != sorted(order)
    for split, bodies in texts.items():
        of = ['a' if text in stories else 'ab'[int(text.split()[-1]) % 2] for text in bodies]
        assert documents(out, split) == [(o, i, s) for o, (i, s, _) in zip(of, encoded(encoder, bodies))]
    for shard in map(data.Shard, out.rglob('a_0000[01].bin')):  # the last document alone may go over
        assert shard.n_tokens >= 500 > shard.offsets[-2] or shard.path.parent.name == 'heldout'
    check_report(out, report)
    assert report['sources']['a']['read'] == len(stories) + (len(stories) + 1) // 2
    data.tokenizer_json(out, data.open_sources(out, 'train'))  # the hash in the shards is that of the file
    assert report == json.loads((out / 'report.json').read_text('utf-8'))
    assert sorted(p.name for p in out.iterdir()) == ['heldout', 'report.json', 'tokenizer.json', 'train']


@pytest.mark.parametrize('kind', ['unigram', 'wordpiece'])
def test_unknown_tokens_are_counted(kind, tmp_path):
    odd = 'كتب 🙂 ژ 🙂'
    a = write_jsonl(tmp_path / 'a.jsonl', [*STORIES, dict(text=odd, source='x')])
    report = run(tmp_path / 'out', a, tokenizer_kind=kind, heldout_sources=['x'])  # so never learnt
    n = report['sources']['x']['heldout']
    (_, ids, _), = documents(tmp_path / 'out', 'heldout')
    assert n['unknown'] == ids.count(data.UNK) == 3 and n['unknown_rate'] == 3 / (len(ids) - 2)
    assert n['words'] == 2 and n['chars'] == len(odd) and n['bytes'] == len(odd.encode())


def test_heldout_split(tmp_path):
    """One side for one parent, and for exact copies; the cut and the tokenizer are the same with
    the files in another order, and with another seed. Held-out text does not train the tokenizer."""
    rows = [dict(text=f'{STORIES[i]} {i}', id=f'parent{i // 4}#{i % 4}') for i in range(120)]
    a = write_jsonl(tmp_path / 'a.jsonl', rows)
    b = write_jsonl(tmp_path / 'b.jsonl', STORIES[:60])
    c = write_jsonl(tmp_path / 'c.jsonl', ['\u200f' + t for t in STORIES[:60]])  # copies, once normalised
    d = write_jsonl(tmp_path / 'd.jsonl', [dict(text='zqxj ' * 50, source='strange')] * 5)
    kw = dict(heldout=0.3, heldout_sources=['strange'], dedupe=False)
    report = run(tmp_path / 'one', a, b, c, d, **kw)
    run(tmp_path / 'two', d, c, b, a, **kw | dict(seed=5))
    train, held = (texts_of(tmp_path / 'one', split) for split in ('train', 'heldout'))
    assert len(train) + len(held) == 245 and not set(train) & set(held)
    sides = [{row['text'] in held for row in rows[i:i + 4]} for i in range(0, 120, 4)]  # of each parent's parts
    assert {True} in sides and {False} in sides and {True, False} not in sides
    assert 0.15 < (len(held) - 5) / 240 < 0.45 and 'train' not in report['sources']['strange']
    assert sorted(train) == sorted(texts_of(tmp_path / 'two', 'train')) and train != texts_of(tmp_path / 'two', 'train')
    assert (tmp_path / 'one/tokenizer.json').read_bytes() == (tmp_path / 'two/tokenizer.json').read_bytes()
    pieces = Tokenizer.from_file(str(tmp_path / 'one/tokenizer.json')).get_vocab()
    assert not any('z' in piece for piece in pieces if len(piece) > 1)
    with pytest.raises(ValueError, match='strang.*the sources are a, b, c, strange'):
        run(tmp_path / 'other', a, b, c, d, heldout_sources=['strang'])
    assert not (tmp_path / 'other').exists()


def test_copies(tmp_path):
    """Of documents equal once normalised the first file's stays, whatever the sources and sides."""
    rows = [dict(text=t, id=f'p{i}') for i, t in enumerate(sorted(set(STORIES)))]
    a = write_jsonl(tmp_path / 'a.jsonl', rows + rows[:9])
    again = [dict(text=f'\u200f{r["text"]}\u064e ', id=f'q{i}') for i, r in enumerate(rows)]
    b = write_jsonl(tmp_path / 'b.jsonl', again)
    c = write_jsonl(tmp_path / 'c.jsonl', [dict(text=r['text'], source='x') for r in rows] + ['واحد'])
    report = run(tmp_path / 'out', a, b, c, heldout=0.5)
    found = texts_of(tmp_path / 'out', 'train') + texts_of(tmp_path / 'out', 'heldout')
    assert sorted(found) == sorted([r['text'] for r in rows] + ['واحد'])
    assert {s: n['copies'] for s, n in report['sources'].items()} == dict(a=9, b=len(rows), c=0, x=len(rows))
    check_report(tmp_path / 'out', report)
    kept = run(tmp_path / 'all', a, b, c, heldout=0.5, dedupe=False)
    assert sum(n['copies'] for n in kept['sources'].values()) == 0
    assert len(texts_of(tmp_path / 'all', 'train') + texts_of(tmp_path / 'all', 'heldout')) == 3 * len(rows) + 10


def test_first_of_each():
    """Some documents at a time, against a dictionary."""
    rng, seen = np.random.default_rng(1), {}
    pool = np.concatenate([rng.integers(0, 2 ** 64, 60, np.uint64), np.uint64([0, 1, 2 ** 63, 2 ** 64 - 1])])
    keys = [rng.choice(pool, n) for n in (0, 100, 1, 70, 0)]
    right = [[seen.setdefault(int(k), (f, i)) == (f, i) for i, k in enumerate(of)] for f, of in enumerate(keys)]
    for n in (8, 1, 1 << 22):
        assert [k.tolist() for k in prepare.first_of_each(keys, n)] == right


def test_long_documents_are_cut(tmp_path, monkeypatch):
    """At blanks; nothing is lost; the pieces of a text are on one side, and train no tokenizer from the other."""
    rng, trained = random.Random(1), []
    words = iter(range(10 ** 6))
    texts = [' '.join(f'كتب{next(words):06}' for _ in range(rng.randrange(1, 80))) for _ in range(60)]
    a = write_jsonl(tmp_path / 'a.jsonl', [*texts, 'س' * 450])
    build = corpus.build_tokenizer
    monkeypatch.setattr(corpus, 'build_tokenizer',
                        lambda texts, *a, **kw: trained.extend(' '.join(texts).split()) or build(texts, *a, **kw))
    report = run(tmp_path / 'out', a, longest_mb=0.0004, heldout=0.5)  # 200 characters
    pieces = {split: texts_of(tmp_path / 'out', split) for split in ('train', 'heldout')}
    assert max(map(len, sum(pieces.values(), []))) == 200
    words = {split: sorted(w for p in of for w in p.split() if w[0] == 'ك') for split, of in pieces.items()}
    assert sorted(words['train'] + words['heldout']) == ' '.join(texts).split()
    for text in texts:
        assert len({w in words['train'] for w in text.split()}) == 1
    assert set(words['train']) <= set(trained) and set(words['heldout']).isdisjoint(trained)
    n = report['sources']['a']
    assert n['copies'] == 1 and n['read'] == 61 and n['cut'] > 60  # 'س' twice 200, and 50
    check_report(tmp_path / 'out', report)


def test_sample_is_bounded_and_even():
    """The tokenizer's sample: up to its size, from all over, whatever the order."""
    s = vars(prepare) | dict(sample_mb=0.01, heldout=0.0)
    docs = [(f's{i % 2}', '', f'{i:05d}' * 20) for i in range(1000)]
    kept = prepare.sample(docs, s)
    assert 9_000 < sum(2 * len(t) for t in kept) <= 10_000
    assert kept == prepare.sample(docs[::-1], s)
    numbers = [int(t[:5]) for t in kept]
    assert min(numbers) < 300 and max(numbers) > 700 and 10 < sum(n % 2 for n in numbers) < 40


def test_a_given_tokenizer(tok_json, tmp_path):
    """tokenizers#1850: kept to the byte; literal specials in a text are text."""
    texts = ['اكتب [MASK] ثم </s> هنا', '[CLS][SEP]', 'كتب[PAD] [UNK]', '[MASK]']
    report = run(tmp_path / 'out', write_jsonl(tmp_path / 'a.jsonl', texts + STORIES[:10]), tokenizer=tok_json)
    for _, ids, _ in documents(tmp_path / 'out', 'train'):
        assert ids[0] == data.CLS and ids[-1] == data.SEP and min(ids[1:-1]) >= len(data.SPECIALS)
    assert sorted(texts_of(tmp_path / 'out', 'train')) == sorted(texts + STORIES[:10])
    assert (tmp_path / 'out/tokenizer.json').read_bytes() == pathlib.Path(tok_json).read_bytes()
    assert report['obtained'] == Tokenizer.from_file(tok_json).get_vocab_size()


def test_tiny_corpus(tmp_path):
    """ru-gpts#15: one short document is prepared, empty ones are counted; whoever asks for the empty held-out
    slice is told so. huggingface/course#775: fewer pieces than asked for are said, not padded."""
    (tmp_path / 'a.jsonl').write_text('{"text": "كتب كتب"}\n{"text": ""}\n{"text": " \\u200f\\u064b "}\n', 'utf-8')
    report = run(tmp_path / 'out', tmp_path / 'a.jsonl', heldout=0.01, vocab_size=5000)
    assert report['sources']['a']['train']['documents'] == 1 and report['sources']['a']['empty'] == 2
    with pytest.raises(FileNotFoundError, match='heldout'):
        data.open_sources(tmp_path / 'out', 'heldout')
    assert report['asked'] == 5005 and 261 <= report['obtained'] < 300
    assert Tokenizer.from_file(str(tmp_path / 'out/tokenizer.json')).get_vocab_size() == report['obtained']


# ------------------------------------------------------------------- by any way the same, and again

@pytest.fixture(scope='module')
def big(tmp_path_factory):
    """Eight files that take a while, since no word comes twice, and what a straight run makes of them."""
    root, rng = tmp_path_factory.mktemp('big'), random.Random(2)
    for i in range(8):
        rows = [''.join(rng.choices('ابتثجحخدذرزسشصضطظعغفقكلم    ', k=300)) for _ in range(100 + 30 * i)]
        write_jsonl(root / f'{i}.jsonl', rows + [STORIES[i]] * 3)
    flags = dict(heldout=0.1, sample_mb=1, shard_tokens=40_000, shuffle_mb=0.05)
    run(root / 'straight', root / '*.jsonl', **flags)
    return root / '*.jsonl', flags, files_of(root / 'straight')


@pytest.mark.parametrize('workers', [2, 4])
def test_any_number_of_workers(big, workers, tmp_path):
    text, flags, right = big
    run(tmp_path / 'out', text, workers=workers, **flags)
    assert files_of(tmp_path / 'out') == right and len(right) > 30


def start(out, text, flags):
    argv = [f'--{k}={v}' for k, v in dict(flags, text=text, out_dir=out, workers=2, vocab_size=400).items()]
    return subprocess.Popen([sys.executable, str(REPO / 'prepare.py'), *argv], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def workers_of(process):
    """Its children that live, but for the one that multiprocessing keeps for itself."""
    children = pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
    return [int(c) for c in children if b'spawn_main' in pathlib.Path(f'/proc/{c}/cmdline').read_bytes()]


def alive(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.005)


@pytest.mark.parametrize('whom', ['the whole', 'a worker'])
def test_killed_and_started_again(whom, big, tmp_path):
    """Files that were done are not done again, and the end is that of a straight run, to the byte. A parent
    takes its workers with it; the death of a worker is told in one line."""
    text, flags, right = big
    out = tmp_path / 'out'
    with start(out, text, flags) as process:
        wait_until(lambda: process.poll() is not None or any(out.glob('unfinished/part_*.json')))
        workers = workers_of(process)
        os.kill(process.pid if whom == 'the whole' else workers[0], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    wait_until(lambda: not any(map(alive, workers)), 10)
    assert len(workers) == 2 and not (out / 'report.json').exists()
    if whom == 'a worker':
        assert process.returncode == 2 and 'a worker was killed' in err and err.count('\n') == 1
    done = {p: p.stat().st_mtime_ns for p in out.glob('unfinished/*_*.json')}
    assert 2 <= len(done) < 9
    with start(out, text, flags) as process:
        wait_until(lambda: process.poll() is not None or workers_of(process))
        assert {p: p.stat().st_mtime_ns for p in done} == done
        told, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f'goes on; {len(done) - 1} of 8 files are encoded already' in told and 'training' not in told
    assert files_of(out) == right


def test_stopped_among_the_moves(tmp_path, monkeypatch):
    """Neither taken for a whole run nor for somebody else's work."""
    a = write_jsonl(tmp_path / 'a.jsonl', STORIES)
    out, replace, rmtree, kw = tmp_path / 'out', os.replace, shutil.rmtree, dict(heldout=0.2)
    run(tmp_path / 'straight', a, **kw)
    def stopping(at):
        def act(*a, **kw):
            if at in map(str, a) or at == 'rmtree' and (out / 'report.json').exists():
                raise KeyboardInterrupt
            (rmtree if at == 'rmtree' else replace)(*a, **kw)
        return act
    for name in ('heldout', 'tokenizer.json', 'report.json'):
        monkeypatch.setattr(os, 'replace', stopping(str(out / name)))
        with pytest.raises(KeyboardInterrupt):
            run(out, a, **kw)
        assert (out / 'train').exists() and not (out / 'report.json').exists()
        with pytest.raises(ValueError, match='not the whole of a run'):
            run(out, a, **kw, seed=3)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, 'rmtree', stopping('rmtree'))
    with pytest.raises(KeyboardInterrupt):
        run(out, a, **kw)
    monkeypatch.undo()
    with pytest.raises(ValueError, match='other seed'):  # whole by now, whatever still stands beside it
        run(out, a, **kw, seed=3)
    assert run(out, a, **kw) is None
    assert files_of(out) == files_of(tmp_path / 'straight')


def test_a_bad_line_costs_one_file(tok_json, tmp_path, monkeypatch):
    files = [write_jsonl(tmp_path / f'{i}.jsonl', STORIES[30 * i:30 * i + 30 - 9 * (i == 2)]) for i in range(4)]
    run(tmp_path / 'straight', *files, tokenizer=tok_json)
    whole = files[2].read_bytes()
    files[2].write_bytes(whole + b'{"tex')
    with pytest.raises(ValueError, match='2.jsonl:22: not JSON'):
        run(tmp_path / 'out', *files, tokenizer=tok_json)  # the largest file first, this one last
    files[2].write_bytes(whole)
    encode, encoded_now = prepare.encode_file, []
    monkeypatch.setattr(prepare, 'encode_file', lambda path, *more: encoded_now.append(path) or encode(path, *more))
    run(tmp_path / 'out', *files, tokenizer=tok_json)
    assert encoded_now == [files[2]]
    assert files_of(tmp_path / 'out') == files_of(tmp_path / 'straight')


def test_again(tmp_path):
    """The same run twice is quick and harmless; another run never replaces it."""
    a, out = write_jsonl(tmp_path / 'a.jsonl', STORIES[:30]), tmp_path / 'out'
    run(out, a)
    before = {p: p.stat().st_mtime_ns for p in out.rglob('*')}
    assert run(out, a) is None and run(out, a, workers=3) is None
    for body in ('{"inputs": ', 'null', '[]', '{"settings": 1}', '{}', 'كتب'):
        old = (out / 'report.json').read_bytes()
        (out / 'report.json').write_text(body, 'utf-8')
        with pytest.raises(ValueError, match='report.json: damaged'):
            run(out, a)
        (out / 'report.json').write_bytes(old)
    with pytest.raises(ValueError, match='other fold_alef'):
        run(out, a, fold_alef=True)
    write_jsonl(a, STORIES[:31])
    with pytest.raises(ValueError, match='other files'):
        run(out, a)
    (out / 'report.json').unlink()
    with pytest.raises(ValueError, match='holds tokenizer.json, train, not the whole of a run'):
        run(out, a)
    assert all(p.stat().st_mtime_ns == t for p, t in before.items() if p.suffix in ('.bin', '.json') and p.exists()
               and p.name != 'report.json')


def test_too_much_for_the_machine(tok_json, tmp_path, monkeypatch):
    """Sources beyond what can be told apart or kept open, and a full disk: one line, with a remedy."""
    a = write_jsonl(tmp_path / 'a.jsonl', [dict(text='ا', source=f'ب{i}') for i in range(65_537)])
    with pytest.raises(ValueError, match='a.jsonl: more than 65,536 sources'):
        run(tmp_path / 'out', a, tokenizer=tok_json, dedupe=False)
    b = write_jsonl(tmp_path / 'b.jsonl', [dict(text=t, source=f'ب{i}') for i, t in enumerate(STORIES[:30])])
    monkeypatch.setattr(prepare.resource, 'getrlimit', lambda what: (100, 120))
    with pytest.raises(ValueError, match='30 sources take up to 124 open files, 120 are allowed'):
        run(tmp_path / 'out', b, tokenizer=tok_json)
    monkeypatch.undo()
    monkeypatch.setattr(prepare, 'join', lambda *a: open('/dev/full', 'w').write('x' * 9999))
    with pytest.raises(OSError, match='out: No space left on device; make room, the same command goes on'):
        run(tmp_path / 'out', b, tokenizer=tok_json)
    monkeypatch.undo()
    assert len(run(tmp_path / 'out', b, tokenizer=tok_json)['sources']) == 30


def test_two_at_once(tmp_path):
    a = write_jsonl(tmp_path / 'a.jsonl', STORIES)
    (tmp_path / 'out/unfinished').mkdir(parents=True)
    with open(tmp_path / 'out/unfinished/lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match='another prepare.py is writing here'):
            run(tmp_path / 'out', a)
    assert run(tmp_path / 'out', a)


# ------------------------------------------------------------------------------- what users get wrong

WRONG = {  # what stands in the file of this name, and what the line must name
    'json': ('a.jsonl', b'{"text": "\xd9\x83"}\n{"text": ', ['a.jsonl:2', 'not JSON']),
    'gzip': ('a.txt.gz', gzip.compress(STORIES[0].encode())[:-9], ['a.txt.gz', 'damaged']),
    'empty': ('a.txt', b'', ['a.txt', 'nothing to train on']),
    'blank': ('a.txt', b' \n\xe2\x80\x8f\n', ['a.txt', 'nothing to train on']),
    'kind': ('a.pdf', b'%PDF', ['a.pdf', '.jsonl']),
}


@pytest.mark.parametrize('kind', ['bpe', 'unigram', 'wordpiece'])
@pytest.mark.parametrize('name, body, told', WRONG.values(), ids=WRONG)
def test_wrong_input(name, body, told, kind, tmp_path, monkeypatch, capsys):
    """One line, exit code 2, nothing left behind. (empty: ru-gpts#15)"""
    (tmp_path / name).write_bytes(body)
    line = refused('prepare.py', monkeypatch, capsys, f'--text={tmp_path / name}', f'--out_dir={tmp_path}/out',
                   '--vocab_size=300', f'--tokenizer_kind={kind}')
    assert [part for part in told if part not in line] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize('flags, told', [
    ([], ['nothing to read']), (['--text=b.jsonl'], ['no file matches', 'b.jsonl']), (['--vocab=3'], ['vocab_size']),
    (['--tokenizer=no.json'], ['no.json']), (['--tokenizer=a.txt'], ['a.txt', 'not a tokenizer.json']),
    (['--tokenizer=no.json', '--fold_alef'], ['fold_alef']), (['--tokenizer_kind=bert'], ["'bert'", 'unigram']),
    (['--tokenizer=no.json', '--tokenizer_kind=bpe'], ['tokenizer_kind']), (['--diacritics=no'], ["diacritics='no'"]),
    (['--vocab_size=255'], ['256 bytes']), (['--heldout=1.0'], ['heldout=1.0']), (['--heldout=-0.1'], ['heldout=-0.1']),
    (['--workers=-1'], ['workers=-1']),
    *([[f'--{name}={value}'], [f'{name}={value}', 'above 0']] for name in prepare.ABOVE_0 for value in (0, -1))])
def test_wrong_settings(flags, told, tmp_path, monkeypatch, capsys):
    (tmp_path / 'a.txt').write_text(STORIES[0], 'utf-8')
    monkeypatch.chdir(tmp_path)
    line = refused('prepare.py', monkeypatch, capsys, *(['--text=*.txt'] if flags else []), '--out_dir=out', *flags)
    assert [part for part in told if part not in line] == []
    assert not (tmp_path / 'out').exists()


def test_c_locale(tmp_path):
    """nanoGPT#429: under LC_ALL=C without UTF-8 mode, Arabic text, file and source names: the same
    tokenizer and ids. A quoted glob and a comma on the command line. Names too long for a file system."""
    (tmp_path / 'أخبار.txt').write_bytes(('\ufeff' + '\n'.join(STORIES[:40])).encode())
    names = ['أخبار ٢', 'أخبار ٣', 'b.c', '.d', 'س' * 300, 'x' * 300, 'x' * 301]
    rows = [dict(text=f'{t} {i}', source=names[i % 7]) for i, t in enumerate(STORIES[40:])]
    b = write_jsonl(tmp_path / 'b.jsonl', rows)
    run(tmp_path / 'here', tmp_path / 'أخبار.txt', b, heldout=0.1)
    env = {**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'PYTHONIOENCODING': ''}
    argv = ['--text=*.txt,b.jsonl', '--out_dir=there', '--vocab_size=400', '--heldout=0.1', '--workers=2']
    done = subprocess.run([sys.executable, str(REPO / 'prepare.py'), *argv], cwd=tmp_path, env=env,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / 'here') == files_of(tmp_path / 'there')
    report = json.loads((tmp_path / 'there/report.json').read_text('utf-8'))
    assert set(report['sources']) == set(data.open_sources(tmp_path / 'there', 'train')) == {'أخبار', *names}
    assert all(p.name.isascii() for p in (tmp_path / 'there/train').iterdir())

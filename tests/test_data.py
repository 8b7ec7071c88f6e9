"""Shards, mixtures, rows and masks."""
import hashlib
import json
import struct
import threading

import numpy as np
import pytest

import data
import plan

HASH = hashlib.sha256(b'{}').hexdigest()


def write(folder, source, docs, vocab_size=1000, split='train', number=0, starts=None):
    """docs: lists of ids, written as they are; every token its own word unless told."""
    writer = data.ShardWriter(folder / split / f'{source}_{number:05d}.bin', vocab_size, HASH, source, split)
    for i, d in enumerate(docs):
        writer.add(np.array(d), np.ones(len(d), bool) if starts is None else starts[i])
    writer.close()
    return writer.path


def documents(n, seed=0, longest=30, vocab_size=1000):
    """[CLS] … [SEP] with numbered pieces, of lengths 3 … longest."""
    rng = np.random.default_rng(seed)
    return [[data.CLS, *rng.integers(5, vocab_size, rng.integers(1, longest - 1)), data.SEP] for _ in range(n)]


def test_round_trip(tmp_path):
    docs = documents(50)
    starts = [np.random.default_rng(i).random(len(d)) < 0.5 for i, d in enumerate(docs)]
    shard = data.Shard(write(tmp_path, 'a', docs, starts=starts))
    text, bits = np.concatenate(docs), np.concatenate(starts)
    assert np.array_equal(shard.ids, text) and shard.ids.dtype == np.uint16
    assert np.array_equal(shard.offsets, np.cumsum([0] + [len(d) for d in docs]))
    for a, b in ((0, len(text)), (3, 4), (7, 8), (8, 16), (5, 100), (len(text) - 1, len(text))):
        assert np.array_equal(shard.starts(a, b), bits[a:b])
    assert shard.info['tokens'] == len(text) and shard.info['documents'] == 50
    body = shard.path.read_bytes()[data.BODY:]
    assert shard.info['sha256'] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize('vocab_size, kind', [(65_536, np.uint16), (65_537, np.uint32), (70_000, np.uint32)])
def test_ids_beyond_uint16(tmp_path, vocab_size, kind):
    """transformers#2825: the type follows the vocabulary; an id outside is refused, never wrapped."""
    ids = [0, 65_535] + ([65_536, vocab_size - 1] if vocab_size > 65_536 else [])
    shard = data.Shard(write(tmp_path, 'a', [ids], vocab_size))
    assert shard.ids.dtype == kind and shard.ids.tolist() == ids
    with pytest.raises(ValueError, match='outside the vocabulary'):
        write(tmp_path, 'b', [[vocab_size]], vocab_size)


def test_damaged_shards_are_refused(tmp_path):
    path = write(tmp_path, 'a', documents(20))
    good = path.read_bytes()
    n = data.Shard(path).n_tokens
    header = list(data.HEADER.unpack(good[:data.HEADER.size]))

    def changed(i, value):
        return data.HEADER.pack(*[value if k == i else v for k, v in enumerate(header)]) + good[data.HEADER.size:]
    for broken, told in ((b'', 'no magic'), (b'x' * 500, 'no magic'), (good[:-1], 'bytes where its header'),
                         (good + b'\0', 'bytes where its header'), (changed(1, 2), 'version 2'),
                         (changed(2, 4), 'bytes where its header'), (changed(2, 3), 'with 3 bytes'),
                         (changed(4, n - 1), 'bytes where its header|do not rise')):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=told):
            data.Shard(path)
    at = data.BODY + 2 * n + -2 * n % 8  # the offsets
    path.write_bytes(good[:at + 8 * 20] + struct.pack('<q', n + 5) + good[at + 8 * 21:])
    with pytest.raises(ValueError, match='do not rise from 0'):
        data.Shard(path)
    path.write_bytes(good[:at + 8 * 3] + good[at + 8 * 2:at + 8 * 3] + good[at + 8 * 4:])  # an empty document inside
    with pytest.raises(ValueError, match='do not rise from 0'):
        data.Shard(path)
    path.write_bytes(good[:data.BODY + 8] + b'\xff\xff' + good[data.BODY + 10:])  # one bad id
    with pytest.raises(ValueError, match='token 0 … .* damaged'):
        data.open_sources(tmp_path, 'train')['a'].read(0, 30)
    with pytest.raises(ValueError, match='token 0 … .* damaged'):
        list(data.open_sources(tmp_path, 'train')['a'].pieces(30))
    path.write_bytes(good[:data.BODY + 8] + bytes([good[data.BODY + 8] ^ 1]) + good[data.BODY + 9:])  # one bit
    data.open_sources(tmp_path, 'train')
    with pytest.raises(ValueError, match='a_00000.bin: its checksum'):
        data.open_sources(tmp_path, 'train', verify=True)
    path.write_bytes(good)
    data.open_sources(tmp_path, 'train', verify=True)
    sidecar = path.with_suffix('.json')
    info = json.loads(sidecar.read_text())
    for broken, told in (('{', 'a_00000.json: damaged'), (json.dumps(info | {'tokens': 1}), 'does not describe'),
                         (json.dumps({'tokens': n}), 'damaged'), ('[]', 'damaged'), (json.dumps(info | {'source': 3}), 'describe')):
        sidecar.write_text(broken)
        with pytest.raises(ValueError, match=told):
            data.Shard(path)
    sidecar.unlink()
    with pytest.raises(ValueError, match='sidecar'):
        data.Shard(path)


def test_missing_empty_and_foreign_shards(tmp_path):
    with pytest.raises(FileNotFoundError, match='wikipedia, shamela are missing; make them with: python prepare.py'):
        data.open_sources(tmp_path, 'train', ['wikipedia', 'shamela'])
    write(tmp_path, 'a', documents(3))
    with pytest.raises(FileNotFoundError, match=r'shards of wikipedia are missing \(there are a\)'):
        data.open_sources(tmp_path, 'train', ['a', 'wikipedia'])
    write(tmp_path, 'b', documents(3), vocab_size=2000)
    with pytest.raises(ValueError, match='another tokenizer'):
        data.open_sources(tmp_path, 'train')
    write(tmp_path, 'b', [])
    with pytest.raises(ValueError, match='an empty shard'):
        data.open_sources(tmp_path, 'train')


def test_a_missing_shard_of_several(tmp_path):
    for number in range(3):
        write(tmp_path, 'a', documents(3), number=number)
    (tmp_path / 'report.json').write_text(json.dumps(dict(sources=dict(a=dict(train=dict(shards=3))))))
    assert len(data.open_sources(tmp_path, 'train')['a'].shards) == 3
    (tmp_path / 'train/a_00002.bin').unlink()
    with pytest.raises(FileNotFoundError, match='2 of the 3 shards of a'):
        data.open_sources(tmp_path, 'train')
    (tmp_path / 'report.json').write_text('{')
    with pytest.raises(ValueError, match='report.json: damaged'):
        data.open_sources(tmp_path, 'train')


def test_a_half_written_shard_has_no_name(tmp_path):
    writer = data.ShardWriter(tmp_path / 'train' / 'a_00000.bin', 100, HASH, 'a', 'train')
    writer.add([2, 7, 3], [True] * 3)
    assert not list(tmp_path.glob('*/*.bin'))


def test_source_is_one_sequence_over_shards_that_wraps(tmp_path):
    docs = [documents(9, seed) for seed in range(3)]
    for i, d in enumerate(docs):
        write(tmp_path, 'a', d, number=i)
    source = data.open_sources(tmp_path, 'train')['a']
    text = np.concatenate(sum(docs, []))
    begins = set(np.cumsum([0] + [len(d) for d in sum(docs, [])])[:-1].tolist())
    N = len(text)
    assert source.n_tokens == N and source.n_docs == 27
    for at, n in ((0, N), (0, 5), (N - 3, 10), (100, 64), (N - 1, N + 7), (N + 4, 2 * N + 1), (17, 1)):
        ids, starts, bounds = source.read(at, n)
        where = np.arange(at, at + n) % N
        assert np.array_equal(ids, text[where]) and len(starts) == n
        assert bounds.tolist() == [i for i in range(1, n) if where[i] in begins]


def test_shuffled_is_a_permutation():
    for n in (1, 2, 3, 16, 17, 1000, 4097):
        orders = [[data.shuffled(i, n, data.keys(seed)) for i in range(n)] for seed in (0, 1)]
        assert all(sorted(o) == list(range(n)) for o in orders)
        assert n < 16 or orders[0] != orders[1] != list(range(n))
    order = np.array([data.shuffled(i, 4097, data.keys(5)) for i in range(4097)])
    assert abs(np.corrcoef(order, np.arange(4097))[0, 1]) < 0.05
    assert data.shuffled(10 ** 12 - 1, 10 ** 12, data.keys(1)) < 10 ** 12


def sources_of(tmp_path, **sizes):
    """Sources of exactly that many tokens, each token its own number."""
    for name, n in sizes.items():
        ids = np.arange(n) + 5
        write(tmp_path, name, [ids[a:a + 17] for a in range(0, n, 17)], vocab_size=n + 5 if n > 900 else 1000)
    return {n: data.Source(n, [data.Shard(tmp_path / 'train' / f'{n}_00000.bin')]) for n in sizes}


def test_epochs_of_rows(tmp_path):
    """nanochat#360, trl#4554: every epoch gives every row of its grid once, at a new offset in a
    new order; in three epochs nothing is left out."""
    L, N = 16, 16 * 20 + 5
    mixture = data.Mixture(sources_of(tmp_path, a=N), {'a': 1.0}, L, 60, seed=3, phase=0)
    rows = [mixture.row(g)[1] for g in range(60)]
    epochs = [rows[0:20], rows[20:40], rows[40:60]]
    seen = np.zeros((3, N), int)
    for e, starts in enumerate(epochs):
        for at in starts:
            seen[e][np.arange(at, at + L) % N] += 1
    assert seen.max() == 1 and (seen.sum(1) == 20 * L).all()  # 5 tokens left out by each
    assert (seen.sum(0) >= 1).all()
    assert len({tuple(np.argsort(e)) for e in epochs}) == 3  # other orders
    assert len({min(e) % L for e in epochs}) > 1              # other grids
    assert mixture.epochs() == {'a': pytest.approx(60 * L / N)}


@pytest.mark.parametrize('L, N', [(16, 16 * 20 + 5), (16, 16 * 20), (16, 16 * 20 + 15), (8, 8 * 2 + 7), (8, 8 + 7), (4, 4003)])
def test_one_to_two_epochs_show_every_token_once_or_twice(tmp_path, L, N):
    """1.97 epochs, or any share between one (and the two rows of its tail) and two: no token and so no document
    is left out, none comes three times; whatever is left out by the first epoch comes first in the second."""
    sources = sources_of(tmp_path, a=N)
    n = N // L
    for seed in range(12):
        mixture = data.Mixture(sources, {'a': 1.97}, L, 2 * n, seed=seed, phase=0)
        seen = np.zeros(N, int)
        for k in range(2 * n):
            if n + 2 <= k:
                assert seen.min() >= 1, (seed, k)
            seen[(mixture.row(k)[1] + np.arange(L)) % N] += 1
            assert k >= n or seen.max() == 1
        assert seen.min() >= 1 and seen.max() <= 2 and seen.sum() == 2 * n * L


def test_197_epochs_of_documents(tmp_path):
    """By documents, through batches, for a mixture of two sources: each is met once or twice, whole."""
    for name, seed, n in (('a', 1, 300), ('b', 2, 120)):
        write(tmp_path, name, documents(n, seed, longest=90))
    sources = data.open_sources(tmp_path, 'train')
    s = dict(sources={'a': 1.97, 'b': 1.97}, mix_by='epochs', batch_tokens=512, micro_tokens=256, seq_len=64, seed=1,
             whole_words=[], mask_replace='mask', mask_rate=0.2, mask_span_mean=0.0, max_steps=0, phases=[dict(name='x')])
    (phase,), _ = plan.phases(s, sources, 1)
    assert all(abs(e - 1.97) < 0.02 for e in phase.mixture.epochs().values())
    for index, source in enumerate(sources.values()):
        seen = np.zeros(source.n_tokens, int)
        for slot in range(phase.steps * phase.rows):
            of, at = phase.mixture.row(slot)
            seen[(at + np.arange(64)) % source.n_tokens] += of == index
        offsets = source.shards[0].offsets
        times = [(seen[a:b].min(), seen[a:b].max()) for a, b in zip(offsets[:-1], offsets[1:])]
        assert {t for pair in times for t in pair} == {1, 2}


def test_mixture_keeps_its_shares(tmp_path):
    """Over the whole phase exactly, over a few steps nearly; no source is starved."""
    sources = sources_of(tmp_path, a=700, b=700, c=700)
    mixture = data.Mixture(sources, {'a': 6.0, 'b': 3.0, 'c': 1.0}, 32, 3000, seed=3, phase=0)
    picked = np.array([mixture.row(g)[0] for g in range(3000)])
    assert np.bincount(picked).tolist() == [1800, 900, 300]
    for a in range(0, 2000, 500):
        assert np.abs(np.bincount(picked[a:a + 640]) - [384, 192, 64]).max() <= 16
    assert (np.diff(picked[:100]) != 0).sum() > 20  # interleaved, not one after the other


def test_an_epoch_is_its_documents_without_pads(tmp_path):
    """trl#4554: lengths 9, 2, 3, 1, 8 in rows of 4: every token of every document once, but for a declared
    leftover of 23 % 4, and a continuation carries no specials of its own. parcae#8: with documents of a quarter of
    a row, 50 batches of 8 rows hold no pad, so the tokens counted are the tokens seen."""
    docs = [[2, *range(10 * i + 10, 10 * i + n + 8), 3][:n] for i, n in enumerate((9, 2, 3, 1, 8))]
    write(tmp_path, 'a', docs)
    mixture = data.Mixture(data.open_sources(tmp_path, 'train'), {'a': 1.0}, 4, 5, seed=1, phase=0)
    given = sum((data.batch(mixture, 0, 0, i, 1, 1, mask_rate=0.2)['orig'].tolist() for i in range(5)), [])
    left = sum(docs, [])
    for t in given:
        left.remove(t)  # ValueError if it came twice
    assert len(given) == 20 and len(left) == 23 % 4
    write(tmp_path, 'b', documents(400, longest=32))
    mixture = data.Mixture({'b': data.open_sources(tmp_path, 'train')['b']}, {'b': 1.0}, 64, 400, seed=1, phase=0)
    batches = [data.batch(mixture, s, 8 * s, 0, 8, 1, mask_rate=0.2) for s in range(50)]
    assert all(len(b['ids']) == 512 and (b['orig'] != data.PAD).all() for b in batches)


def test_rows_depend_on_seed_and_phase_only(tmp_path):
    sources = sources_of(tmp_path, a=700, b=500)
    rows = {key: [data.Mixture(sources, {'a': 1, 'b': 1}, 32, 100, *key).row(g) for g in range(100)]
            for key in ((1, 0), (2, 0), (1, 1))}
    assert len(set(map(tuple, rows.values()))) == 3
    again = data.Mixture(sources, {'a': 1, 'b': 1}, 32, 100, 1, 0)
    assert [again.row(g) for g in reversed(range(100))] == rows[1, 0][::-1]  # no state


def test_short_source_names_both_numbers(tmp_path):
    """ru-gpts#15: fewer tokens than a row."""
    with pytest.raises(ValueError, match=r'a_00000.bin: source a has 20 tokens, fewer .* seq_len=128'):
        data.Mixture(sources_of(tmp_path, a=20), {'a': 1.0}, 128, 10, 1, 0)


def test_batch_is_a_function_of_seed_and_step(tmp_path):
    """transformers#31412, llm-foundry#1277: the same rows and masks however a step is divided;
    other masks for the same row at another step; every row its own masks."""
    for name, seed in (('a', 1), ('b', 2)):
        write(tmp_path, name, documents(60, seed))
    sources = data.open_sources(tmp_path, 'train')
    mixture = data.Mixture(sources, {'a': 1, 'b': 2}, 64, 80, seed=9, phase=0)

    def parts(n, step=3):
        got = [data.batch(mixture, step, 24, i, n, 9, mask_rate=0.3) for i in range(0, 8, n)]
        return [np.concatenate([b[k] for b in got]) for k in ('ids', 'orig')]
    whole = parts(8)
    assert all(np.array_equal(x, y) for n in (1, 2, 4) for x, y in zip(parts(n), whole))
    later = parts(8, step=4)
    assert np.array_equal(later[1], whole[1]) and not np.array_equal(later[0], whole[0])
    masks = (whole[0] != whole[1]).reshape(8, 64)
    assert len({m.tobytes() for m in masks}) == 8

    batch = data.batch(mixture, 3, 24, 0, 8, 9, mask_rate=0.3)
    assert np.array_equal(batch['masked'], np.flatnonzero(batch['ids'] != batch['orig']))
    assert len(batch['cu']) == 8 * 64 // 16 * (2 if len(set(batch['cu'].tolist())) > 32 else 1)
    cu = sorted(set(batch['cu'].tolist()))
    begins = np.flatnonzero(batch['orig'] == data.CLS)
    assert cu == sorted({*begins.tolist(), *range(0, 513, 64)}) and max(np.diff(cu)) <= batch['longest'] == 64


def test_boundaries_keep_their_shape():
    for bounds in ([], [3], list(range(1, 61))):
        cu = data.boundaries(bounds, 1024)
        assert len(cu) == 64 and cu.dtype == np.int32 and sorted(set(cu.tolist())) == [0, *bounds, 1024]
    assert len(data.boundaries(list(range(1, 100)), 1024)) == 128


# --------------------------------------------------------------------------------- masks

def hide(ids, starts, rate=1.0, whole=False, seed=0, vocab_size=1000, replace='mask'):
    out = np.array(ids)
    at = data.mask_row(out, np.array(starts, bool), np.random.default_rng(seed), rate, whole, vocab_size, replace)
    return out, at


def test_specials_are_never_masked():
    """ModernBERT#212: rate 1 on [CLS a b SEP CLS c SEP]."""
    ids = [2, 50, 51, 3, 2, 52, 3]
    for whole in (False, True):
        out, at = hide(ids, [1] * 7, whole=whole)
        assert at.tolist() == [1, 2, 5] and out.tolist() == [2, 4, 4, 3, 2, 4, 3]


@pytest.mark.parametrize('rate', [0.05, 0.2, 0.5])
@pytest.mark.parametrize('whole', [False, True])
def test_mask_rate(rate, whole):
    rng = np.random.default_rng(5)
    starts = rng.random(20_000) < 0.6
    n = np.mean([len(hide(np.full(20_000, 9), starts, rate, whole, seed)[1]) for seed in range(20)]) / 20_000
    assert abs(n / rate - 1) < 0.03


def test_whole_words_all_or_none():
    """transformers#11768: in every draw a word is masked whole or not at all, adjacent words
    independently, and a word cut by the row's edge goes by what is left of it."""
    starts = np.array([0, 0] + [1, 0, 0] * 20 + [1, 0])  # cut at both edges
    word = np.cumsum(starts)
    drawn = np.zeros((500, word[-1] + 1), bool)
    for seed in range(500):
        _, at = hide(np.full(len(starts), 9), starts, 0.3, True, seed)
        masked = np.isin(np.arange(len(starts)), at)
        for w in range(word[-1] + 1):
            assert masked[word == w].all() or not masked[word == w].any()
            drawn[seed, w] = masked[word == w].any()
    assert np.abs(drawn.mean(0) - 0.3).max() < 0.09            # 4.4 standard errors
    together = (drawn[:, 1:] & drawn[:, :-1]).mean()
    assert abs(together - 0.09) < 0.02


def test_whole_words_by_source(tmp_path):
    for name in 'ab':
        docs = documents(40, 3)
        write(tmp_path, name, docs, starts=[np.array([1] + [i % 3 == 0 for i in range(len(d) - 2)] + [1]) for d in docs])
    mixture = data.Mixture(data.open_sources(tmp_path, 'train'), {'a': 1, 'b': 1}, 64, 200, 1, 0)
    torn = {0: 0, 1: 0}
    for g in range(60):
        b = data.batch(mixture, g, g, 0, 1, 1, mask_rate=0.3, whole_words=['a'])
        s, at = mixture.row(g)
        _, starts, _ = mixture.sources[s].read(at, 64)
        masked, word = b['ids'] != b['orig'], np.cumsum(starts)
        ordinary = b['orig'] >= 5
        torn[s] += sum(0 < masked[(word == w) & ordinary].mean() < 1 for w in np.unique(word[ordinary]))
    assert torn[0] == 0 and torn[1] > 100


def test_80_10_10():
    """methylbert#28: replacements are ordinary pieces only, in these shares; a tiny vocabulary ends."""
    ids = np.full(60_000, 7)
    out, at = hide(ids, np.ones(60_000), replace='80_10_10', vocab_size=12)
    assert len(at) == 60_000 and set(out.tolist()) <= {data.MASK, *range(5, 12)}
    shares = (out == data.MASK).mean(), (out != 7).mean()
    assert abs(shares[0] - 0.8) < 0.01 and abs(shares[1] - (0.8 + 0.1 * 6 / 7)) < 0.01
    assert {x for x in out.tolist() if x != data.MASK} == set(range(5, 12))
    assert set(hide(ids[:100], np.ones(100), replace='80_10_10', vocab_size=5)[0].tolist()) <= {4, 5, 7}


@pytest.mark.parametrize('rate, mean, whole', [(0.2, 3.0, True), (0.3, 1.0, False), (0.5, 5.0, True), (0.2, 1.25, False)])
def test_spans(rate, mean, whole):
    """mask_span_mean: runs of masked words (tokens) of that mean length, the rate as without."""
    lengths, n = [], 0
    starts = np.random.default_rng(3).random(20_000) < (0.6 if whole else 1)
    word = np.cumsum(starts)
    for seed in range(20):
        ids = np.full(20_000, 9)
        at = data.mask_row(ids, starts, np.random.default_rng(seed), rate, whole, 1000, span_mean=mean)
        n += len(at)
        drawn = np.zeros(word[-1] + 2, int)
        drawn[np.unique(word[at])] = 1
        edges = np.flatnonzero(np.diff(drawn, prepend=0))
        lengths += (edges[1::2] - edges[::2]).tolist()
        assert not whole or len(at) == np.isin(word, word[at]).sum()  # all or none of a word
    assert abs(n / 20 / 20_000 / rate - 1) < 0.03
    assert abs(np.mean(lengths) / mean - 1) < 0.03


def test_spans_stop_at_specials_and_begin_in_balance():
    """The first place of a row is drawn as often as any other; [CLS] and [SEP] cut a run."""
    ids = np.array([2, *[9] * 30, 3, 2, *[9] * 30, 3])
    hits = np.zeros(len(ids))
    for seed in range(4000):
        row = ids.copy()
        hits[data.mask_row(row, np.ones(64, bool), np.random.default_rng(seed), 0.3, False, 1000, span_mean=4.0)] += 1
        assert (row[ids < 5] == ids[ids < 5]).all()
    assert np.abs(hits[ids == 9] / 4000 - 0.3).max() < 0.035  # 4.8 standard errors


def test_mask_rates_are_measured_by_source(tmp_path):
    for name in 'ab':
        docs = documents(200, 3)
        write(tmp_path, name, docs, starts=[np.array([1] + [i % 3 == 0 for i in range(len(d) - 2)] + [1]) for d in docs])
    s = dict(sources={}, mix_by='epochs', batch_tokens=512, micro_tokens=256, seq_len=64, seed=1, whole_words=['a'],
             mask_replace='mask', mask_rate=0.25, mask_span_mean=0.0, max_steps=0, phases=[dict(name='x', steps=40)])
    (phase,), _ = plan.phases(s, data.open_sources(tmp_path, 'train'), 1)
    rates = phase.mask_rates()
    assert list(rates) == ['a', 'b'] and all(abs(r - 0.25) < 0.03 for r in rates.values())
    with pytest.raises(ValueError, match='mask_span_mean=0.5'):
        plan.phases(s | dict(mask_span_mean=0.5), data.open_sources(tmp_path, 'train'), 1)


def test_ahead_builds_the_next_step_on_a_thread():
    """The same as make(step), in any order of asking; the next one is begun, none past the end; faults arrive."""
    made, threads = [], set()

    def make(step):
        made.append(step)
        threads.add(threading.get_ident())
        return 1 / (7 - step) and step * 10
    ahead = data.Ahead(make, 5)
    assert [ahead(step) for step in (0, 1, 2, 4)] == [0, 10, 20, 40]
    ahead.pool.shutdown()
    assert made == [0, 1, 2, 3, 4] and threads.isdisjoint({threading.get_ident()})
    with pytest.raises(ZeroDivisionError):
        data.Ahead(make, 9)(7)


def test_pieces(tmp_path):
    docs = [[2, *range(10, 30), 3], [2, 40, 3], [2, *range(50, 57), 3]]
    write(tmp_path, 'a', docs)
    source = data.open_sources(tmp_path, 'train')['a']
    assert [p.tolist() for p, _ in source.pieces(10)] == [docs[0][:10], docs[0][10:20], docs[0][20:], docs[1], docs[2]]
    assert len(list(source.pieces(10, limit=11))) == 2
    flat = data.flat([p for p, _ in source.pieces(10)])
    assert flat['ids'].tolist() == sum(docs, []) and flat['cu'].tolist() == [0, 10, 20, 22, 25, 34]
    assert flat['longest'] == 10


def test_a_phase_counts_in_epochs_or_weights(tmp_path):
    """Without `steps`, shares in epochs say how long the phase is and are met; weights are shares
    of the rows whatever the sizes."""
    sources = sources_of(tmp_path, a=3200, b=800)
    s = dict(sources={'a': 1.5, 'b': 4.0}, mix_by='epochs', batch_tokens=64, micro_tokens=32, seq_len=32, seed=1,
             mask_rate=0.2, mask_span_mean=0.0, max_steps=0, phases=[dict(name='x'), dict(name='y', steps=10, sources={'b': 1.0})])
    (x, y), total = plan.phases(s, sources, 1)
    assert x.steps == (1.5 * 3200 + 4 * 800) // 64 == 125 and (y.start, total) == (125, 135)
    assert x.mixture.epochs() == {'a': pytest.approx(1.5), 'b': pytest.approx(4.0)}
    assert y.mixture.epochs() == {'b': pytest.approx(10 * 64 / 800)}
    (x,), _ = plan.phases(s | dict(mix_by='weight', phases=[dict(name='x', steps=100)], sources={'a': 1.0, 'b': 3.0}), sources, 1)
    assert x.mixture.dealt(200).tolist() == [50, 150]
    with pytest.raises(ValueError, match='3 ranks: change micro_tokens'):
        plan.phases(s, sources, 3)

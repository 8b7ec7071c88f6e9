"""Measures against stand-ins whose answers are known, and figures worked out by hand."""
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, trainers

import configurator
import data
import eval as evaluation
import model as encoder
import objectives
import prepare

STEP = 40  # document d of toy() holds the pieces 5 + 40·d, one more at each place: any of them tells where it stands


def toy(*lengths, words=(2, 1, 3)):
    """[CLS] n pieces [SEP] for each n, in words of 2, 1, 3, 2, … pieces."""
    first = np.concatenate([np.arange(w) == 0 for w in words * 20])
    return [(np.array([data.CLS, *5 + STEP * d + np.arange(n), data.SEP]), np.concatenate([[True], first[:n], [True]]))
            for d, n in enumerate(lengths)]


V = 5 + 8 * STEP


def documents(batch):
    """A batch's documents, and the place of each in it."""
    return [(a, batch['ids'][a:b]) for a, b in zip(batch['cu'], batch['cu'][1:])]


def origin(ids):
    """What toy() wrote where ids has masks, from the pieces still to be seen."""
    at = int(np.flatnonzero(ids >= len(data.SPECIALS))[0])
    return np.where(ids == data.MASK, ids[at] - at + np.arange(len(ids)), ids)


def one_hot(pieces, sure=30.0):
    return sure * torch.nn.functional.one_hot(torch.as_tensor(pieces), V).float()


class Oracle:
    """Knows toy(), notes what it was asked; `wrong` of the masks of each document, the last, are missed."""

    def __init__(self, wrong=lambda ids: False):
        self.wrong, self.seen = wrong, []

    def __call__(self, batch, positions):
        out, asked = [], []
        for a, ids in documents(batch):
            right = origin(ids)
            at = np.flatnonzero(ids == data.MASK)
            pieces = right[at]
            pieces[-1:] += self.wrong(ids)
            out.append(pieces)
            asked.append(a + at)
            self.seen.append((ids.copy(), right, at))
        assert np.array_equal(np.concatenate(asked), positions)  # every mask is scored, nothing else is
        return one_hot(np.concatenate(out))


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    shape = dict(vocab_size=V, hidden=32, n_layer=2, n_head=2, ffn=48, window=8)
    net = encoder.MaskedLM(encoder.Config(**shape | changes))
    for p in net.parameters():
        p.data.normal_(1.0 if p.ndim == 1 else 0.0, 0.1 if p.ndim == 1 else 0.25)
    return net.eval()


def kl(p, q):
    """Σ p log p/q, piece by piece, of two lists of probabilities."""
    return sum(a * math.log(a / b) for a, b in zip(p, q))


def softmax(x):
    e = np.exp(np.asarray(x, float) - np.max(x))
    return e / e.sum()


# --------------------------------------------------------------------------------- perplexity


def test_perplexity_is_a_mean_over_tokens():
    """keras-hub#2958: long documents are guessed among V pieces, short ones among half of them."""
    pieces, asked = toy(38, 12, 38, 12), {}

    def predict(batch, positions):
        (_, ids), = documents(batch)  # one document a batch
        asked[len(ids)] = asked.get(len(ids), 0) + len(positions)
        logits = torch.zeros(len(positions), V)
        if len(ids) < 20:
            logits[:, V // 2 + 1:] = -1e9
        return logits
    found = evaluation.figures(evaluation.perplexity(predict, pieces, np.full(V, 4), batch_tokens=1, seed=5))
    long, short = asked[40], asked[14]
    nats = (long * math.log(V) + short * math.log(V // 2 + 1)) / (long + short)
    assert short and long != short and found['n'] == long + short
    assert found['nats'] == pytest.approx(nats, rel=1e-6)
    assert found['perplexity'] == pytest.approx(math.exp(nats), rel=1e-5)
    assert found['nats_per_char'] == pytest.approx(nats / 4, rel=1e-6)


def test_figures_of_sums():
    assert evaluation.figures([10.0, 4, 20, 1]) == dict(
        perplexity=pytest.approx(math.e ** 2.5), nats=2.5, nats_per_char=0.5, top1=0.25, n=4)
    assert evaluation.figures([0, 0, 0, 0]) == {'n': 0}
    assert evaluation.figures([10.0, 4, 0, 1])['nats_per_char'] is None
    assert evaluation.figures([4000.0, 4, 8, 0])['perplexity'] > 1e300  # a diverged run goes on


def test_only_masks_are_scored():
    """transformers#1633: whoever copies what he sees must not look good."""
    pieces, seen = toy(30, 30, 30), []

    def copy(batch, positions):
        seen.append(batch['ids'])
        assert (batch['ids'][positions] == data.MASK).all()
        assert (batch['ids'] == data.MASK).sum() == len(positions)
        return one_hot(batch['ids'][positions])
    found = evaluation.figures(evaluation.perplexity(copy, pieces, np.ones(V)))
    assert found['perplexity'] > V and found['top1'] == 0
    oracle = Oracle()
    best = evaluation.figures(evaluation.perplexity(oracle, pieces, np.ones(V)))
    assert best['perplexity'] == pytest.approx(1) and best['top1'] == 1 and best['n'] == found['n']
    assert np.array_equal(np.concatenate([ids for ids, _, _ in oracle.seen]), np.concatenate(seen))  # the same masks


def test_masks_are_a_seventh_of_the_ordinary_tokens_and_go_by_the_seed():
    pieces = [(np.tile(np.r_[5:60, data.SEP], 200), np.ones(56 * 200, bool))]

    def masks(seed):
        seen = []
        evaluation.perplexity(lambda b, at: seen.append(at) or torch.zeros(len(at), V), pieces, np.ones(V), seed=seed)
        return seen[0]
    at = masks(1)
    assert len(at) / (55 * 200) == pytest.approx(0.15, abs=0.015) and (pieces[0][0][at] >= 5).all()
    assert np.array_equal(at, masks(1)) and not np.array_equal(at, masks(2))


def test_shares_of_ranks_add_up():
    pieces, predict = toy(9, 14, 30, 3, 21, 8, 17), evaluation.predictor(tiny())
    chars = np.random.default_rng(0).integers(1, 9, V)
    whole = evaluation.perplexity(predict, pieces, chars)
    parts = [evaluation.perplexity(predict, iter(pieces), chars, share=(r, 3)) for r in range(3)]
    assert all(p[1] < whole[1] for p in parts)
    assert np.allclose(sum(parts), whole, rtol=1e-6)


def test_batch_size_changes_no_figure():
    pieces, net, objective = toy(9, 14, 30, 3, 21), tiny(), neighbors('projection')
    predict = evaluation.predictor(net)

    def all_of_it(batch_tokens):
        kw = dict(batch_tokens=batch_tokens)
        flat = dict(enumerate(evaluation.perplexity(predict, pieces, np.ones(V), **kw)))
        for f in (evaluation.infilling(predict, pieces, 9, **kw), evaluation.separating(predict, pieces, 9, **kw),
                  evaluation.heads_of(net, objective, pieces, 0.4, 12, **kw)):
            flat |= evaluation.flatten('x', 'y', f)
        return flat
    one, many = all_of_it(1), all_of_it(8_192)
    assert one.keys() == many.keys()
    for key, value in one.items():
        assert many[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key


def test_a_forward_holds_what_fits():
    items, sizes = [(ids, np.array([1])) for ids, _ in toy(9, 14, 30, 3, 21)], []  # of 11, 16, 32, 5, 23 tokens
    answers = evaluation.ask(lambda b, at: sizes.append(len(b['ids'])) or torch.tensor(b['ids'][at]), items, 28)
    assert [x.tolist() for _, x in answers] == [[5 + STEP * d] for d in range(5)]  # each item has its own answer
    assert sizes == [27, 32, 28]


def test_two_forwards_are_equal():
    """pytorch#124464: nothing random is left in evaluation."""
    pieces, predict = toy(30, 20), evaluation.predictor(tiny())
    assert np.array_equal(*(evaluation.perplexity(predict, pieces, np.ones(V)) for _ in range(2)))


# --------------------------------------------------------------------------------- characters

TEXTS = ['ذهب كتب الى المدرسة', 'قال الرجل مرحبا', 'ژ🙂 مرحبا', 'abc, 123', 'é ñ ° ± ÿ ا']


@pytest.fixture(scope='module')
def tokenizer():
    return prepare.build_tokenizer(TEXTS * 30, 400)


def test_characters_add_up_to_the_text(tokenizer):
    """nanochat#693, counted in characters: pieces that are no whole letter count once."""
    chars = evaluation.characters(tokenizer)
    assert len(chars) == tokenizer.get_vocab_size() and not chars[:5].any()
    everywhere = ''.join(chr(c) for c in [*range(33, 0x700, 3), *range(0x4e00, 0x4e40), *range(0x1f600, 0x1f640)])
    everywhere = tokenizer.normalizer.normalize_str(everywhere)
    for text in [*TEXTS, 'ژ🙂 مرحبا', 'قالوا ،؟ ٣٤', '\u00ad¡ ¬®¿ĢŃ', everywhere]:
        text = tokenizer.normalizer.normalize_str(text)
        assert chars[tokenizer.encode(text).ids].sum() == len(text), text
    assert chars[tokenizer.encode('ڤ').ids].tolist() == [1, 0]  # one letter, cut in the middle


def test_no_characters_where_pieces_do_not_tell():
    tok = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tok.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=60, special_tokens=data.SPECIALS))
    assert not evaluation.characters(tok).any()
    tok.decoder = decoders.WordPiece()
    assert not evaluation.characters(tok).any()


# ------------------------------------------------------------------------------------- infill


def test_infill_of_an_oracle():
    pieces = toy(20, 10, 7)
    found = evaluation.infilling(Oracle(), pieces, n=10_000)
    words = [len(np.flatnonzero(starts)) - 2 for _, starts in pieces]
    for k in (1, 2, 3, 5):
        assert found[f'span{k}'] == dict(exact=1.0, n=sum(max(0, n - k + 1) for n in (20, 10, 7)))
        assert found[f'words{k}'] == dict(exact=1.0, n=sum(max(0, w - k + 1) for w in words))


def test_one_wrong_piece_is_a_miss():
    found = evaluation.infilling(Oracle(wrong=lambda ids: (ids == data.MASK).sum() > 1), toy(20, 20), n=30)
    assert {k: f['exact'] for k, f in found.items() if k != 'words1'} == {
        'span1': 1, 'span2': 0, 'span3': 0, 'span5': 0, 'words2': 0, 'words3': 0, 'words5': 0}
    # document 1 alone is missed: half of all the spans of two documents of one length
    half = evaluation.infilling(Oracle(wrong=lambda ids: ids.max() >= 5 + STEP), toy(20, 20), n=10_000)
    assert all(f['exact'] == 0.5 for f in half.values())


def test_spans_are_tokens_in_a_row_of_one_document():
    pieces = toy(20, 9, 30)
    for words in (False, True):
        oracle, k = Oracle(), 3
        found = evaluation.places(pieces, k, 40, 1, words)
        torch.cat([x for _, x in evaluation.ask(oracle, found, 64)])
        assert len(oracle.seen) == (24 if words else 40)  # of 10, 5 and 15 words; the tokens have more
        for ids, right, at in oracle.seen:
            gold, starts = next(p for p in pieces if np.array_equal(p[0], right))  # nothing else was changed
            assert (right[at] >= len(data.SPECIALS)).all() and (np.diff(at) == 1).all()
            if words:  # begins with a word, ends before one, holds three
                assert starts[at[0]] and starts[at[-1] + 1] and starts[at].sum() == k
            else:
                assert len(at) == k
        assert len({(tuple(right), *at) for _, right, at in oracle.seen}) == len(oracle.seen)  # no place twice


def test_words_that_a_cut_has_shortened_are_left_out():
    pieces = [(np.arange(5, 11), np.array([0, 1, 0, 1, 0, 0], bool))]
    (ids, at, gold), = evaluation.places(pieces, 1, 10, 1, words=True)
    assert at.tolist() == [1, 2] and gold.tolist() == [6, 7] and ids.tolist() == [5, 4, 4, 8, 9, 10]


def test_places_are_drawn_evenly():
    """A document three times as long gets three times as many spans, all of it is covered, and
    another seed finds others."""
    pieces = toy(10, 30)

    def firsts(seed):
        return [gold[0] for _, _, gold in evaluation.places(pieces, 1, 10, seed)]
    drawn = np.concatenate([firsts(seed) for seed in range(200)])
    assert (drawn >= 5 + STEP).mean() == pytest.approx(0.75, abs=0.04)
    assert len(set(drawn)) == 40 and firsts(1) == firsts(1) != firsts(2)


def test_iterative_decoding_can_do_what_one_pass_cannot():
    """Each piece is known from the one before it; where that is hidden, the guess is a poor one."""
    pieces = toy(30) * 2

    def predict(batch, positions):
        before = batch['ids'][positions - 1]
        known = before != data.MASK
        guess = np.where(known, np.where(before == data.CLS, 5, before + 1), 300)
        return one_hot(guess) * torch.as_tensor(np.where(known, 1.0, 0.2))[:, None]
    once = evaluation.infilling(predict, pieces, n=20)
    again = evaluation.infilling(predict, pieces, n=20, iterative=True)
    assert once['span1']['exact'] == 1 and once['span2']['exact'] == once['span5']['exact'] == 0
    assert all(f == dict(exact=1.0, n=20) for f in again.values())
    wrong = evaluation.infilling(Oracle(wrong=lambda ids: True), pieces, n=20, iterative=True)
    assert all(f['exact'] == 0 for f in wrong.values())


def test_no_text_no_figure():
    def predict(batch, positions):
        return one_hot(5 + (positions - 1) % 4)
    found = evaluation.infilling(predict, toy(2), n=10)
    assert found['span3'] == dict(exact=None, n=0) and found['span2'] == dict(exact=1.0, n=1)
    assert evaluation.separating(predict, toy(2), n=10)['d2'] == dict(
        divergence=None, agreement=None, top1=None, gold=None, n=0)


# --------------------------------------------------------------------------------- separation


def test_separation_by_hand():
    """Left of the pair: mixed by distance; right: one distribution throughout."""
    pieces, seen = [(np.array([data.CLS, *[6] * 20, data.SEP]), np.ones(22, bool))], {}
    right = [0.02, 0.02, 0.02, 0.02, 0.02, 0.10, 0.60, 0.20]

    def left(d):  # up to d = 3 the likeliest is 7, beyond that 6, like on the right
        top = 0.57 - 0.05 * d
        return [0.03] * 5 + [0.05, 0.80 - top, top]

    def predict(batch, positions):
        (_, ids), = documents(batch)
        at = np.flatnonzero(ids == data.MASK)
        assert len(at) == 2 and np.array_equal(at, positions) and (np.delete(ids, at)[1:-1] == 6).all()
        d = at[1] - at[0]
        seen.setdefault(d, set()).add(tuple(at))
        return torch.tensor([left(d), right]).log()
    found = evaluation.separating(predict, pieces, n=15, batch_tokens=1)
    assert list(found) == [f'd{d}' for d in range(1, 9)]
    for d in range(1, 9):
        p = left(d)
        agree = p[6] > p[7]
        assert found[f'd{d}'] == dict(
            divergence=pytest.approx(kl(p, right), rel=1e-5), agreement=float(agree), top1=0.5 + agree / 2,
            gold=pytest.approx((p[6] + 0.6) / 2, rel=1e-5), n=min(15, 20 - d))
        assert len(seen[d]) == found[f'd{d}']['n']
    assert kl(left(1), right) != pytest.approx(kl(right, left(1)), rel=0.03)  # the direction tells


# -------------------------------------------------------------------------------------- heads


def neighbors(kind, **changes):
    torch.manual_seed(3)
    o = objectives.MLMNeighbors(32, kind, **changes)
    if kind == 'projection':
        for p in o.parameters():
            p.data += 0.1 * torch.randn_like(p)
    return o


class Marked(torch.nn.Module):
    """A stand-in whose hidden state is a fixed row for each place in its document, and which notes
    the places that were masked."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(4)
        self.h = torch.nn.Parameter(torch.tensor(rng.normal(size=(64, 32)), dtype=torch.float32))
        self.w = torch.tensor(rng.normal(size=(11, 32)), dtype=torch.float32)
        self.places = []

    def forward(self, ids, cu, longest):
        place = torch.cat([torch.arange(n) for n in cu.diff().tolist()])
        self.places += [np.flatnonzero(x == data.MASK) for x in np.split(ids.numpy(), cu[1:-1].numpy())]
        return self.h[place]

    def decode(self, h):
        return h @ self.w.T

    def p(self, h):
        return softmax(self.w.double().numpy() @ h)


def test_heads_by_formula():
    net, objective, pieces = Marked(), neighbors('offset_emb'), toy(30, 30, 30)
    e = torch.tensor(np.random.default_rng(5).normal(size=(4, 32)), dtype=torch.float32)
    e[2] = 0
    objective.heads.weight.data.copy_(e)
    found = evaluation.heads_of(net, objective, pieces, 0.4)
    h = net.h.detach().double().numpy()
    at = np.concatenate(net.places)
    assert 0.25 < len(at) / 90 < 0.55
    for j, term in enumerate(['-2', '-1', '+1', '+2']):
        shift = e[j].double().numpy()
        length = np.linalg.norm(shift)
        assert found[term] == dict(
            kl=pytest.approx(np.mean([kl(net.p(h[i]), net.p(h[i] + shift)) for i in at]), rel=1e-4, abs=1e-6),
            ratio=pytest.approx(np.mean([length / np.linalg.norm(h[i]) for i in at]), rel=1e-5), n=len(at))
    assert found['+1']['kl'] == found['+1']['ratio'] == 0
    pairs = [(i, i + 1) for document in net.places for i in document if i + 1 in document]
    yard = np.mean([kl(net.p(h[i]), net.p(h[j])) for i, j in pairs])
    assert found['adjacent'] == dict(kl=pytest.approx(yard, rel=1e-4), n=len(pairs))
    assert {f['n'] for k, f in evaluation.heads_of(net, objective, pieces, 0.4, n=7).items() if k != 'adjacent'} == {7}


def test_an_identity_projection_is_the_mlm_head():
    net, objective = tiny(), objectives.MLMNeighbors(32, 'projection')
    found = evaluation.heads_of(net, objective, toy(30, 20), 0.3)
    assert all(found[t]['kl'] == found[t]['ratio'] == 0 for t in objective.terms)
    assert found['adjacent']['n'] and found['adjacent']['kl'] > 0
    for head in objective.heads:  # twice h: as far away as h is long
        head.weight.data *= 2
    found = evaluation.heads_of(net, objective, toy(30, 20), 0.3)
    assert all(found[t]['ratio'] == pytest.approx(1) and found[t]['kl'] > 0 for t in objective.terms)


# --------------------------------------------------------------------------------------- fill


def test_fill_gives_the_likeliest_pieces(tokenizer):
    size = tokenizer.get_vocab_size()
    go, he = (tokenizer.encode(x).ids[0] for x in (' كتب', ' الرجل'))
    asked = []

    def predict(batch, positions):
        asked.append(batch['ids'])
        logits = torch.full((len(positions), size + 50), -1e9)
        logits[0, [go, he]] = torch.tensor([0.75, 0.25]).log()
        logits[1:, [go, he]] = torch.tensor([0.1, 0.9]).log()
        return logits
    rows = evaluation.filling(predict, tokenizer, 'ذهب [MASK] الى [MASK]', top=2)
    assert [[(p, round(v, 5)) for p, v in row] for row in rows] == [
        [(' كتب', 0.75), (' الرجل', 0.25)], [(' الرجل', 0.9), (' كتب', 0.1)]]
    assert asked[0][0] == data.CLS and asked[0][-1] == data.SEP
    with pytest.raises(ValueError, match='no \\[MASK\\]'):
        evaluation.filling(predict, tokenizer, 'ذهب الى')
    for top in (0, size + 1):
        with pytest.raises(ValueError, match=f'--top={top}'):
            evaluation.filling(predict, tokenizer, '[MASK]', top)


@pytest.mark.parametrize('word', ['كتب', 'يكتبون'])
def test_fill_asks_what_training_saw(tokenizer, word):
    """transformers#12678: a mask in the text is the word's own tokens masked, blank included."""
    encode = prepare.encoder(tokenizer.to_str())[1]
    masked, starts = next(prepare.encode(encode, [f'ذهب {word} الى المدرسة']))
    first, end = np.flatnonzero(starts)[2:4]
    assert (end - first == 1) == (word == 'كتب')
    masked[first:end] = data.MASK
    asked = []
    text = 'ذهب' + ' [MASK]' * (end - first) + ' الى المدرسة'
    evaluation.filling(lambda b, at: asked.append(b['ids']) or torch.zeros(len(at), 512), tokenizer, text)
    assert asked[0].tolist() == masked.tolist()


# ----------------------------------------------------------------------------- command line


@pytest.fixture(scope='module')
def house(tmp_path_factory, tokenizer):
    """data/ with two held-out sources, other/ of another tokenizer, out/run with three checkpoints
    of two steps, out/mlm with one; raw weights decode to nothing: their perplexity is the vocabulary."""
    root = tmp_path_factory.mktemp('house')

    def shards(folder, tok):
        text = tok.to_str(pretty=True)
        stamp = tok.get_vocab_size(), prepare.hashlib.sha256(text.encode()).hexdigest()
        for source in ('wiki', 'news'):
            writer = data.ShardWriter(folder / 'heldout' / f'{source}.bin', *stamp, source, 'heldout')
            for doc in prepare.encode(prepare.encoder(text)[1], [' '.join(np.random.default_rng(i).permutation(TEXTS))
                                                               for i in range(12)]):
                writer.add(*doc)
            writer.close()
        return text, stamp[1]
    text, digest = shards(root / 'data', tokenizer)
    shards(root / 'other', prepare.build_tokenizer(TEXTS[:2] * 30, 280))

    def checkpoint(path, step, kind, seed):
        net = tiny(seed, vocab_size=512)
        own = objectives.MLM(32) if kind == 'mlm' else neighbors('offset_emb')
        ema = {f'model.{k}': v.clone() for k, v in net.state_dict().items()}
        ema |= {f'objective.{k}': torch.full_like(v, 0.5) for k, v in own.state_dict().items()}
        raw = ema | {'model.decoder.weight': torch.zeros(512, 32)}
        raw |= {f'objective.{k}': torch.zeros_like(v) for k, v in own.state_dict().items()}
        settings = dict(seq_len=64, mask_rate=0.3, data_dir=str(root / 'data'), objective=kind, chunk=64,
                        neighbor_head_kind='offset_emb', neighbor_window=2, neighbor_weight=1.0,
                        consistency_lambda=0.1, neighbor_max_pairs=0, projection_init='identity')
        path.parent.mkdir(parents=True, exist_ok=True)
        encoder.save(path, dict(step=step, model_config=asdict(net.config), raw=raw, ema=ema, settings=settings,
                                tokenizer=text, tokenizer_hash=digest))
        return path
    checkpoint(root / 'out/run/step_00000200.pt', 200, 'mlm_neighbors', 2)
    checkpoint(root / 'out/run/phase_stable_00000100.pt', 100, 'mlm_neighbors', 1)
    checkpoint(root / 'out/run/step_00000100.pt', 100, 'mlm_neighbors', 1)
    checkpoint(root / 'out/mlm/step_00000007.pt', 7, 'mlm', 3)
    os.utime(root / 'out/run/step_00000100.pt', (4e9, 4e9))
    return root


def figures_of(house, *argv):
    """eval.py's figures, {file name: {key: number}}, through its JSON."""
    file = house / 'figures.json'
    evaluation.main([*argv, f'--json={file}'])
    return {path.rsplit('/', 1)[-1]: flat for path, flat in json.loads(file.read_text('utf-8')).items()}


def refused(capsys, *argv):
    """The one line that a user's mistake gets, with code 2."""
    with pytest.raises(SystemExit) as end:
        evaluation.main(list(argv))
    line, = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    return line


def test_which_checkpoints(house, capsys):
    run, mlm = house / 'out/run', house / 'out/mlm/step_00000007.pt'

    def names(*asked):
        return [f'{p.parent.name}/{p.name}' for p in evaluation.checkpoints(list(map(str, asked)), str(house / 'out'))]
    assert names(run) == ['run/step_00000100.pt', 'run/step_00000200.pt']
    assert names(mlm, run / 'step_00000200.pt') == ['mlm/step_00000007.pt', 'run/step_00000200.pt']
    assert names() == ['run/step_00000100.pt']
    ckpt = f'--ckpt={mlm},{house}/nowhere.pt'
    assert 'nowhere.pt: no checkpoint' in refused(capsys, '--ppl', ckpt)
    assert 'in this folder' in refused(capsys, '--ppl', f'--ckpt={house}/data')
    assert 'no checkpoint yet' in refused(capsys, '--ppl', f'--out_dir={house}/data')
    (house / 'broken.pt').write_bytes(b'PK')
    assert 'not a readable checkpoint' in refused(capsys, '--ppl', f'--ckpt={house}/broken.pt')


def test_users_mistakes(house, capsys):
    ckpt, mlm = f'--ckpt={house}/out/run', f'--ckpt={house}/out/mlm'
    assert 'nothing asked' in refused(capsys, ckpt)
    assert 'another tokenizer' in refused(capsys, '--ppl', ckpt, f'--data_dir={house}/other')
    assert 'no neighbor heads' in refused(capsys, '--heads', '--ppl', mlm)
    assert "choose 'ema' or 'raw'" in refused(capsys, '--ppl', ckpt, '--weights=best')
    assert 'radio are missing (there are news, wiki)' in refused(capsys, '--ppl', ckpt, '--sources=radio')
    assert 'no such folder' in refused(capsys, '--ppl', ckpt, f'--json={house}/nowhere/a.json')
    assert 'tpu' in refused(capsys, '--ppl', ckpt, '--device=tpu')
    assert '--top=9999' in refused(capsys, '--fill=[MASK]', mlm, '--top=9999')
    assert 'nearest' in refused(capsys, '--pppl', ckpt)


def test_weights_are_the_ones_asked_for(house):
    ckpt = f'--ckpt={house}/out/run'
    raw = figures_of(house, '--ppl', '--heads', ckpt, '--weights=raw')
    ema = figures_of(house, '--ppl', '--heads', ckpt)
    source = data.open_sources(house / 'data', 'heldout')['news']
    for name, seed in ('step_00000100.pt', 1), ('step_00000200.pt', 2):
        assert raw[name]['perplexity/news/perplexity'] == pytest.approx(512)
        assert raw[name]['heads/wiki/+1.ratio'] == 0 < ema[name]['heads/wiki/+1.ratio']
        sums = evaluation.perplexity(evaluation.predictor(tiny(seed, vocab_size=512)), source.pieces(64), np.ones(512))
        assert ema[name]['perplexity/news/nats'] == pytest.approx(sums[0] / sums[1], rel=1e-5)
        assert ema[name]['perplexity/news/n'] == sums[1]


def test_keys_and_table(house, capsys):
    found = figures_of(house, '--ppl', '--infill', '--separation', '--heads', '--n_spans=6', '--n_pairs=6',
                       f'--ckpt={house}/out/run', '--sources=news')
    shown = capsys.readouterr().out
    assert list(found) == ['step_00000100.pt', 'step_00000200.pt']
    flat = found['step_00000200.pt']
    assert all(re.fullmatch(r'(perplexity|infill|separation|heads)/news/[\w.+-]+', k) for k in flat)
    assert {'perplexity/news/nats_per_char', 'infill/news/span3.exact', 'infill/news/words5.n',
            'separation/news/d8.gold', 'heads/news/-2.kl', 'heads/news/adjacent.kl'} <= flat.keys()
    assert flat['infill/news/span3.n'] == flat['separation/news/d3.n'] == flat['heads/news/+1.n'] == 6
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert rows['step_00000100'] == ['step_00000200', 'n']
    assert rows['separation/news/d3.gold'] == [f'{f["separation/news/d3.gold"]:.4g}' for f in found.values()] + ['6']
    assert len({len(line) for line in shown.splitlines() if '/news/' in line}) == 1  # columns stand straight
    one = figures_of(house, '--infill', '--iterative', '--n_spans=3', f'--ckpt={house}/out/mlm')
    assert 'infill_iterative/news/span3.exact' in one['step_00000007.pt']


def test_table_of_runs():
    shown = evaluation.table({
        '/x/a/s_1.pt': {'perplexity/w/nats': 1.23456, 'perplexity/w/n': 1234, 'perplexity/v/n': 0},
        '/x/b/s_1.pt': {'perplexity/w/nats': None, 'perplexity/w/n': 99}})
    assert [line.split() for line in shown.splitlines()] == [
        ['a/s_1', 'b/s_1', 'n'],
        ['perplexity/w/nats', '1.235', '-', '1,234', '99'],
        ['perplexity/v/n', '0', '-', '0', '-']]


def test_the_first_checkpoint_settles_the_pieces(house, tmp_path):
    """Two checkpoints side by side are asked the same, whatever rows each was trained on."""
    saved = encoder.read(house / 'out/run/step_00000100.pt')
    for name, length in ('a.pt', 64), ('b.pt', 16):
        encoder.save(tmp_path / name, saved | {'settings': saved['settings'] | {'seq_len': length}})
    both = figures_of(house, '--ppl', f'--ckpt={tmp_path}/a.pt,{tmp_path}/b.pt')
    assert both['a.pt'] == both['b.pt']
    assert figures_of(house, '--ppl', f'--ckpt={tmp_path}/b.pt')['b.pt'] != both['a.pt']


def test_fill_on_the_command_line(house):
    """A C locale, --json FILE in two words, a text longer than any row of the training."""
    text, file = 'ذهب [MASK] الى [MASK]' + ' مرحبا' * 100, house / 'fill.json'
    env = os.environ | dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0', OMP_NUM_THREADS='1')
    argv = [configurator.REPO / 'eval.py', '--fill', text, '--ckpt', 'out/mlm', '--top=3', '--json', 'fill.json']
    done = subprocess.run([sys.executable, *argv], cwd=house, env=env, capture_output=True, timeout=100)
    assert done.returncode == 0 and not done.stderr
    (path, flat), = json.loads(file.read_text('utf-8')).items()
    assert path == str(house / 'out/mlm/step_00000007.pt')
    assert [k for k in flat if k.endswith('piece')] == [f'fill/mask{m}/top{k}.piece' for m in (1, 2) for k in (1, 2, 3)]
    assert flat['fill/mask1/top1.p'] > flat['fill/mask1/top3.p'] > 0
    lines = done.stdout.decode().splitlines()
    assert [x.split(':')[0] for x in lines[1:]] == ['mask 1', 'mask 2'] and 'step 7, ema weights' in lines[0]

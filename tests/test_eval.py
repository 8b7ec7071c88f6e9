"""Measures against stand-ins whose answers are known, and figures worked out by hand."""
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import types
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, trainers

import configurator
import corpus
import data
import eval as evaluation
import model as encoder
import objectives
import prepare

STEP = 40  # document d of toy() holds the pieces 5 + 40·d, one more at each place: any of them tells where it stands
V = 5 + 8 * STEP
TEXTS = ['ذهب كتب الى المدرسة', 'قال الرجل مرحبا', 'ژ🙂 مرحبا', 'abc, 123', 'é ñ ° ± ÿ ا']


def toy(*lengths):
    """[CLS] n pieces [SEP] for each n, in words of 2, 1, 3, 2, … pieces."""
    first = np.concatenate([np.arange(w) == 0 for w in (2, 1, 3) * 20])
    return [(np.array([data.CLS, *5 + STEP * d + np.arange(n), data.SEP]), np.concatenate([[True], first[:n], [True]]))
            for d, n in enumerate(lengths)]


def one_hot(pieces, sure=30.0):
    return sure * torch.nn.functional.one_hot(torch.as_tensor(pieces), V).float()


def oracle(seen, wrong=lambda ids: False):
    """Knows toy(), and notes what it was asked; `wrong` of the masks of each document, the last, are missed."""
    def predict(batch, positions):
        assert np.array_equal(np.flatnonzero(batch['ids'] == data.MASK), positions)  # all of them, nothing else
        out = []
        for ids in np.split(batch['ids'].copy(), batch['cu'][1:-1]):
            at, known = np.flatnonzero(ids == data.MASK), np.flatnonzero(ids >= len(data.SPECIALS))[0]
            right = np.where(ids == data.MASK, ids[known] - known + np.arange(len(ids)), ids)
            out.append(right[at])
            out[-1][-1:] += wrong(ids)
            seen.append((ids, right, at))
        return one_hot(np.concatenate(out))
    return predict


def tiny(seed=0, vocab_size=V):
    torch.manual_seed(seed)
    net = encoder.MaskedLM(encoder.Config(vocab_size=vocab_size, hidden=32, n_layer=2, n_head=2, ffn=48, window=8))
    for p in net.parameters():
        p.data.normal_(1.0 if p.ndim == 1 else 0.0, 0.1 if p.ndim == 1 else 0.25)
    return net.eval()


def kl(p, q):
    """Σ p log p/q, in nats, of probabilities (…, V)."""
    return (np.asarray(p) * np.log(np.asarray(p) / np.asarray(q))).sum(-1)

# --------------------------------------------------------------------------------- perplexity

def test_perplexity_is_a_mean_over_tokens():
    """keras-hub#2958: long documents are guessed among V pieces, short ones among half of them."""
    pieces, asked = toy(38, 12, 38, 12), {}

    def predict(batch, positions):
        n = len(batch['ids'])  # one document a batch
        asked[n] = asked.get(n, 0) + len(positions)
        logits = torch.zeros(len(positions), V)
        logits[:, V // 2 + 1:] = -1e9 if n < 20 else 0
        return logits
    found = evaluation.perplexity(predict, pieces, np.full(V, 4), batch_tokens=1, seed=5)
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
    pieces, seen, known = toy(30, 30, 30), [], []

    def copy(batch, positions):
        seen.append(batch['ids'])
        return one_hot(batch['ids'][positions])
    found, best = (evaluation.perplexity(p, pieces, np.ones(V)) for p in (copy, oracle(known)))
    assert found['perplexity'] > V and found['top1'] == 0
    assert best['perplexity'] == pytest.approx(1) and best['top1'] == 1 and best['n'] == found['n']
    assert np.array_equal(np.concatenate([ids for ids, _, _ in known]), np.concatenate(seen))  # the same masks


def test_masks_are_a_seventh_of_the_ordinary_tokens_and_go_by_the_seed():
    ids, seen = np.tile(np.r_[5:60, data.SEP], 200), []
    for seed in (1, 1, 2):
        evaluation.perplexity(lambda b, at: seen.append(at) or torch.zeros(len(at), V), [(ids, ids > 0)], np.ones(V),
                              seed=seed)
    at, again, other = seen
    assert len(at) / (55 * 200) == pytest.approx(0.15, abs=0.015) and (ids[at] >= 5).all()
    assert np.array_equal(at, again) and not np.array_equal(at, other)


def test_neither_batch_size_nor_ranks_change_a_figure():
    """pytorch#124464: nothing random is left; what three ranks sum up, of every third item each, are one's figures."""
    pieces, net, chars = toy(9, 14, 30, 3, 21), tiny(), np.random.default_rng(0).integers(1, 9, V)
    predict, objective = evaluation.predictor(net), objectives.MLMNeighbors(32, 'projection', projection_init='random')

    def all_of_it(**kw):
        flat = evaluation.perplexity(predict, iter(pieces), chars, **kw)
        for name, found in (('i', evaluation.infilling(predict, pieces, 9, **kw)),
                            ('s', evaluation.separating(predict, pieces, 9, **kw)),
                            ('h', evaluation.heads_of(net, objective, pieces, 0.4, 12, **kw))):
            flat |= evaluation.flatten(name, '', found)
        return flat

    def rank_of_three(rank, sum):
        return all_of_it(ranks=types.SimpleNamespace(rank=rank, world=3, sum=sum))
    whole, shares = all_of_it(), [[], [], []]
    assert all_of_it() == whole and all_of_it(batch_tokens=1) == pytest.approx(whole, rel=1e-5, abs=1e-7)
    for rank in range(3):
        rank_of_three(rank, lambda x, given=shares[rank]: given.append(x) or x)
    totals = [sum(x) for x in zip(*shares)]
    assert all(share[0][1] < totals[0][1] for share in shares)
    assert rank_of_three(1, lambda x: totals.pop(0)) == pytest.approx(whole, rel=1e-5, abs=1e-7)
    items, sizes = [(ids, np.array([1])) for ids, _ in toy(9, 14, 30, 3, 21)], []  # of 11, 16, 32, 5, 23 tokens
    answers = evaluation.ask(lambda b, at: sizes.append(len(b['ids'])) or torch.tensor(b['ids'][at]), items, 28)
    assert [x.tolist() for _, x in answers] == [[5 + STEP * d] for d in range(5)]
    assert sizes == [27, 32, 28]


@pytest.fixture(scope='module')
def tokenizer():
    return corpus.build_tokenizer(TEXTS * 30, 400)


def test_characters_add_up_to_the_text(tokenizer):
    """nanochat#693, counted in characters: pieces that are no whole letter count once."""
    chars = evaluation.characters(tokenizer)
    assert len(chars) == tokenizer.get_vocab_size() and not chars[:5].any()
    everywhere = ''.join(chr(c) for c in [*range(33, 0x700, 3), *range(0x4e00, 0x4e40), *range(0x1f600, 0x1f640)])
    for text in [*TEXTS, 'ژ🙂 مرحبا', 'قالوا ،؟ ٣٤', '\u00ad¡ ¬®¿ĢŃ', everywhere]:
        text = tokenizer.normalizer.normalize_str(text)
        assert chars[tokenizer.encode(text).ids].sum() == len(text), text
    assert chars[tokenizer.encode('ڤ').ids].tolist() == [1, 0]  # one letter, cut in the middle
    tok = Tokenizer(models.WordPiece(unk_token='[UNK]'))  # its pieces do not tell, and it knows no decoder yet
    tok.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=60, special_tokens=data.SPECIALS))
    assert not evaluation.characters(tok).any()
    tok.decoder = decoders.WordPiece()
    assert not evaluation.characters(tok).any()

# ----------------------------------------------------------------- infill, separation, heads, fill


def test_infill_counts_what_is_all_right():
    pieces = toy(20, 10, 7)
    found = evaluation.infilling(oracle([]), pieces, n=10_000)
    words = [starts.sum() - 2 for _, starts in pieces]
    for k in (1, 2, 3, 5):
        assert found[f'span{k}'] == dict(exact=1.0, n=sum(max(0, n - k + 1) for n in (20, 10, 7)))
        assert found[f'words{k}'] == dict(exact=1.0, n=sum(max(0, w - k + 1) for w in words))
    # one wrong piece is a miss: of document 1, half of all the spans of two documents of one length
    found = evaluation.infilling(oracle([], lambda ids: ids.max() >= 5 + STEP and (ids == data.MASK).sum() > 1),
                                 toy(20, 20), n=10_000)
    assert {k: f['exact'] for k, f in found.items() if k != 'words1'} == {
        'span1': 1, 'span2': 0.5, 'span3': 0.5, 'span5': 0.5, 'words2': 0.5, 'words3': 0.5, 'words5': 0.5}
    short = evaluation.infilling(lambda batch, at: one_hot(5 + (at - 1) % 4), toy(2), n=10)  # no text, no figure
    assert short['span3'] == dict(exact=None, n=0) and short['span2'] == dict(exact=1.0, n=1)


def test_spans_are_tokens_in_a_row_of_one_document():
    pieces = toy(20, 9, 30)
    for words in (False, True):
        seen, k = [], 3
        list(evaluation.ask(oracle(seen), evaluation.places(pieces, k, 40, 1, words), 64))
        assert len(seen) == (24 if words else 40)  # of 10, 5 and 15 words; the tokens have more
        for ids, right, at in seen:
            gold, starts = next(p for p in pieces if np.array_equal(p[0], right))  # nothing else was changed
            assert (right[at] >= len(data.SPECIALS)).all() and (np.diff(at) == 1).all()
            assert words or len(at) == k
            assert not words or starts[at[0]] and starts[at[-1] + 1] and starts[at].sum() == k  # three, whole ones
        assert len({(tuple(right), *at) for _, right, at in seen}) == len(seen)  # no place twice
    cut = [(np.arange(5, 11), np.array([0, 1, 0, 1, 0, 0], bool))]  # its last word may be shorter than it was
    (ids, at, gold), = evaluation.places(cut, 1, 10, 1, words=True)
    assert at.tolist() == [1, 2] and gold.tolist() == [6, 7] and ids.tolist() == [5, 4, 4, 8, 9, 10]


def test_places_are_drawn_evenly():
    """A document three times as long gets three times as many spans, all of it is covered, and
    another seed finds others."""
    def firsts(seed):
        return [gold[0] for _, _, gold in evaluation.places(toy(10, 30), 1, 10, seed)]
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
    wrong = evaluation.infilling(oracle([], lambda ids: True), pieces, n=20, iterative=True)
    assert all(f['exact'] == 0 for f in wrong.values())


def test_separation_by_hand():
    """Left of the pair: mixed by distance; right: one distribution throughout."""
    pieces, seen = [(np.array([data.CLS, *[6] * 20, data.SEP]), np.ones(22, bool))], {}
    right = [0.02, 0.02, 0.02, 0.02, 0.02, 0.10, 0.60, 0.20]

    def left(d):  # up to d = 3 the likeliest is 7, beyond that 6, like on the right
        top = 0.57 - 0.05 * d
        return [0.03] * 5 + [0.05, 0.80 - top, top]

    def predict(batch, positions):
        assert len(positions) == 2 and (batch['ids'][positions] == data.MASK).all()
        assert (np.delete(batch['ids'], positions)[1:-1] == 6).all()
        d = positions[1] - positions[0]
        seen.setdefault(d, set()).add(tuple(positions))
        return torch.tensor([left(d), right]).log()
    found = evaluation.separating(predict, pieces, n=15, batch_tokens=1)
    assert list(found) == [f'd{d}' for d in range(1, 9)]
    for d in range(1, 9):
        p, agree = left(d), d > 3
        assert found[f'd{d}'] == dict(
            divergence=pytest.approx(kl(p, right), rel=1e-5), agreement=float(agree), top1=0.5 + agree / 2,
            gold=pytest.approx((p[6] + 0.6) / 2, rel=1e-5), n=min(15, 20 - d))
        assert len(seen[d]) == found[f'd{d}']['n']
    assert kl(left(1), right) != pytest.approx(kl(right, left(1)), rel=0.03)  # the direction tells
    short = evaluation.separating(lambda batch, at: torch.zeros(len(at), V), toy(2), n=10)  # no text, no figure
    assert short['d2'] == dict(divergence=None, agreement=None, top1=None, gold=None, n=0)


@pytest.mark.parametrize('kind', ['offset_emb', 'projection'])
def test_heads_by_formula(kind):
    """Head +1 is the MLM head; the others add a vector, or double h."""
    net, objective, pieces, calls = tiny(), objectives.MLMNeighbors(32, kind), toy(30, 30, 30), []
    net.register_forward_hook(lambda module, args, h: calls.append((args[0].numpy(), h)))
    for j in (0, 1, 3):
        head = objective.heads.weight[j] if kind == 'offset_emb' else objective.heads[j].weight
        head.data.copy_(torch.randn(32) if kind == 'offset_emb' else 2 * torch.eye(32))
    found = evaluation.heads_of(net, objective, pieces, 0.4)
    (ids, h), = calls
    at = np.flatnonzero(ids == data.MASK)
    assert 0.25 < len(at) / 90 < 0.55

    def p(h):
        return net.decode(h).detach().double().softmax(-1).numpy()
    h = h[at]
    for j, term in enumerate(['-2', '-1', '+1', '+2']):
        other = h + objective.heads.weight[j].detach() if kind == 'offset_emb' else h * (1 if term == '+1' else 2)
        assert found[term] == dict(
            kl=pytest.approx(kl(p(h), p(other)).mean(), rel=1e-4, abs=1e-6),
            ratio=pytest.approx(((other - h).norm(dim=-1) / h.norm(dim=-1)).mean().item(), rel=1e-5), n=len(at))
    assert found['+1']['kl'] == found['+1']['ratio'] == 0 < found['-1']['kl']
    first = [i for i, j in enumerate(at) if j + 1 in at]  # in one document: [SEP] [CLS] stand between two
    yard = np.mean([kl(p(h[i]), p(h[i + 1])) for i in first])
    assert found['adjacent'] == dict(kl=pytest.approx(yard, rel=1e-4), n=len(first))
    assert {f['n'] for k, f in evaluation.heads_of(net, objective, pieces, 0.4, n=7).items() if k != 'adjacent'} == {7}


def test_fill_gives_the_likeliest_pieces(tokenizer):
    size = tokenizer.get_vocab_size()
    go, he = (tokenizer.encode(x).ids[0] for x in (' كتب', ' الرجل'))

    def predict(batch, positions):
        logits = torch.full((len(positions), size + 50), -1e9)
        logits[0, [go, he]] = torch.tensor([0.75, 0.25]).log()
        logits[1:, [go, he]] = torch.tensor([0.1, 0.9]).log()
        return logits
    rows = evaluation.filling(predict, tokenizer, 'ذهب [MASK] الى [MASK]', top=2)
    assert [[(p, round(v, 5)) for p, v in row] for row in rows] == [
        [(' كتب', 0.75), (' الرجل', 0.25)], [(' الرجل', 0.9), (' كتب', 0.1)]]
    for text, top, told in (('ذهب الى', 5, r'no \[MASK\]'), ('[MASK]', 0, '--top=0'),
                            ('[MASK]', size + 1, f'--top={size + 1}')):
        with pytest.raises(ValueError, match=told):
            evaluation.filling(predict, tokenizer, text, top)


@pytest.mark.parametrize('word', ['كتب', 'يكتبون'])
def test_fill_asks_what_training_saw(tokenizer, word):
    """transformers#12678: a mask in the text is the word's own tokens masked, blank included."""
    packed = corpus.Encoder(tokenizer.to_str()).encode([f'ذهب {word} الى المدرسة'])[0].astype(np.int64)
    masked, starts = packed % corpus.START, packed >= corpus.START
    first, end = np.flatnonzero(starts)[2:4]
    assert (end - first == 1) == (word == 'كتب')
    masked[first:end] = data.MASK
    asked = []
    evaluation.filling(lambda b, at: asked.append(b['ids']) or torch.zeros(len(at), 512), tokenizer,
                       'ذهب' + ' [MASK]' * (end - first) + ' الى المدرسة')
    assert asked[0].tolist() == masked.tolist()

# ----------------------------------------------------------------------------- command line

@pytest.fixture(scope='module')
def house(tmp_path_factory, tokenizer):
    """data/ with two held-out sources, other/ of another tokenizer, out/run with three checkpoints
    of two steps, out/mlm with one; raw weights decode to nothing: their perplexity is the vocabulary."""
    root = tmp_path_factory.mktemp('house')
    for source in ('wiki', 'news', 'trained'):
        lines = '\n'.join(' '.join(np.random.default_rng(i).permutation(TEXTS)) for i in range(12))
        (root / f'{source}.txt').write_text(lines, 'utf-8')
    for name, tok in (('data', tokenizer), ('other', corpus.build_tokenizer(TEXTS[:2] * 30, 280))):
        tok.save(str(root / f'{name}.json'))
        prepare.prepare(configurator.load(vars(prepare), [
            f'--text={root}/*.txt', f'--tokenizer={root}/{name}.json', f'--out_dir={root}/{name}',
            '--heldout_sources=wiki,news', '--dedupe=False', '--workers=1']))
    text = (root / 'data.json').read_text('utf-8')
    for name, kind, seed in (('run/step_00000200.pt', 'mlm_neighbors', 2), ('mlm/step_00000007.pt', 'mlm', 3),
                             ('run/phase_stable_00000100.pt', 'mlm_neighbors', 1),
                             ('run/step_00000100.pt', 'mlm_neighbors', 1)):
        net, own = tiny(seed, 512), objectives.MLM(32) if kind == 'mlm' else objectives.MLMNeighbors(32)
        ema = {f'model.{k}': v.clone() for k, v in net.state_dict().items()}
        ema |= {f'objective.{k}': torch.full_like(v, 0.5) for k, v in own.state_dict().items()}
        raw = {k: torch.zeros_like(v) if k.startswith(('objective', 'model.decoder')) else v for k, v in ema.items()}
        heads = dict(zip(objectives.NEIGHBOR_SETTINGS, ('offset_emb', 2, 1.0, 0.1, 0, 'identity')))
        settings = dict(seq_len=64, mask_rate=0.3, data_dir=str(root / 'data'), objective=kind, chunk=64, **heads)
        (root / 'out' / name).parent.mkdir(parents=True, exist_ok=True)
        encoder.save(root / 'out' / name, dict(
            step=int(name[-11:-3]), model_config=asdict(net.config), raw=raw, ema=ema, settings=settings,
            tokenizer=text, tokenizer_hash=hashlib.sha256(text.encode()).hexdigest()))
    os.utime(root / 'out/run/step_00000100.pt', (4e9, 4e9))
    return root


def figures_of(house, *argv):
    """eval.py's figures, {file name: {key: number}}, through its JSON."""
    file = house / 'figures.json'
    evaluation.main([*argv, f'--json={file}'])
    return {path.rsplit('/', 1)[-1]: flat for path, flat in json.loads(file.read_text('utf-8')).items()}


def test_which_checkpoints(house):
    run, mlm = house / 'out/run', house / 'out/mlm/step_00000007.pt'

    def names(*asked):
        return [f'{p.parent.name}/{p.name}' for p in evaluation.checkpoints(list(map(str, asked)), str(house / 'out'))]
    assert names(run) == ['run/step_00000100.pt', 'run/step_00000200.pt']
    assert names(mlm, run / 'step_00000200.pt') == ['mlm/step_00000007.pt', 'run/step_00000200.pt']
    assert names() == ['run/step_00000100.pt']


def test_users_mistakes(house, capsys):
    def refused(*argv):
        with pytest.raises(SystemExit) as end:
            evaluation.main(list(argv))
        line, = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        return line
    ckpt, mlm = f'--ckpt={house}/out/run', f'--ckpt={house}/out/mlm'
    (house / 'data/best.pt').write_bytes(b'PK')  # to be named: train.py calls none so
    assert 'seed=-1: must be at least 0' in refused('--ppl', ckpt, '--seed=-1')
    assert 'n_spans=0: must be at least 1' in refused('--infill', ckpt, '--n_spans=0')
    assert 'nowhere.pt: no checkpoint' in refused('--ppl', f'{mlm},{house}/nowhere.pt')
    assert 'in this folder' in refused('--ppl', f'--ckpt={house}/data')
    assert 'no checkpoint yet' in refused('--ppl', f'--out_dir={house}/data')
    assert 'not a readable checkpoint' in refused('--ppl', f'--ckpt={house}/data/best.pt')
    assert 'nothing asked' in refused(ckpt) and 'nearest' in refused('--pppl', ckpt)
    assert 'another tokenizer' in refused('--ppl', ckpt, f'--data_dir={house}/other')
    assert 'no neighbor heads' in refused('--heads', '--ppl', mlm)
    assert "choose one of ema, raw" in refused('--ppl', ckpt, '--weights=best')
    assert 'radio are missing (there are news, wiki)' in refused('--ppl', ckpt, '--sources=radio')
    assert 'no such folder' in refused('--ppl', ckpt, f'--json={house}/nowhere/a.json')
    assert 'a folder; name a file' in refused('--ppl', ckpt, f'--json={house}')
    assert 'tpu' in refused('--ppl', ckpt, '--device=tpu')
    assert '--top=9999' in refused('--fill=[MASK]', mlm, '--top=9999')


def test_figures_of_a_run(house, capsys):
    """Keys and table, and that ema and raw are the weights asked for."""
    ckpt = f'--ckpt={house}/out/run'
    ema = figures_of(house, '--ppl', '--infill', '--separation', '--heads', '--n_spans=6', '--n_pairs=6', ckpt,
                     '--sources=news')
    assert evaluation.table({f'{house}/out/run/{name}': flat for name, flat in ema.items()}) in capsys.readouterr().out
    raw = figures_of(house, '--ppl', '--heads', ckpt, '--weights=raw')
    source = data.open_sources(house / 'data', 'heldout')['news']
    assert list(ema) == list(raw) == ['step_00000100.pt', 'step_00000200.pt']
    for flat, seed in zip(ema.values(), (1, 2)):
        assert all(re.fullmatch(r'(perplexity|infill|separation|heads)/news/[\w.+-]+', k) for k in flat)
        assert {'perplexity/news/nats_per_char', 'infill/news/span3.exact', 'infill/news/words5.n',
                'separation/news/d8.gold', 'heads/news/-2.kl', 'heads/news/adjacent.kl'} <= flat.keys()
        assert flat['infill/news/span3.n'] == flat['separation/news/d3.n'] == flat['heads/news/+1.n'] == 6
        want = evaluation.perplexity(evaluation.predictor(tiny(seed, 512)), source.pieces(64), np.ones(512))
        assert flat['perplexity/news/nats'] == pytest.approx(want['nats'], rel=1e-5)
        assert flat['perplexity/news/n'] == want['n'] and flat['heads/news/+1.ratio'] > 0
    for flat in raw.values():
        assert flat['perplexity/wiki/perplexity'] == pytest.approx(512) and flat['heads/wiki/+1.ratio'] == 0
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
    assert len(set(map(len, shown.splitlines()))) == 1  # columns stand straight


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

"""Losses against plain formulas written out pair by pair, in float64."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import configurator
import data
import objectives
from model import Config, MaskedLM


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    net = MaskedLM(Config(**dict(vocab_size=61, hidden=32, n_layer=2, n_head=2, ffn=48, window=8) | changes)).double()
    for p in net.parameters():
        p.data.normal_(1.0 if p.ndim == 1 else 0.0, 0.1 if p.ndim == 1 else 0.25)
    return net


def make_batch(lengths, masked, seq_len=None, seed=0):
    """Documents of these lengths, the given positions masked."""
    orig = np.random.default_rng(seed).integers(5, 61, sum(lengths))
    ids = orig.copy()
    ids[masked] = data.MASK
    L = seq_len or len(ids)
    return dict(ids=ids, orig=orig, masked=np.array(masked, np.int64), longest=L,
                cu=np.cumsum([0, *lengths]).astype(np.int32), keys=[(7, 3, i) for i in range(len(ids) // L)])


def tensors(batch):
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in batch.items()}


def neighbors(kind='projection', **changes):
    torch.manual_seed(5)
    o = objectives.MLMNeighbors(32, **dict(kind=kind, window=2, weight=0.7, consistency=0.3, chunk=7) | changes).double()
    for p in o.parameters():
        p.data.add_(torch.randn_like(p) * 0.2)
    return o


LENGTHS, MASKED = [6, 1, 9, 4], [0, 1, 2, 4, 6, 7, 8, 9, 12, 13, 15, 16, 18, 19]


def test_pairs_stay_in_their_document():
    """Megatron-LM#1661: [10 11 12 | 20 21 | 30], all masked: Σ max(0, L - |j|) pairs an offset."""
    o, batch = neighbors(), make_batch([3, 2, 1], [0, 1, 2, 3, 4, 5])
    counts = o.prepare(batch)
    assert counts == {'mlm': 6, '-2': 1, '-1': 3, '+1': 3, '+2': 1}
    pairs = list(zip(batch['anchor'].tolist(), batch['goal'].tolist()))
    assert pairs == [(2, 0), (1, 0), (2, 1), (4, 3), (0, 1), (1, 2), (3, 4), (0, 2)]


def test_pairs_are_the_brute_force_ones():
    o, batch = neighbors(window=3), make_batch(LENGTHS, MASKED)
    o.prepare(batch)
    doc = np.repeat(np.arange(4), LENGTHS)
    want = [(a, a + j) for j in o.offsets for a in MASKED if a + j in MASKED and doc[a] == doc[a + j]]
    m = batch['masked']
    assert list(zip(m[batch['anchor']], m[batch['goal']])) == want


@pytest.mark.parametrize('kind', ['offset_emb', 'projection'])
def test_loss_is_the_formula(kind):
    """L = Σ nll / M + w · 1/2W · Σ_j Σ nll_j / P_j + λ · 1/2W · Σ_j Σ KL(stopgrad p_mlm ‖ p_j) / P_j,
    value and gradient, against one pair at a time."""
    net, o, batch = tiny(), neighbors(kind), make_batch(LENGTHS, MASKED)
    counts = o.prepare(batch)
    loss, stats = o(net, tensors(batch), counts)
    params = [*net.parameters(), *o.parameters()]
    got = torch.autograd.grad(loss, params)

    h = net(*(tensors(batch)[k] for k in ('ids', 'cu')), 20)
    logits, gold = net.decode(h), torch.from_numpy(batch['orig'])
    doc = np.repeat(np.arange(4), LENGTHS)
    want = sum(F.cross_entropy(logits[m], gold[m]) for m in MASKED) / len(MASKED)
    for index, j in enumerate((-2, -1, 1, 2)):
        pairs = [(a, a + j) for a in MASKED if a + j in MASKED and doc[a] == doc[a + j]]
        assert counts[f'{j:+d}'] == len(pairs) > 0
        nll = kl = 0
        for a, b in pairs:
            head = net.decode(h[a] + o.heads.weight[index] if kind == 'offset_emb' else o.heads[index].weight @ h[a])
            nll += F.cross_entropy(head, gold[b])
            teacher = logits[b].detach().softmax(-1)
            kl += (teacher * (teacher.log() - head.log_softmax(-1))).sum()
        want = want + (0.7 * nll + 0.3 * kl) / (4 * len(pairs))
        assert abs(stats[f'{j:+d}'] - nll) < 1e-9 and abs(stats[f'kl{j:+d}'] - kl) < 1e-9
    assert abs(loss - want) < 1e-10
    for a, b in zip(got, torch.autograd.grad(want, params)):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_chunks_change_nothing():
    """Chunked cross-entropy = plain, to 1e-6 in fp32; value and gradients."""
    results = []
    for chunk in (1, 3, 1000):
        net, o, batch = tiny().float(), neighbors(chunk=chunk).float(), make_batch(LENGTHS, MASKED)
        counts = o.prepare(batch)
        loss, _ = o(net, tensors(batch), counts)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in [*net.parameters(), *o.parameters()])])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_decoder_meets_masked_rows_in_chunks_only(monkeypatch):
    net, o, batch = tiny(), neighbors(chunk=5), make_batch(LENGTHS, MASKED)
    o.prepare(batch)
    rows, decode = [], net.decode
    monkeypatch.setattr(net, 'decode', lambda h: rows.append(len(h)) or decode(h))
    with torch.no_grad():
        o(net, tensors(batch), {'mlm': 1, **dict.fromkeys(o.terms, 1)})
    assert max(rows) == 5 and sum(rows) == len(MASKED) + 2 * len(batch['anchor'])


@pytest.mark.parametrize('kind', ['offset_emb', 'projection'])
def test_micro_batches_with_shared_counts_are_one_batch(kind):
    """transformers#34191, #34242: 1 and 9 masked tokens; and every term of mlm_neighbors."""
    net, o = tiny(), neighbors(kind)
    parts = [make_batch([10], [4], seed=1), make_batch([12], list(range(1, 10)), seed=2)]
    whole = dict(ids=np.concatenate([p['ids'] for p in parts]), orig=np.concatenate([p['orig'] for p in parts]),
                 masked=np.concatenate([parts[0]['masked'], 10 + parts[1]['masked']]),
                 cu=np.array([0, 10, 22], np.int32), longest=12, keys=[])
    counts = o.prepare(whole)
    params = [*net.parameters(), *o.parameters()]
    want_loss, want_stats = o(net, tensors(whole), counts)
    want = torch.autograd.grad(want_loss, params)
    summed = [o.prepare(p) for p in parts]
    assert {k: sum(c[k] for c in summed) for k in counts} == counts
    losses = [o(net, tensors(p), counts) for p in parts]
    got = torch.autograd.grad(sum(x for x, _ in losses), params)
    assert abs(sum(x for x, _ in losses) - want_loss) < 1e-12
    assert all(abs(sum(s[k] for _, s in losses) - want_stats[k]) < 1e-9 for k in want_stats)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('make', [lambda: objectives.MLM(32), neighbors, lambda: neighbors('offset_emb')])
def test_nothing_masked(make):
    """transformers#16711: loss 0.0 with a graph, zero gradients, also for every head."""
    net, o, batch = tiny(), make(), make_batch([2], [])
    counts = o.prepare(batch)
    loss, _ = o(net, tensors(batch), counts)
    assert loss.item() == 0.0
    loss.backward()
    assert all((p.grad is None) or (p.grad == 0).all() for p in [*net.parameters(), *o.parameters()])


@pytest.mark.parametrize('kind, init', [('offset_emb', 'identity'), ('projection', 'identity'),
                                        ('projection', 'random'), ('projection', 'zero_residual')])
def test_every_head_learns_from_step_0(kind, init):
    """The v5 row: at the start every offset's own parameters have a gradient; e_j and the
    identity make head_j the MLM head at first."""
    net, batch = tiny(), make_batch(LENGTHS, MASKED)
    o = objectives.MLMNeighbors(32, kind, projection_init=init).double()
    counts = o.prepare(batch)
    loss, _ = o(net, tensors(batch), counts)
    loss.backward()
    grads = o.heads.weight.grad if kind == 'offset_emb' else torch.stack([m.weight.grad for m in o.heads])
    assert (grads.flatten(1).norm(dim=1) > 1e-3).all()
    h = torch.randn(3, 32).double()
    assert all(torch.equal(o.head(j, h), h) == (init != 'random') for j in range(4))


def test_parameters_on_top():
    """3,072 numbers for offset_emb, 2,359,296 for projection at width 768."""
    for kind, n in (('offset_emb', 3_072), ('projection', 2_359_296)):
        assert sum(p.numel() for p in objectives.MLMNeighbors(768, kind).parameters()) == n


def test_cap_on_pairs():
    """max_pairs draws that many, the same for the same (seed, step, row) whatever else is in the
    batch or its masks, differently at another step, and each pair equally often."""
    o, seen = neighbors(), {}
    for step in range(400):
        batch = make_batch(LENGTHS, MASKED)
        batch['keys'] = [(7, step, 0)]
        counts = o.prepare(batch, 8)
        again = make_batch(LENGTHS, MASKED)
        again['keys'] = [(7, step, 0)]
        o.prepare(again, 8)
        assert np.array_equal(batch['anchor'], again['anchor']) and len(batch['anchor']) == 8
        assert sum(counts[t] for t in o.terms) == 8 == sum(batch['pairs'])
        for pair in zip(batch['anchor'].tolist(), batch['goal'].tolist()):
            seen[pair] = seen.get(pair, 0) + 1
    free = make_batch(LENGTHS, MASKED)
    neighbors().prepare(free)
    n = len(free['anchor'])
    assert len(seen) == n > 20
    expected, spread = 400 * 8 / n, np.sqrt(400 * (8 / n) * (1 - 8 / n))
    assert all(abs(v - expected) < 4.5 * spread for v in seen.values())


@pytest.mark.parametrize('flags, told', [
    (['--objective=mlm', '--neighbor_window=2'], "objective 'mlm' has no use for neighbor_window"),
    (['--objective=mlm_neighbor'], "choose 'mlm' or 'mlm_neighbors'"),
    (['--objective=mlm_neighbors', '--neighbor_head_kind=offset'], "choose 'offset_emb' or 'projection'"),
    (['--objective=mlm_neighbors', '--neighbor_window=0'], 'at least 1'),
    (['--objective=mlm_neighbors', '--neighbor_head_kind=projection', '--projection_init=eye'], 'identity')])
def test_contradictions_are_refused(flags, told):
    import train
    s = configurator.load(vars(train), flags)
    with pytest.raises(ValueError, match=told):
        objectives.build(s, 32)

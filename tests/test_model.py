"""The encoder against a float64 dense reference, and the promises of one flat layout."""
import math

import numpy as np
import pytest
import torch

import model as encoder
from model import Config, MaskedLM

SMALL = dict(vocab_size=97, hidden=32, n_layer=4, n_head=2, ffn=48, window=8)


def build(seed=0, **changes):
    """A small model with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    net = MaskedLM(Config(**SMALL | changes)).eval()
    for p in net.parameters():
        p.data.normal_(1.0 if p.ndim == 1 else 0.0, 0.1 if p.ndim == 1 else 0.2)
    return net


def packed(lengths, seed=1, vocab=97):
    ids = torch.from_numpy(np.random.default_rng(seed).integers(5, vocab, sum(lengths)))
    cu = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    return ids, cu, max(lengths)


def reference(net, ids, cu):
    """NeoBERT's forward written out densely in float64: full (T, T) scores and one mask."""
    c, w = net.config, {n: p.double() for n, p in net.named_parameters()}
    T, e = len(ids), c.hidden // c.n_head
    doc = torch.bucketize(torch.arange(T), cu[1:].long(), right=True)
    position = torch.arange(T) - cu[:-1].long()[doc]
    distance = torch.arange(T)[:, None] - torch.arange(T)[None]

    def norm(x, gain):
        return x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * gain

    def rope(x, theta):  # (T, H, e): rotate the pairs (i, i + e/2) as complex numbers
        angle = position[:, None] * theta ** (-torch.arange(e // 2).double() * 2 / e)
        z = torch.complex(x[..., :e // 2], x[..., e // 2:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat([z.real, z.imag], -1)

    x = w['encoder.embedding.weight'][ids]
    for i in range(c.n_layer):
        b = f'encoder.blocks.{i}.'
        is_global = i % c.global_every == 0
        h = norm(x, w[b + 'attention_norm.weight'])
        wq, wk, wv = w[b + 'attention.qkv.weight'].chunk(3)
        q, k, v = (h @ m.T for m in (wq, wk, wv))
        q, k, v = (t.view(T, c.n_head, e) for t in (q, k, v))
        if c.qk_norm:
            q, k = norm(q, w[b + 'attention.q_norm.weight']), norm(k, w[b + 'attention.k_norm.weight'])
        theta = c.theta_global if is_global else c.theta_local
        q, k = rope(q, theta), rope(k, theta)
        sees = doc[:, None] == doc[None]
        if not is_global:
            sees = sees & (distance.abs() <= c.window // 2)
        scores = torch.einsum('ihe,jhe->hij', q, k) / math.sqrt(e)
        p = scores.masked_fill(~sees, -math.inf).softmax(-1)
        x = x + torch.einsum('hij,jhe->ihe', p, v).reshape(T, -1) @ w[b + 'attention.out.weight'].T
        h = norm(x, w[b + 'ffn_norm.weight'])
        gate, up = (h @ w[b + 'ffn.gate_up.weight'].T).chunk(2, -1)
        x = x + (gate * torch.sigmoid(gate) * up) @ w[b + 'ffn.down.weight'].T
    return norm(x, w['encoder.norm.weight'])


@pytest.mark.parametrize('lengths', [[40], [1], [7, 9, 1, 1, 23], [8, 8, 8], [3] * 9, [4, 5, 16, 15, 17]])
@pytest.mark.parametrize('changes', [{}, dict(global_every=1, qk_norm=False, theta_global=1e4)],
                         ids=['araneobert', 'neobert'])
def test_forward_is_the_dense_reference(lengths, changes):
    """Windows at document and chunk edges, documents of one token, longer than a window."""
    net = build(**changes)
    ids, cu, longest = packed(lengths)
    with torch.no_grad():
        torch.testing.assert_close(net(ids, cu, longest).double(), reference(net, ids, cu), rtol=1e-5, atol=1e-5)


def test_packed_is_alone_is_padded():
    """A document gives the same h packed among others, alone, and behind a padding document.
    Another document's tokens, and pads, do not move it at all (nanoVLM#204)."""
    net = build()
    lengths = [7, 9, 30, 1]
    ids, cu, longest = packed(lengths)
    with torch.no_grad():
        h = net(ids, cu, longest)
        for a, b in zip(cu.tolist(), cu.tolist()[1:]):
            alone = net(ids[a:b], torch.tensor([0, b - a], dtype=torch.int32), b - a)
            torch.testing.assert_close(h[a:b], alone, rtol=1e-5, atol=1e-5)
        padded = net(torch.cat([ids, torch.zeros(4, dtype=torch.long)]), torch.cat([cu, cu[-1:] + 4]), longest)
        torch.testing.assert_close(padded[:len(ids)], h, rtol=1e-5, atol=1e-5)
        for d in range(len(lengths)):  # change one document, the others stay bit for bit
            a, b = cu[d], cu[d + 1]
            other = ids.clone()
            other[a:b] = (other[a:b] + 11) % 92 + 5
            moved = (net(other, cu, longest) != h).any(-1)
            assert moved[a:b].all() and not moved[:a].any() and not moved[b:].any()


def test_empty_documents_change_nothing():
    """cu padded to a fixed length; also where empties stand in the middle."""
    net = build()
    ids, cu, longest = packed([5, 6, 9])
    padded = torch.tensor([0, 0, 5, 11, 11, 20, 20, 20, 20], dtype=torch.int32)
    with torch.no_grad():
        assert torch.equal(net(ids, cu, longest), net(ids, padded, longest))


def test_window_128_is_64_on_both_sides():
    """transformers#39408: output i moves with token j iff |i - j| <= 64."""
    net = build(window=128, n_layer=2, global_every=10)  # layer 0 global, layer 1 local
    net.encoder.blocks = net.encoder.blocks[1:]
    ids, cu, longest = packed([300])
    with torch.no_grad():
        h = net(ids, cu, longest)
        for j in (0, 63, 64, 65, 127, 128, 150, 236, 299):
            other = ids.clone()
            other[j] = 5 + (ids[j] - 4) % 92
            moved = (net(other, cu, longest) != h).any(-1)
            assert torch.equal(moved, (torch.arange(300) - j).abs() <= 64), j


def test_gradients_are_the_reference_s():
    net = build(n_layer=3)
    ids, cu, longest = packed([7, 20, 1, 12])
    weight = torch.randn(40, 32, generator=torch.Generator().manual_seed(3))
    (net(ids, cu, longest) * weight).sum().backward()
    got = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    (reference(net, ids, cu) * weight).sum().backward()
    for n, p in net.encoder.named_parameters():
        torch.testing.assert_close(got['encoder.' + n], p.grad, rtol=2e-4, atol=2e-4 * p.grad.abs().max().item())


def test_no_empty_softmax_row_and_finite_gradients():
    """pytorch#103749: T no multiple of the window leaves padded query rows; none gives NaN."""
    net = build()
    ids, cu, longest = packed([1, 1, 3])
    net(ids, cu, longest).square().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in net.parameters())


def test_one_mask_per_forward(monkeypatch):
    """KempnerForge#206: the local mask is built once, bool, one head wide; global layers have none."""
    built, make = [], encoder.local_mask
    monkeypatch.setattr(encoder, 'local_mask', lambda *a: built.append(make(*a)) or built[-1])
    ids, cu, longest = packed([100, 28])
    with torch.no_grad():
        build(n_layer=6)(ids, cu, longest)
        assert [(m.dtype, tuple(m.shape)) for m in built] == [(torch.bool, (16, 1, 8, 16))]
        build(n_layer=6, global_every=1)(ids, cu, longest)
    assert len(built) == 1


def test_bfloat16_is_close():
    net = build()
    ids, cu, longest = packed([7, 9, 30, 1])
    with torch.no_grad():
        h = net(ids, cu, longest)
        with torch.autocast('cpu', torch.bfloat16):
            half = net(ids, cu, longest)
    assert half.dtype == torch.float32  # the last norm is fp32
    assert (half - h).norm() / h.norm() < 2e-2


@pytest.mark.parametrize('config, whole, bare', [
    (Config(), 296_925_440, 247_576_832),
    (Config(vocab_size=30_522, global_every=1, qk_norm=False, theta_global=1e4, decoder_bias=True),
     245_136_954, 221_665_536)], ids=['v5', 'neobert'])
def test_parameter_counts(config, whole, bare):
    with torch.device('meta'):
        net = MaskedLM(config)
    assert encoder.count(net) == whole and encoder.count(net.encoder) == bare


def test_layer_kinds():
    assert [i for i in range(28) if Config().is_global(i)] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert all(Config(global_every=1).is_global(i) for i in range(28))


def test_init_and_tying():
    torch.manual_seed(0)
    net = MaskedLM(Config(vocab_size=500, hidden=64, n_layer=8, n_head=4, ffn=128, head_transform=True))
    into = net.encoder.blocks[3].attention.out.weight
    assert abs(net.decoder.weight.std() / 0.02 - 1) < 0.03
    assert abs(into.std() / (0.02 / 4) - 1) < 0.05
    assert (net.transform[0].bias == 0).all() and (net.encoder.norm.weight == 1).all()
    tied = MaskedLM(Config(vocab_size=500, hidden=64, n_layer=1, n_head=4, ffn=128, tied=True))
    assert tied.decoder.weight is tied.encoder.embedding.weight
    assert encoder.count(tied) == encoder.count(tied.encoder)


@pytest.mark.parametrize('wrong', [dict(hidden=30), dict(hidden=34, n_head=3), dict(window=7), dict(global_every=0)])
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ValueError):
        Config(**SMALL | wrong)


def test_varlen_kernel_gets_the_window(monkeypatch):
    """The CUDA call, by its arguments: (64, 64) in local layers, (-1, -1) in global ones, the
    batch's own boundaries. A stand-in answers with the masked reference in fp64."""
    calls = []

    def kernel(q, k, v, cu_q, cu_k, max_q, max_k, window_size):
        calls.append((window_size, max_q, cu_q.tolist()))
        T, doc = len(q), torch.bucketize(torch.arange(len(q)), cu_q[1:].long(), right=True)
        sees, near = doc[:, None] == doc[None], (torch.arange(T)[:, None] - torch.arange(T)).abs()
        sees = sees & (near <= window_size[0]) if window_size[0] >= 0 else sees
        s = torch.einsum('ihe,jhe->hij', q.double(), k.double()) / math.sqrt(q.shape[-1])
        return torch.einsum('hij,jhe->ihe', s.masked_fill(~sees, -math.inf).softmax(-1), v.double()).to(q.dtype)

    net = build()
    ids, cu, longest = packed([20, 1, 30])
    with torch.no_grad():
        h = net(ids, cu, longest)
        layout = encoder.Layout.__init__

        def on_kernel(self, *args):
            layout(self, *args)
            self.kernel = True
        monkeypatch.setattr(encoder.Layout, '__init__', on_kernel)
        monkeypatch.setattr(encoder, 'varlen_attn', kernel)
        torch.testing.assert_close(net(ids, cu, longest), h, rtol=1e-5, atol=1e-5)
    assert [c[0] for c in calls] == [(-1, -1), (4, 4), (4, 4), (-1, -1)]
    assert all(c[1:] == (30, [0, 20, 21, 51]) for c in calls)


def test_checkpoint_file(tmp_path, monkeypatch):
    """Round trip; a broken or foreign file is one line; a save that dies leaves the old file."""
    net = build()
    state = {'model.' + n: p.detach() for n, p in net.named_parameters()}
    path = tmp_path / 'a.pt'
    whole = dict(model_config=vars(net.config), raw=state, ema={n: p + 1 for n, p in state.items()})
    encoder.save(path, whole)
    for which, shift in (('raw', 0), ('ema', 1)):
        again, _ = encoder.load(path, which)
        assert all(torch.equal(p, state['model.' + n] + shift) for n, p in again.named_parameters())
    good = path.read_bytes()

    def dies(*args):
        raise KeyboardInterrupt
    monkeypatch.setattr(encoder.os, 'fsync', dies)
    with pytest.raises(KeyboardInterrupt):
        encoder.save(path, whole | dict(step=2))
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ['a.pt']
    with pytest.raises(ValueError, match=r'a.pt: not a whole checkpoint of train.py \(no optimizer in it\)'):
        encoder.read(path, ('raw', 'optimizer'))
    weight = state['model.encoder.blocks.3.ffn.down.weight'].numpy().tobytes()
    flipped = bytearray(good)
    flipped[good.index(weight) + len(weight) // 2] ^= 1  # torch would load it
    for damage in (good[:-100], good[:2000], b'', b'not a checkpoint', bytes(flipped)):
        path.write_bytes(damage)
        with pytest.raises(ValueError, match='not a readable checkpoint'):
            encoder.read(path)
    with pytest.raises(FileNotFoundError):
        encoder.read(tmp_path / 'b.pt')
    monkeypatch.undo()
    for wrong in (dict(model_config=vars(net.config) | dict(new=1)), dict(ema=state | {'model.new': torch.ones(1)})):
        encoder.save(path, whole | wrong)
        with pytest.raises(ValueError, match='do not fit this code'):
            encoder.load(path)


def test_compiled_keys_have_no_prefix():
    """nanoGPT#325: module.compile() is in place, so a state dict loads both ways."""
    net = build()
    net.encoder.compile()
    assert not any('_orig_mod' in k or k.startswith('module.') for k in net.state_dict())

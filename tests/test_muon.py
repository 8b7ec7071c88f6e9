import copy
import io
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import muon  # noqa: E402

KELLER, POLAR = muon.COEFFICIENTS['keller'], muon.COEFFICIENTS['polar_express']
FP32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """A stand-in for a transformer block, with fused matrices or with each by itself."""

    def __init__(self, d, h, fused):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        if fused:
            self.qkv, self.gate_up = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 2 * h, bias=False)
            self.qkv.parts, self.gate_up.parts = 3, 2
        else:
            self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
            self.gate, self.up = (nn.Linear(d, h, bias=False) for _ in range(2))
        self.out, self.down = nn.Linear(d, d), nn.Linear(h, d, bias=False)

    def forward(self, x):                                      # (T, d) -> (T, d)
        y = self.norm(x)
        if hasattr(self, 'qkv'):
            (q, k, v), (g, u) = self.qkv(y).chunk(3, -1), self.gate_up(y).chunk(2, -1)
        else:
            q, k, v, g, u = self.q(y), self.k(y), self.v(y), self.gate(y), self.up(y)
        return x + self.out(torch.tanh(q) * k + v) + self.down(nn.functional.silu(g) * u)


class Tiny(nn.Module):
    def __init__(self, d=16, h=48, vocab=40, layers=2, fused=True, tied=False, embedding='embedding'):
        super().__init__()
        self.first = embedding
        setattr(self, embedding, nn.Embedding(vocab, d))
        self.blocks = nn.ModuleList([Block(d, h, fused) for _ in range(layers)])
        self.transform = nn.Linear(d, d)
        self.decoder = nn.Linear(d, vocab, bias=False)
        if tied:
            self.decoder.weight = getattr(self, embedding).weight

    def forward(self, ids):                                    # (T,) -> (T, vocab)
        x = getattr(self, self.first)(ids)
        for block in self.blocks:
            x = block(x)
        return self.decoder(torch.tanh(self.transform(x)))


def tiny(seed=0, **kw):
    torch.manual_seed(seed)
    return Tiny(**kw)


def make(model, **kw):
    kw = dict(lr=1e-2, weight_decay=0.1, ns_dtype='float32') | kw
    return muon.build(model, model.blocks, **kw)


def batch(step, rank=0, size=24):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(40, (size,), generator=g), torch.randint(40, (size,), generator=g)


def backward(model, step, rank=0):
    ids, target = batch(step, rank)
    nn.functional.cross_entropy(model(ids), target).backward()


def train(model, opt, steps, start=0):
    for step in range(start, start + steps):
        opt.zero_grad()
        backward(model, step)
        opt.step(1e-2)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ns(G, coefficients=KELLER, dtype=FP32):
    return muon.orthogonalize(G[None], coefficients, dtype)[0]


def sigma(X):
    X = X.double()
    X = X.mT if X.size(0) > X.size(1) else X
    return torch.linalg.eigvalsh(X @ X.mT).clamp(min=0).sqrt()


def off(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


# --- the iteration ---------------------------------------------------------------------------

@pytest.mark.parametrize('coefficients, low, high', [(KELLER, 0.45, 1.25), (POLAR, 0.80, 1.18)])
def test_singular_values_of_a_true_sized_matrix(coefficients, low, high):
    s = sigma(ns(gaussian(768, 2048), coefficients))
    assert low <= s.min() and s.max() <= high, (s.min(), s.max())


@pytest.mark.parametrize('coefficients, low, high', [(KELLER, 0.65, 1.25), (POLAR, 0.84, 1.18)])
def test_singular_values_of_square_matrices(coefficients, low, high):
    for seed in range(3):
        s = sigma(ns(gaussian(192, 192, seed=seed), coefficients))
        assert s.quantile(0.05) >= low and s.max() <= high, (s.quantile(0.05), s.max())


@pytest.mark.parametrize('coefficients', [KELLER, POLAR])
def test_singular_vectors_stay(coefficients):
    G = gaussian(24, 64)
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    D = U.T @ ns(G, coefficients).double() @ Vh.T
    assert (D - D.diag().diag()).abs().max() < 1e-5
    assert D.diag().min() > 0.6


@pytest.mark.parametrize('coefficients', [KELLER, POLAR])
def test_bf16_follows_fp32(coefficients):
    for seed in range(3):
        G = gaussian(64, 160, seed=seed)
        assert off(ns(G, coefficients, BF16), ns(G, coefficients)) < 0.04


@pytest.mark.parametrize('dtype', [FP32, BF16])
@pytest.mark.parametrize('coefficients', [KELLER, POLAR])
@pytest.mark.parametrize('m, n', [(8, 24), (48, 16), (40, 100)])
def test_bitwise_symmetries(m, n, coefficients, dtype):
    G = gaussian(5, m, n)
    X = muon.orthogonalize(G, coefficients, dtype)
    assert X.shape == G.shape and X.dtype == dtype
    assert torch.equal(muon.orthogonalize(G.mT, coefficients, dtype).mT, X)
    assert torch.equal(muon.orthogonalize(-G, coefficients, dtype), -X)
    assert torch.equal(muon.orthogonalize(G * 2**10, coefficients, dtype), X)
    for i in range(5):
        assert torch.equal(ns(G[i], coefficients, dtype), X[i]), i


def test_a_rotation_passes_through():
    G, Q = gaussian(48, 100), torch.linalg.qr(gaussian(48, 48, seed=1))[0]
    for coefficients in (KELLER, POLAR):
        assert off(ns(Q @ G, coefficients), Q @ ns(G, coefficients)) < 1e-5


@pytest.mark.parametrize('dtype', [FP32, BF16])
@pytest.mark.parametrize('coefficients, top', [(KELLER, 0.696), (POLAR, 0.859)])
def test_zero_and_rank_one(coefficients, top, dtype):
    G = torch.stack([torch.zeros(32, 64), torch.outer(gaussian(32), gaussian(64, seed=1))])
    X = muon.orthogonalize(G, coefficients, dtype)
    assert torch.equal(X[0], torch.zeros_like(X[0]))
    s = sigma(X[1])
    assert X.isfinite().all() and abs(s.max() - top) < 0.02, s
    if dtype == FP32:                                          # bf16 rounds it to full rank
        assert s[:-1].max() < 0.01, s


@pytest.mark.parametrize('coefficients', [KELLER, POLAR])
def test_the_size_of_a_gradient_does_not_matter(coefficients):
    # 1e-25: its squares are zero in fp32. Momentum that gets no gradient any more comes by there.
    G = gaussian(32, 64)
    for size in (1e-6, 1e-10, 1e-25, 1e12):
        assert off(ns(G * size, coefficients), ns(G, coefficients)) < 1e-5, size
    for size in (1e-35, 1e-42):
        assert ns(G * size, coefficients).isfinite().all(), size


def test_keller_survives_a_norm_that_is_too_small_and_polar_express_its_safety_factor():
    def on_scalar(s, coefficients):
        for a, b, c in coefficients:
            s = a * s + b * s**3 + c * s**5
        return s
    assert abs(on_scalar(1 / 0.8, KELLER)) < 1.3
    assert abs(on_scalar(1.02, POLAR) - 1) < 0.2 and abs(on_scalar(1 / 0.95, POLAR)) > 10


def test_polar_express_coefficients_are_the_papers():
    # Greedy composition (arXiv 2505.16932, section 3): on [low, high] the odd quintic nearest to 1
    # leaves +e, -e, +e, -e at low, two inner points and high; Remez exchange finds the inner two.
    def quintic(low, high):
        inner = torch.tensor([(3 * low + high) / 4, (low + 3 * high) / 4], dtype=torch.float64)
        for _ in range(60):
            x = torch.tensor([low, *inner.tolist(), high], dtype=torch.float64)
            signs = torch.tensor([1., -1., 1., -1.], dtype=torch.float64)
            M = torch.stack([x, x**3, x**5, signs], 1)
            a, b, c, _ = torch.linalg.solve(M, torch.ones(4, dtype=torch.float64)).tolist()
            root = (9 * b * b - 20 * a * c) ** 0.5             # where a + 3 b x^2 + 5 c x^4 is 0
            inner = torch.tensor([(-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)], dtype=torch.float64).sqrt()
        return a, b, c

    low, high, cushion, safety = 1e-3, 1.0, 0.02, 1.02
    for i, published in enumerate(POLAR):
        a, b, c = quintic(max(low, cushion * high), high)
        ends = [a * x + b * x**3 + c * x**5 for x in (low, high)]
        centre = 2 / sum(ends) if low < cushion * high else 1.0
        s = safety if i < len(POLAR) - 1 else 1.0
        a, b, c = a * centre / s, b * centre / s**3, c * centre / s**5
        assert published == pytest.approx((a, b, c), rel=1e-10), i
        low = a * low + b * low**3 + c * low**5
        high = 2 - low
    assert len(POLAR) == len(KELLER) == 5


# --- who gets what ---------------------------------------------------------------------------

def roles(root, blocks):
    return [(r.role, r.parts, tuple(r.param.shape)) for r in muon.route(root, blocks)]


def test_route_by_role():
    model = tiny()
    found = {r.name: (r.role, r.parts) for r in muon.route(model, model.blocks)}
    assert found['blocks.0.qkv.weight'] == ('muon', 3) and found['blocks.1.gate_up.weight'] == ('muon', 2)
    assert found['blocks.0.out.weight'] == found['blocks.0.down.weight'] == ('muon', 1)
    assert found['transform.weight'] == found['decoder.weight'] == ('decay', 1)
    for name in ('embedding.weight', 'blocks.0.norm.weight', 'blocks.0.out.bias', 'transform.bias'):
        assert found[name] == ('no_decay', 1)
    assert sorted(found) == sorted(name for name, _ in model.named_parameters())


def test_names_do_not_route():
    model = tiny()
    expected = roles(model, model.blocks)
    for name in ('codes', 'wte', 'lm_head', 'attention'):
        other = tiny(embedding=name)
        assert sorted(roles(other, other.blocks)) == sorted(expected)


def test_a_tied_decoder_is_the_embedding():
    model = tiny(tied=True)
    routes = muon.route(model, model.blocks)
    assert [r.role for r in routes if r.param is model.decoder.weight] == ['no_decay']
    opt = make(model)
    assert len(opt.params) == len({id(p) for p in opt.params}) == len(list(model.parameters()))


def test_heads_outside_the_blocks_are_adamws():
    model = tiny()
    objective = nn.ModuleDict({'offsets': nn.Embedding(4, 16), 'projection': nn.Linear(16, 16, bias=False)})
    root = nn.ModuleDict({'model': model, 'objective': objective})
    found = {r.name: r.role for r in muon.route(root, model.blocks)}
    assert found['objective.offsets.weight'] == 'no_decay' and found['objective.projection.weight'] == 'decay'
    assert found['model.blocks.0.out.weight'] == 'muon' and len(found) == len(list(root.parameters()))


def test_an_embedding_in_a_block_is_not_muons():
    model = tiny()
    model.blocks[0].positions = nn.Embedding(8, 16)
    assert {r.name: r.role for r in muon.route(model, model.blocks)}['blocks.0.positions.weight'] == 'no_decay'


def test_frozen_parameters_are_left_alone():
    model = tiny()
    model.blocks[0].requires_grad_(False)
    assert not [r for r in muon.route(model, model.blocks) if r.name.startswith('blocks.0')]
    before = weights(model.blocks[0])
    train(model, make(model), 2)
    assert same(before, weights(model.blocks[0]))


def test_blocks_of_another_model_are_refused():
    with pytest.raises(AssertionError, match='no optimizer'):
        muon.route(tiny(), tiny().blocks)


def test_parts_that_do_not_divide_are_refused():
    model = tiny()
    model.blocks[1].out.parts = 3
    with pytest.raises(ValueError, match=r'blocks\.1\.out\.weight.*16 rows.*3 parts'):
        muon.route(model, model.blocks)


def test_every_parameter_moves():
    model = tiny()
    before = weights(model)
    train(model, make(model), 1)
    assert [k for k, v in weights(model).items() if torch.equal(v, before[k])] == []


# --- one step --------------------------------------------------------------------------------

def one_matrix(rows, cols, grad, parts=1, **kw):
    """The update / lr that a zero matrix gets from one gradient."""
    model = nn.ModuleList([nn.Linear(cols, rows, bias=False)])
    model[0].parts = parts
    nn.init.zeros_(model[0].weight)
    model[0].weight.grad = grad.clone()
    muon.build(model, model, **(dict(lr=1e-2, weight_decay=0., ns_dtype='float32', momentum_warmup=0) | kw)).step()
    return -model[0].weight.detach() / 1e-2


@pytest.mark.parametrize('rows, cols', [(32, 64), (64, 32)])
@pytest.mark.parametrize('scale, size', [('match_rms', 0.2 * 8), ('original', None)])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_default_step_orthogonalises(rows, cols, scale, size, dtype):
    size = size or max(1, rows / cols) ** 0.5
    grad = gaussian(rows, cols)
    update = one_matrix(rows, cols, grad, scale=scale, ns_dtype=dtype)
    s = sigma(update / size)
    assert 0.6 <= s.min() and s.max() <= 1.2, (s.min(), s.max())
    assert torch.cosine_similarity(update.flatten(), grad.flatten(), dim=0) < 0.99     # not SGD


def test_match_rms_moves_every_shape_by_the_same_rms():
    for rows, cols in ((256, 256), (192, 512), (512, 192)):
        rms = one_matrix(rows, cols, gaussian(rows, cols)).square().mean().sqrt()
        assert rms.item() == pytest.approx(0.185, rel=0.04), (rows, cols)


def test_split_table():
    d = 96
    grad = gaussian(3 * d, d)
    grad[2 * d:] *= 10                                         # V's gradient, as it tends to be
    rms = {parts: [p.square().mean().sqrt().item() / 0.2 for p in one_matrix(3 * d, d, grad, parts).chunk(3)]
           for parts in (1, 3)}
    assert rms[3] == pytest.approx([0.90, 0.90, 0.90], abs=0.03), rms
    assert rms[1] == pytest.approx([0.36, 0.36, 1.46], abs=0.06), rms


def test_fused_is_separate_bitwise():
    fused, apart = tiny(fused=True), tiny(seed=1, fused=False)

    def pieces(block):
        return dict(zip('qkv', block.qkv.weight.chunk(3))) | dict(zip(('gate', 'up'), block.gate_up.weight.chunk(2)))
    with torch.no_grad():
        own = dict(apart.named_parameters())
        for name, p in fused.named_parameters():
            if name in own:
                own[name].copy_(p)
        for a, b in zip(fused.blocks, apart.blocks):
            for name, w in pieces(a).items():
                getattr(b, name).weight.copy_(w)
    fused_opt, apart_opt = make(fused), make(apart)
    for step in range(4):
        # The same gradients to both: one product or three would round differently.
        g = torch.Generator().manual_seed(step)
        for p in fused.parameters():
            p.grad = torch.randn(p.shape, generator=g)
        for name, p in fused.named_parameters():
            if name in own:
                own[name].grad = p.grad.clone()
        for a, b in zip(fused.blocks, apart.blocks):
            for name, w in (dict(zip('qkv', a.qkv.weight.grad.chunk(3)))
                            | dict(zip(('gate', 'up'), a.gate_up.weight.grad.chunk(2)))).items():
                getattr(b, name).weight.grad = w.clone()
        fused_opt.step(1e-2)
        apart_opt.step(1e-2)
    for a, b in zip(fused.blocks, apart.blocks):
        assert all(torch.equal(w, getattr(b, name).weight) for name, w in pieces(a).items())
        assert torch.equal(a.out.weight, b.out.weight) and torch.equal(a.down.weight, b.down.weight)


def test_chunks_do_not_show(monkeypatch):
    whole, cut = tiny(layers=3), tiny(layers=3)
    train(whole, make(whole), 2)
    monkeypatch.setattr(muon, 'CHUNK', 2)
    opt = make(cut)
    assert len(opt.optimizers[0].chunks) == 6 + 5 and max(map(len, opt.optimizers[0].chunks)) == 2
    train(cut, opt, 2)
    assert same(weights(whole), weights(cut))


@pytest.mark.parametrize('nesterov', [True, False])
def test_momentum_by_hand(nesterov):
    model = nn.ModuleList([nn.Linear(12, 8, bias=False)])
    opt = muon.build(model, model, lr=1e-2, weight_decay=0., ns_dtype='float32', nesterov=nesterov,
                     momentum_warmup=4)
    w, buf = model[0].weight, torch.zeros(8, 12)
    for step in range(7):
        grad, before = gaussian(8, 12, seed=step), w.detach().clone()
        w.grad = grad.clone()
        opt.step(1e-2)
        mu = 0.85 + 0.1 * min(1, step / 4)
        buf = mu * buf + (1 - mu) * grad
        direction = mu * buf + (1 - mu) * grad if nesterov else buf
        assert torch.allclose(opt.state['0.weight']['momentum_buffer'], buf, atol=1e-6)
        expected = before - 1e-2 * 0.2 * 12**0.5 * ns(direction)
        assert torch.allclose(w, expected, atol=1e-6), step
        assert torch.equal(w.grad, grad)                       # nothing is written into the gradient


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_zero_gradient_moves_nothing(dtype):
    assert torch.equal(one_matrix(16, 24, torch.zeros(16, 24), ns_dtype=dtype), torch.zeros(16, 24))


def test_a_missing_gradient_counts_as_zero():
    none, zero = tiny(), tiny()
    opts = make(none), make(zero)
    for model, opt in zip((none, zero), opts):
        train(model, opt, 2)
        opt.zero_grad()
        backward(model, 9)
    none.blocks[0].qkv.weight.grad = None
    zero.blocks[0].qkv.weight.grad.zero_()
    before = none.blocks[0].qkv.weight.detach().clone()
    for opt in opts:
        opt.step(1e-2)
    assert same(weights(none), weights(zero))
    assert not torch.equal(before, none.blocks[0].qkv.weight)  # its momentum and decay go on


def test_weight_decay_where_it_belongs():
    for optimizer in ('muon', 'adamw'):
        model = tiny()
        before = weights(model)
        opt = make(model, weight_decay=0.5, optimizer=optimizer)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        opt.step(0.1)
        for name, p in model.named_parameters():
            decays = p.ndim == 2 and name != 'embedding.weight'
            assert torch.allclose(p, before[name] * (0.95 if decays else 1), rtol=1e-6, atol=0), name


def test_accumulation_steps_once_and_clips_the_sum():
    model, once = tiny(), tiny()
    opt, other = make(model), make(once)
    before = weights(model)
    for micro in range(4):
        backward(model, micro)
    assert same(before, weights(model)) and opt.steps == 0
    total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    # Clipping spans both optimizers and comes before the step: it is in the momentum, not in
    # the update, whose size is the learning rate's business.
    norm = nn.utils.clip_grad_norm_(opt.params, 0.1)
    assert norm.item() == pytest.approx(total.item(), rel=1e-5) and norm > 0.1
    for p, q in zip(model.parameters(), once.parameters()):
        q.grad = p.grad.clone()
    opt.step(1e-2)
    other.step(1e-2)
    assert opt.steps == 1 and same(weights(model), weights(once))
    name = 'blocks.0.out.weight'
    grad = model.blocks[0].out.weight.grad
    assert torch.allclose(opt.state[name]['momentum_buffer'], 0.15 * grad, rtol=1e-5)
    assert (weights(model)[name] - 0.999 * before[name]).square().mean().sqrt() > 0.15 * 1e-2


def test_the_learning_rate_is_the_one_given():
    model = tiny()
    opt = make(model, lr=3e-3)
    assert opt.lr == 3e-3
    backward(model, 0)
    before = weights(model)
    opt.step(0.0)
    assert same(before, weights(model))
    assert {g['lr'] for o in opt.optimizers for g in o.param_groups} == {0.0}
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


# --- against the library ---------------------------------------------------------------------

def by_hand(model, lr=1e-2, weight_decay=0.1, everything=False, momentum=0.95):
    """The library's optimizers over hand-made groups."""
    hidden = [p for b in model.blocks for p in b.parameters() if p.ndim == 2]
    decay = [model.transform.weight, model.decoder.weight] + (hidden if everything else [])
    taken = {id(p) for p in hidden + decay}
    rest = [p for p in model.parameters() if id(p) not in taken]
    adamw = torch.optim.AdamW([dict(params=decay, weight_decay=weight_decay), dict(params=rest, weight_decay=0.)],
                              lr=lr, betas=(0.9, 0.95), eps=1e-8)
    if everything:
        return [adamw]
    return [adamw, torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=True,
                                    adjust_lr_fn='match_rms_adamw')]


def train_by_hand(model, opts, steps):
    for step in range(steps):
        model.zero_grad()
        backward(model, step)
        for opt in opts:
            opt.step()


def test_parity_with_torch_muon():
    # Given gradients, with a part common to all steps. Along its own trajectory a bfloat16 run is
    # no measure: the iteration blows rounding up in whatever directions a small batch left empty.
    start, ours, library = (tiny(fused=False, d=32, h=64) for _ in range(3))
    opts = [make(ours, ns_dtype='bfloat16', momentum_warmup=0), *by_hand(library)]
    for step in range(10):
        for i, (p, q) in enumerate(zip(ours.parameters(), library.parameters())):
            p.grad = gaussian(*p.shape, seed=i) + gaussian(*p.shape, seed=100 * step + i + 50)
            q.grad = p.grad.clone()
        for opt in opts:
            opt.step()
    begin, a, b = (torch.cat([p.detach().flatten() for p in m.blocks.parameters() if p.ndim == 2])
                   for m in (start, ours, library))
    assert torch.cosine_similarity(a - begin, b - begin, dim=0) >= 0.9999
    assert (a - b).norm() <= 0.01 * (b - begin).norm()
    rest = {k: v for k, v in weights(ours).items() if v.ndim == 1 or 'blocks' not in k}
    assert len(rest) == 8 and all(torch.equal(v, weights(library)[k]) for k, v in rest.items())


def test_the_iteration_is_torch_muons_bitwise():
    # Signs / 32: the norm is exactly 1, so that only the iteration itself can differ.
    grad = gaussian(16, 64).sign() / 32
    w = nn.Parameter(torch.zeros(16, 64))
    w.grad = grad.clone()
    torch.optim.Muon([w], lr=1e-2, weight_decay=0., momentum=0., nesterov=False, adjust_lr_fn='match_rms_adamw').step()
    ours = one_matrix(16, 64, grad, momentum=0., nesterov=False, ns_dtype='bfloat16')
    assert torch.equal(ours, -w.detach() / 1e-2)


def test_torch_muon_can_be_chosen():
    library, chosen = (tiny(fused=False) for _ in range(2))
    train_by_hand(library, by_hand(library), 5)
    train(chosen, make(chosen, optimizer='torch_muon', momentum_warmup=0, ns_dtype='auto'), 5)
    assert same(weights(library), weights(chosen))


def test_torch_muon_says_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"blocks\.0\.qkv\.weight.*choose optimizer='muon'"):
        make(tiny(), optimizer='torch_muon', ns_dtype='auto')
    with pytest.raises(ValueError, match='bfloat16 only'):
        make(tiny(fused=False), optimizer='torch_muon')
    with pytest.raises(ValueError, match='bfloat16 only'):
        make(tiny(fused=False), optimizer='torch_muon', ns_dtype='auto', ns='polar_express')


def test_adamw_is_the_librarys():
    ours, library = tiny(), tiny()
    train(ours, make(ours, optimizer='adamw'), 5)
    train_by_hand(library, by_hand(library, everything=True), 5)
    assert same(weights(ours), weights(library))


# --- state -----------------------------------------------------------------------------------

def to_disk_and_back(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize('optimizer', ['muon', 'adamw', 'torch_muon'])
def test_resume_is_the_straight_run_bitwise(optimizer):
    kw = dict(optimizer=optimizer, ns_dtype='auto', momentum_warmup=5)
    straight = tiny(fused=optimizer != 'torch_muon')
    opt = make(straight, **kw)
    train(straight, opt, 3)
    halfway, state = copy.deepcopy(straight), to_disk_and_back(opt.state_dict())
    train(straight, opt, 3, start=3)
    resumed = make(halfway, **kw)
    resumed.load_state_dict(state)
    train(halfway, resumed, 3, start=3)
    assert resumed.steps == 6 and same(weights(straight), weights(halfway))
    for name, s in opt.state_dict()['state'].items():
        assert same(s, resumed.state_dict()['state'][name])
    assert resumed.state['decoder.weight']['step'] == 6


def test_state_is_by_name_and_complete_from_the_start():
    model = tiny()
    opt = make(model)
    names = {name: set(s) for name, s in opt.state_dict()['state'].items()}
    assert names['blocks.0.qkv.weight'] == {'momentum_buffer'}
    assert names['decoder.weight'] == {'step', 'exp_avg', 'exp_avg_sq'}
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    train(model, opt, 1)
    assert names == {name: set(s) for name, s in opt.state_dict()['state'].items()}


def test_order_of_definition_does_not_matter():
    class Turned(Tiny):
        def __init__(self):
            super().__init__()
            self._modules = dict(reversed(self._modules.items()))
    a, b = tiny(), Turned()
    train(a, make(a), 2)
    opt = make(a)
    train(a, opt, 2)
    b.load_state_dict(a.state_dict())
    other = make(b)
    other.load_state_dict(to_disk_and_back(opt.state_dict()))
    assert all(torch.equal(t, other.state[name][key]) for name, s in opt.state.items() for key, t in s.items())


def test_loading_does_not_bring_back_old_hyperparameters():
    model = tiny()
    old = make(model, lr=1e-3, weight_decay=0.1)
    train(model, old, 2)
    new = make(model, lr=5e-4, weight_decay=0.0)
    new.load_state_dict(to_disk_and_back(old.state_dict()))
    assert new.lr == 5e-4
    new.zero_grad()
    backward(model, 2)
    new.step()
    groups = [g for o in new.optimizers for g in o.param_groups]
    assert len(groups) == 3 and all(g['lr'] == 5e-4 and g['weight_decay'] == 0.0 for g in groups)


def test_a_state_that_does_not_fit_is_refused_whole():
    model = tiny()
    opt = make(model)
    train(model, opt, 1)
    state = to_disk_and_back(opt.state_dict())
    state['state']['stranger'] = state['state'].pop('transform.bias')
    state['state']['blocks.0.out.weight']['momentum_buffer'] = torch.zeros(2, 3)
    state['state']['blocks.0.qkv.weight']['momentum_buffer'] += 1
    fresh = make(tiny())
    with pytest.raises(ValueError) as error:
        fresh.load_state_dict(state)
    for words in ('missing transform.bias/exp_avg', 'unexpected stranger/exp_avg',
                  'blocks.0.out.weight/momentum_buffer is (2, 3), not (16, 16)'):
        assert words in str(error.value)
    assert not any(t.any() for s in fresh.state.values() for t in s.values()) and fresh.steps == 0
    with pytest.raises(ValueError, match=r'missing blocks\.0\.qkv\.weight/exp_avg'):
        make(tiny(), optimizer='adamw').load_state_dict(opt.state_dict())


# --- settings --------------------------------------------------------------------------------

def test_auto_takes_bfloat16_where_it_is_fast(monkeypatch):
    for amx, dtype in ((True, BF16), (False, FP32)):
        monkeypatch.setattr(torch.cpu, '_is_amx_tile_supported', lambda amx=amx: amx, raising=False)
        assert muon.iteration_dtype('auto', torch.device('cpu')) == dtype
    monkeypatch.delattr(torch.cpu, '_is_amx_tile_supported')
    assert muon.iteration_dtype('auto', torch.device('cpu')) == FP32
    assert muon.iteration_dtype('auto', torch.device('cuda')) == BF16
    for setting in ('bfloat16', BF16):
        assert muon.iteration_dtype(setting, torch.device('cpu')) == BF16


@pytest.mark.parametrize('setting', [dict(optimizer='sgd'), dict(ns='kellar'), dict(ns_dtype='float16'),
                                     dict(scale='match_rms_adam')])
def test_unknown_settings_are_refused(setting):
    for optimizer in ('muon', 'adamw'):
        with pytest.raises(ValueError, match=str(*setting.values())):
            make(tiny(), **(dict(optimizer=optimizer) | setting))


def test_settings_reach_the_step():
    def moved(**kw):
        model = tiny()
        train(model, make(model, **kw), 2)
        return torch.cat([p.detach().flatten() for p in model.blocks.parameters()])
    plain = moved()
    for kw in (dict(ns='polar_express'), dict(ns_dtype='bfloat16'), dict(scale='original'), dict(nesterov=False),
               dict(momentum=0.5), dict(momentum_warmup=1), dict(weight_decay=0.2), dict(optimizer='adamw')):
        assert not torch.equal(moved(**kw), plain), kw


def test_describe_counts_everything():
    model = tiny()
    text = make(model).describe()
    # Two blocks of 16 and 48: qkv, gate_up, out, down.
    assert f'Muon: 8 tensors, {2 * (3 * 256 + 2 * 768 + 256 + 768):,} parameters, decay 0.1' in text
    assert f'AdamW: 2 tensors, {256 + 640:,} parameters, decay 0.1' in text
    assert f'AdamW: 6 tensors, {640 + 16 + 2 * 32:,} parameters, decay 0' in text
    assert '14 matrices' in text and 'keller' in text and 'float32' in text


# --- two ranks -------------------------------------------------------------------------------

def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=2,
                            timeout=timedelta(seconds=120))
    model = tiny()
    opt = make(model, momentum_warmup=3, ns_dtype='bfloat16')
    for step in range(4):
        opt.zero_grad()
        backward(model, step, rank)
        for p in opt.params:
            dist.all_reduce(p.grad)
            p.grad.mul_(0.5)
        opt.step(1e-2)
        if step == 1 and rank == 1:
            torch.save((model.state_dict(), opt.state_dict()), f'{folder}/halfway.pt')
    torch.save((weights(model), opt.state_dict()), f'{folder}/rank{rank}.pt')
    dist.destroy_process_group()


def test_two_ranks_agree_and_one_process_resumes_them(tmp_path):
    other = mp.get_context('spawn').Process(target=rank_main, args=(1, str(tmp_path)))
    other.start()
    try:
        rank_main(0, str(tmp_path))                            # this process is rank 0
    finally:
        other.join(120)
        other.kill()
    assert other.exitcode == 0
    (first, first_state), (second, second_state) = (torch.load(tmp_path / f'rank{r}.pt', weights_only=True)
                                                    for r in (0, 1))
    assert same(first, second)
    assert all(same(s, second_state['state'][name]) for name, s in first_state['state'].items())

    model = tiny(seed=5)
    opt = make(model, momentum_warmup=3, ns_dtype='bfloat16')
    model_state, opt_state = torch.load(tmp_path / 'halfway.pt', weights_only=True)
    model.load_state_dict(model_state)
    opt.load_state_dict(opt_state)
    for step in range(2, 4):
        opt.zero_grad()
        for rank in (0, 1):
            backward(model, step, rank)
        for p in opt.params:
            p.grad.mul_(0.5)
        opt.step(1e-2)
    assert same(weights(model), first)

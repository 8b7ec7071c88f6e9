"""Muon against singular values, the published coefficients, torch.optim.Muon and steps worked out by hand."""
import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import muon

KELLER, POLAR = muon.COEFFICIENTS['keller'], muon.COEFFICIENTS['polar_express']
FP32, BF16 = torch.float32, torch.bfloat16
each_iteration = pytest.mark.parametrize('coefficients', [KELLER, POLAR], ids=['keller', 'polar_express'])
each_dtype = pytest.mark.parametrize('dtype', [FP32, BF16], ids=['float32', 'bfloat16'])


def tiny(seed=0, d=16, h=48, layers=2, fused=True, tied=False, embedding='embedding'):
    """The parameters of an encoder; it computes nothing, for an optimizer sees only gradients."""
    torch.manual_seed(seed)

    def block():
        qkv, gate_up = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 2 * h, bias=False)
        qkv.parts, gate_up.parts = (3, 2) if fused else (1, 1)
        return nn.ModuleDict(dict(norm=nn.RMSNorm(d), qkv=qkv, gate_up=gate_up, out=nn.Linear(d, d),
                                  down=nn.Linear(h, d, bias=False)))
    model = nn.ModuleDict({embedding: nn.Embedding(40, d), 'blocks': nn.ModuleList(block() for _ in range(layers)),
                           'transform': nn.Linear(d, d), 'decoder': nn.Linear(d, 40, bias=False)})
    if tied:
        model.decoder.weight = model[embedding].weight
    return model


def make(model, **kw):
    return muon.build(model, model.blocks, **(dict(lr=1e-2, weight_decay=0.1, ns_dtype='float32') | kw))


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def backward(model, step, rank=0):
    """Adds a gradient to each parameter: one part is common to all steps, one is of this step and rank."""
    for i, p in enumerate(p for p in model.parameters() if p.requires_grad):
        grad = gaussian(*p.shape, seed=i) + gaussian(*p.shape, seed=1000 * (step + 1) + 100 * rank + i)
        p.grad = grad if p.grad is None else p.grad + grad


def train(model, opt, steps, ranks=(0,), reduce=lambda grad: None):
    for step in range(opt.steps, opt.steps + steps):
        opt.zero_grad()
        for rank in ranks:
            backward(model, step, rank)
        for p in opt.params:
            reduce(p.grad)
        opt.step(1e-2)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def ns(G, coefficients=KELLER, dtype=FP32):
    return muon.orthogonalize(G[None], coefficients, dtype)[0]


def off(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()

# --- the iteration ---------------------------------------------------------------------------


@pytest.mark.parametrize('coefficients, low, low_square, high', [(KELLER, 0.45, 0.65, 1.25), (POLAR, 0.80, 0.84, 1.18)])
def test_singular_values(coefficients, low, low_square, high):
    s = torch.linalg.svdvals(ns(gaussian(768, 2048), coefficients).float())           # a true size
    assert low <= s.min() and s.max() <= high, (s.min(), s.max())
    for seed in range(3):
        s = torch.linalg.svdvals(ns(gaussian(192, 192, seed=seed), coefficients).float())
        assert s.quantile(0.05) >= low_square and s.max() <= high, (s.quantile(0.05), s.max())


@each_iteration
def test_singular_vectors_stay(coefficients):
    G = gaussian(24, 64)
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    D = U.T @ ns(G, coefficients).double() @ Vh.T
    assert (D - D.diag().diag()).abs().max() < 1e-5
    assert D.diag().min() > 0.6
    G, Q = gaussian(48, 100), torch.linalg.qr(gaussian(48, 48, seed=1))[0]
    assert off(ns(Q @ G, coefficients), Q @ ns(G, coefficients)) < 1e-5       # a rotation passes through


@each_iteration
def test_neither_type_nor_size_matters(coefficients):
    for seed in range(3):
        G = gaussian(64, 160, seed=seed)
        assert off(ns(G, coefficients, BF16), ns(G, coefficients)) < 0.04
    # 1e-25: its squares are zero in fp32. Momentum that gets no gradient any more comes by there.
    G = gaussian(32, 64)
    for size in (1e-6, 1e-10, 1e-25, 1e12):
        assert off(ns(G * size, coefficients), ns(G, coefficients)) < 1e-5, size
    for size in (1e-35, 1e-42):
        assert ns(G * size, coefficients).isfinite().all(), size


@each_dtype
@each_iteration
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


@each_dtype
@pytest.mark.parametrize('coefficients, top', [(KELLER, 0.696), (POLAR, 0.859)], ids=['keller', 'polar_express'])
def test_zero_and_rank_one(coefficients, top, dtype):
    G = torch.stack([torch.zeros(32, 64), torch.outer(gaussian(32), gaussian(64, seed=1))])
    X = muon.orthogonalize(G, coefficients, dtype)
    assert torch.equal(X[0], torch.zeros_like(X[0]))
    s = torch.linalg.svdvals(X[1].float())
    assert X.isfinite().all() and abs(s.max() - top) < 0.02, s
    if dtype == FP32:                                          # bf16 rounds it to full rank
        assert s[1:].max() < 0.01, s


def test_coefficients():
    """Keller's survive a norm 20% too small, Polar Express one within its safety factor. That is the papers' greedy
    composition (arXiv 2505.16932, section 3): of all odd quintics the one nearest to 1 on [low, high] is as far
    below 1 at low and at its second turning point as above it at the first and at high."""
    def on_scalar(s, coefficients):
        for a, b, c in coefficients:
            s = a * s + b * s**3 + c * s**5
        return s
    assert len(POLAR) == len(KELLER) == 5 and abs(on_scalar(1 / 0.8, KELLER)) < 1.3
    assert abs(on_scalar(1.02, POLAR) - 1) < 0.2 and abs(on_scalar(1 / 0.95, POLAR)) > 10
    low, high, cushion = 1e-3, 1.0, 0.02
    for i, published in enumerate(POLAR):
        a, b, c = (x * (1.02 if i < 4 else 1) ** power for x, power in zip(published, (1, 3, 5)))  # the safety factor
        root = (9 * b * b - 20 * a * c) ** 0.5                 # where a + 3 b x^2 + 5 c x^4 is 0
        turns = [((-3 * b + r) / (10 * c)) ** 0.5 for r in (-root, root)]
        at_low, at_start, *at_turns, at_high = (
            on_scalar(x, [(a, b, c)]) for x in (low, max(low, cushion * high), *turns, high))
        assert at_turns == pytest.approx([at_high, at_start], rel=1e-10), i
        assert at_low + at_high == pytest.approx(2, rel=1e-10), i             # centred
        low = on_scalar(low, [published])
        high = 2 - low

# --- who gets what ---------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['embedding', 'codes', 'wte', 'lm_head', 'attention'])
def test_route_by_role_and_not_by_name(name):
    """DeepSpeed#7641: embeddings, also one in a block, heads and 1-D tensors are AdamW's, whatever they are called."""
    model = tiny(embedding=name)
    model.blocks[0].positions = nn.Embedding(8, 16)
    objective = nn.ModuleDict({'offsets': nn.Embedding(4, 16), 'projection': nn.Linear(16, 16, bias=False)})
    by_end = dict.fromkeys(('transform.weight', 'decoder.weight', 'projection.weight'), ('decay', 1))
    by_end |= {'qkv.weight': ('muon', 3), 'gate_up.weight': ('muon', 2), 'out.weight': ('muon', 1),
               'down.weight': ('muon', 1)}
    routes = muon.route(nn.ModuleDict({'model': model, 'objective': objective}), model.blocks)
    assert len(routes) == 16 + 3                               # tiny's and the three embeddings and heads given here
    for r in routes:
        assert (r.role, r.parts) == by_end.get('.'.join(r.name.split('.')[-2:]), ('no_decay', 1)), r.name


@pytest.mark.parametrize('tied, frozen', [(False, False), (True, False), (False, True)])
def test_each_parameter_has_one_optimizer_and_moves(tied, frozen):
    model = tiny(tied=tied)
    model.blocks[0].requires_grad_(not frozen)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    routes, before, opt = muon.route(model, model.blocks), weights(model), make(model)
    assert [r.name for r in routes] == list(trainable)
    assert all(p is q for p, q in zip(opt.params, trainable.values(), strict=True))
    assert [r.role for r in routes if r.param is model.embedding.weight] == ['no_decay']
    train(model, opt, 2)
    assert [name for name, p in weights(model).items() if not torch.equal(p, before[name])] == list(trainable)

# --- the step, its state and settings --------------------------------------------------------


def update(*grads, parts=1, **kw):
    """How far a zero matrix (rows, cols) goes with these gradients, a step each, / lr."""
    model = nn.ModuleList([nn.Linear(*reversed(grads[0].shape), bias=False)])
    model[0].parts = parts
    nn.init.zeros_(model[0].weight)
    opt = muon.build(model, model, **(dict(lr=1e-2, weight_decay=0., ns_dtype='float32', momentum_warmup=0) | kw))
    for grad in grads:
        model[0].weight.grad = None if grad is None else grad.clone()
        opt.step()
    return -model[0].weight.detach() / 1e-2


@each_dtype
@pytest.mark.parametrize('rows, cols, scale, size', [(32, 64, 'match_rms', 1.6), (64, 32, 'match_rms', 1.6),
                                                     (32, 64, 'original', 1), (64, 32, 'original', 2**0.5)])
def test_the_default_step_orthogonalises(rows, cols, scale, size, dtype):
    """DeepSpeed#8442: singular values in [0.6, 1.2] × scale, not SGD. dion#24: a zero gradient moves nothing."""
    grad, kw = gaussian(rows, cols), dict(scale=scale, ns_dtype=dtype)
    step = update(grad, **kw)
    s = torch.linalg.svdvals(step / size)
    assert 0.6 <= s.min() and s.max() <= 1.2, (s.min(), s.max())
    assert torch.cosine_similarity(step.flatten(), grad.flatten(), dim=0) < 0.99
    assert torch.equal(update(0 * grad, **kw), torch.zeros(rows, cols))


def test_match_rms_moves_every_shape_and_part_by_the_same_rms():
    def rms(grad, parts, pieces):
        return [p.square().mean().sqrt().item() / 0.2 for p in update(grad, parts=parts).chunk(pieces)]
    for rows, cols in ((256, 256), (192, 512), (512, 192)):
        assert rms(gaussian(rows, cols), 1, 1) == pytest.approx([0.185 / 0.2], rel=0.04), (rows, cols)
    grad = gaussian(3 * 96, 96)
    grad[2 * 96:] *= 10                                        # V's gradient, as it tends to be
    assert rms(grad, 3, 3) == pytest.approx([0.90, 0.90, 0.90], abs=0.03)
    assert rms(grad, 1, 3) == pytest.approx([0.36, 0.36, 1.46], abs=0.06)


@pytest.mark.parametrize('parts, rows', [(3, 16), (2, 48)])
def test_fused_is_separate_bitwise(parts, rows):
    grads = [gaussian(parts * rows, 16, seed=step) for step in range(4)]
    apart = [update(*pieces, weight_decay=0.1) for pieces in zip(*(grad.chunk(parts) for grad in grads))]
    assert torch.equal(update(*grads, parts=parts, weight_decay=0.1), torch.cat(apart))


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
    opt = muon.build(model, model, lr=1e-2, weight_decay=0., ns_dtype='float32', nesterov=nesterov, momentum_warmup=4)
    w, buf = model[0].weight, torch.zeros(8, 12)
    for step in range(7):
        grad, before = gaussian(8, 12, seed=step), w.detach().clone()
        w.grad = grad.clone()
        opt.step(1e-2)
        mu = 0.85 + 0.1 * min(1, step / 4)
        buf = mu * buf + (1 - mu) * grad
        direction = mu * buf + (1 - mu) * grad if nesterov else buf
        assert torch.allclose(opt.state['0.weight']['momentum_buffer'], buf, atol=1e-6)
        assert torch.allclose(w, before - 1e-2 * 0.2 * 12**0.5 * ns(direction), atol=1e-6), step
        assert torch.equal(w.grad, grad)                       # nothing is written into the gradient


def test_a_missing_gradient_counts_as_zero():
    first, kw = gaussian(16, 24), dict(weight_decay=0.1)
    assert torch.equal(update(first, None, **kw), update(first, torch.zeros(16, 24), **kw))
    assert not torch.equal(update(first, None, **kw), update(first, **kw))    # its momentum and decay go on


@pytest.mark.parametrize('optimizer', ['muon', 'adamw'])
def test_weight_decay_where_it_belongs_and_the_learning_rate_given(optimizer):
    model = tiny()
    before, opt = weights(model), make(model, weight_decay=0.5, optimizer=optimizer)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step(0.1)
    for name, p in model.named_parameters():
        decays = p.ndim == 2 and name != 'embedding.weight'
        assert torch.allclose(p, before[name] * (0.95 if decays else 1), rtol=1e-6, atol=0), name
    before = weights(model)
    backward(model, 0)
    opt.step(0.0)
    assert same(before, weights(model))
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize('optimizer', ['muon', 'torch_muon', 'adamw'])
def test_parity_with_the_library(optimizer):
    """Over hand-made groups: bit for bit, save where our Muon rounds the norm otherwise before bfloat16."""
    start, ours, library = (tiny(fused=False, d=32, h=64) for _ in range(3))
    hidden = [p for p in library.blocks.parameters() if p.ndim == 2]
    decay = [library.transform.weight, library.decoder.weight] + hidden * (optimizer == 'adamw')
    rest = [p for p in library.parameters() if p.ndim == 1 or p is library.embedding.weight]
    opts = [torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.)],
                              lr=1e-2, betas=(0.9, 0.95), eps=1e-8)]
    if optimizer != 'adamw':
        opts.append(torch.optim.Muon(hidden, lr=1e-2, weight_decay=0.1, momentum=0.95, nesterov=True,
                                     adjust_lr_fn='match_rms_adamw'))
    train(ours, make(ours, optimizer=optimizer, ns_dtype='bfloat16', momentum_warmup=0), 10)
    for step in range(10):
        library.zero_grad()
        backward(library, step)
        for opt in opts:
            opt.step()
    begin, a, b = (torch.cat([p.detach().flatten() for p in m.blocks.parameters() if p.ndim == 2])
                   for m in (start, ours, library))
    assert torch.cosine_similarity(a - begin, b - begin, dim=0) >= 0.9999
    assert (a - b).norm() <= 0.01 * (b - begin).norm()
    exact = {k: p for k, p in weights(ours).items() if optimizer != 'muon' or p.ndim == 1 or 'blocks' not in k}
    assert exact and all(torch.equal(p, weights(library)[k]) for k, p in exact.items())


def test_the_iteration_is_torch_muons_bitwise():
    grad = gaussian(16, 64).sign() / 32                        # the norm is exactly 1: only the iteration can differ
    w = nn.Parameter(torch.zeros(16, 64))
    w.grad = grad.clone()
    torch.optim.Muon([w], lr=1e-2, weight_decay=0., momentum=0., nesterov=False, adjust_lr_fn='match_rms_adamw').step()
    assert torch.equal(update(grad, momentum=0., nesterov=False, ns_dtype='bfloat16'), -w.detach() / 1e-2)


@pytest.mark.parametrize('optimizer', ['muon', 'adamw', 'torch_muon'])
def test_resume_is_the_straight_run_bitwise(optimizer, tmp_path):
    kw = dict(optimizer=optimizer, ns_dtype='auto', momentum_warmup=5)
    straight = tiny(fused=optimizer != 'torch_muon')
    opt = make(straight, **kw)
    train(straight, opt, 3)
    halfway = copy.deepcopy(straight)
    torch.save(opt.state_dict(), tmp_path / 'state.pt')
    train(straight, opt, 3)
    resumed = make(halfway, **kw)
    resumed.load_state_dict(torch.load(tmp_path / 'state.pt', weights_only=True))
    train(halfway, resumed, 3)
    assert resumed.steps == 6 and same(weights(straight), weights(halfway))
    assert all(same(s, resumed.state_dict()['state'][name]) for name, s in opt.state_dict()['state'].items())


def test_state_is_by_name_and_complete_from_the_start():
    """ModernBERT#123: and it brings back no old learning rate or weight decay."""
    model, turned = tiny(), tiny()
    opt = make(model)
    names = {name: set(s) for name, s in opt.state_dict()['state'].items()}
    assert names['blocks.0.qkv.weight'] == {'momentum_buffer'}
    assert names['decoder.weight'] == {'step', 'exp_avg', 'exp_avg_sq'}
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    train(model, opt, 2)
    assert names == {name: set(s) for name, s in opt.state_dict()['state'].items()}
    turned._modules = dict(reversed(turned._modules.items()))  # the order of definition does not matter
    other = make(turned, lr=5e-4, weight_decay=0.0)
    other.load_state_dict(opt.state_dict())
    assert all(same(s, other.state[name]) for name, s in opt.state.items())
    backward(turned, 2)
    other.step()
    groups = [g for o in other.optimizers for g in o.param_groups]
    assert len(groups) == 3 and all(g['lr'] == 5e-4 and g['weight_decay'] == 0.0 for g in groups)


def test_a_state_that_does_not_fit_is_refused_whole():
    model = tiny()
    opt = make(model)
    train(model, opt, 1)
    state = opt.state_dict()
    state['state']['stranger'] = state['state'].pop('transform.bias')
    state['state']['blocks.0.out.weight']['momentum_buffer'] = torch.zeros(2, 3)
    fresh = make(tiny())
    with pytest.raises(ValueError) as error:
        fresh.load_state_dict(state)
    for words in ('missing transform.bias/exp_avg', 'unexpected stranger/exp_avg',
                  'blocks.0.out.weight/momentum_buffer is (2, 3), not (16, 16)'):
        assert words in str(error.value)
    assert not any(t.any() for s in fresh.state.values() for t in s.values()) and fresh.steps == 0
    with pytest.raises(ValueError, match=r'missing blocks\.0\.qkv\.weight/exp_avg'):
        make(tiny(), optimizer='adamw').load_state_dict(opt.state_dict())


def test_auto_takes_bfloat16_where_it_is_fast(monkeypatch):
    cpu = torch.device('cpu')
    for amx, dtype in ((True, BF16), (False, FP32)):
        monkeypatch.setattr(torch.cpu, '_is_amx_tile_supported', lambda amx=amx: amx, raising=False)
        assert muon.iteration_dtype('auto', cpu) == dtype
    monkeypatch.delattr(torch.cpu, '_is_amx_tile_supported')
    assert [muon.iteration_dtype('auto', torch.device(kind)) for kind in ('cpu', 'cuda')] == [FP32, BF16]
    assert muon.iteration_dtype('bfloat16', cpu) == muon.iteration_dtype(BF16, cpu) == BF16


def test_what_does_not_fit_is_refused():
    for setting in (dict(optimizer='sgd'), dict(ns='kellar'), dict(ns_dtype='float16'), dict(scale='match_rms_adam')):
        for optimizer in ('muon', 'adamw'):
            with pytest.raises(ValueError, match=str(*setting.values())):
                make(tiny(), **(dict(optimizer=optimizer) | setting))
    with pytest.raises(ValueError, match=r"blocks\.0\.qkv\.weight.*choose optimizer='muon'"):
        make(tiny(), optimizer='torch_muon', ns_dtype='auto')
    for setting in (dict(ns_dtype='float32'), dict(ns_dtype='auto', ns='polar_express')):
        with pytest.raises(ValueError, match='bfloat16 only'):
            make(tiny(fused=False), optimizer='torch_muon', **setting)
    model = tiny()
    with pytest.raises(AssertionError, match='no optimizer'):
        muon.route(tiny(), model.blocks)
    model.blocks[1].out.parts = 3
    with pytest.raises(ValueError, match=r'blocks\.1\.out\.weight.*16 rows.*3 parts'):
        make(model)


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
    text = make(tiny()).describe()
    assert f'Muon: 8 tensors, {2 * (3 * 256 + 2 * 768 + 256 + 768):,} parameters, decay 0.1' in text  # 2 blocks
    assert f'AdamW: 2 tensors, {256 + 640:,} parameters, decay 0.1' in text
    assert f'AdamW: 6 tensors, {640 + 16 + 2 * 32:,} parameters, decay 0' in text
    assert '14 matrices' in text and 'keller' in text and 'float32' in text


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=2,
                            timeout=timedelta(seconds=120))
    model = tiny()
    opt = make(model, momentum_warmup=3, ns_dtype='bfloat16')
    for half in ('halfway', 'end'):
        train(model, opt, 2, ranks=[rank], reduce=dist.all_reduce)
        torch.save((weights(model), opt.state_dict()), f'{folder}/{half}{rank}.pt')
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
    (first, first_state), (second, second_state) = (torch.load(tmp_path / f'end{r}.pt') for r in (0, 1))
    assert same(first, second)
    assert all(same(s, second_state['state'][name]) for name, s in first_state['state'].items())
    model = tiny(seed=5)
    opt = make(model, momentum_warmup=3, ns_dtype='bfloat16')
    for part, saved in zip((model, opt), torch.load(tmp_path / 'halfway1.pt')):
        part.load_state_dict(saved)
    train(model, opt, 2, ranks=(0, 1))
    assert same(weights(model), first)

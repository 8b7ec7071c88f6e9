"""Muon for the matrices of the blocks, AdamW for everything else.

Muon replaces the momentum of a weight matrix by the nearest (semi-)orthogonal matrix, so that a
step moves every direction of it by about the same amount. The method and the quintic are Keller
Jordan's (https://kellerjordan.github.io/posts/muon); the scale that gives AdamW's learning rates
to both is from "Muon is Scalable for LLM Training" (arXiv 2502.16982).

    opt = muon.build(model, model.blocks, lr=8e-4, weight_decay=0.1)
    print(opt.describe())
    loss.backward(); clip_grad_norm_(opt.params, 1.0); opt.step(lr); opt.zero_grad()
"""
import math
from typing import NamedTuple

import torch
from torch import nn

# One (a, b, c) a step: each singular value s becomes a s + b s^3 + c s^5.
COEFFICIENTS = {
    # Steep at zero, and content with anything near 1 at the end. Still converges when the norm
    # it starts from is 20% too small.
    'keller': [(3.4445, -4.7750, 2.0315)] * 5,
    # Polar Express (arXiv 2505.16932): the best quintic for each step's interval, from
    # [0.001, 1] on, cushion 0.02, and a safety factor of 1.02 on all but the last. Tighter, but
    # diverges when the norm is more than 2% too small: never feed it the norm of a shard.
    'polar_express': [
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ],
}
CHUNK = 32            # matrices orthogonalised at once: caps the memory of a step
MOMENTUM_START = 0.85


def orthogonalize(G, coefficients=COEFFICIENTS['keller'], dtype=torch.bfloat16):
    """(B, m, n), any float type -> (B, m, n) in `dtype`: singular values near 1, same vectors.

    The products run in `dtype`. One matrix is a batch of one: on a CPU B changes no bit.
    """
    tall = G.size(-2) > G.size(-1)
    X = (G.mT if tall else G).float().contiguous()             # (B, short, long): the Gram is small
    # Summed in fp64, because squares of numbers below 1e-19 vanish in fp32: the norm would come
    # out too small and the iteration blow up. Momentum without gradient gets there in 800 steps.
    norm = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    X = (X / norm.float().clamp(min=1e-30)).to(dtype)          # zero stays exactly zero
    for a, b, c in coefficients:
        A = X @ X.mT                                           # (B, short, short)
        A = torch.baddbmm(A, A, A, beta=b, alpha=c)            # b A + c A A
        X = torch.baddbmm(X, A, X, beta=a)                     # a X + (b A + c A A) X
    return X.mT if tall else X


def update_scale(rows, cols, kind):
    """What a (rows, cols) update is multiplied by, besides the learning rate.

    'match_rms' gives every shape the RMS of a typical AdamW update, about 0.2. 'original' is
    Keller's: a learning rate of 0.02 there is about 3.6e-3 in match_rms at width 768.
    """
    if kind == 'match_rms':
        return 0.2 * math.sqrt(max(rows, cols))
    if kind == 'original':
        return math.sqrt(max(1, rows / cols))
    raise ValueError(f"scale is 'match_rms' or 'original', not {kind!r}")


def iteration_dtype(setting, device):
    """'auto' | 'bfloat16' | 'float32' (or a torch.dtype) -> the type of the iteration's products.

    A CPU without AMX multiplies bfloat16 several times slower than float32, hence 'auto'.
    """
    if setting == 'auto':
        amx = device.type == 'cpu' and getattr(torch.cpu, '_is_amx_tile_supported', bool)()
        return torch.bfloat16 if device.type == 'cuda' or amx else torch.float32
    dtypes = {'bfloat16': torch.bfloat16, 'float32': torch.float32}
    dtype = dtypes.get(setting, setting)
    if dtype not in dtypes.values():
        raise ValueError(f"the iteration's type is 'auto', 'bfloat16' or 'float32', not {setting!r}")
    return dtype


class Route(NamedTuple):
    name: str
    param: nn.Parameter
    parts: int            # matrices stacked along the rows, each orthogonalised by itself
    role: str             # 'muon' | 'decay' | 'no_decay': the latter two are AdamW's


def route(root, blocks):
    """Every trainable parameter of `root` exactly once (tied ones too), as a list of Routes.

    By what a parameter is, never by what it is called: a 2-D tensor inside `blocks` is Muon's, an
    embedding never is; of AdamW's share, embeddings and 1-D tensors do not decay. A module in
    `blocks` with an attribute `parts` (3 for [q; k; v] in contiguous rows) holds that many matrices.
    """
    inside = {id(p) for p in blocks.parameters()}
    embeddings = {id(p) for m in root.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))
                  for p in m.parameters(recurse=False)}
    parts = {id(p): getattr(m, 'parts', 1) for m in blocks.modules() for p in m.parameters(recurse=False)}
    routes = []
    for name, p in root.named_parameters():
        if not p.requires_grad:
            continue
        if id(p) in embeddings or p.ndim < 2:
            role = 'no_decay'
        else:
            role = 'muon' if id(p) in inside and p.ndim == 2 else 'decay'
        n = parts[id(p)] if role == 'muon' else 1
        if role == 'muon' and p.size(0) % n:
            raise ValueError(f'{name}: {p.size(0)} rows do not split into {n} parts')
        routes.append(Route(name, p, n, role))
    ids = [id(r.param) for r in routes]
    trainable = {id(p) for m in (root, blocks) for p in m.parameters() if p.requires_grad}
    assert len(ids) == len(set(ids)) and set(ids) == trainable, 'a parameter has no optimizer, or two'
    return routes


class Muon(torch.optim.Optimizer):
    """Muon over 2-D parameters; `parts` says for each how many matrices are stacked in it.

    EMA momentum and Nesterov leave p.grad as it was; a missing gradient counts as zero, so that
    what happens never depends on which tensors a batch reached.
    """

    def __init__(self, params, parts, *, lr, weight_decay, momentum, nesterov, coefficients, dtype, scale):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))
        self.nesterov, self.coefficients, self.dtype = nesterov, coefficients, dtype
        shapes = {}                                            # (short, long) -> its matrices
        for p, n in zip(params, parts):
            self.state[p]['momentum_buffer'] = torch.zeros_like(p, dtype=torch.float32)
            rows, cols = p.size(0) // n, p.size(1)
            for i in range(n):
                matrix = (p, slice(i * rows, (i + 1) * rows), update_scale(rows, cols, scale))
                shapes.setdefault((min(rows, cols), max(rows, cols)), []).append(matrix)
        self.chunks = [m[i:i + CHUNK] for m in shapes.values() for i in range(0, len(m), CHUNK)]

    @torch.no_grad()
    def step(self):
        lr, decay, mu = (self.param_groups[0][k] for k in ('lr', 'weight_decay', 'momentum'))
        for chunk in self.chunks:
            short_wide = []
            for p, rows, _ in chunk:
                buf = self.state[p]['momentum_buffer'][rows]   # (rows, cols), a view
                g = torch.zeros_like(buf) if p.grad is None else p.grad[rows].float()
                buf.lerp_(g, 1 - mu)
                u = g.lerp(buf, mu) if self.nesterov else buf
                short_wide.append(u.mT if u.size(0) > u.size(1) else u)
            updates = orthogonalize(torch.stack(short_wide), self.coefficients, self.dtype)
            for (p, rows, scale), u in zip(chunk, updates):    # (short, long)
                w = p[rows]
                w.mul_(1 - lr * decay).add_(u.mT if w.size(0) > w.size(1) else u, alpha=-lr * scale)


class Optimizers:
    """Muon and AdamW as one: one learning rate, one state by parameter name. `build` makes it."""

    def __init__(self, routes, optimizers, *, lr, momentum, momentum_warmup, note=''):
        self.params = [r.param for r in routes]                # to clip over both at once
        self.optimizers, self.lr, self.steps, self.note = optimizers, lr, 0, note
        self.momentum, self.momentum_warmup = momentum, momentum_warmup
        owner = {p: opt for opt in optimizers for g in opt.param_groups for p in g['params']}
        self.state = {r.name: owner[r.param].state[r.param] for r in routes}

    def step(self, lr=None):
        """One step of both at learning rate `lr`; without it, at the one before."""
        self.lr = self.lr if lr is None else lr
        start = min(MOMENTUM_START, self.momentum)
        warm = min(1.0, self.steps / self.momentum_warmup) if self.momentum_warmup else 1.0
        for opt in self.optimizers:
            for group in opt.param_groups:
                group['lr'] = self.lr
                if 'momentum' in group:
                    group['momentum'] = start + (self.momentum - start) * warm
            opt.step()
        self.steps += 1

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def state_dict(self):
        """{'steps': int, 'state': {parameter name: {key: tensor}}}; the tensors are the live ones."""
        return {'steps': self.steps, 'state': {name: dict(s) for name, s in self.state.items()}}

    def load_state_dict(self, saved):
        """Copies a state_dict in, or raises ValueError and changes nothing.

        Learning rate, weight decay and the rest stay what `build` and `step` were given.
        """
        old = {f'{name}/{key}': t for name, s in saved['state'].items() for key, t in s.items()}
        new = {f'{name}/{key}': t for name, s in self.state.items() for key, t in s.items()}
        faults = [f'missing {k}' for k in new if k not in old] + [f'unexpected {k}' for k in old if k not in new]
        faults += [f'{k} is {tuple(old[k].shape)}, not {tuple(new[k].shape)}'
                   for k in new if k in old and old[k].shape != new[k].shape]
        if faults:
            raise ValueError('optimizer state does not fit the model: ' + ', '.join(faults))
        for k, t in new.items():
            t.copy_(old[k])
        self.steps = saved['steps']

    def describe(self):
        groups = [(type(opt).__name__, g['params'], g['weight_decay'])
                  for opt in self.optimizers for g in opt.param_groups if g['params']]
        return '; '.join(f'{kind}: {len(ps)} tensors, {sum(p.numel() for p in ps):,} parameters, decay {decay:g}'
                         for kind, ps, decay in groups) + self.note


def build(root, blocks, *, optimizer='muon', lr, weight_decay, betas=(0.9, 0.95), eps=1e-8, momentum=0.95,
          momentum_warmup=300, nesterov=True, ns='keller', ns_dtype='auto', scale='match_rms'):
    """-> Optimizers over every trainable parameter of `root`, whose transformer is `blocks`.

    optimizer: 'muon'; 'adamw' for everything; 'torch_muon', the library's, for comparison (no
    fused matrices, its own bfloat16 iteration). `momentum_warmup` is in steps. `lr` and
    `weight_decay` hold for both halves; with scale='original' `lr` is in Keller's units.
    """
    if optimizer not in ('muon', 'torch_muon', 'adamw'):
        raise ValueError(f"optimizer is 'muon', 'torch_muon' or 'adamw', not {optimizer!r}")
    if ns not in COEFFICIENTS:
        raise ValueError(f'ns is one of {", ".join(COEFFICIENTS)}, not {ns!r}')
    update_scale(1, 1, scale)                                  # a wrong name fails in every mode
    routes = route(root, blocks)
    device = routes[0].param.device
    dtype = iteration_dtype(ns_dtype, device)

    matrices = [r for r in routes if r.role == 'muon' and optimizer != 'adamw']
    params = [r.param for r in matrices]
    common = dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov)
    optimizers, note = [], ''
    if matrices and optimizer == 'torch_muon':
        fused = [r.name for r in matrices if r.parts > 1]
        if fused:
            raise ValueError(f"torch.optim.Muon would take the fused {', '.join(fused)} as one matrix each: "
                             "choose optimizer='muon', or give the model separate matrices")
        if ns != 'keller' or ns_dtype not in ('auto', 'bfloat16', torch.bfloat16):
            raise ValueError("torch.optim.Muon knows ns='keller' in bfloat16 only: choose optimizer='muon'")
        adjust = {'match_rms': 'match_rms_adamw', 'original': 'original'}[scale]
        optimizers = [torch.optim.Muon(params, adjust_lr_fn=adjust, **common)]
        for p in params:
            optimizers[0].state[p]['momentum_buffer'] = torch.zeros_like(p)
        note = f' (torch.optim.Muon, {scale})'
    elif matrices:
        optimizers = [Muon(params, [r.parts for r in matrices], coefficients=COEFFICIENTS[ns], dtype=dtype,
                           scale=scale, **common)]
        note = f' ({sum(r.parts for r in matrices)} matrices for Muon, {ns} in {dtype}, {scale})'

    taken = {id(p) for p in params}
    rest = [r for r in routes if id(r.param) not in taken]
    groups = [dict(params=[r.param for r in rest if r.role != 'no_decay'], weight_decay=weight_decay),
              dict(params=[r.param for r in rest if r.role == 'no_decay'], weight_decay=0.0)]
    on_gpu = device.type == 'cuda'
    adamw = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=on_gpu or None)
    # AdamW makes its state at a parameter's first gradient. Made here instead, a state_dict has
    # the same names at every step, and loading can be strict.
    for r in rest:
        adamw.state[r.param] = dict(step=torch.zeros((), device=device if on_gpu else 'cpu'),
                                    exp_avg=torch.zeros_like(r.param), exp_avg_sq=torch.zeros_like(r.param))
    return Optimizers(routes, [*optimizers, adamw], lr=lr, momentum=momentum, momentum_warmup=momentum_warmup,
                      note=note)

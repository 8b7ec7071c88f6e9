"""Batch → loss and stats: `mlm` and `mlm_neighbors`.

An objective is asked twice. `prepare(batch)` runs on the CPU before any forward: it derives the
targets from the masks and counts each term. The counts of all micro-steps and ranks are summed
and handed back to `forward` as denominators, so that accumulation and ranks change nothing.
Only masked rows of h meet the decoder, in chunks: memory does not grow with their number.
M: masked positions, P: neighbor pairs, d: hidden, V: vocabulary, J = 2 · window offsets.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def in_chunks(function, chunk, *rows):
    """function over `chunk` rows at a time; its results, tensors over rows, are concatenated.
    With several chunks the backward pass computes each chunk's logits again rather than keep
    them, so at most one chunk of (chunk, V) logits is alive. At least one chunk always runs:
    with no rows at all the result is empty but still has a graph, and gradients are zeros."""
    parts = list(zip(*(r.split(chunk) for r in rows)))
    if len(parts) == 1 or not torch.is_grad_enabled():
        results = [function(*p) for p in parts]
    else:
        results = [checkpoint(function, *p, use_reentrant=False, preserve_rng_state=False) for p in parts]
    return [torch.cat(r) for r in zip(*results)]


def log_probabilities(logits):
    """log softmax in fp32 (fp64 where the model is)."""
    return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))


def nll(logits, target):
    """Cross-entropy: logits (m, V), target (m,) → (m,) nats."""
    return F.nll_loss(log_probabilities(logits), target, reduction='none')


class MLM(nn.Module):
    """The masked language model: Σ nll / M."""

    window = 2  # no heads: where it is looked at beside an objective that has them

    def __init__(self, hidden, chunk=1024):
        super().__init__()
        self.chunk = chunk

    def prepare(self, batch, max_pairs=0):
        """Adds target (M,) to the batch; returns the counts of its terms, on the CPU."""
        batch['target'] = batch['orig'][batch['masked']]
        return {'mlm': len(batch['masked'])}

    def forward(self, model, batch, counts):
        """→ loss (its share of the whole step's), {term: Σ over this batch} detached."""
        h = model(batch['ids'], batch['cu'], batch['longest'])[batch['masked']]           # (M, d)
        loss, stats = self.mlm(model, h, batch, counts)
        return loss, stats

    def total(self, means):
        """{term: mean over its count} → what they add up to, the loss in nats."""
        return means['mlm']

    def mlm(self, model, h, batch, counts):
        total = in_chunks(lambda h, t: (nll(model.decode(h), t),), self.chunk, h, batch['target'])[0].sum()
        return total / max(counts['mlm'], 1), {'mlm': total.detach()}


class MLMNeighbors(MLM):
    """MLM, and for each offset j in ±1 … ±window a second prediction of a masked token from the
    masked anchor j places before it, in the same document:

        Σ nll_mlm / M + weight · mean_j (Σ nll_j / P_j)
                      + lambda · mean_j (Σ KL(stopgrad p_mlm at i+j ‖ p_head_j at i) / P_j)

    kind 'offset_emb': head_j = decoder(h_i + e_j), e_j zero at the start: AraNeoBERT v5, whose
    heads stayed the MLM head. kind 'projection': head_j = decoder(W_j h_i): the repair.
    """

    def __init__(self, hidden, kind='offset_emb', window=2, weight=1.0, consistency=0.1,
                 projection_init='identity', chunk=1024):
        super().__init__(hidden, chunk)
        if kind not in ('offset_emb', 'projection'):
            raise ValueError(f"neighbor_head_kind={kind!r}: choose 'offset_emb' or 'projection'")
        if window < 1:
            raise ValueError(f'neighbor_window={window}: must be at least 1')
        self.window, self.kind, self.weight, self.consistency = window, kind, weight, consistency
        self.offsets = [j for j in range(-window, window + 1) if j]                       # J of them
        self.terms = [f'{j:+d}' for j in self.offsets]
        if kind == 'offset_emb':
            self.heads = nn.Embedding(len(self.offsets), hidden)                          # e_j
            nn.init.zeros_(self.heads.weight)
            return
        self.zero_residual = projection_init == 'zero_residual'                           # h + W_j h, W_j 0
        self.heads = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in self.offsets)  # W_j
        for head in self.heads:
            if projection_init == 'identity':
                nn.init.eye_(head.weight)
            elif projection_init == 'random':
                nn.init.normal_(head.weight, std=hidden ** -0.5)
            elif projection_init == 'zero_residual':
                nn.init.zeros_(head.weight)
            else:
                raise ValueError(f"projection_init={projection_init!r}: choose 'identity', 'random' or "
                                 "'zero_residual'")

    def head(self, j, h):
        """What head j reads in place of h (…, d); j: index of the offset."""
        if self.kind == 'offset_emb':
            return h + self.heads.weight[j]
        projected = self.heads[j](h)
        return h + projected if self.zero_residual else projected

    def prepare(self, batch, max_pairs=0):
        """Adds target (M,), anchor and goal (P,): rows of the masked positions, sorted by offset, and
        pairs, the number per offset; at most max_pairs of them, drawn uniformly by (seed, step, row),
        0: all. Counts: 'mlm', and one per offset."""
        counts = super().prepare(batch)
        masked = batch['masked']
        document = np.searchsorted(batch['cu'], masked, 'right')                          # (M,)
        anchor, goal, offset = [], [], []
        for index, j in enumerate(self.offsets):
            at = np.searchsorted(masked, masked + j)                                      # (M,)
            inside = np.minimum(at, max(len(masked) - 1, 0))
            a = np.flatnonzero((masked[inside] == masked + j) & (document[inside] == document))
            anchor.append(a)
            goal.append(at[a])
            offset.append(np.full(len(a), index))
        anchor, goal, offset = map(np.concatenate, (anchor, goal, offset))
        if max_pairs and len(anchor) > max_pairs:
            keep = np.sort(self.lottery(batch, masked[anchor], offset)[:max_pairs])
            anchor, goal, offset = anchor[keep], goal[keep], offset[keep]
        pairs = np.bincount(offset, minlength=len(self.offsets))
        batch.update(anchor=anchor, goal=goal, pairs=pairs.tolist())
        return counts | dict(zip(self.terms, batch['pairs']))

    def lottery(self, batch, position, offset):
        """Order of the pairs (P,) by lots drawn per row from its key (seed, step, row)."""
        L, J = batch['longest'], len(self.offsets)
        lots = np.empty((len(batch['ids']), J))
        for i, key in enumerate(batch['keys']):
            lots[i * L:(i + 1) * L] = np.random.default_rng([*key, 1]).random((L, J))
        return np.argsort(lots[position, offset], kind='stable')

    def forward(self, model, batch, counts):
        h = model(batch['ids'], batch['cu'], batch['longest'])[batch['masked']]           # (M, d)
        loss, stats = self.mlm(model, h, batch, counts)
        goal = batch['goal']                                                              # (P,)
        source = torch.cat([self.head(j, x) for j, x in enumerate(h[batch['anchor']].split(batch['pairs']))])
        ce, kl = in_chunks(lambda *rows: self.pair_losses(model, *rows), self.chunk,
                           source, h.detach()[goal], batch['target'][goal])               # (P,) each
        J = len(self.offsets)
        for term, ce_j, kl_j in zip(self.terms, ce.split(batch['pairs']), kl.split(batch['pairs'])):
            weighted = self.weight * ce_j.sum() + self.consistency * kl_j.sum()
            loss = loss + weighted / (J * max(counts[term], 1))
            stats |= {term: ce_j.detach().sum(), 'kl' + term: kl_j.detach().sum()}
        return loss, stats

    def total(self, means):
        return means['mlm'] + sum(self.weight * means[term] + self.consistency * means['kl' + term]
                                  for term in self.terms) / len(self.terms)

    def pair_losses(self, model, source, goal, target):
        """source, goal (p, d), target (p,) → nll (p,), KL(p_mlm at the goal ‖ p_head) (p,)."""
        head = log_probabilities(model.decode(source))                            # (p, V)
        ce = F.nll_loss(head, target, reduction='none')
        if not self.consistency:
            return ce, torch.zeros_like(ce)
        with torch.no_grad():
            teacher = log_probabilities(model.decode(goal))                       # (p, V)
        return ce, F.kl_div(head, teacher, reduction='none', log_target=True).sum(-1)


def build(settings, hidden):
    """The objective that the settings name; ValueError with one line if they contradict."""
    if settings['objective'] == 'mlm':
        extra = [k for k in sorted(settings.given) if k in NEIGHBOR_SETTINGS]
        if extra:
            raise ValueError(f"objective 'mlm' has no use for {', '.join(extra)}: take it out, "
                             "or set --objective=mlm_neighbors")
        return MLM(hidden, settings['chunk'])
    if settings['objective'] == 'mlm_neighbors':
        return MLMNeighbors(hidden, *(settings[k] for k in NEIGHBOR_SETTINGS if k != 'neighbor_max_pairs'), settings['chunk'])
    raise ValueError(f"objective={settings['objective']!r}: choose 'mlm' or 'mlm_neighbors'")


NEIGHBOR_SETTINGS = ('neighbor_head_kind', 'neighbor_window', 'neighbor_weight', 'consistency_lambda',
                     'neighbor_max_pairs', 'projection_init')

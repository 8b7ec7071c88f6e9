"""The phases of a run: which rows each step sees, how they are masked, the learning rate.

`phases` is a list of dict(name=…, steps=…) and any of PHASE_SETTINGS, which hold for that phase.
"""
import collections
import itertools
import math

import data

PHASE_SETTINGS = ('seq_len', 'theta_local', 'theta_global', 'sources', 'mask_rate', 'micro_tokens',
                  'neighbor_max_pairs', 'mask_span_mean')  # what a phase may set for itself


class Phase:
    """One entry of `phases`: its settings (the run's, where it names none), its steps and rows."""

    def __init__(self, index, entry, s, train_sources, start, world):
        unknown = set(entry) - {'name', 'steps', *PHASE_SETTINGS}
        if unknown or 'name' not in entry:
            raise ValueError(f'phases[{index}]: {", ".join(sorted(unknown)) or "no name"}: a phase is '
                             f'dict(name=…, steps=…) and any of {", ".join(PHASE_SETTINGS)}')
        self.name, self.start = entry['name'], start
        self.s = s = s | {k: v for k, v in entry.items() if k in PHASE_SETTINGS}
        shares = s['sources'] or dict.fromkeys(train_sources, 1.0)
        tokens = {n: v * (train_sources[n].n_tokens if s['mix_by'] == 'epochs' else 1) for n, v in shares.items()}
        self.rows, self.micro_rows = s['batch_tokens'] // s['seq_len'], s['micro_tokens'] // s['seq_len']
        if s['batch_tokens'] % s['seq_len'] or self.micro_rows < 1 or self.rows % (self.micro_rows * world):
            raise ValueError(
                f'phase {self.name}: batch_tokens={s["batch_tokens"]} is not a whole number of micro-batches of '
                f'micro_tokens={s["micro_tokens"]} (rows of seq_len={s["seq_len"]}) on {world} ranks: '
                'change micro_tokens')
        # without `steps`, shares counted in epochs say how long the phase is
        self.steps = entry.get('steps') or int(sum(tokens.values())) // s['batch_tokens']
        if self.steps < 1:
            raise ValueError(f'phase {self.name}: steps={self.steps}: a phase has at least one step')
        least = max(1, s['mask_rate'] / max(1 - s['mask_rate'], 1e-9))  # the gaps between spans are at least one word
        if 0 < s['mask_span_mean'] < least - 1e-9:
            raise ValueError(f'phase {self.name}: mask_span_mean={s["mask_span_mean"]}: with mask_rate={s["mask_rate"]} at least '
                             f'{least:.4g}; 0 draws every word by itself')
        self.end = start + self.steps
        self.mixture = data.Mixture(train_sources, tokens, s['seq_len'], self.steps * self.rows, s['seed'], index)

    def micro_batch(self, step, i):
        """The i-th micro-batch of a step, the same whichever rank asks for it."""
        return self.batch(step, i * self.micro_rows, self.micro_rows)

    def batch(self, step, first, n):
        return data.batch(self.mixture, step, (step - self.start) * self.rows, first, n,
                          self.s['seed'], mask_rate=self.s['mask_rate'], whole_words=self.s['whole_words'],
                          replace=self.s['mask_replace'], span_mean=self.s['mask_span_mean'])

    def mask_rates(self, tokens=1 << 18):
        """{source: share of its tokens, specials apart, that are masked} in the phase's first rows, measured."""
        masked, of = collections.Counter(), collections.Counter()
        for i in range(min(-(-tokens // self.s['seq_len']), self.steps * self.rows)):
            b = self.batch(self.start + i // self.rows, i % self.rows, 1)
            masked[b['sources'][0]] += len(b['masked'])
            of[b['sources'][0]] += int((b['orig'] >= len(data.SPECIALS)).sum())
        return {n: masked[n] / max(of[n], 1) for n in sorted(of)}


def reached(s):
    """The entries of `phases` that the run comes to before max_steps."""
    if not s['phases'] or not all(isinstance(p, dict) and isinstance(p.get('steps', 0), int) for p in s['phases']):
        raise ValueError(f"phases={s['phases']!r}: a list of at least one dict, such as [dict(name='stable', steps=1000)]")
    starts = itertools.accumulate((p.get('steps', 0) for p in s['phases']), initial=0)
    return [p for p, start in zip(s['phases'], starts) if not s['max_steps'] or start < s['max_steps']]


def phases(s, train_sources, world):
    """Every phase that the run reaches, in order, checked before the first step; and the steps
    of all phases, also of those that max_steps cuts off: the length of the schedule."""
    found = []
    for index, entry in enumerate(reached(s)):
        found.append(Phase(index, entry, s, train_sources, found[-1].end if found else 0, world))
    return found, found[-1].end + sum(p.get('steps', 0) for p in s['phases'][len(found):])


def tokens_seen(phases, step):
    """{source: tokens of it before a step}, from the plan: exact after a resume too."""
    seen = {}
    for p in phases:
        dealt = p.mixture.dealt(min(max(step - p.start, 0), p.steps) * p.rows)
        for source, n in zip(p.mixture.sources, dealt.tolist()):
            seen[source.name] = seen.get(source.name, 0) + n * p.s['seq_len']
    return seen


def lr_at(step, s, total):
    """Learning rate of a step (0, 1, …): linear warmup, plateau, then 1 - sqrt (WSD, arXiv
    2405.18392) or half a cosine from decay_start to decay_end, and the minimum from there on."""
    if step < s['warmup_steps']:
        return s['lr'] * (step + 1) / s['warmup_steps']
    if not s['decay_start'] and s['schedule'] == 'wsd':
        return s['lr']
    start, end = max(s['decay_start'], s['warmup_steps']), s['decay_end'] or total
    x = min(max((step - start) / max(end - start, 1), 0.0), 1.0)
    shape = 1 - math.sqrt(x) if s['schedule'] == 'wsd' else 0.5 * (1 + math.cos(math.pi * x))
    return s['lr'] * (s['min_lr_ratio'] + (1 - s['min_lr_ratio']) * shape)

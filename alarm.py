"""The alarms: what would have shown v5 its fault by step 5,000. train.py looks at every evaluation.

v5's heads stayed one head, so its trunk learned to blend neighbors: two masks near each other got one prediction.
The cause shows first: a neighbor head says less against the MLM head than two adjacent masks against each other.
The harm is told from the flatness of a young encoder by the first distance that no neighbor head covers.
The thresholds are from measured runs (docs/POSTMORTEM_v5.md); v5's own figures at the end were 0.0014 and 0.0008.
"""
import eval as evaluation

SAME, APART = 0.25, 0.02  # heads: KL(MLM ‖ head) below SAME of that between adjacent masks, once this is APART nats
FLAT, ARMED = 0.10, 0.5   # trunk: divergence at d = 1 below FLAT of that at window + 1, once this is ARMED nats
PATIENCE, RISE = 4, 1.25  # trunk: so many looks in a row, without a rise by RISE meanwhile; heads: two looks


def watch(model, objective, pieces, mask_rate, n=256, **common):
    """Figures cheap enough for every evaluation of a run, of a model and its heads on held-out pieces:
    → {'separation': d = 1 … window+2, 'infill': spans 1, 2, 3, 'heads': where the objective has them}."""
    predict, common = evaluation.predictor(model), dict(n=n, **common)
    out = dict(separation=evaluation.separating(predict, pieces, distances=range(1, objective.window + 3), **common),
               infill=evaluation.infilling(predict, pieces, spans=(1, 2, 3), kinds=('span',), **common))
    if hasattr(objective, 'head'):
        out['heads'] = evaluation.heads_of(model, objective, pieces, mask_rate, **common)
    return out


def look(watched):
    """What `alarms` needs of it: [[divergence at d = 1, at window + 1, and with heads: the largest KL of one, the KL
    of two adjacent masks]]; nothing where the text had no place for a figure."""
    apart, heads = watched['separation'].values(), watched.get('heads', {})
    kls = [x['kl'] for x in heads.values()]
    if None in [x['divergence'] for x in apart] + kls:
        return []
    near, *_, far, _ = [x['divergence'] for x in apart]
    return [[near, far, max(kls[:-1]), kls[-1]] if heads else [near, far]]


def alarms(looks, window):
    """What is wrong with a run, in lines for people; looks: of all evaluations so far."""
    found = []
    last = [x for x in looks if len(x) == 4 and x[3] > APART][-2:]
    if len(last) == 2 and all(kl < SAME * adjacent for _, _, kl, adjacent in last):
        found.append('the neighbor heads are the MLM head: the most different one is {2:.2g} nats from it, two adjacent masks are '
                     '{3:.2g} apart, so the trunk is asked for one answer to many questions'.format(*last[-1]))
    armed = [x for x in looks if x[1] > ARMED][-PATIENCE:]
    ratios = [near / far for near, far, *_ in armed]
    if len(ratios) == PATIENCE and max(ratios) < FLAT and ratios[-1] < RISE * ratios[0]:
        found.append(f'two masks 1 apart get nearly one prediction ({armed[-1][0]:.2g} nats; {armed[-1][1]:.2g} at d = {window + 1}), '
                     f'for {PATIENCE} looks now: the trunk blends neighbors')
    return [f'(!) COLLAPSE: {x}. Set neighbor_head_kind=projection and a low neighbor_weight' for x in found]


def told(watched):
    """`watch` in one line, for people."""
    apart = ', '.join('-' if x['divergence'] is None else f'{x["divergence"]:.3g}' for x in watched['separation'].values())
    exact = ', '.join('-' if x['exact'] is None else f'{x["exact"]:.1%}' for x in watched['infill'].values())
    heads = [f'; {j} KL {x["kl"]:.3g}, ratio {x["ratio"]:.3g}' for j, x in watched.get('heads', {}).items() if x.get('ratio')]
    return f'two masks 1, 2, … apart differ by {apart} nats; infill of 1, 2, 3: {exact}' + ''.join(heads)

"""The alarms: what would have shown v5 its fault by step 5,000. train.py looks at every evaluation.

v5's trunk learned to blend neighbors: two masks near each other got one prediction. An encoder that is only young
is flat too, at every distance; so the alarm compares d = 1 with the first distance that no neighbor head covers.
"""
import eval as evaluation

# Looks count once the encoder tells masks window + 1 apart by ARMED nats. Then d = 1 below FLAT of that, PATIENCE
# looks in a row, without a rise by RISE meanwhile: docs/POSTMORTEM_v5.md has the runs behind the numbers.
ARMED, FLAT, RISE, PATIENCE = 0.5, 0.15, 1.25, 3


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
    """What `collapsing` needs of it: [(divergence at d = 1, at d = window+1)]; none where the text had no pair."""
    apart = [x['divergence'] for x in watched['separation'].values()]
    return [] if None in apart else [(apart[0], apart[-2])]


def collapsing(looks):
    """Is the trunk of a run learning to blend neighbors? looks: of all evaluations so far."""
    armed = [near / far for near, far in looks if far > ARMED][-PATIENCE:]
    return len(armed) == PATIENCE and max(armed) < FLAT and armed[-1] < RISE * armed[0]


def told(watched):
    """`watch` in one line, for people."""
    apart = ', '.join('-' if x['divergence'] is None else f'{x["divergence"]:.3g}' for x in watched['separation'].values())
    exact = ', '.join('-' if x['exact'] is None else f'{x["exact"]:.1%}' for x in watched['infill'].values())
    heads = [f'; {j} KL {x["kl"]:.3g}, ratio {x["ratio"]:.3g}' for j, x in watched.get('heads', {}).items() if x.get('ratio')]
    return f'two masks 1, 2, … apart differ by {apart} nats; infill of 1, 2, 3: {exact}' + ''.join(heads)


def cry(step, window, near, far):
    return (f'step {step}: (!) COLLAPSE: two masks 1 apart get nearly one prediction ({near:.3g} nats; {far:.3g} at '
            f'd = {window + 1}), and it does not mend: the trunk learns to blend neighbors. A lower neighbor_weight, '
            'or neighbor_head_kind=projection: docs/POSTMORTEM_v5.md')

"""The alarm: when it rings on made-up looks, what it looks at, and what a run does when it rings."""
import json
import shutil

import numpy as np
import pytest
import torch
from test_train import NEIGHBORS, log, run

import alarm
import data
import eval as evaluation
import model as encoder
import objectives


def rings(*ratios, far=2.0):
    """After how many of these looks (divergence at d = 1 over that just outside) it rings first."""
    looks = [[far * r, far] for r in ratios]
    return next((i for i in range(1, len(looks) + 1) if alarm.alarms(looks[:i], 2)), None)


def test_it_rings_where_the_trunk_stays_flat():
    assert rings(0.09, 0.09, 0.09, 0.09) == 4 == rings(0.09, 0.07, 0.05, 0.02)
    assert rings(0.3, 0.05, 0.05, 0.05, 0.05) == 5  # it was not always so
    assert rings(0.05, 0.05, 0.05) is None  # too few looks
    assert rings(0.05, 0.05, 0.05, 0.2, 0.05, 0.05, 0.05) is None  # none of them four in a row
    assert rings(0.4, 0.4, 0.4, 0.4) is None
    assert rings(0.05, 0.06, 0.07, 0.08, 0.095, 0.12) is None  # low, and mending
    assert rings(0.05, 0.05, 0.05, 0.06) == 4  # a fifth more is not mending


def test_the_trunk_alarm_is_not_armed_while_an_encoder_is_flat_everywhere():
    assert rings(*[0.02] * 10, far=0.3) is None
    young, old = [[0.001, 0.3]] * 5, [[0.1, 2.0]] * 4
    assert not alarm.alarms(young + old[:3], 2) and alarm.alarms(young + old, 2)
    assert not alarm.alarms([], 2)


def test_it_rings_where_the_heads_are_one():
    """Looks: near, far, the most different head, two adjacent masks."""
    same, apart, young = [0.1, 0.4, 0.002, 0.05], [0.1, 0.4, 0.05, 0.05], [0.01, 0.1, 0.0, 0.01]
    line, = alarm.alarms([same, same], 2)
    assert line.startswith('(!) COLLAPSE: the neighbor heads are the MLM head') and '0.002 nats from it' in line
    for quiet in ([same], [same, apart], [apart] * 4, [young] * 4, [young, same], [same, apart, same]):
        assert not alarm.alarms(quiet, 2)
    assert len(alarm.alarms([[0.05, 2.0, 0.002, 0.05]] * 4, 2)) == 2  # v5: both


def small(objective):
    torch.manual_seed(0)
    net = encoder.MaskedLM(encoder.Config(vocab_size=50, hidden=32, n_layer=2, n_head=2, ffn=48, window=8)).eval()
    rng = np.random.default_rng(0)
    pieces = [(np.array([data.CLS, *rng.integers(5, 50, n), data.SEP]), np.ones(n + 2, bool)) for n in (30, 9, 22)]
    return net, objective, pieces


@pytest.mark.parametrize('objective, window', [
    (objectives.MLM(32), 2), (objectives.MLMNeighbors(32, 'projection', window=3, projection_init='random'), 3)])
def test_what_it_looks_at(objective, window):
    """The measures of eval.py and no others, up to window+2, and the two divergences that decide."""
    net, objective, pieces = small(objective)
    found = alarm.watch(net, objective, pieces, 0.4, n=20, seed=3)
    far = evaluation.separating(evaluation.predictor(net), pieces, 20, seed=3, distances=[1, window + 1])
    assert list(found['separation']) == [f'd{d}' for d in range(1, window + 3)]
    assert alarm.look(found)[0][:2] == [far['d1']['divergence'], far[f'd{window + 1}']['divergence']]
    assert list(found['infill']) == ['span1', 'span2', 'span3'] and ('heads' in found) == (window == 3)
    if window == 3:
        kls = [x['kl'] for x in evaluation.heads_of(net, objective, pieces, 0.4, 20, seed=3).values()]
        assert alarm.look(found)[0][2:] == [max(kls[:6]), kls[6]] and [x['kl'] for x in found['heads'].values()] == kls
        assert [part.split()[0] for part in alarm.told(found).split('; ')[2:]] == ['-3', '-2', '-1', '+1', '+2', '+3']


def test_text_too_short_for_a_pair_is_no_look():
    net, objective, _ = small(objectives.MLM(32))
    found = alarm.watch(net, objective, [(np.array([data.CLS, 7, data.SEP]), np.ones(3, bool))], 0.4)
    assert alarm.look(found) == [] and '-, -, -, - nats' in alarm.told(found)


@pytest.fixture
def blended(monkeypatch):
    """Every look finds what v5 would have: 0.1 nats next to each other, 2 just outside the window."""
    def watched(*args, **kw):
        return dict(separation={f'd{d}': dict(divergence=x, n=9) for d, x in enumerate((0.1, 0.3, 2.0, 3.0), 1)},
                    infill={f'span{k}': dict(exact=0.5, n=9) for k in (1, 2, 3)})
    monkeypatch.setattr(alarm, 'watch', watched)
    return '(!) COLLAPSE: two masks 1 apart get nearly one prediction (0.1 nats; 2 at d = 3)'


def test_a_run_warns_and_goes_on(folder, tmp_path, blended, capsys):
    run(folder, tmp_path / 'run', *NEIGHBORS, '--max_steps=8', '--eval_interval=2')
    said = capsys.readouterr().out
    assert [s for s in range(9) if f'step {s}: {blended}' in said] == [6, 8]  # looks at 0, 2, 4 and 6 come first
    looked = {x['step']: x['watch'] for x in log(tmp_path / 'run') if 'watch' in x}
    assert list(looked) == [0, 2, 4, 6, 8] and looked[4]['separation']['d1']['divergence'] == 0.1


def test_a_run_stops_saved_and_remembers_its_looks(folder, tmp_path, blended):
    flags = [*NEIGHBORS, '--max_steps=10', '--eval_interval=2', '--on_collapse=stop']
    with pytest.raises(FloatingPointError) as end:
        run(folder, tmp_path / 'run', *flags)
    assert f'step 6: {blended}' in str(end.value)
    assert encoder.read(tmp_path / 'run/step_00000006.pt')['looks'] == [[0.1, 2.0]] * 4
    with pytest.raises(FloatingPointError, match='step 8:'):  # one look more is enough
        run(folder, tmp_path / 'run', *flags, '--resume')


def test_a_run_without_a_watch(folder, tmp_path):
    run(folder, tmp_path / 'run', *NEIGHBORS, '--max_steps=2', '--watch_n=0')
    assert json.loads((tmp_path / 'run/log.jsonl').read_text().splitlines()[-1])['watch'] == {}


def test_a_run_with_no_text_of_its_own_held_out_looks_at_all(folder, tmp_path):
    data_dir = tmp_path / 'data'
    shutil.copytree(folder, data_dir)
    for path in [*(data_dir / 'heldout').glob('a_*'), *(data_dir / 'heldout').glob('b_*'), data_dir / 'report.json']:
        path.unlink()
    run(data_dir, tmp_path / 'run', *NEIGHBORS, '--max_steps=1')
    last = log(tmp_path / 'run')[-1]
    assert list(last['heldout']) == ['c'] and last['watch']['separation']['d1']['n'] > 0

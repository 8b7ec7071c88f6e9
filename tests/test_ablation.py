"""The ablation: its statistics by hand, its runner on a shrunken comparison, and that the document says what was measured."""
import json
import random
import statistics
import types

import pytest
from conftest import refused

import ablation
import configurator
import prepare

REPO = configurator.REPO
ARMS = ('mlm', 'offset_emb', 'projection_w01')


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    """The main arms on a made-up language of fixed phrases, a quarter of an hour shrunk to a minute. → what
    ablation.py wrote, and how to run it again."""
    root, rng = tmp_path_factory.mktemp('ablation'), random.Random(1)
    letters = 'ابتثجحخدذرزسشصضطظعغفقكلمنهوي'
    words = [''.join(rng.choices(letters, k=rng.randint(3, 5))) for _ in range(150)]
    phrases = [' '.join(rng.choices(words, k=rng.randint(4, 7))) for _ in range(60)]
    lines = (' '.join(rng.choices(phrases, k=rng.randint(2, 8))) for _ in range(2000))
    (root / 'phrases.txt').write_text('\n'.join(lines), 'utf-8')
    prepare.prepare(configurator.load(vars(prepare), [f'--text={root}/phrases.txt', f'--out_dir={root}/data',
                                                      '--vocab_size=450', '--heldout=0.1', '--dedupe=False', '--workers=1']))
    for arm in (*ARMS, 'projection'):
        (root / f'{arm}.py').write_text(f"""base = {str(REPO / f'config/ablation/{arm}.py')!r}
data_dir = {str(root / 'data')!r}
pinned = {{}}
sources = {{}}
hidden = 64
n_layer = 3
n_head = 2
ffn = 128
window = 16
seq_len = 64
batch_tokens = 768
micro_tokens = 768
phases = [dict(name='stable', steps=120), dict(name='decay', steps=40)]
decay_start = 120
eval_interval = 40
eval_tokens = 2_000
""")

    def again(*flags):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ablation, 'ARMS', root)
            ablation.main([f'--arms={",".join(ARMS)}', '--source=phrases', '--n=150', f'--out_dir={root}/out', '--jobs=2',
                           f'--json={root}/ablation.json', f'--pictures={root}', *flags])
        return json.loads((root / 'ablation.json').read_text('utf-8'))
    return again(), again


def test_the_main_comparison_has_the_published_sign(small):
    """v5's heads are one, blend neighbors and cost the MLM; the repaired ones are several and do it little."""
    mlm, offset_emb, projection = (small[0]['arms'][arm]['1']['figures'] for arm in ARMS)
    assert offset_emb['d1'] < 0.4 * mlm['d1'] and offset_emb['d1'] < 0.6 * projection['d1']
    assert offset_emb['agreement'] > 1.5 * mlm['agreement']
    assert mlm['nats'] + 0.3 < offset_emb['nats'] and projection['nats'] + 0.2 < offset_emb['nats']
    assert offset_emb['kl'] < 0.1 < projection['kl']
    assert offset_emb['span2'] < 0.5 * mlm['span2']


def test_what_the_runner_writes(small):
    results, again = small
    run = results['arms']['offset_emb']['1']
    assert run['curve']['step'] == [0, 40, 80, 120, 160] and all(len(x) == 5 for x in run['curve'].values())
    assert run['curve']['nats'][-1] < run['curve']['nats'][0] and list(run['edges']) == ['stable', 'decay']
    assert run['edges']['decay']['phrases'] < run['edges']['stable']['phrases'] and run['counts']['span3.n'] == 150
    assert 'kl' not in results['arms']['mlm']['1']['figures'] and results['differences']['projection_w01']['nats']['n'] == 1
    assert again('--report') == results  # from what is there
    assert len(ablation.tables(results).split('\n\n')) == 2


def test_the_mechanism(small):
    """On a trunk that stays, vectors gain next to nothing and matrices much, in a fit and in one step; both begin alike."""
    found = small[1]('--mechanism')['mechanism']['1']
    fit, e, W = found['frozen'], *found['routes'].values()
    assert fit['goal'] < fit['projection'] < fit['offset_emb'] < fit['h']
    assert fit['h'] - fit['projection'] > 5 * (fit['h'] - fit['offset_emb'])
    assert e['loss'] == W['loss'] and e['step']['trunk'] == W['step']['trunk'] and e['gradient']['mlm']['heads'] == 0
    assert e['step']['heads']['mlm'] == 0 == W['step']['heads']['mlm']  # heads answer for neighbors only
    assert W['step']['heads']['neighbors'] < 10 * e['step']['heads']['neighbors'] < 0
    assert e['loss']['neighbors'] == pytest.approx(fit['h'], rel=0.15)  # another text, earlier weights, and the KL term
    # 160 steps at about 3e-3 in each of 64 elements: warmup 20 · lr, plateau 80 · lr, decay about 13 · lr
    assert found['walk']['straight'] == pytest.approx(8 * 3e-3 * 113, rel=0.02) and len(found['walk']['norm']) == 4
    assert 0 < max(found['walk']['norm']) < found['walk']['straight']


def test_what_is_done_is_not_run_again_and_what_changed_is(small, monkeypatch):
    called = []
    monkeypatch.setattr(ablation, 'subprocess', types.SimpleNamespace(run=lambda command, **kw: called.append(command[1:]) or 1 / 0))
    small[1]()
    assert not called
    with pytest.raises(ZeroDivisionError):
        small[1]('--n=20', '--jobs=1')
    assert called[0][0] == 'train.py' and '--resume' not in called[0]


def test_paired_differences_by_hand():
    """1, 2, 3: mean 2, standard error 1/√3, and t(0.975, 2) = 4.3027."""
    found = ablation.paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == dict(mean=2, low=pytest.approx(2 - 4.3027 / 3 ** 0.5, abs=1e-3),
                         high=pytest.approx(2 + 4.3027 / 3 ** 0.5, abs=1e-3), n=3)
    assert ablation.paired([2.0], [0.5]) == dict(mean=1.5, n=1)


def test_differences_are_of_seeds_that_both_have():
    def run(nats):
        return dict(figures=dict(nats=nats))
    found = ablation.differences(dict(mlm={'1': run(1.0), '2': run(2.0)}, b={'2': run(2.5), '3': run(9.0)}, c={'4': run(1.0)}), 'mlm')
    assert found == dict(b=dict(nats=dict(mean=0.5, n=1)))


def test_what_is_missing_is_told(small, monkeypatch, capsys, tmp_path):
    def line(call):
        with pytest.raises(SystemExit) as end:
            call()
        assert end.value.code == 2
        return capsys.readouterr().err
    assert 'mlm_7: not run to its end yet' in line(lambda: small[1]('--mechanism', '--seeds=7'))
    (tmp_path / 'mlm.py').write_text(f"data_dir = {str(tmp_path / 'none')!r}")
    monkeypatch.setattr(ablation, 'ARMS', tmp_path)
    assert 'prepare.py config/ablation/data.py' in line(lambda: ablation.main(['--arms=mlm', f'--out_dir={tmp_path}']))


def test_mistakes(monkeypatch, capsys, tmp_path):
    assert 'no typo in config/ablation' in refused('ablation.py', monkeypatch, capsys, '--arms=typo', f'--out_dir={tmp_path}')
    assert 'no run is done yet' in refused('ablation.py', monkeypatch, capsys, '--report', f'--out_dir={tmp_path}/new')


def test_the_document_says_what_was_measured():
    """docs/POSTMORTEM_v5.md holds the tables of docs/ablation.json to the letter, and what it claims is so."""
    results = json.loads((REPO / 'docs/ablation.json').read_text('utf-8'))
    page = (REPO / 'docs/POSTMORTEM_v5.md').read_text('utf-8')
    assert all(table in page for table in ablation.tables(results).split('\n\n'))
    arms, apart = results['arms'], results['differences']

    def mean(arm, name):
        return statistics.mean(run['figures'][name] for run in arms[arm].values())
    assert all(len(arms[arm]) >= 5 for arm in (*ARMS, 'projection'))
    assert mean('offset_emb', 'd1') < mean('offset_emb', 'd3') / 10 and mean('offset_emb', 'd2') < mean('offset_emb', 'd3') / 3
    assert all(mean('offset_emb', d) < mean('mlm', d) / 5 for d in ('d1', 'd2'))
    assert mean('offset_emb', 'agreement') > 5 * mean('mlm', 'agreement') and apart['offset_emb']['nats']['low'] > 0.5
    assert apart['projection_w01']['nats']['high'] < 0.03 and apart['projection_w01']['span3']['high'] > 0
    assert all(mean('projection_w01', d) > 0.8 * mean('mlm', d) for d in ('d1', 'd2'))
    assert all(run['alarm'] <= 120 for run in arms['offset_emb'].values())
    assert not any(run['alarm'] for arm in ('mlm', 'projection_w01') for run in arms[arm].values())
    assert {run['counts']['span3.n'] for arm in ARMS for run in arms[arm].values()} == {2000}

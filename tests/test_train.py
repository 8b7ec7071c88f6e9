"""The whole run: exact resume, ranks and accumulation, phases, signals, what a user gets wrong."""
import json
import math
import pathlib
import shutil

import pytest
import torch

import configurator
import data
import model as encoder
import plan
import train

REPO = configurator.REPO
SMALL = ['--hidden=32', '--n_layer=4', '--n_head=2', '--ffn=48', '--window=16', '--seq_len=64', '--batch_tokens=512',
         '--micro_tokens=128', '--lr=3e-3', '--warmup_steps=4', '--eval_tokens=600', '--ema_decay=0.9',
         '--log_interval=1', '--eval_interval=100', '--save_interval=100', '--mask_rate=0.3', '--device=cpu']
NEIGHBORS = ['--objective=mlm_neighbors', '--neighbor_head_kind=projection', '--neighbor_max_pairs=25']
PHASES = "--phases=[{'name':'stable','steps':8},{'name':'extend','steps':4,'seq_len':128,'theta_global':160000.0}," \
         "{'name':'decay','steps':4,'sources':{'b':1.0}}]"


def settings(folder, out, *flags):
    return configurator.load(vars(train), [*SMALL, f'--data_dir={folder}', f'--out_dir={out}', *flags],
                             paths=('data_dir', 'out_dir'))


def run(folder, out, *flags):
    """A whole run in this process → the Run."""
    r = train.Run(settings(folder, out, *flags), vars(train))
    with configurator.claim(r.out, train.OWN, not r.s['resume']):
        train.train(r)
    return r


def log(out):
    return [json.loads(x) for x in (out / 'log.jsonl').read_text('utf-8').splitlines()]


def losses(out):
    return {x['step']: x['loss'] for x in log(out) if 'loss' in x}


def same(a, b):
    """Two checkpoints hold the same bits: step, weights, EMA, optimizer."""
    a, b = encoder.read(a), encoder.read(b)

    def equal(x, y):
        if isinstance(x, dict):
            return x.keys() == y.keys() and all(equal(x[k], y[k]) for k in x)
        return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    return all(equal(a[k], b[k]) for k in ('step', 'phase', 'raw', 'ema', 'optimizer', 'began'))


# ----------------------------------------------------------------------------- the schedule


def schedule(**changes):
    s = dict(lr=1.0, warmup_steps=10, schedule='wsd', decay_start=80, decay_end=0, min_lr_ratio=0.1) | changes
    return [plan.lr_at(step, s, 100) for step in range(120)]


def test_wsd():
    """lingua#72: falls from step 80 on as 1 - sqrt, is near its minimum at 99 and stays there."""
    lr = schedule()
    assert lr[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)]) and lr[10:80] == [1.0] * 70
    assert lr[80] == 1.0 and all(a > b for a, b in zip(lr[80:], lr[81:101]))
    assert lr[90] == pytest.approx(0.1 + 0.9 * (1 - math.sqrt(0.5)))
    assert lr[99] - 0.1 <= lr[98] - lr[99] + 0.02 and lr[100:] == pytest.approx([0.1] * 20)
    assert schedule(min_lr_ratio=0.0)[100] == 0.0
    assert schedule(decay_start=0)[10:] == [1.0] * 110


def test_cosine():
    lr = schedule(schedule='cosine', decay_start=10, decay_end=90)
    assert lr[50] == pytest.approx(0.55) and lr[90:] == pytest.approx([0.1] * 30)
    assert all(a >= b for a, b in zip(lr[10:], lr[11:]))


def test_v5_schedule():
    """Decay from 264,000 to exactly 0 after 306,725; --max_steps rescales nothing."""
    s = configurator.load(vars(train), [str(REPO / 'config/v5.py')])
    total = sum(p['steps'] for p in s['phases'])
    assert total == 306_725
    assert [plan.lr_at(i, s, total) for i in (1_999, 263_999, 264_000, 306_725)] == [8e-4, 8e-4, 8e-4, 0.0]
    assert plan.lr_at(306_724, s, total) > 0
    assert sum(p['steps'] for p in configurator.load(vars(train), [str(REPO / 'config/v4.py')])['phases']) \
        == round(306_725 * 1.48 / 1.97)


def test_flop_per_token():
    """DESIGN's figures: plain MLM at 20 to 30% 1.25 to 1.28 G of products; with attention about
    1.39 G at rows of 1,024 and 1.68 G at 4,096."""
    c = encoder.Config()
    products = [encoder.flop_per_token(c, 0, r) / 1e9 for r in (0.2, 0.3)]
    assert products == pytest.approx([1.25, 1.28], abs=0.005)
    assert [encoder.flop_per_token(c, L, 0.3) / 1e9 for L in (1024, 4096)] == pytest.approx([1.39, 1.68], abs=0.01)

# ------------------------------------------------------------------- one run is one sequence


@pytest.mark.parametrize('cut', [4, 8, 11])
def test_stopped_and_resumed_is_straight(folder, tmp_path, straight, cut):
    """samudra#282, llm-foundry#1277: bit for bit, weights, EMA and optimizer, also at a phase's
    boundary (8) and inside a later phase (11)."""
    out = tmp_path / 'run'
    run(folder, out, *NEIGHBORS, PHASES, f'--max_steps={cut}')
    run(folder, out, *NEIGHBORS, PHASES, '--resume')
    assert same(straight / 'step_00000016.pt', out / 'step_00000016.pt')
    assert losses(out) == losses(straight) and len(losses(out)) == 16
    assert [h['step'] for h in encoder.read(out / 'step_00000016.pt')['history']] == [0, cut]


def test_damaged_checkpoint_is_passed_over(folder, tmp_path):
    out = tmp_path / 'run'
    run(folder, out, '--max_steps=6', '--save_interval=2')
    assert [p.name for p in sorted(out.glob('*.pt'))] == ['step_00000004.pt', 'step_00000006.pt']
    newest = out / 'step_00000006.pt'
    shutil.copy(newest, out / 'step_00000001_best.pt')
    encoder.save(out / 'step_00000009.pt', {k: v for k, v in encoder.read(newest).items() if k != 'optimizer'})
    newest.write_bytes(newest.read_bytes()[:-500])
    r = train.Run(settings(folder, out, '--resume'), vars(train))
    assert r.step == 4
    for r.step in (5, 6):
        r.save()  # the last two up to this step; what is later or has another name is not this run's
    assert [p.name for p in sorted(out.glob('*.pt'))] == [
        'step_00000001_best.pt', 'step_00000005.pt', 'step_00000006.pt', 'step_00000009.pt']


def test_final_checkpoint_always(folder, tmp_path):
    """neuralangelo#33: 7 steps, interval 5; 3 steps, interval 5. Phase ends are kept."""
    for steps in (7, 3):
        run(folder, tmp_path / str(steps), f'--max_steps={steps}', '--save_interval=5')
        assert (tmp_path / str(steps) / f'step_{steps:08d}.pt').exists()
    run(folder, tmp_path / 'p', PHASES, '--save_interval=1')
    assert sorted(p.name for p in (tmp_path / 'p').glob('phase*')) == [
        'phase_decay_00000016.pt', 'phase_extend_00000012.pt', 'phase_stable_00000008.pt']


def test_phases_are_in_force(folder, tmp_path):
    out = tmp_path / 'run'
    r = run(folder, out, PHASES)
    by_step = {x['step']: x for x in log(out) if 'loss' in x}
    assert [by_step[s]['theta'] for s in (8, 9, 12, 13)] == [10_000, 160_000, 160_000, 10_000]
    assert [by_step[s]['phase'] for s in (8, 9, 13)] == ['stable', 'extend', 'decay']
    tokens = [by_step[s]['tokens'] for s in (12, 16)]
    assert tokens[1]['a'] == tokens[0]['a'] and tokens[1]['b'] == tokens[0]['b'] + 4 * 512
    assert sum(tokens[1].values()) == 16 * 512
    looked = {x['step']: set(x['heldout']) for x in log(out) if 'heldout' in x}
    assert looked == {0: set('abc'), 8: set('abc'), 12: set('abc'), 16: set('abc')}
    assert r.phases[1].mixture.seq_len == 128


def test_new_hyperparameters_win_on_resume(folder, tmp_path):
    """ModernBERT#123: lr and weight decay of this launch, not of the file."""
    run(folder, tmp_path / 'run', '--max_steps=2', '--lr=1e-3', '--weight_decay=0.1')
    r = train.Run(settings(folder, tmp_path / 'run', '--resume', '--lr=5e-4', '--weight_decay=0.0', '--warmup_steps=0'),
                  vars(train))
    r.train_step()
    groups = [g for o in r.optimizer.optimizers for g in o.param_groups]
    assert {g['lr'] for g in groups} == {5e-4} and {g['weight_decay'] for g in groups} == {0.0}
    assert any('lr: 0.001 → 0.0005' in line for line in r.lines)


def test_ema_starts_warm_and_is_apart(folder, tmp_path):
    """Latte#55: EMA by min(decay, (1+t)/(10+t)), of the raw weights after each step."""
    r = train.Run(settings(folder, tmp_path / 'run', '--ema_decay=0.9999'), vars(train))
    name = 'model.encoder.embedding.weight'
    want = r.params[name].detach().double()
    for t in range(5):
        r.train_step()
        d = (1 + t) / (10 + t)
        want = d * want + (1 - d) * r.params[name].detach().double()
        torch.testing.assert_close(r.ema[name].double(), want, rtol=1e-6, atol=1e-7)
    raw = r.params[name].detach().clone()
    r.evaluate()
    assert torch.equal(r.params[name], raw) and not torch.equal(r.ema[name], raw)


def test_arms_share_their_init(folder, tmp_path):
    """Runs that differ in the objective alone begin with the same encoder."""
    arms = [train.Run(settings(folder, tmp_path, *flags), vars(train)) for flags in ([], NEIGHBORS, NEIGHBORS[:1])]
    for name, p in arms[0].params.items():
        assert all(torch.equal(p, arm.params[name]) for arm in arms[1:])


def test_golden_losses(folder, tmp_path):
    """20 steps on a CPU, as they were when this was written: a change of any default, of the
    init, of the data order or of the optimizer shows here. Other CPUs round otherwise."""
    out = tmp_path / 'run'
    run(folder, out, *NEIGHBORS, '--max_steps=20')
    golden = json.loads((REPO / 'tests' / 'golden.json').read_text())
    assert list(losses(out).values()) == pytest.approx(golden, rel=2e-3)
    assert golden[-1] < golden[0] - 1

# ------------------------------------------------------------------------- ranks, accumulation


def first_gradients(folder, out, *flags):
    r = train.Run(settings(folder, out, *flags), vars(train))
    r.optimizer.step = lambda lr: None
    r.optimizer.zero_grad = lambda: None
    r.train_step()
    return {n: p.grad for n, p in r.params.items()}


@pytest.mark.parametrize('objective', [[], NEIGHBORS[:2], ['--objective=mlm_neighbors']], ids=['mlm', 'projection', 'emb'])
def test_accumulation_changes_nothing(folder, tmp_path, objective):
    """transformers#34191: micro-batches of 64, 128 and 512 tokens, gradients to 1e-6 relative."""
    one, *others = [first_gradients(folder, tmp_path, f'--micro_tokens={m}', '--clip=0', *objective)
                    for m in (512, 128, 64)]
    for other in others:
        for n in one:
            assert (other[n] - one[n]).norm() <= 1e-6 * one[n].norm() + 1e-12, n


def test_step_without_a_pair_on_any_rank(folder, tmp_path):
    """pytorch#43259: parameters that met nothing have gradient zero; the run goes on."""
    r = train.Run(settings(folder, tmp_path, *NEIGHBORS[:2], '--mask_rate=0.001'), vars(train))
    before = {n: p.detach().clone() for n, p in r.params.items()}
    out = r.train_step()
    assert sum(v for k, v in out['counts'].items() if k != 'mlm') == 0
    assert all(torch.isfinite(p).all() for p in r.params.values())
    assert torch.equal(before['model.encoder.norm.weight'], r.params['model.encoder.norm.weight']) or out['counts']['mlm']


def test_one_clip_of_the_whole_gradient(folder, tmp_path, monkeypatch):
    """tt-metal#17568: once a step, over all parameters of both optimizers; the norm logged is the
    one before."""
    calls, clip = [], torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(train.nn.utils, 'clip_grad_norm_', lambda p, m: calls.append(list(p)) or clip(p, m))
    r = train.Run(settings(folder, tmp_path, *NEIGHBORS[:2], '--clip=0.01'), vars(train))
    out = r.train_step()
    assert len(calls) == 1 and {id(p) for p in calls[0]} == {id(p) for p in r.params.values()}
    assert out['norm'] > 0.1

# ------------------------------------------------------------------------- what users get wrong


def refused(capsys, *argv, code=2):
    with pytest.raises(SystemExit) as stop:
        train.main(list(argv))
    told = capsys.readouterr().err
    assert stop.value.code == code and told.count('\n') == 1 and 'Traceback' not in told
    return told


@pytest.mark.parametrize('flag, told', [
    ('--learning_rte=1e-3', "unknown setting 'learning_rte'"), ('--lr=fast', 'must be float'),
    ('--max_steps=4096x', '4096x'), ('--data_dir=nowhere', 'nowhere/train: the shards of every source are missing'),
    ('--vocab_size=256', 'vocab_size=256'), ('--neighbor_window=3', "no use for neighbor_window"),
    ('--objective=mlm2', 'mlm2'), ('--batch_tokens=500', 'micro_tokens'), ('--micro_tokens=32', 'micro_tokens'),
    ('--sources={"wiki": 1.0}', 'wiki'), ('--sources={"a": -1.0}', 'above 0'), ('--hidden=30', 'n_head'),
    ('--mask_rate=0', 'mask_rate'), ('--schedule=linear', 'wsd'), ('--optimizer=sgd', 'sgd'),
    ('--whole_words=wiki', 'wiki'), ('--seq_len=65536', 'batch_tokens'), ('--resume', 'no whole checkpoint'),
    ('--log_interval=0', 'above 0'), ('--max_steps=-1', 'at least 0'), ('--ema_decay=2', 'at most 1'), ('--n_head=0', 'n_head=0'),
    ('--phases=[{"name": "x", "steps": -5}]', 'steps=-5'),
    ('--phases=[{"name": "x", "steps": 0}]', 'phases[0]: steps=0: must be above 0'),
    ('--phases=[{"name": "x", "steps": True}]', 'phases[0]: steps=True: must be int'),
    ('--phases=[{"name": "x", "steps": 5, "seq_len": 0}]', 'phases[0]: seq_len=0'),
    ('--phases=[{"name": "x", "steps": 5, "seq_len": "64"}]', "seq_len='64': must be int"),
    ('--phases=[{"name": "x", "steps": 5, "theta_global": 0}]', 'theta_global=0: must be above 0'),
    ('--phases=[{"name": "x", "steps": 5, "mask_rate": 1.5}]', 'mask_rate=1.5: must be at most 1'),
    ('--phases=[{"name": "x", "steps": 5, "sources": {"a": "1"}}]', "phases[0]: sources: 'a': '1'"),
    ('--phases=[{"name": "x", "steps": 5, "sources": ["a"]}]', "sources=['a']: must be dict"),
    ('--phases=[{"name": "x/y", "steps": 5}]', "phases[0]: name='x/y'"),
    ('--phases=[{"name": 5}]', 'name=5: must be str'),
    ('--phases=[{"name": "x", "steps": 5}, {"name": "", "steps": 5}]', "phases[1]: name=''"),
    ('--sources={"a": True}', "'a': True"), ('--sources={1: 1.0}', 'sources: 1'), ('--theta_local=0', 'theta_local=0'),
    ('--theta_global=-1', 'theta_global=-1.0'), ('--norm_eps=0', 'norm_eps=0.0'), ('--adam_eps=0', 'adam_eps=0.0'),
    ('--adam_betas=0.9', 'adam_betas=[0.9]: must be 2 numbers'), ('--adam_betas=0.9,1', '[0.9, 1.0]: must be below 1'),
    ('--muon_momentum=1', 'muon_momentum=1.0'), ('--peak_tflops=-1', 'peak_tflops=-1.0'),
    (f'--seed={2 ** 63}', 'seed=9223'), ('--watch_n=-1', 'watch_n=-1'), ('--on_collapse=ring', 'choose one of warn, stop'),
    ('--pinned={"train/a_00000.bin": "00"}', 'train/a_00000.bin: pinned to sha256 00, but found'),
    ('--pinned={"train/z.bin": "00"}', 'found no such shard'),
    ('--phases=[{"name": "x", "steps": 5, "lr": 1.0}]', 'lr'), ('--phases=[]', 'phases'), ('--phases=stable,decay', 'phases'),
    ('config/none.py', 'no such config file')])
def test_mistakes_are_one_line_and_leave_nothing(folder, tmp_path, capsys, flag, told):
    out = tmp_path / 'run'
    assert told in refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}', flag)
    assert not out.exists()


def test_neighbors_are_of_one_row_and_of_the_objective_that_has_them(folder, tmp_path, capsys):
    """A config on a base with neighbors may choose plain MLM; who then sets a neighbor setting is told."""
    (tmp_path / 'base.py').write_text("objective = 'mlm_neighbors'\nneighbor_window = 64\n")
    (tmp_path / 'mlm.py').write_text(f"base = {str(tmp_path / 'base.py')!r}\nobjective = 'mlm'\n")
    common = [*SMALL, f'--data_dir={folder}', f'--out_dir={tmp_path}/run']
    told = 'neighbor_window=64: must be below seq_len=64'
    assert told in refused(capsys, str(tmp_path / 'base.py'), *common)
    for argv in ([tmp_path / 'mlm.py'], [tmp_path / 'base.py', '--objective=mlm']):
        run = train.Run(configurator.load(vars(train), [*map(str, argv), *common]), vars(train))
        assert not hasattr(run.objective, 'heads')
        assert 'no use for neighbor_weight' in refused(capsys, *map(str, argv), *common, '--neighbor_weight=1')


def test_pinned_shards_are_taken(folder, tmp_path):
    pinned = {f'{p.parent.name}/{p.stem}.bin': json.loads(p.read_text())['sha256'] for p in folder.glob('*/*_00000.json')}
    assert len(pinned) > 3 and train.Run(settings(folder, tmp_path / 'run', f'--pinned={json.dumps(pinned)}'), vars(train))


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is one')
def test_a_gpu_that_is_not_there(folder, tmp_path, capsys):
    out = tmp_path / 'run'
    assert "device='cuda'" in refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}', '--device=cuda')
    out.write_text('mine')
    assert 'a file stands where' in refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}')
    assert out.read_text() == 'mine'


def test_v5_without_its_data(capsys, tmp_path):
    line = refused(capsys, str(REPO / 'config/v5.py'), f'--out_dir={tmp_path}/run', f'--data_dir={tmp_path}')
    assert all(s in line for s in ('aramix_v3_sd', 'dialect_tunisian', 'missing', 'prepare.py --text'))
    assert not (tmp_path / 'run').exists()


def test_damaged_data_is_refused(folder, tmp_path, capsys):
    """An empty shard; a tokenizer.json that is not the shards'; nothing held out."""
    shutil.copytree(folder, tmp_path / 'data')
    shard = next((tmp_path / 'data/train').glob('*.bin'))
    whole = shard.read_bytes()
    shard.write_bytes(b'')
    assert shard.name in refused(capsys, *SMALL, f'--data_dir={tmp_path}/data', f'--out_dir={tmp_path}/run')
    shard.write_bytes(whole)
    (tmp_path / 'data/tokenizer.json').write_text('{}')
    assert 'not the tokenizer' in refused(capsys, *SMALL, f'--data_dir={tmp_path}/data', f'--out_dir={tmp_path}/run')
    shutil.rmtree(tmp_path / 'data/heldout')
    assert '--heldout=0.05' in refused(capsys, *SMALL, f'--data_dir={tmp_path}/data', f'--out_dir={tmp_path}/run')
    assert not (tmp_path / 'run').exists()


def test_resume_refuses_another_model(folder, tmp_path, capsys):
    out = tmp_path / 'run'
    run(folder, out, '--max_steps=2')
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for flag, told in (('--hidden=64', 'hidden=64 (saved: 32)'), ('--optimizer=adamw', "optimizer=adamw (saved: muon)"),
                       ('--objective=mlm_neighbors', 'objective'), ('--max_steps=2', 'at step 2 of 2 already')):
        assert told in refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}', '--resume', flag)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_an_earlier_run_is_moved_aside(folder, tmp_path):
    (tmp_path / 'disk').mkdir()
    (tmp_path / 'run').symlink_to(tmp_path / 'disk')  # the folder moves, and the link stays one
    for steps in (1, 2, 3):
        run(folder, tmp_path / 'run', f'--max_steps={steps}')
    assert (tmp_path / 'run').is_symlink()
    for name, steps in (('disk.1', 1), ('disk.2', 2), ('run', 3)):
        assert (tmp_path / name / f'step_{steps:08d}.pt').exists()


OWN = ['lock', 'log.jsonl', 'log.tmp', 'step_00000001.pt', 'phase_x-y_00000001.pt', 'step_00000002.pt.tmp',
       'events.out.tfevents.1.host.1.0']


@pytest.mark.parametrize('foreign', ['best.pt', 'notes.txt', 'step_1.pt', 'step_00000001.pt.b', 'my_00000001.pt', '.git'])
def test_what_no_run_wrote_is_never_moved(tmp_path, foreign):
    out = tmp_path / 'run'
    out.mkdir()
    for name in (*OWN, foreign):
        (out / name).write_text(name)
    with pytest.raises(ValueError, match=f'{foreign} is no file of a run'):
        configurator.claim(out, train.OWN, True)
    assert [p.name for p in tmp_path.iterdir()] == ['run'] and {p.name for p in out.iterdir()} == {*OWN, foreign}
    configurator.claim(out, train.OWN, False).close()  # to resume moves nothing, and clears a killed save away
    assert {p.name for p in out.iterdir()} == {*OWN, foreign} - {'step_00000002.pt.tmp'}
    (out / foreign).unlink()
    configurator.claim(out, train.OWN, True).close()
    assert [p.name for p in out.iterdir()] == ['lock'] and len(list((tmp_path / 'run.1').iterdir())) == len(OWN) - 1


def test_folders_that_are_no_runs(tmp_path, monkeypatch):
    (tmp_path / 'here/run').mkdir(parents=True)
    (tmp_path / 'here/step_00000001.pt').write_text('mine')
    (tmp_path / 'link').symlink_to(tmp_path / 'here')
    monkeypatch.setattr(configurator, 'REPO', tmp_path / 'here/run')
    refused = [tmp_path / 'here', tmp_path / 'link', tmp_path, tmp_path / 'here/run']
    for set_up in (lambda: None, lambda: monkeypatch.chdir(tmp_path / 'here/run'),
                   lambda: monkeypatch.setenv('HOME', str(tmp_path / 'here/run'))):
        set_up()
        for out in (*refused, pathlib.Path('')):
            with pytest.raises(ValueError, match='no folder for a run alone'):
                configurator.claim(out, train.OWN, True)
        monkeypatch.setattr(configurator, 'REPO', tmp_path / 'elsewhere')
    assert sorted(p.name for p in tmp_path.iterdir()) == ['here', 'link']


def test_a_log_that_a_kill_cut_short(tmp_path):
    path = tmp_path / 'log.jsonl'
    whole = '{"step": 1, "heldout": {"حديث\u2028": 1}}\n'
    path.write_bytes(f'{whole}[1]\n{{"loss": 2}}\n7\n{{"step": "x"}}\n{whole}{{"step": 3}}\n{{"step": "حد'.encode()[:-1])
    train.open_log(path, 2).close()
    assert path.read_text('utf-8') == whole * 2


@pytest.mark.parametrize('first', [[], ['--save_interval=1']], ids=['start again', 'step_00000001.pt, the last good'])
def test_a_gradient_that_is_not_finite_is_never_saved(folder, tmp_path, capsys, first, request):
    out = tmp_path / 'run'
    told = refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}', '--lr=1e30', '--optimizer=adamw',
                   '--warmup_steps=0', '--max_steps=2', *first, code=1)
    assert 'step 2: the norm of the gradient is nan' in told and request.node.callspec.id in told
    assert [p.name for p in out.glob('*.pt*')] == ['step_00000001.pt'] * len(first)
    assert [x['step'] for x in log(out) if 'masked' not in x] == [0, 1] and 'NaN' not in (out / 'log.jsonl').read_text()


def test_two_runs_do_not_share_a_folder(folder, tmp_path, capsys):
    out = tmp_path / 'run'
    out.mkdir()
    lock = configurator.claim(out, train.OWN, True)
    assert 'another run' in refused(capsys, *SMALL, f'--data_dir={folder}', f'--out_dir={out}')
    lock.close()


def test_tensorboard_is_optional(folder, tmp_path, capsys, monkeypatch):
    argv = [*SMALL, f'--data_dir={folder}', f'--out_dir={tmp_path}/run', '--tensorboard', '--max_steps=1']
    pytest.importorskip('tensorboard')
    train.main(argv)
    assert list((tmp_path / 'run').glob('events.out.tfevents.*'))
    capsys.readouterr()
    monkeypatch.setattr(train.importlib.util, 'find_spec', lambda name: None)
    assert 'pip install tensorboard' in refused(capsys, *argv[:-1], f'--out_dir={tmp_path}/other')


def test_differences_from_the_base_are_told(capsys):
    s = configurator.load(vars(train), [str(REPO / 'config/v5.py')], paths=('data_dir', 'out_dir'))
    told = '\n'.join(configurator.against_base(s, vars(train), train.IDEAS))
    assert 'warning: 4 ideas moved at once (objective, data, length, optimizer)' in told
    for name, idea in dict(v6='objective', v4_muon='optimizer', v4_neighbors='objective', v4_corpus='data',
                           v4_epochs='length', pilot_muon='optimizer').items():
        s = configurator.load(vars(train), [str(REPO / f'config/{name}.py')], paths=('data_dir', 'out_dir'))
        lines = configurator.against_base(s, vars(train), train.IDEAS)
        moved = {k for k in s.given if s[k] != configurator.load(vars(train), [s.base], paths=('data_dir', 'out_dir'))[k]}
        assert len(lines) == 1 and moved <= {'out_dir', *train.IDEAS[idea]}, name


def test_without_a_gpu_nothing_asks_for_one():
    assert train.Ranks('auto').device.type == ('cuda' if torch.cuda.is_available() else 'cpu')
    assert pathlib.Path(data.__file__).parent == REPO

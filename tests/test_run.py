"""The whole run as processes of its own: killed and resumed, two ranks, signals, every config."""
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import configurator
import eval as evaluation
import model as encoder
import plan
import train
from test_train import NEIGHBORS, PHASES, SMALL, log, losses, refused, run, same, settings

REPO = configurator.REPO


def command(folder, out, *flags, ranks=1):
    start = [sys.executable] if ranks == 1 else \
        [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={ranks}']
    return [*start, str(REPO / 'train.py'), *SMALL, f'--data_dir={folder}', f'--out_dir={out}', *flags]


ONE_THREAD = dict(os.environ, OMP_NUM_THREADS='1')


def test_killed_and_resumed_is_straight(folder, tmp_path, straight):
    """SIGKILL at a random step of any phase, then resumed in another process: the same bits, and the log
    lines that had been written after the checkpoint are gone."""
    out, wait = tmp_path / 'run', random.Random(time.time_ns()).randint(2, 13)
    process = subprocess.Popen(command(folder, out, *NEIGHBORS, PHASES, '--save_interval=1'), env=ONE_THREAD,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        wait -= ': loss ' in line
        if not wait:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (out / 'log.jsonl').open('a').write('{"step": 99, "loss": 1.0}\n{"step": 1')  # a line cut short
    run(folder, out, *NEIGHBORS, PHASES, '--resume')
    assert same(straight / 'step_00000016.pt', out / 'step_00000016.pt')
    assert losses(out) == losses(straight)


def test_a_fault_on_the_way_is_one_line_and_leaves_the_checkpoints(folder, tmp_path, capsys, monkeypatch):
    """A shard that turns out damaged; a disk that is full."""
    out = tmp_path / 'run'
    argv = [*SMALL, f'--data_dir={folder}', f'--out_dir={out}', '--save_interval=2', '--max_steps=6']
    deal = plan.Phase.micro_batch

    def damaged(phase, step, i):
        if step == 3:
            raise ValueError('a.bin: id 999 is outside the vocabulary')
        return deal(phase, step, i)
    monkeypatch.setattr(plan.Phase, 'micro_batch', damaged)
    assert 'a.bin: id 999' in refused(capsys, *argv)
    monkeypatch.undo()
    before = {p.name: p.read_bytes() for p in out.glob('*.pt*')}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before['step_00000002.pt']) // 2, hard))
    try:
        told = refused(capsys, *argv, '--resume')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 'step_00000004.pt: could not be written (File too large)' in told
    assert {p.name: p.read_bytes() for p in out.glob('*.pt*')} == before and list(before) == ['step_00000002.pt']


def test_eval_beside_a_run_that_prunes(straight, tmp_path, capsys, monkeypatch):
    for step in 1, 2:
        shutil.copy(straight / 'step_00000016.pt', tmp_path / f'step_0000000{step}.pt')
    measure = evaluation.measure

    def pruned(path, s):
        (tmp_path / 'step_00000001.pt').unlink(missing_ok=True)
        return measure(path, s)
    monkeypatch.setattr(evaluation, 'measure', pruned)
    evaluation.main(['--ppl', f'--ckpt={tmp_path}', f'--json={tmp_path}/figures.json', '--device=cpu'])
    assert list(json.loads((tmp_path / 'figures.json').read_text())) == [f'{tmp_path}/step_00000002.pt']
    assert 'step_00000001.pt: gone since' in capsys.readouterr().err
    both = [shutil.copy(straight / 'step_00000016.pt', tmp_path / f'step_0000000{step}.pt') for step in (1, 2)]
    with pytest.raises(SystemExit):  # one that was named is missed
        evaluation.main(['--ppl', f'--ckpt={",".join(map(str, both))}'])


@pytest.mark.parametrize('flags, said', [([], 'another run is writing here'),
                                         (['--lr=1e30', '--optimizer=adamw', '--warmup_steps=0'], 'step 2: the norm')])
def test_of_two_ranks_one_speaks(folder, tmp_path, flags, said):
    """The folder is locked; the run diverges. Nothing is saved, and neither rank goes on alone."""
    lock = nullcontext() if flags else configurator.claim(tmp_path / 'run', train.OWN, True)
    with lock:
        done = subprocess.run(command(folder, tmp_path / 'run', *flags, ranks=2), env=ONE_THREAD, capture_output=True,
                              text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith('train.py: ')]
    assert len(told) == 1 and said in told[0] and 'train.py", line' not in done.stderr
    assert not list((tmp_path / 'run').glob('*.pt*')) and ('step' in done.stdout) == bool(flags)

# ------------------------------------------------------------------------------------- ranks


RANKS = '''
import sys, torch
sys.path.insert(0, {repo!r})
torch.set_num_threads(1)
import train, configurator
for arm, argv in {arms!r}.items():
    r = train.Run(configurator.load(vars(train), argv), vars(train))
    step, grads = r.optimizer.step, {{}}
    def spy(lr):
        grads or grads.update({{n: p.grad.clone() for n, p in r.params.items()}})
        step(lr)
    r.optimizer.step = spy
    losses = [r.losses(r.train_step()) for _ in range(20)]
    torch.save(dict(grads=grads, losses=losses, raw={{n: p.data for n, p in r.params.items()}}, ema=r.ema,
                    looked=r.evaluate()), f'{out}/{{arm}}_{{r.world}}_{{r.rank}}.pt')
r.ranks.close()
'''


@pytest.fixture(scope='session')
def ranks(folder, tmp_path_factory):
    """20 steps of two arms on one process and on two."""
    out = tmp_path_factory.mktemp('ranks')
    common = [*SMALL, f'--data_dir={folder}', f'--out_dir={out}/run', '--muon_dtype=float32']
    arms = {'muon': [*common, *NEIGHBORS[:2]], 'muon_bf16': [*common, *NEIGHBORS[:2], '--muon_dtype=bfloat16'],
            'adamw': [*common, NEIGHBORS[0], '--optimizer=adamw', '--neighbor_max_pairs=25']}
    (out / 'ranks.py').write_text(RANKS.format(repo=str(REPO), arms=arms, out=out))
    for n in (1, 2):
        subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={n}',
                        str(out / 'ranks.py')], check=True, env=ONE_THREAD, timeout=240)
    return out


@pytest.mark.parametrize('arm, tolerance', [('muon', 1e-6), ('adamw', 1e-6), ('muon_bf16', 1e-3)])
def test_two_ranks_are_one(ranks, arm, tolerance):
    """One process × 4 micro-steps against two × 2: first gradients to 1e-6 relative, 20 losses of
    every term to 1e-6 (1e-3 where Newton-Schulz runs in bf16), the ranks themselves bit for bit."""
    one, two, twin = (torch.load(ranks / f'{arm}_{f}.pt', weights_only=False) for f in ('1_0', '2_0', '2_1'))
    for n, g in one['grads'].items():
        assert (g - two['grads'][n]).norm() <= 1e-6 * g.norm(), n
    for a, b in zip(one['losses'], two['losses'], strict=True):
        assert a.keys() == b.keys() and all(abs(a[k] - b[k]) <= tolerance * max(1, abs(a[k])) for k in a)
    for kind in ('grads', 'raw', 'ema'):
        assert all(torch.equal(two[kind][n], twin[kind][n]) for n in two[kind])
    assert two['looked'] == twin['looked']
    (found, watched), (found2, watched2) = one['looked'], two['looked']
    for a, b in [*((found[k], found2[k]) for k in found), *((x, watched2[m][k]) for m in watched for k, x in watched[m].items())]:
        assert a['n'] == b['n'] > 0 and a == pytest.approx(b, rel=max(tolerance, 1e-3), abs=max(10 * tolerance, 1e-3))


def test_saved_by_two_ranks_resumed_by_one(folder, tmp_path):
    """bionemo-recipes#1250: the same rows, masks and counts; losses to rounding."""
    flags = [*NEIGHBORS, PHASES, '--muon_dtype=float32']
    out = tmp_path / 'run'
    subprocess.run(command(folder, out, *flags, '--max_steps=6', ranks=2), check=True, env=ONE_THREAD, capture_output=True)
    run(folder, out, *flags, '--resume')
    run(folder, tmp_path / 'one', *flags)
    a, b = losses(out), losses(tmp_path / 'one')
    assert a.keys() == b.keys() and all(abs(a[k] - b[k]) < 1e-4 for k in a)
    seen = [[x['tokens'] for x in log(o) if 'loss' in x] for o in (out, tmp_path / 'one')]
    assert seen[0] == seen[1]


# ------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize('ranks, sig', [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_signals_save_and_exit(folder, tmp_path, ranks, sig):
    out = tmp_path / 'run'
    process = subprocess.Popen(command(folder, out, *NEIGHBORS, '--phases=[{"name":"stable","steps":100000}]', ranks=ranks),
                               env=ONE_THREAD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if ': loss ' in line:
            process.send_signal(sig)
            break
    rest, _ = process.communicate(timeout=60)
    assert 'stopped at step' in rest and 'train.py", line' not in rest  # torchrun's own traceback aside
    assert ranks == 2 or process.returncode == 0
    saved = encoder.read(sorted(out.glob('*.pt'))[-1])
    assert saved['step'] == max(losses(out))
    again = train.Run(settings(folder, out, *NEIGHBORS, '--phases=[{"name":"stable","steps":100000}]', '--resume'), vars(train))
    assert again.step == saved['step']

# ------------------------------------------------------------------------------------ configs


@pytest.mark.parametrize('name', sorted(p.stem for p in (REPO / 'config').glob('*.py') if p.stem != 'demo_data'))
def test_every_config_trains(folder, tmp_path, name):
    """Loaded, shrunk by flags, three steps; its heads, its kind of attention, its optimizer."""
    shrunk = [f for f in SMALL if not f.startswith('--eval_interval')]
    argv = [str(REPO / f'config/{name}.py'), *shrunk, f'--data_dir={folder}', f'--out_dir={tmp_path}/run', '--sources={}',
            '--whole_words=', '--vocab_size=0', '--max_steps=3', "--phases=[{'name':'stable','steps':3}]", '--decay_start=0', '--decay_end=0']
    train.main(argv)
    saved = encoder.read(tmp_path / 'run' / 'step_00000003.pt')
    got = [x['loss'] for x in log(tmp_path / 'run') if 'loss' in x]
    assert len(got) == 3 and all(map(math.isfinite, got)) and got[2] < got[0]
    assert ('objective.heads.weight' in saved['raw']) == (name in ('v5', 'v4_neighbors'))
    assert ('objective.heads.3.weight' in saved['raw']) == (name in ('v6', 'tiny'))
    assert ('model.encoder.blocks.0.attention.q_norm.weight' in saved['raw']) == (name != 'neobert')
    muon = any('momentum_buffer' in state for state in saved['optimizer']['state'].values())
    assert muon == (name in ('v5', 'v6', 'v4_muon', 'pilot_muon', 'tiny'))
    net, _ = encoder.load(tmp_path / 'run' / 'step_00000003.pt')  # needs nothing else
    assert np.isfinite(net.decode(net(torch.tensor([2, 9, 3]), torch.tensor([0, 3]), 3)).detach().numpy()).all()



import os
import pathlib
import random
import runpy
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
torch.set_num_threads(1)  # small tensors, and the same bits as a process with OMP_NUM_THREADS=1

import configurator  # noqa: E402
import prepare  # noqa: E402


def refused(script, monkeypatch, capsys, *argv):
    """`python SCRIPT ARGV` in this process → the one line that a user's mistake gets, with code 2."""
    monkeypatch.setattr(sys, 'argv', [script, *argv])
    monkeypatch.setattr(sys, 'stdout', open(os.devnull, 'w'))  # it is reconfigured there
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(configurator.REPO / script), run_name='__main__')
    line, = capsys.readouterr().err.strip().split('\n')
    assert end.value.code == 2
    return line


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """A prepared folder of three sources of a made-up language, through prepare.py itself."""
    root, rng = tmp_path_factory.mktemp('corpus'), random.Random(1)
    letters = 'ابتثجحخدذرزسشصضطظعغفقكلمنهوي'
    words = [''.join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(300)]
    for source in 'abc':
        lines = (' '.join(rng.choices(words, k=rng.randint(4, 60))) for _ in range(250))
        (root / f'{source}.txt').write_text('\n'.join(lines), 'utf-8')
    prepare.prepare(configurator.load(vars(prepare), [f'--text={root}/*.txt', f'--out_dir={root}/data',
                                                      '--vocab_size=400', '--heldout=0.1', '--heldout_sources=c', '--workers=1']))
    return root / 'data'


@pytest.fixture(scope='session')
def straight(folder, tmp_path_factory):
    """16 steps through three phases without a stop."""
    import test_train
    out = tmp_path_factory.mktemp('straight') / 'run'
    test_train.run(folder, out, *test_train.NEIGHBORS, test_train.PHASES)
    return out

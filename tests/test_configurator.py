import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import time

import pytest

import configurator

REPO = pathlib.Path(configurator.__file__).parent
HEAD = dict(  # what globals() of a script may look like
    learning_rate=1e-3, max_steps=100, neighbor_head_kind='offset_emb', resume=False, tied=True, fill='',
    adam_betas=[0.9, 0.95], whole_words=[], sources={}, phases=[dict(name='stable', steps=1000)],
    data_dir='data/mine', ckpt=[], __name__='train', _hidden=1, PHASES=['a'], json=json, load=configurator.load)
NAMES = {k for k in HEAD if k[0] != '_'} - {'PHASES', 'json', 'load'}
PATHS = ('data_dir', 'ckpt')


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """An empty repository, and another folder to stand in."""
    monkeypatch.setattr(configurator, 'REPO', tmp_path / 'repo')
    (tmp_path / 'repo/config').mkdir(parents=True)
    (tmp_path / 'here').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    monkeypatch.setattr(sys, 'argv', ['/some/where/train.py'])
    monkeypatch.delenv('RANK', raising=False)
    monkeypatch.delenv('TRACE', raising=False)
    return tmp_path / 'repo'


def load(*argv):
    return configurator.load(HEAD, list(argv), PATHS)


def write(repo, name, body):
    (repo / 'config' / name).write_text(body, 'utf-8')
    return f'config/{name}'


@pytest.fixture
def refused(repo, capsys):
    """refused(argv …) → the one line on stderr, without 'train.py: '; anything else is no refusal."""
    def call(*argv):
        with pytest.raises(SystemExit) as exit_:
            load(*argv)
        out, err = capsys.readouterr()
        assert exit_.value.code == 2 and out == ''
        assert err.startswith('train.py: ') and err.endswith('\n') and err.count('\n') == 1
        return err[len('train.py: '):-1]
    return call

# --------------------------------------------------------------------------------- what wins


def test_the_settings_are_the_plain_lower_case_names_of_a_script(repo):
    before = json.dumps({k: HEAD[k] for k in sorted(NAMES)})
    s = load()
    assert set(s) == NAMES and s.given == frozenset() and s.base == ''
    assert json.loads(json.dumps(s)) == s
    load('--max_steps=7', '--whole_words=a')
    assert json.dumps({k: HEAD[k] for k in sorted(NAMES)}) == before


def test_defaults_then_files_in_order_then_flags_wherever_they_stand(repo):
    one = write(repo, 'one.py', 'max_steps = 1\nlearning_rate = 0.1\nfill = "one"\n')
    two = write(repo, 'two.py', 'learning_rate = 0.2\nfill = "two"\n')
    s = load('--fill=flag', one, two)
    assert (s['max_steps'], s['learning_rate'], s['fill'], s['tied']) == (1, 0.2, 'flag', True)
    assert load(two, one)['learning_rate'] == 0.1
    assert load('--max_steps=1', '--max_steps=2')['max_steps'] == 2
    assert s.given == {'max_steps', 'learning_rate', 'fill'}


def test_a_file_goes_over_its_base_and_the_base_over_its_own(repo):
    a = write(repo, 'a.py', 'max_steps = 1\nlearning_rate = 0.1\nfill = "a"\n')
    b = write(repo, 'b.py', 'base = "config/a.py"\nlearning_rate = 0.2\nfill = "b"\n')
    c = write(repo, 'c.py', 'base = "config/b.py"\nfill = "c"\n')
    s = load(c)
    assert (s['max_steps'], s['learning_rate'], s['fill']) == (1, 0.2, 'c')
    assert s.given == {'max_steps', 'learning_rate', 'fill'} and 'base' not in s
    here = pathlib.Path(load(c).base).resolve()
    assert here == (repo / b).resolve() and pathlib.Path(load(a).base).resolve() == (repo / a).resolve()
    # `base` can be given to load() as a file: what train.py compares a run with
    assert load(s.base)['fill'] == 'b' and load(s.base)['max_steps'] == 1
    # of several files, the last one's; its base, too, goes over the files before it
    assert pathlib.Path(load(a, c).base).resolve() == (repo / b).resolve()
    assert load(c, a)['fill'] == 'a' and pathlib.Path(load(c, a).base).resolve() == (repo / a).resolve()


def test_what_is_given_since_a_setting_was(repo):
    """The names of the files after, of the same file, of the flags; not those of a base."""
    a = write(repo, 'a.py', 'max_steps = 1\nfill = "a"\n')
    b = write(repo, 'b.py', f'base = {a!r}\nfill = "b"\nlearning_rate = 0.1\n')
    c = write(repo, 'c.py', 'tied = False\n')
    assert load(b, c, '--resume').since('fill').given == {'fill', 'learning_rate', 'tied', 'resume'}
    assert load(b, c, '--resume', '--fill=c').since('fill').given == {'fill', 'resume'}
    assert load(b, c).since('max_steps').given == load(b, c).given == load(b, c).since('resume').given
    assert load(a).since('fill') == load(a)


def test_a_base_is_relative_to_the_repository_a_named_file_to_where_one_stands(repo, tmp_path):
    write(repo, 'a.py', 'fill = "repository"\n')
    write(repo, 'b.py', 'base = "config/a.py"\n')
    assert load('config/a.py')['fill'] == 'repository'  # there is none here: python elsewhere/train.py config/a.py
    (tmp_path / 'here/config').mkdir()
    (tmp_path / 'here/config/a.py').write_text('fill = "here"\n')
    assert load('config/a.py')['fill'] == 'here'
    assert load('config/b.py')['fill'] == 'repository'
    assert load(str(repo / 'config/a.py'))['fill'] == 'repository'

# --------------------------------------------------------------------------------- the flags


@pytest.mark.parametrize('argv, name, value', [
    (['--max_steps=5'], 'max_steps', 5),
    (['--max_steps', '5'], 'max_steps', 5),
    (['--max-steps', '5'], 'max_steps', 5),
    (['--max_steps=-1'], 'max_steps', -1),
    (['--max_steps', '-1'], 'max_steps', -1),
    (['--max_steps=1_000'], 'max_steps', 1000),
    (['--learning_rate', '-1e-3'], 'learning_rate', -0.001),
    (['--learning-rate=2'], 'learning_rate', 2.0),
    (['--neighbor-head-kind', 'projection'], 'neighbor_head_kind', 'projection'),
    (['--resume'], 'resume', True),
    (['--resume=False'], 'resume', False),
    (['--tied=false'], 'tied', False),
    (['--resume=true'], 'resume', True),
    (['--fill='], 'fill', ''),
    (['--fill=4'], 'fill', '4'),
    (['--fill=a=b --c'], 'fill', 'a=b --c'),
    (['--fill', 'قال رسول الله [MASK]'], 'fill', 'قال رسول الله [MASK]'),
    (['--whole_words=tunisian, حديث'], 'whole_words', ['tunisian', 'حديث']),
    (['--whole_words', 'tunisian'], 'whole_words', ['tunisian']),
    (['--whole_words=["a,b", "c"]'], 'whole_words', ['a,b', 'c']),
    (['--whole_words='], 'whole_words', []),
    (['--whole_words=[]'], 'whole_words', []),
    (['--adam_betas=0.9,1'], 'adam_betas', [0.9, 1.0]),
    (['--adam_betas=(0.8, 0.99)'], 'adam_betas', [0.8, 0.99]),
    (['--sources={"hadith": 1, "تفسير": 0.5}'], 'sources', {'hadith': 1, 'تفسير': 0.5}),
    (['--phases=[{"name": "a", "steps": 3}, {"name": "b", "sources": {"x": 1.0}}]'], 'phases',
     [{'name': 'a', 'steps': 3}, {'name': 'b', 'sources': {'x': 1.0}}]),
])
def test_a_flag(repo, argv, name, value):
    s = load(*argv)
    assert s[name] == value and type(s[name]) is type(value)
    if isinstance(value, list):
        assert list(map(type, s[name])) == list(map(type, value))
    assert s.given == {name}


def test_a_bare_flag_never_swallows_the_next_word(repo):
    a = write(repo, 'a.py', 'max_steps = 3\n')
    s = load('--resume', a)
    assert s['resume'] is True and s['max_steps'] == 3
    s = load('--resume', '--max_steps', '4')
    assert s['resume'] is True and s['max_steps'] == 4


@pytest.mark.parametrize('argv', [['--max_steps'], ['--max_steps', '--resume'], ['--neighbor-head-kind', '--resume']])
def test_a_flag_that_needs_a_value_says_so(refused, argv):
    assert refused(*argv).startswith(f'{argv[0]} needs a value, such as {argv[0]}=')


@pytest.mark.parametrize('argv, said', [
    (['--max_steps=4096x'], '--max_steps=4096x: must be int; the default is 100'),
    (['--max_steps', '4096x'], '--max_steps=4096x: must be int; the default is 100'),
    (['--max_steps=1e3'], '--max_steps=1e3: must be int'),
    (['--max_steps=2.0'], '--max_steps=2.0: must be int'),
    (['--max_steps=True'], '--max_steps=True: must be int'),
    (['--max_steps='], '--max_steps=: must be int'),
    (['--learning_rate=True'], '--learning_rate=True: must be float'),
    (['--learning_rate=nan'], '--learning_rate=nan: must be float'),
    (['--learning_rate=1e999'], '--learning_rate=1e999: '),
    (['--resume=1'], '--resume=1: must be bool'),
    (['--resume=yes'], '--resume=yes: must be bool'),
    (['--adam_betas=0.9,x'], '--adam_betas=0.9,x: must be float; the default is [0.9, 0.95]'),
    (['--adam_betas=[0.9, "x"]'], '--adam_betas=[0.9, "x"]: must be float'),
    (['--whole_words=[1]'], '--whole_words=[1]: must be str'),
    (['--whole_words=[a'], '--whole_words=[a: must be list'),
    (['--ckpt=[1]'], '--ckpt=[1]: must be str'),
    (['--phases={"name": "a"}'], '--phases={"name": "a"}: must be list'),
    (['--phases=["a"]'], '--phases=["a"]: must be dict'),
    (['--phases=[dict(name="a")]'], '--phases=[dict(name="a")]: must be list'),
    (['--sources=hadith'], '--sources=hadith: must be dict; the default is {}'),
    (['--sources={"a": {1, 2}}'], '--sources={"a": {1, 2}}: '),
    (['--sources={[1]: 2}'], '--sources={[1]: 2}: '),
])
def test_a_flag_of_the_wrong_type_is_refused(refused, argv, said):
    assert refused(*argv).startswith(said)


@pytest.mark.parametrize('argv, said', [
    (['--learning_rte=1e-3'], "--learning_rte=1e-3: unknown setting 'learning_rte'; the nearest is 'learning_rate'"),
    # its value is no config file
    (['--learning_rte', '1e-3'], "--learning_rte: unknown setting 'learning_rte'; the nearest is 'learning_rate'"),
    (['--learning-rte=1e-3'], "--learning-rte=1e-3: unknown setting 'learning_rte'; the nearest is 'learning_rate'"),
    (['--Max_Steps=1'], "--Max_Steps=1: unknown setting 'Max_Steps'; the nearest is 'max_steps'"),
    (['--resme'], "--resme: unknown setting 'resme'; the nearest is 'resume'"),
    (['--fil', 'قال'], "--fil: unknown setting 'fil'; the nearest is 'fill'"),
])
def test_an_unknown_flag_is_refused_with_the_nearest_name(refused, argv, said):
    assert refused(*argv) == said


@pytest.mark.parametrize('name', ['PHASES', '_hidden', 'json', 'load', 'base', '', '-max_steps', 'لغة'])
def test_what_is_no_setting_is_no_flag(refused, name):
    assert f'--{name}=1: unknown setting ' in refused(f'--{name}=1')


def test_a_negative_number_belongs_to_its_flag_and_a_word_without_hyphens_is_a_file(refused):
    assert refused('max_steps=5').startswith('max_steps=5: no such config file')
    assert '--name=value' in refused('-max_steps=5')

# --------------------------------------------------------------------------------- the files


@pytest.mark.parametrize('line, said', [
    ('learning_rte = 1e-3', "learning_rte = 0.001: unknown setting 'learning_rte'; the nearest is 'learning_rate'"),
    ('PHASES = 1', "PHASES = 1: unknown setting 'PHASES'; the nearest is 'phases'"),
    ('max_steps = 1.5', 'max_steps = 1.5: must be int; the default is 100'),
    ('max_steps = "4096x"', "max_steps = '4096x': must be int"),
    ('max_steps = "4096"', "max_steps = '4096': must be int"),  # a file has types of its own
    ('max_steps = None', 'max_steps = None: must be int'),
    ('learning_rate = True', 'learning_rate = True: must be float'),
    ('learning_rate = float("inf")', 'learning_rate = inf: '),
    ('resume = 1', 'resume = 1: must be bool'),
    ('data_dir = 5', 'data_dir = 5: must be str'),
    ('whole_words = "tunisian"', "whole_words = 'tunisian': must be list"),
    ('adam_betas = [0.9, "x"]', "adam_betas = [0.9, 'x']: must be float"),
    ('phases = [dict(name="a"), 1]', "phases = [{'name': 'a'}, 1]: must be dict"),
    ('phases = dict(name="a")', "phases = {'name': 'a'}: must be list"),
    ('sources = dict(a={1})', "sources = {'a': {1}}: "),
])
def test_a_file_obeys_the_checks_of_a_flag(refused, repo, line, said):
    name = write(repo, 'bad.py', f'max_steps = 7\n{line}\n')
    start = os.path.relpath(repo / name)
    assert refused(name).startswith(f'{start}: {said}')
    child = write(repo, 'child.py', 'base = "config/bad.py"\n')
    assert refused(child).startswith(f'{start}: {said}')  # of the two, the file at fault is named


def test_what_a_file_may_hold_besides_settings(repo):
    s = load(write(repo, 'a.py', '"""لغة"""\nimport math\n_k = 2\nmax_steps = _k ** 3\nadam_betas = (0, 0.5)\n'
                                 'learning_rate = 1\nfill = "لغة"\nsources = dict(a=1)\n'))
    assert s['max_steps'] == 8 and s['fill'] == 'لغة' and s['sources'] == {'a': 1}
    assert s['adam_betas'] == [0.0, 0.5] and [type(b) for b in s['adam_betas']] == [float, float]
    assert type(s['learning_rate']) is float
    assert json.loads(json.dumps(s)) == s


def test_a_missing_file_is_named_beside_those_there_are(refused, repo):
    write(repo, 'v4.py', '')
    assert refused('config/v44.py').startswith('config/v44.py: no such config file (config/ has v4.py')
    assert 'no such config file' in refused('config')  # a folder
    assert 'put a glob in quotes' in refused(write(repo, 'b.jsonl', '{"text": 1}'))
    child = write(repo, 'v5.py', 'base = "config/v44.py"\n')
    said = refused(child)
    assert said.startswith(f"{os.path.relpath(repo / child)}: base = 'config/v44.py': no such config file")


@pytest.mark.parametrize('body, said', [
    ('max_steps = = 1\n', 'SyntaxError: '),
    ('if True:\nmax_steps = 1\n', 'IndentationError: '),
    ('max_steps = 1 / 0\n', 'ZeroDivisionError: division by zero'),
    ('max_steps = max_step\n', "NameError: name 'max_step' is not defined"),
    ('raise ValueError("two\\nlines")\n', 'ValueError: two lines'),
    ('import sys\nsys.exit(0)\n', 'SystemExit: 0'),
    ('import no_such_module\n', 'ModuleNotFoundError: '),
    ('base = 5\n', 'base = 5: must be the path of a config file'),
])
def test_a_file_that_fails_is_named(refused, repo, body, said):
    name = write(repo, 'bad.py', body)
    assert refused(name).startswith(f'{os.path.relpath(repo / name)}: {said}')


@pytest.mark.parametrize('spelling', ['config/a.py', 'config/../config/a.py'])
def test_a_file_cannot_be_its_own_base(refused, repo, spelling):
    a = write(repo, 'a.py', f'base = {spelling!r}\n')
    assert refused(a).endswith('is its own base')
    write(repo, 'b.py', f'base = {spelling!r}\n')
    write(repo, 'a.py', 'base = "config/b.py"\n')
    assert refused(a) == f'{os.path.relpath(repo / "config/b.py")}: base = {spelling!r}: is its own base'

# --------------------------------------------------------------------------------- the paths


def test_paths_are_relative_to_the_repository_or_to_where_one_stands(repo, tmp_path, monkeypatch):
    here = tmp_path / 'here'
    assert load()['data_dir'] == str(repo / 'data/mine') and load()['ckpt'] == []
    a = write(repo, 'a.py', 'data_dir = "data/a"\nckpt = ["x.pt", "/y.pt"]\nfill = "data/a"\n')
    s = load(a)
    assert s['data_dir'] == str(repo / 'data/a') and s['ckpt'] == [str(repo / 'x.pt'), '/y.pt']
    assert s['fill'] == 'data/a'  # not named as a path
    s = load(a, '--data_dir=data/b', '--ckpt', 'u.pt,/v.pt')
    assert s['data_dir'] == str(here / 'data/b') and s['ckpt'] == [str(here / 'u.pt'), '/v.pt']
    assert load('--data_dir=')['data_dir'] == ''
    monkeypatch.setenv('HOME', '/someone')
    assert load('--data_dir=~/d')['data_dir'] == '/someone/d'
    assert load('--data_dir=بيانات')['data_dir'] == str(here / 'بيانات')


def test_a_path_that_no_script_has_is_a_slip_of_the_script(repo):
    with pytest.raises(KeyError, match='dat_dir'):
        configurator.load(HEAD, [], ('dat_dir',))

# --------------------------------------------------------------------------------- refusing


def test_a_users_errors_are_one_line_and_others_keep_their_traceback(repo, capsys, monkeypatch):
    for error in (ValueError('no\n  shards'), FileNotFoundError('no shards')):
        with pytest.raises(SystemExit) as exit_, configurator.user_errors():
            raise error
        assert exit_.value.code == 2 and capsys.readouterr().err == 'train.py: no shards\n'
    with pytest.raises(SystemExit) as exit_, configurator.user_errors():
        raise FloatingPointError('diverged')  # nobody's mistake
    assert exit_.value.code == 1 and capsys.readouterr().err == 'train.py: diverged\n'
    with pytest.raises(KeyError), configurator.user_errors():
        raise KeyError('a slip of the program')
    monkeypatch.setenv('TRACE', '1')
    with pytest.raises(ValueError), configurator.user_errors():
        raise ValueError('shown whole')


def test_rank_0_speaks_at_once_and_the_others_after_a_wait(repo, capsys, monkeypatch):
    waits = []
    monkeypatch.setattr(time, 'sleep', waits.append)
    for rank, said in (('0', 'train.py: wrong\n'), ('3', 'train.py: rank 3: wrong\n')):
        monkeypatch.setenv('RANK', rank)
        with pytest.raises(SystemExit) as exit_:
            configurator.fail('wrong')
        assert exit_.value.code == 2 and capsys.readouterr().err == said
    assert len(waits) == 1 and 2 <= waits[0] <= 10


SCRIPT = '''
import sys
sys.path.insert(0, {repo!r})
import configurator
fill, max_steps, data_dir = '', 1, 'data'
settings = configurator.load(globals(), sys.argv[1:], ('data_dir',))
print(ascii(settings['fill']))
'''


def python(tmp_path, *argv, **env):
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT.format(repo=str(REPO)))
    clean = {k: v for k, v in os.environ.items() if k not in ('RANK', 'TRACE')}
    return subprocess.run([sys.executable, script, *argv], env=clean | env, capture_output=True, text=True, timeout=20)


def test_another_rank_stays_alive_while_rank_0_speaks(tmp_path):
    """As torchrun has it: both ranks meet the fault, rank 0 alone is heard and ends the other."""
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT.format(repo=str(REPO)))
    ranks = [subprocess.Popen([sys.executable, script, '--max_steps=4096x'], env=os.environ | {'RANK': rank},
                              stderr=subprocess.PIPE, text=True) for rank in '10']
    other, first = ranks
    said = first.communicate(timeout=20)[1]
    assert first.returncode == 2 and said == 'script.py: --max_steps=4096x: must be int; the default is 1\n'
    assert other.poll() is None
    other.terminate()
    assert other.communicate(timeout=20)[1] == '' and other.returncode < 0


def test_arabic_arrives_in_a_c_locale_too(tmp_path):
    done = python(tmp_path, '--fill=قال', LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    assert (done.returncode, done.stdout, done.stderr) == (0, ascii('قال') + '\n', '')


def test_a_training_config_is_read_for_what_is_shared(capsys):
    """Another script takes the shared settings of a training config, says which, and no others;
    its own config files and flags are checked as ever."""
    mine = dict(out_dir='out', data_dir='', seed=1, ppl=False)
    load = configurator.load(mine, ['config/v5.py', '--ppl'], ('out_dir', 'data_dir'), ('out_dir', 'data_dir'))
    assert load == dict(out_dir=str(REPO / 'out/v5'), data_dir=str(REPO / 'data/v5'), seed=1, ppl=True)
    assert 'config/v5.py: a training config, read for out_dir=' in capsys.readouterr().out
    assert {'lr', 'phases', 'neighbor_window'} <= configurator.settings_of('train.py').keys()
    with pytest.raises(SystemExit):
        configurator.load(mine, ['config/v5.py'])  # a script that shares nothing with it


@pytest.mark.parametrize('script', sorted(p.name for p in configurator.REPO.glob('*.py') if 'configurator.load(' in p.read_text('utf-8')))
def test_help_is_the_docstring_and_the_settings(script, monkeypatch, capfd):
    monkeypatch.setattr(sys, 'argv', [script, 'config/none.py', '-h' if script == 'train.py' else '--help'])
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(REPO / script), run_name='__main__')
    told, head = capfd.readouterr().out.split('Settings (--name=value):')
    assert end.value.code == 0 and f'python {script}' in told
    assert set(re.findall('^([a-z]\\w*) = ', head, re.M)) == set(configurator.settings_of(script))
    assert 'def ' not in head and 'import ' not in head


def test_help_in_a_c_locale():
    env = os.environ | dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    done = subprocess.run([sys.executable, REPO / 'eval.py', '--help'], env=env, capture_output=True)
    assert done.returncode == 0 and not done.stderr and b'n_spans' in done.stdout

"""The rules of the house: who may import whom, what a config file says about itself, and the like."""
import ast
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import configurator

REPO = pathlib.Path(configurator.__file__).parent
SCRIPTS = sorted(REPO.glob('*.py'))
CONFIGS = sorted((REPO / 'config').rglob('*.py'))
PYTHON = [*SCRIPTS, *CONFIGS, *sorted((REPO / 'tests').rglob('*.py'))]
TEXTS = sorted(p for folder in ('.', 'config/**', 'tests/**', 'docs/**', '.ci/**', '.github/**')
               for p in REPO.glob(f'{folder}/*') if p.is_file() and p.suffix not in ('.pyc', '.tmp'))

MAY_IMPORT = {  # of the files beside it
    'configurator': set(),
    'model': set(),
    'muon': set(),
    'objectives': set(),
    'data': set(),
    'plan': {'data'},
    'train': {'model', 'muon', 'objectives', 'data', 'plan', 'eval', 'alarm', 'configurator'},
    'eval': {'model', 'objectives', 'data', 'configurator'},
    'alarm': {'eval'},
    'ablation': {'alarm', 'model', 'objectives', 'plan', 'eval', 'train', 'configurator'},
    'corpus': {'data'},
    'prepare': {'corpus', 'data', 'decontaminate', 'configurator'},
    'demo_text': {'configurator'},
    'decontaminate': {'corpus', 'data', 'configurator'},
    'finetune': {'model', 'muon', 'data', 'eval', 'configurator'},
    'export': {'model', 'configurator'},
    'bench': {'model', 'muon', 'objectives', 'corpus', 'data', 'plan', 'prepare', 'train', 'configurator'},
}
CORE = {'torch', 'numpy', 'tokenizers', 'tqdm'}
ONLY = {'configurator': set(), 'model': {'torch'}, 'muon': {'torch'}, 'objectives': {'torch', 'numpy'}}
OPTIONAL = {'safetensors', 'transformers', 'seqeval', 'sklearn', 'matplotlib', 'scipy', 'tensorboard', 'wandb', 'pyarrow', 'backports', 'compression'}
LONGEST = 450  # lines


def name_of(path):
    return str(path.relative_to(REPO))


def each(paths):
    return pytest.mark.parametrize('path', paths, ids=name_of)


def tree(path):
    return ast.parse(path.read_text('utf-8'))


def imports(node, at_top=True):
    """(first part of the imported name, whether it is imported as the file is) of a whole tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name.split('.')[0], at_top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield '.' if child.level else child.module.split('.')[0], at_top
        inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from imports(child, at_top and not inside)


def test_imports_are_found_at_every_level():
    code = 'import a\ntry:\n from c import d\nexcept E:\n import e\ndef f():\n import g, h\nclass I:\n from . import j'
    assert list(imports(ast.parse(code))) == [
        ('a', True), ('c', True), ('e', True), ('g', False), ('h', False), ('.', True)]


@each(SCRIPTS)
def test_the_import_table(path):
    found = set(imports(tree(path)))
    own = {p.stem for p in SCRIPTS} | set(MAY_IMPORT)
    assert path.stem in MAY_IMPORT, 'a new file: the table must say what it may import'
    assert {n for n, _ in found if n in own or n == '.'} <= MAY_IMPORT[path.stem]
    others = {(n, top) for n, top in found if n not in own and n not in sys.stdlib_module_names}
    assert {n for n, top in others if top} <= ONLY.get(path.stem, CORE), 'import it in the function that needs it'
    assert {n for n, _ in others} <= ONLY.get(path.stem, CORE | OPTIONAL)


@each(PYTHON)
def test_no_file_is_too_long(path):
    """The settings at a script's head, a line and a comment each, are documentation and not counted."""
    settings = [n for n in tree(path).body if isinstance(n, ast.Assign) and getattr(n.targets[0], 'id', '').islower()]
    assert len(path.read_text('utf-8').splitlines()) - len(settings) <= LONGEST


@each(PYTHON)
def test_no_error_is_passed_over(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            assert not all(isinstance(n, ast.Pass) or isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
                           for n in node.body), f'line {node.lineno}: except: pass'


OF_A_MACHINE = re.compile(r'(?<![\w.}~/-])/(?:home|root|Users|work|workspace|mnt|tmp|scratch|opt|srv|kaggle)/\w')


def test_the_paths_of_a_machine_are_told_from_others():
    for root in ('home', 'tmp', 'Users'):
        assert OF_A_MACHINE.search(f"open('/{root}/me/x')") and OF_A_MACHINE.search(f'--out_dir=/{root}/x')
        assert not OF_A_MACHINE.search(f'https://a.org/{root}/x {{here}}/{root}/x ../{root}/x ~/{root}/x')


@each(TEXTS)
def test_no_file_speaks_of_one_machine(path):
    found = OF_A_MACHINE.search(path.read_text('utf-8', errors='replace'))
    assert not found, found[0]


def test_ruff_finds_nothing():
    if not importlib.util.find_spec('ruff'):
        pytest.skip('pip install ruff')
    ruff = [sys.executable, '-m', 'ruff', 'check', '--isolated', '--no-cache', '--select', 'E9,F,B006,B023,E722']
    done = subprocess.run([*ruff, *PYTHON], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

# ------------------------------------------------------------------------------ config/


def command(path):
    """The command in a config file's docstring: (whole line, its script)."""
    doc = ast.get_docstring(tree(path)) or ''
    found = re.search(rf'^ +(.*\b(?:python|torchrun) .*?\b(\w+)\.py .*\b{re.escape(name_of(path))}\b.*)$', doc, re.M)
    assert found, 'its docstring gives no command: an indented line, python or torchrun SCRIPT.py config/THIS.py'
    return found[1], found[2]


@each(CONFIGS)
def test_a_config_says_how_where_and_what_to_expect(path):
    doc = ast.get_docstring(tree(path)) or ''
    line, script = command(path)
    assert (REPO / f'{script}.py').is_file(), line
    assert re.search(r'\bHardware: \w', doc)
    assert re.search(r'\bnot yet run\b', doc, re.I) or re.search(r'\bExpected: [^.]*\d', doc)


@each(CONFIGS)
def test_a_configs_settings_are_those_of_its_script(path, capsys):
    script = importlib.import_module(command(path)[1])
    try:
        settings = configurator.load(vars(script), [str(path)])
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
    for phase in settings.get('phases', ()):
        assert set(phase) <= {'name', 'steps', *importlib.import_module('plan').PHASE_SETTINGS}


@each([p for p in SCRIPTS if 'configurator.load(globals()' in p.read_text('utf-8')])
def test_a_scripts_settings_stand_at_its_head_with_a_default(path):
    """What runs under `if __name__ == '__main__':` adds globals, too: none of them may pass for a setting."""
    body = tree(path).body
    head = [n for n in body if isinstance(n, (ast.Assign, ast.AnnAssign))]
    defined = next(n.lineno for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
    lower = {t.id: n.lineno for n in head for t in getattr(n, 'targets', [getattr(n, 'target', None)])
             if isinstance(t, ast.Name) and t.id == t.id.lower() and t.id[0] != '_'}
    assert max(lower.values()) < defined
    main = [n for part in body if isinstance(part, ast.If) for n in ast.walk(part)]
    loaded = min([n.lineno for n in main if isinstance(n, ast.Attribute) and n.attr == 'load'], default=0)
    late = {n.id for n in main if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < loaded}
    assert not late, 'configurator.load(globals()) takes these for settings'

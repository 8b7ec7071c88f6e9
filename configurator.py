"""Settings: the defaults at a script's head, then config files, then flags; later ones win.

    python train.py config/tiny.py --max_steps=100 --neighbor-head-kind projection --resume

A config file is Python that assigns settings. It may name the file it differs from,
`base = 'config/v4.py'`, which is then read first. A file obeys the same checks as a flag: an
unknown name or a wrong type ends the program with exit code 2, before any work.
"""
import ast
import contextlib
import difflib
import os
import pathlib
import runpy
import sys

REPO = pathlib.Path(__file__).resolve().parent
PLAIN = (bool, int, float, str, list, dict)  # what a setting can be; anything else is not a setting


class Settings(dict):
    """Every setting by name, ready for JSON; `given` names those that a file or a flag set,
    `base` is what a run is compared with: the last config file's base, else the file itself."""
    given, base = frozenset(), ''


def fail(message):
    """One line on stderr, from rank 0 only, and exit code 2."""
    if os.environ.get('RANK', '0') == '0':
        print(f'{pathlib.Path(sys.argv[0]).name}: {message}', file=sys.stderr, flush=True)
    sys.exit(2)


@contextlib.contextmanager
def user_errors():
    """Around a script's set-up: what a user got wrong is one line and code 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        if os.environ.get('TRACE'):  # TRACE=1 shows where it came from
            raise
        fail(' '.join(str(error).split()))


def load(namespace, argv, paths=()):
    """Returns Settings from a script's globals, its config files and its flags.

    namespace: globals() of the script (not changed). argv: sys.argv[1:].
    paths: names whose values are files or folders: relative to the repository where a default
    or a config file sets them, to the current folder where the command line does.
    """
    defaults = {k: v for k, v in namespace.items() if k[0] != '_' and k == k.lower() and isinstance(v, PLAIN)}
    out, given = Settings(defaults), set()

    def put(name, value, where, root):
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, 1, 0)
            fail(f'{where}: unknown setting {name!r}; the nearest is {near[0]!r}')
        value = coerce(name, value, defaults[name], where)
        out[name] = rooted(value, root) if name in paths else value
        given.add(name)

    for name in set(paths) & set(defaults):
        out[name] = rooted(out[name], REPO)
    files, flags = split(argv, defaults)
    for file in files:
        line = chain(file)
        out.base = str(line[-2:][0][0])
        for path, settings in line:
            for name, value in settings.items():
                put(name, value, path, REPO)
    for name, value in flags:
        put(name, value, f'--{name}', pathlib.Path.cwd())
    out.given = frozenset(given)
    return out


def split(argv, defaults):
    """argv → config files in order, and (name, text) of each flag. A bare flag is 'True' and
    takes the next word as its value only where the setting is no bool and the word no flag."""
    files, flags, i = [], [], 0
    while i < len(argv):
        word, i = argv[i], i + 1
        if not word.startswith('--'):
            files.append(word)
            continue
        name, equals, value = word[2:].partition('=')
        name = name.replace('-', '_')
        if not equals:
            value = 'True'
            if not isinstance(defaults.get(name), bool):
                if i < len(argv) and not argv[i].startswith('--') and name in defaults:
                    value, i = argv[i], i + 1
                elif name in defaults:
                    fail(f'--{name} needs a value, such as --{name}={defaults[name]!r}')
        flags.append((name, value))
    return files, flags


def chain(file, below=()):
    """A config file and its bases, the deepest first: [(path, {name: value}), …]."""
    path = pathlib.Path(file)
    path = path if path.exists() else REPO / file
    if not path.is_file():
        known = ', '.join(sorted(p.name for p in (REPO / 'config').glob('*.py')))
        fail(f'{file}: no such config file (config/ has {known})')
    if path.resolve() in below:
        fail(f'{file}: is its own base')
    try:
        values = runpy.run_path(str(path))
    except Exception as error:  # whatever a config file raises is its writer's to mend
        fail(f'{file}: {type(error).__name__}: {error}')
    values = {k: v for k, v in values.items() if not k.startswith('_') and not hasattr(v, '__spec__')}
    base = values.pop('base', None)
    return (chain(base, (*below, path.resolve())) if base else []) + [(path, values)]


def coerce(name, value, default, where):
    """A flag's text or a file's value → the type of the default; int → float is fine."""
    kind = type(default)
    shown = value
    if isinstance(value, str) and kind is not str:
        if kind is list and not value.lstrip().startswith(('[', '(')):
            return [word for word in value.split(',') if word]
        try:
            value = ast.literal_eval({'true': 'True', 'false': 'False'}.get(value, value))
        except (ValueError, SyntaxError):
            pass  # still text: reported below
    if kind is float and type(value) is int:
        value = float(value)
    if kind is list and isinstance(value, tuple):
        value = list(value)
    if type(value) is not kind:
        fail(f'{where}: {name} is {kind.__name__} (default {default!r}), got {shown!r}')
    return value


def rooted(value, root):
    if isinstance(value, list):
        return [rooted(v, root) for v in value]
    return str(pathlib.Path(root) / value) if value else value

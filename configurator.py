"""Settings: the defaults at a script's head, then config files, then flags; later ones win.

    python train.py config/tiny.py --max_steps=100 --neighbor-head-kind projection --resume

A config file is Python that assigns settings. It may name the file it differs from,
`base = 'config/v4.py'`, which is then read first. A file obeys the same checks as a flag: an
unknown name or a wrong type ends the program with exit code 2, before any work.
"""
import ast
import contextlib
import difflib
import itertools
import json
import math
import operator
import os
import pathlib
import runpy
import signal
import sys
import time
import types

REPO = pathlib.Path(__file__).resolve().parent
PLAIN = (bool, int, float, str, list, dict)  # what a setting can be; anything else is not a setting
RANK_0_FIRST = 5  # seconds


class Settings(dict):
    """Every setting by name, ready for JSON; `given` names those that a file or a flag set,
    `base` is what a run is compared with: the last config file's base, else the file itself."""
    given, base, paths, order = frozenset(), '', (), {}

    def since(self, name):
        """The same, where `given` are those set in the file (or by the flags) that set `name` last, or after it."""
        one = Settings(self)
        one.given = frozenset(n for n in self.given if self.order[n] >= self.order.get(name, 0))
        return one


def fail(message, code=2):
    """One line on stderr and the exit code. torchrun ends every rank once one of them exits, so the
    others let rank 0 speak first; still alive after that, a rank met a fault that rank 0 did not."""
    rank, who = os.environ.get('RANK', '0'), pathlib.Path(sys.argv[0]).name
    if rank != '0':
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run may hold it back
        time.sleep(RANK_0_FIRST)
        who += f': rank {rank}'
    print(f'{who}: {" ".join(message.split())}', file=sys.stderr, flush=True)
    sys.exit(code)


@contextlib.contextmanager
def user_errors():
    """Around a script's work: what a user got wrong is one line and code 2, not a traceback; a run
    that diverged (FloatingPointError) is one line and code 1."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get('TRACE'):  # TRACE=1 shows where it came from
            raise
        fail(str(error), 1 if isinstance(error, FloatingPointError) else 2)


def load(namespace, argv, paths=(), shares=()):
    """Returns Settings from a script's globals, its config files and its flags.

    namespace: globals() of the script (not changed). argv: sys.argv[1:].
    paths: names whose values are files or folders: relative to the repository where a default
    or a config file sets them, to the current folder where the command line does.
    shares: names that are taken from a training config, where the script is not train.py but is
    given one; the rest of such a file is passed over, and what was taken is told.
    """
    if {'-h', '--help'} & set(argv):
        manual(namespace['__file__'])
    defaults = {k: v for k, v in namespace.items() if k[0] != '_' and k == k.lower() and isinstance(v, PLAIN)}
    out, order = Settings(defaults), {}  # order: the place of the file that set a name

    def put(name, value, where, root, text, place):
        known(name, where, defaults)
        try:
            value = fit(value, defaults[name], text)
            json.dumps(value, allow_nan=False)  # a list or dict may hold anything
        except (TypeError, ValueError) as error:
            fail(f'{where}: {error}; the default is {defaults[name]!r}')
        out[name] = rooted(value, root) if name in paths else value
        order[name] = place

    for name in paths:
        out[name] = rooted(out[name], REPO)
    (files, flags), places = split(argv, defaults), itertools.count()
    for file in files:
        line = chain(file)
        out.base = str(line[-2:][0][0])
        training = shares and {n for _, settings in line for n in settings} & (settings_of('train.py').keys() - set(defaults))
        for (path, settings), place in zip(line, places):
            for name, value in settings.items():
                if not training or name in shares:
                    put(name, value, f'{path}: {name} = {value!r}', REPO, False, place)
        if training:
            print(f'{file}: a training config, read for ' + ', '.join(f'{n}={out[n]}' for n in shares if n in order))
    for name, value in flags:
        if name not in paths:  # a C locale hands UTF-8 over as escaped bytes, and wants paths so
            value = os.fsencode(value).decode('utf-8', 'surrogateescape')
        put(name, value, f'--{name}={value}', pathlib.Path.cwd(), True, math.inf)
    out.given, out.order, out.paths = frozenset(order), order, tuple(paths)
    return out


def settings_of(script):
    """{name: first line, last line} of the settings at a script's head, without running it."""
    body = ast.parse((REPO / script).read_text('utf-8')).body
    return {t.id: (node.lineno, node.end_lineno) for node in body if isinstance(node, ast.Assign) for t in node.targets
            if isinstance(t, ast.Name) and t.id == t.id.lower()}


def manual(script):
    """Prints what --help is for: the script's docstring and, with their comments, the settings at its head."""
    text, places = pathlib.Path(script).read_text('utf-8'), settings_of(script).values()
    head = text.split('\n')[min(first for first, _ in places) - 1:max(last for _, last in places)]
    if hasattr(signal, 'SIGPIPE'):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # piped into a reader that has enough
    sys.stdout.reconfigure(errors='backslashreplace')  # Arabic must not fail in a C locale
    print(ast.get_docstring(ast.parse(text)), '', 'Settings (--name=value):', '', *head, sep='\n')
    sys.exit(0)


def known(name, where, defaults):
    if name not in defaults:
        near = difflib.get_close_matches(name.lower(), defaults, 1, 0)
        fail(f'{where}: unknown setting {name!r}; the nearest is {near[0]!r}')


def against_base(settings, namespace, ideas):
    """Lines that say in what a run differs from its base; a warning if in more than one idea.
    namespace: as for load; ideas: {name of the idea: settings that make it up}."""
    if not settings.base:
        return []
    base = load(namespace, [settings.base], settings.paths)
    moved = sorted(k for k in settings if settings[k] != base[k] and k != 'out_dir')
    several = [idea for idea, names in ideas.items() if set(moved) & set(names)]
    lines = [f'base {settings.base}: ' + ('; '.join(f'{k} {base[k]!r} → {settings[k]!r}' for k in moved) or
                                          'no difference')]
    if len(several) > 1:
        lines.append(f'warning: {len(several)} ideas moved at once ({", ".join(several)}): the result will not say '
                     'which of them did it')
    return lines


def split(argv, defaults):
    """argv → config files in order, and (name, text) of each flag. A bare flag of a bool setting
    is 'True' and never takes the next word; any other takes it as its value."""
    files, flags, i = [], [], 0
    while i < len(argv):
        word, i = argv[i], i + 1
        if not word.startswith('--'):
            files.append(word)
            continue
        name, equals, value = word[2:].partition('=')
        name = name.replace('-', '_')
        known(name, word, defaults)  # said here, or its value, the next word, passes for a config file
        if not equals and isinstance(defaults[name], bool):
            value = 'True'
        elif not equals:
            if i == len(argv) or argv[i].startswith('--'):
                fail(f'{word} needs a value, such as {word}={defaults[name]!r}')
            value, i = argv[i], i + 1
        flags.append((name, value))
    return files, flags


def chain(file, above=()):
    """A config file and its bases, the deepest first: [(path, {name: value}), …]. A base is
    relative to the repository; a file of the command line is looked for where one stands first."""
    path = pathlib.Path(file)
    if above or not path.is_file():
        path = pathlib.Path(os.path.relpath(REPO / file))
    where = f'{above[-1]}: base = {file!r}' if above else file
    if not path.is_file():
        there = ', '.join(sorted(p.name for p in (REPO / 'config').glob('*.py')))
        fail(f'{where}: no such config file (config/ has {there}; a flag is --name=value)')
    if path.suffix != '.py':  # a glob that the shell has taken apart
        fail(f"{where}: not a config file (.py); put a glob in quotes, --text='mine/*.jsonl'")
    if path.resolve() in [p.resolve() for p in above]:
        fail(f'{where}: is its own base')
    try:
        values = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:  # whatever a config file raises is its writer's to mend
        fail(f'{path}: {type(error).__name__}: {error}')
    values = {k: v for k, v in values.items() if k[0] != '_' and not isinstance(v, types.ModuleType)}
    base = values.pop('base', '')
    if not isinstance(base, str):
        fail(f'{path}: base = {base!r}: must be the path of a config file')
    return (chain(base, (*above, path)) if base else []) + [(path, values)]


def fit(value, default, text):
    """A flag's text, or a value in a file, as the type of the default: int → float is fine.
    A list's items are like its default's first; strings, where that is empty. Raises TypeError."""
    kind, first = type(default), default[0] if isinstance(default, list) and default else ''
    if kind is list and text and not value.lstrip().startswith(('[', '(', '{')):
        return [fit(word.strip(), first, True) for word in value.split(',') if word.strip()]
    if kind is not str and text:
        with contextlib.suppress(ValueError, SyntaxError):  # still text, then, and refused below
            value = ast.literal_eval({'true': 'True', 'false': 'False'}.get(value, value))
    if kind is list and isinstance(value, (list, tuple)):
        return [fit(item, first, False) for item in value]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise TypeError(f'must be {kind.__name__}')
    return value


RULES = {'above': operator.gt, 'at least': operator.ge, 'at most': operator.le, 'below': operator.lt}


def check(values, defaults, ranges, choices, where=''):
    """ValueError with one line at the first value without its default's type, or that is none of its
    choices {name: values}, or out of its ranges, a list by its parts {'at most 1': names, …}."""
    for name in [n for n in values if n in defaults]:
        value, default, said = values[name], defaults[name], f'{where}{name}={values[name]!r}: '
        try:
            fit(value, default, False)
        except TypeError as error:
            raise ValueError(f'{said}{error}') from None
        parts = value if isinstance(value, list) else [value]
        if name in choices and not set(parts) <= set(choices[name]):
            raise ValueError(f'{said}choose {"some" if isinstance(value, list) else "one"} of {", ".join(choices[name])}')
        for rule in [r for r, names in ranges.items() if name in names]:
            word, bound = rule.rsplit(' ', 1)
            if not all(RULES[word](x, int(bound)) for x in parts):
                raise ValueError(f'{said}must be {rule}')


def locked(path, busy):
    """Opens and locks a file → it, locked while it is open; ValueError(busy) where another process has it."""
    import fcntl  # here, for Windows has none, and evaluates all the same
    lock = open(path, 'a')  # 'a': a user's own file of that name is not emptied
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(busy) from None
    return lock


def claim(out, own, fresh):
    """Takes a run's folder for this process alone; a fresh run moves an earlier one aside, but never a
    file of another kind. own: what the names of a run's files match. → the lock, held while it is open."""
    out = out.resolve()  # a link's folder moves, not the link
    if out.exists() and not out.is_dir():
        raise ValueError(f'{out}: a file stands where the run would be written; choose another --out_dir')
    for kept in (pathlib.Path.cwd(), REPO, pathlib.Path(os.path.expanduser('~'))):
        if kept.resolve().is_relative_to(out):
            raise ValueError(f'out_dir={out}: {kept} is no folder for a run alone; choose one: --out_dir=out/NAME')
    names = sorted(p.name for p in out.iterdir()) if out.is_dir() else []
    foreign = [n for n in names if not own.fullmatch(n)]
    earlier = fresh and any(n == 'log.jsonl' or n.endswith('.pt') for n in names)
    if earlier and foreign:
        raise ValueError(f'{out}: would be moved aside as an earlier run, but {foreign[0]} is no file of a run; '
                         'move that elsewhere, or choose another --out_dir')
    out.mkdir(parents=True, exist_ok=True)
    lock = locked(out / 'lock', f'{out}: another run is writing here; choose another --out_dir')
    if earlier:
        aside = next(p for i in itertools.count(1) if not (p := out.with_name(f'{out.name}.{i}')).exists())
        out.rename(aside)
        lock.close()
        print(f'{out} held an earlier run: it is {aside} now (--resume would have gone on with it)')
        return claim(out, own, fresh)
    for name in names:
        if name.endswith('.pt.tmp') and name not in foreign:  # a save that was killed
            (out / name).unlink()
    return lock


def rooted(value, root):
    """~ is one's home here too: the shell leaves it as it is after `--name=`."""
    if isinstance(value, list):
        return [rooted(v, root) for v in value]
    return str(root / pathlib.Path(os.path.expanduser(value))) if value else value

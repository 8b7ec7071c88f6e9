"""Arms of an experiment, several seeds each, compared in pairs: v5's fault on a desk.

    pip install -r requirements-demo.txt scipy matplotlib
    python demo_text.py && python prepare.py config/ablation/data.py
    python ablation.py                                              # every arm, one seed
    python ablation.py --arms=mlm,offset_emb,projection --seeds=1,2,3,4,5
    python ablation.py --report                                     # tables and pictures of what is there

An arm is a file of config/ablation/. Arms of one seed share the encoder's init, the rows and the masks, so the
difference of two arms is taken seed by seed. A run that was stopped goes on; one that is done is not run again.
"""
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys

import torch

import alarm
import configurator
import model as encoder
import train

arms = []                           # names of files in config/ablation; none: all
seeds = [1]
jobs = 0                            # runs at once, each on its share of the cores; 0: one a core (with CUDA: one)
out_dir = 'out/ablation'            # runs and their figures
report = False                      # run nothing: read what is there
json_file = 'docs/ablation.json'    # every figure of every run
pictures = 'docs'                   # folder of the plots; '': none
baseline = 'mlm'                    # the arm that the others are compared with
source = 'hadith'                   # the held-out source that is asked
n = 2_000                           # spans, pairs and masks behind a figure
max_steps = 0                       # stop each run there, for a try; 0: whole runs

ARMS = configurator.REPO / 'config/ablation'
SHOWN = {  # the figures that a run is judged by, as they are named in eval.py's --json: (heading, key, format)
    'nats': ('held-out nats', 'perplexity/{}/nats', '{:.3f}'),
    **{f'd{d}': (f'divergence d = {d}', f'separation/{{}}/d{d}.divergence', '{:.3g}') for d in (1, 2, 3, 5)},
    'agreement': ('agree d = 1', 'separation/{}/d1.agreement', '{:.1%}'),
    **{f'span{k}': (f'infill {k}', f'infill/{{}}/span{k}.exact', '{:.1%}') for k in (1, 2, 3)},
    'kl': ('KL(MLM ‖ head)', 'heads/{}/kl', '{:.2g}'),
    'ratio': ('ratio', 'heads/{}/ratio', '{:.3f}'),
}

# ---------------------------------------------------------------------------------------- runs


def settings_of(arm, seed, s):
    """What train.py will run, without the places of files."""
    flags = [f'--seed={seed}', *([f'--max_steps={s["max_steps"]}'] if s['max_steps'] else [])]
    found = configurator.load(vars(train), [str(ARMS / f'{arm}.py'), *flags], paths=('data_dir', 'out_dir'))
    return {k: v for k, v in found.items() if k not in ('out_dir', 'data_dir', 'resume')}, flags


def run(arm, seed, s, threads):
    """Trains and questions one arm under one seed, as subprocesses; what is done already is left alone."""
    out = pathlib.Path(s['out_dir']) / f'{arm}_{seed}'
    done, log = out.with_suffix('.json'), out.with_suffix('.log')
    settings, flags = settings_of(arm, seed, s)
    key = json.loads(json.dumps(dict(settings=settings, n=s['n'], source=s['source'])))
    old = json.loads(done.read_text('utf-8')) if done.exists() else {}
    same = old.get('key') == key
    if same and 'figures' in old:
        return
    done.write_text(json.dumps(dict(key=key)), 'utf-8')
    resume = ['--resume'] if same and list(out.glob(encoder.NAMES)) else []
    env = os.environ | {'OMP_NUM_THREADS': str(threads)}

    def call(*command):
        with log.open('a') as file:
            code = subprocess.run([sys.executable, *command], cwd=configurator.REPO, env=env, stdout=file, stderr=file).returncode
        if code:
            last = log.read_text('utf-8', 'replace').strip().split('\n')[-1]
            raise ValueError(f'{arm}, seed {seed}: {command[0]} ended with code {code}: {last} (all of it: {log})')
    if not (same and final(out, settings)):
        call('train.py', str(ARMS / f'{arm}.py'), f'--out_dir={out}', *flags, *resume)
    heads = ['--heads'] if settings['objective'] == 'mlm_neighbors' else []
    asked = [f'--ckpt={final(out, settings)}', f'--sources={s["source"]}', f'--n_spans={s["n"]}', f'--n_pairs={s["n"]}']
    figures = out.with_suffix('.figures')
    call('eval.py', '--ppl', '--infill', '--separation', *heads, *asked, '--spans=1,2,3', '--kinds=span',
         '--distances=1,2,3,5', '--eval_tokens=0', f'--json={figures}')
    found, = json.loads(figures.read_text('utf-8')).values()
    figures.unlink()
    done.write_text(json.dumps(dict(key=key, figures=found)), 'utf-8')


def final(out, settings):
    """The checkpoint at a run's end, if it is there."""
    steps = settings['max_steps'] or sum(p['steps'] for p in settings['phases'])
    path = out / f'step_{steps:08d}.pt'
    return path if path.exists() else None

# -------------------------------------------------------------------------------------- figures


def collect(arm, seed, s):
    """A run's figures and what its log says → {'figures': {…}, 'curve': {…}, 'edges': {…}, 'alarm': step or None}."""
    out = pathlib.Path(s['out_dir']) / f'{arm}_{seed}'
    found = json.loads(out.with_suffix('.json').read_text('utf-8'))['figures']
    heads = [k for k in found if k.startswith(f'heads/{s["source"]}/') and k.split('/')[-1][0] in '+-']
    for name in ('kl', 'ratio'):
        values = [found[k] for k in heads if k.endswith('.' + name)]
        found |= {f'heads/{s["source"]}/{name}': statistics.mean(values)} if values else {}
    records = [json.loads(line) for line in (out / 'log.jsonl').read_text('utf-8').split('\n') if line]
    looks = [r for r in records if r.get('watch')]
    curve = {'step': [r['step'] for r in looks], 'nats': [r['heldout'][s['source']]['nats'] for r in looks]}
    for d in looks[0]['watch']['separation']:
        curve[d] = [r['watch']['separation'][d]['divergence'] for r in looks]
    if 'heads' in looks[0]['watch']:
        curve['ratio'] = [statistics.mean(x['ratio'] for x in r['watch']['heads'].values() if 'ratio' in x) for r in looks]
    far = list(looks[0]['watch']['separation'])[-2]
    pairs = list(zip(curve['d1'], curve[far]))
    rings = [curve['step'][i - 1] for i in range(1, len(pairs) + 1) if alarm.collapsing(pairs[:i])]
    at = {r['step']: {name: x['perplexity'] for name, x in r['heldout'].items()} for r in records if 'heldout' in r}
    edges, step = {}, 0
    for phase in train.configurator.load(vars(train), [str(ARMS / f'{arm}.py')])['phases']:
        step += phase['steps']
        edges[phase['name']] = at.get(step)
    key = {name: key.format(s['source']) for name, (_, key, _) in SHOWN.items()}
    return dict(figures={name: rounded(found[k]) for name, k in key.items() if found.get(k) is not None},
                counts={k.split('/')[-1]: v for k, v in found.items() if k.endswith('.n') and 'heads' not in k},
                curve={k: [rounded(x) for x in v] for k, v in curve.items()}, edges=edges, alarm=rings[0] if rings else None)


def rounded(x):
    return x if isinstance(x, int) else float(f'{x:.5g}')


def paired(a, b):
    """Figures a, b of the same seeds → {'mean' of a - b, 'low', 'high': 95% interval of it (Student's t), 'n'}."""
    from scipy import stats
    mean = statistics.mean(x - y for x, y in zip(a, b))
    if len(a) < 2:
        return dict(mean=mean, n=len(a))
    found = stats.ttest_rel(a, b).confidence_interval(0.95)
    return dict(mean=mean, low=float(found.low), high=float(found.high), n=len(a))


def differences(runs, baseline):
    """{arm: {seed: run}} → {arm: {figure: `paired` with the baseline over the seeds both have}}."""
    out = {}
    for arm in runs:
        both = [seed for seed in runs[arm] if seed in runs.get(baseline, {})]
        for name in SHOWN if both and arm != baseline else ():
            a, b = ([runs[x][seed]['figures'].get(name) for seed in both] for x in (arm, baseline))
            if None not in a + b:
                out.setdefault(arm, {})[name] = {k: rounded(v) for k, v in paired(a, b).items()}
    return out

# --------------------------------------------------------------------------- tables and pictures


def markdown(head, rows):
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in [head, ['---'] + ['---:'] * (len(head) - 1), *rows])


def tables(results):
    """The contents of --json_file → three tables in Markdown: means over the seeds, differences from the baseline
    with their 95% intervals, perplexity of every source at the end of each phase."""
    means, paired_rows, edges = [], [], []
    for arm, runs in results['arms'].items():
        cells = []
        for name, (_, _, form) in SHOWN.items():
            values = [r['figures'][name] for r in runs.values() if name in r['figures']]
            cells.append(form.format(statistics.mean(values)) if values else '-')
        alarms = [r['alarm'] for r in runs.values()]
        rung = sorted(a for a in alarms if a)
        means.append([arm, str(len(runs)), *cells, f'{len(rung)} of {len(alarms)}' + (f', by {rung[-1]}' if rung else '')])
        if len(next(iter(runs.values()))['edges']) > 2:
            names = list(next(iter(next(iter(runs.values()))['edges'].values())))
            edges += [[f'{arm}: {phase}'] + [f'{statistics.mean(r["edges"][phase][n] for r in runs.values()):.1f}' for n in names]
                      for phase in next(iter(runs.values()))['edges']]
    for arm, found in results['differences'].items():
        cells = []
        for name, (_, _, form) in SHOWN.items():
            x = found.get(name, {})
            form = form.replace('{:', '{:+')
            cells.append(f'{form.format(x["mean"])} [{form.format(x["low"])}, {form.format(x["high"])}]' if 'low' in x else
                         form.format(x['mean']) if x else '-')
        paired_rows.append([arm, str(found['nats']['n']), *cells])
    head = [heading for heading, _, _ in SHOWN.values()]
    parts = [markdown(['arm', 'seeds', *head, 'alarm'], means)]
    parts += [markdown([f'minus {results["baseline"]}', 'seeds', *head], paired_rows)] if paired_rows else []
    parts += [markdown(['arm: end of phase', *names], edges)] if edges else []
    return '\n\n'.join(parts)


def draw(results, folder):
    """Writes ablation_separation.png, ablation_loss.png and ablation_ratio.png."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    runs = {arm: list(found.values()) for arm, found in results['arms'].items() if not arm.startswith('phase_')}

    def picture(name, xlabel, ylabel, lines, log=True):
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout='constrained')
        for arm, (x, y) in lines.items():
            axes.plot(x, y, marker='.', label=arm)
        axes.set(xlabel=xlabel, ylabel=ylabel, yscale='log' if log else 'linear')
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        figure.savefig(pathlib.Path(folder) / f'ablation_{name}.png', dpi=110)
        pyplot.close(figure)

    def mean(found, name):
        return [statistics.mean(values) for values in zip(*(r['curve'][name] for r in found))]
    distances = (1, 2, 3, 5)
    picture('separation', 'distance d of the two masks, tokens', 'KL(left ‖ right), nats', {
        arm: (distances, [statistics.mean(r['figures'][f'd{d}'] for r in found) for d in distances])
        for arm, found in runs.items()})
    picture('loss', 'step', 'held-out MLM loss, nats', {
        arm: (found[0]['curve']['step'], mean(found, 'nats')) for arm, found in runs.items()}, log=False)
    picture('ratio', 'step', '‖e_j‖/‖h‖, or ‖W_j h − h‖/‖h‖', {
        arm: (found[0]['curve']['step'][1:], mean(found, 'ratio')[1:]) for arm, found in runs.items() if 'ratio' in found[0]['curve']})


def main(argv):
    argv = [a.replace('--json', '--json_file', 1) if a.split('=')[0] == '--json' else a for a in argv]
    s = configurator.load(globals(), argv, paths=('out_dir', 'json_file', 'pictures'))
    with configurator.user_errors():
        there = sorted(p.stem for p in ARMS.glob('*.py') if p.stem != 'data')
        unknown = [a for a in (*s['arms'], s['baseline']) if a not in there]
        if unknown:
            raise ValueError(f'arms: no {unknown[0]} in config/ablation (there are {", ".join(there)})')
        out, cores = pathlib.Path(s['out_dir']), len(os.sched_getaffinity(0))
        out.mkdir(parents=True, exist_ok=True)
        asked = [(arm, int(seed)) for seed in s['seeds'] for arm in s['arms'] or there]
        if not s['report']:
            jobs = s['jobs'] or (1 if torch.cuda.is_available() else cores)
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                waiting = {pool.submit(run, arm, seed, s, max(cores // jobs, 1)): (arm, seed) for arm, seed in asked}
                for i, done in enumerate(concurrent.futures.as_completed(waiting), 1):
                    done.result()
                    arm, seed = waiting[done]
                    print(f'{i} of {len(asked)} runs: {arm}, seed {seed}', flush=True)
        found = {}
        for path in sorted(out.glob('*_*.json')):
            arm, seed = path.stem.rsplit('_', 1)
            if arm in there and 'figures' in json.loads(path.read_text('utf-8')):
                found.setdefault(arm, {})[seed] = collect(arm, seed, s)
        if not found:
            raise ValueError(f'{out}: no run is done yet; leave out --report')
        results = dict(baseline=s['baseline'], source=s['source'], git=train.revision(), torch=str(torch.__version__), arms=found,
                       differences=differences(found, s['baseline']))
        lines = json.dumps(results, ensure_ascii=False, indent=1)
        pathlib.Path(s['json_file']).write_text(lines + '\n', 'utf-8')
        print(tables(results))
        if s['pictures']:
            draw(results, s['pictures'])


if __name__ == '__main__':
    main(sys.argv[1:])

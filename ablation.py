"""Arms of an experiment, several seeds each, compared in pairs: v5's fault on a desk.

    pip install -r requirements-demo.txt scipy matplotlib
    python demo_text.py && python prepare.py config/ablation/data.py
    python ablation.py                                              # every arm, one seed
    python ablation.py --arms=mlm,offset_emb,projection --seeds=1,2,3,4,5
    python ablation.py --mechanism --seeds=1,2,3                    # the heads without the trunk, the trunk without the heads
    python ablation.py --report                                     # tables and pictures of what is there

An arm is a file of config/ablation/. Arms of one seed share the encoder's init, the rows and the masks, so the
difference of two arms is taken seed by seed (those called phase_… have phases and sources of their own and are
compared among themselves). A run that was stopped goes on; one that is done is not run again.
"""
import concurrent.futures
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F

import alarm
import configurator
import eval as evaluation
import model as encoder
import objectives
import plan
import train

arms = []                           # names of files in config/ablation; none: all
seeds = [1]
jobs = 0                            # runs at once, each on its share of the cores; 0: one a core (with CUDA: one)
out_dir = 'out/ablation'            # runs and their figures
mechanism = False                   # instead: ask the runs that are done why (`frozen`, `routes`, `walk`)
report = False                      # run nothing: read what is there
json_file = 'docs/ablation.json'    # every figure of every run
pictures = 'docs'                   # folder of the plots; '': none
baseline = 'mlm'                    # the arm that the others are compared with
source = 'hadith'                   # the held-out source that is asked
n = 2_000                           # spans, pairs and masks behind a figure
max_steps = 0                       # stop each run there, for a try; 0: whole runs

ARMS = configurator.REPO / 'config/ablation'
SHOWN = {  # the figures that a run is judged by, as they are named in eval.py's --json: (heading, key, format)
    'nats': ('nats', 'perplexity/{}/nats', '{:.3f}'),
    **{f'd{d}': (f'd = {d}', f'separation/{{}}/d{d}.divergence', '{:.3g}') for d in (1, 2, 3, 5)},
    'agreement': ('agree', 'separation/{}/d1.agreement', '{:.1%}'),
    **{f'span{k}': (f'span {k}', f'infill/{{}}/span{k}.exact', '{:.1%}') for k in (1, 2, 3)},
    'kl': ('KL', 'heads/{}/kl', '{:.2g}'),
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
    keep(done, dict(key=key))
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
    keep(done, dict(key=key, figures=found))


def keep(path, found):
    """Writes JSON whole or not at all."""
    temporary = path.with_suffix('.tmp')
    temporary.write_text(json.dumps(found, ensure_ascii=False, indent=1) + '\n', 'utf-8')
    os.replace(temporary, path)


def final(out, settings):
    """The checkpoint at a run's end, if it is there."""
    steps = settings['max_steps'] or sum(p['steps'] for p in settings['phases'])
    path = out / f'step_{steps:08d}.pt'
    return path if path.exists() else None

# ------------------------------------------------------------------------------------ mechanism


def loaded(arm, seed, path):
    """A train.Run of this arm at its first step, with the weights of a checkpoint in as far as they have its names."""
    made = train.Run(configurator.load(vars(train), [str(ARMS / f'{arm}.py'), f'--seed={seed}']), vars(train))
    saved = encoder.read(path, ('raw',))['raw']
    for name, p in made.params.items():
        p.data.copy_(saved.get(name, p.data))
    return made


def frozen(seed, s, tokens=400_000, epochs=3, rows=512):
    """What each kind of head can do for a trunk that does not bend: fitted to the finished baseline's hidden states,
    whose encoder and decoder stay as they are (so both fits are convex), and asked on held-out text. Nats per
    neighbor, mean over the offsets, of: the hidden state itself; h + e_j; W_j h; and the MLM head at the neighbor;
    ratio: how far from h the fitted head of the first offset is."""
    at_end = final(pathlib.Path(s['out_dir']) / f'{s["baseline"]}_{seed}', settings_of(s['baseline'], seed, s)[0])
    run = loaded('projection', seed, at_end)
    model, offsets = run.model.requires_grad_(False), run.objective.offsets
    read = evaluation.predictor(model, read=lambda h: h.float())

    def pairs(source):
        found = [([], [], []) for _ in offsets]
        pieces = source.pieces(run.s['seq_len'], tokens)
        for (_, at, gold), h in evaluation.ask(read, evaluation.masked(pieces, run.s['mask_rate'], seed), 8192):
            for (x, y, own), j in zip(found, offsets):
                goal = np.minimum(np.searchsorted(at, at + j), len(at) - 1)
                there = at[goal] == at + j
                x.append(h[there])                                            # (p, d) of the anchors
                y.append(torch.as_tensor(gold[goal[there]], device=h.device))  # (p,) what stands j further on
                own.append(h[goal[there]])
        return [[torch.cat(part) for part in one] for one in found]

    def nats(head, data, which=0):
        with torch.no_grad():
            return statistics.mean(float(torch.cat([
                objectives.nll(model.decode(head(j, x)), y) for x, y in zip(one[which].split(1024), one[1].split(1024))]).mean())
                for j, one in enumerate(data))

    fit, held_out = pairs(run.sources[s['source']]), pairs(run.held_out[s['source']])
    out = dict(h=nats(lambda j, x: x, held_out), goal=nats(lambda j, x: x, held_out, which=2),
               fitted_on=sum(len(one[1]) for one in fit), asked_on=sum(len(one[1]) for one in held_out))
    for kind, lr in (('offset_emb', 3e-2), ('projection', 3e-3)):
        torch.manual_seed(seed)
        heads = objectives.MLMNeighbors(run.s['hidden'], kind, len(offsets) // 2).to(run.device)
        orders = [torch.cat([torch.randperm(len(y)) for _ in range(epochs)]).split(rows) for _, y, _ in fit]
        steps = min(map(len, orders))
        optimizer = torch.optim.Adam(heads.parameters(), lr)
        for step in range(steps):
            optimizer.param_groups[0]['lr'] = lr * (1 - step / steps)
            loss = sum(objectives.nll(model.decode(heads.head(j, x[o[step]])), y[o[step]]).mean()
                       for j, ((x, y, _), o) in enumerate(zip(fit, orders)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        x = held_out[0][0]
        with torch.no_grad():
            out |= {kind: nats(heads.head, held_out),
                    f'{kind}_ratio': float(((heads.head(0, x) - x).norm(dim=-1) / x.norm(dim=-1)).mean())}
    return out


def routes(arm, seed, s, steps=8):
    """The heads of an arm as they begin, on the trunk of the baseline at the end of its plateau, so that every kind
    begins at one loss: the gradients, and what one optimizer step that moves the heads alone, the trunk alone or
    the decoder alone does to either loss on the same rows, in nats."""
    path, = (pathlib.Path(s['out_dir']) / f'{s["baseline"]}_{seed}').glob('phase_stable_*.pt')
    run = loaded(arm, seed, path)
    batches = [(train.to_device(batch, run.device), counts) for k in range(steps)
               for made, counts in [run.make_batches(run.phases[0].end + k)] for batch in made]
    groups = {name: {n: p for n, p in run.params.items() if n.startswith(prefix)} for name, prefix in (
        ('heads', 'objective.'), ('trunk', 'model.encoder.'), ('decoder', 'model.decoder.'))}

    def loss(part, backward=False):
        """The MLM's or the neighbors' share of the loss, in nats: what counts infinitely many tokens weighs nothing."""
        run.optimizer.zero_grad()
        out, total = {'mlm': run.objective.terms, 'neighbors': ['mlm']}[part], 0.0
        for batch, counts in batches:
            with torch.set_grad_enabled(backward):
                one = run.objective(run.model, batch, counts | dict.fromkeys(out, math.inf))[0] / len(batches)
            if backward:
                one.backward()
            total += one.item()
        return total

    before, gradients = {}, {}
    for part in ('mlm', 'neighbors'):  # the step below follows the last one's
        before[part] = loss(part, backward=True)
        gradients[part] = {g: torch.cat([p.grad.flatten() for p in params.values()]) for g, params in groups.items()}
    old = {n: p.detach().clone() for n, p in run.params.items()}
    run.optimizer.step(run.s['lr'])
    new = {n: p.detach().clone() for n, p in run.params.items()}
    found = dict(loss=before, gradient={k: {g: float(x.norm()) for g, x in v.items()} for k, v in gradients.items()}, step={},
                 cosine=float(F.cosine_similarity(*(x['trunk'] for x in gradients.values()), dim=0)))
    for moved, params in groups.items():
        for name, p in run.params.items():
            p.data.copy_((new if name in params else old)[name])
        found['step'][moved] = {part: loss(part) - before[part] for part in before}
    return found


def walk(seed, s):
    """How long the vectors of `offset_emb` have become, and how long steps of AdamW, each about lr in every element,
    would have made them: all in one direction, or each at random."""
    settings = settings_of('offset_emb', seed, s)[0]
    saved = encoder.read(final(pathlib.Path(s['out_dir']) / f'offset_emb_{seed}', settings), ('ema',))
    rates = np.array([plan.lr_at(step, saved['settings'], saved['step']) for step in range(saved['step'])])
    vectors = saved['ema']['objective.heads.weight']                          # (J, d)
    width = vectors.shape[1] ** 0.5
    return dict(norm=vectors.norm(dim=1).tolist(), straight=width * float(rates.sum()),
                at_random=width * float((rates ** 2).sum() ** 0.5))

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
        curve |= {'kl': [max(x['kl'] for x in r['watch']['heads'].values() if 'ratio' in x) for r in looks],
                  'adjacent': [r['watch']['heads']['adjacent']['kl'] for r in looks]}
    seen = [x for r in looks for x in alarm.look(r['watch'])]
    rings = [curve['step'][i - 1] for i in range(1, len(seen) + 1) if alarm.alarms(seen[:i], len(seen[0]))]
    at = {r['step']: {name: x['perplexity'] for name, x in r['heldout'].items()} for r in records if 'heldout' in r}
    edges, step = {}, 0
    for phase in train.configurator.load(vars(train), [str(ARMS / f'{arm}.py')])['phases']:
        step += phase['steps']
        edges[phase['name']] = at.get(step)
    key = {name: key.format(s['source']) for name, (_, key, _) in SHOWN.items()}
    return dict(figures={name: rounded(found[k]) for name, k in key.items() if found.get(k) is not None},
                counts={k.split('/')[-1]: v for k, v in found.items() if k.endswith('.n') and 'heads' not in k},
                curve=rounded(curve), edges=edges, alarm=rings[0] if rings else None)


def rounded(x):
    if isinstance(x, (dict, list)):
        return {k: rounded(v) for k, v in x.items()} if isinstance(x, dict) else [rounded(v) for v in x]
    return float(f'{x:.5g}') if isinstance(x, float) else x


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
        for name in SHOWN if both and arm != baseline and not arm.startswith('phase_') else ():
            a, b = ([runs[x][seed]['figures'].get(name) for seed in both] for x in (arm, baseline))
            if None not in a + b:
                out.setdefault(arm, {})[name] = rounded(paired(a, b))
    return out

# --------------------------------------------------------------------------- tables and pictures


def markdown(head, rows):
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in [head, ['---'] + ['---:'] * (len(head) - 1), *rows])


def tables(results):
    """The contents of --json_file → three tables in Markdown: means over the seeds, differences from the baseline
    with their 95% intervals, perplexity of every source at the end of each phase."""
    means, paired_rows, edges = [], [], []
    for arm, runs in results['arms'].items():
        if arm.startswith('phase_'):
            phases = [r['edges'] for r in runs.values()]
            held_out = list(phases[0]['stable'])
            edges += [[f'{arm}: {phase}'] + [f'{statistics.mean(p[phase][n] for p in phases):.1f}' for n in held_out]
                      for phase in phases[0]]
            continue
        cells = []
        for name, (_, _, form) in SHOWN.items():
            values = [r['figures'][name] for r in runs.values() if name in r['figures']]
            cells.append(form.format(statistics.mean(values)) if values else '-')
        alarms = [r['alarm'] for r in runs.values()]
        rung = sorted(a for a in alarms if a)
        means.append([arm, str(len(runs)), *cells, f'{len(rung)} of {len(alarms)}' + (f', by {rung[-1]}' if rung else '')])
    compared = [name for name in SHOWN if name not in ('kl', 'ratio')]  # the baseline has no heads
    for arm, found in results['differences'].items():
        cells = []
        for name in compared:
            x, form = found[name], SHOWN[name][2].replace('{:', '{:+')
            interval = f' [{form.format(x["low"])}, {form.format(x["high"])}]' if 'low' in x else ''
            cells.append(form.format(x['mean']) + interval)
        paired_rows.append([arm, str(found['nats']['n']), *cells])
    head = [heading for heading, _, _ in SHOWN.values()]
    parts = [markdown(['arm', 'seeds', *head, 'alarm'], means)]
    parts += [markdown([f'minus {results["baseline"]}', 'seeds', *(SHOWN[n][0] for n in compared)], paired_rows)] if paired_rows else []
    parts += [markdown(['perplexity at the end of', *held_out], edges)] if edges else []
    return '\n\n'.join(parts + mechanism_tables(list(results['mechanism'].values())))


def mechanism_tables(found):
    """The dicts of `frozen` and `routes`, one a seed → two tables in Markdown, means over the seeds."""
    if not found:
        return []
    fit = {k: statistics.mean(x['frozen'][k] for x in found) for k in found[0]['frozen']}
    rows = [['h, the hidden state itself', f'{fit["h"]:.3f}', '0'],
            *([label, f'{fit[kind]:.3f}', f'{fit[kind + "_ratio"]:.2f}'] for label, kind in (
                ('the best h + e_j', 'offset_emb'), ('the best W_j h', 'projection'))),
            ['the MLM head at the neighbor itself', f'{fit["goal"]:.3f}', '-']]
    steps = []
    for label, arm, group in (('the vectors e_j', 'offset_emb', 'heads'), ('the matrices W_j', 'projection', 'heads'),
                              ('the trunk', 'projection', 'trunk'), ('the decoder', 'projection', 'decoder')):
        one = [x['routes'][arm] for x in found]
        cells = [[x['gradient'][part][group] for x in one] for part in ('mlm', 'neighbors')]
        moved = [[x['step'][group][part] for x in one] for part in ('neighbors', 'mlm')]
        steps.append([label, *(f'{statistics.mean(c):.3g}' for c in cells), *(f'{statistics.mean(c):+.4f}' for c in moved)])
    return [markdown(['a neighbor predicted from', 'nats', 'distance from h'], rows),
            markdown(['one step of', 'gradient of MLM', 'of neighbors', 'Δ neighbors, nats', 'Δ MLM, nats'], steps)]


def draw(results, folder):
    """Writes ablation_separation.png, ablation_loss.png and ablation_ratio.png."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    runs = {arm: list(found.values()) for arm, found in results['arms'].items() if not arm.startswith('phase_')}

    def picture(name, xlabel, ylabel, lines, log=True):
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout='constrained')
        axes.set_prop_cycle(color=pyplot.colormaps['tab20'].colors[::2] + pyplot.colormaps['tab20'].colors[1::2])
        for arm, (x, y) in lines.items():  # dots: one seed only
            axes.plot(x, y, '.-' if len(runs[arm]) > 1 else '.:', label=arm)
        axes.set(xlabel=xlabel, ylabel=ylabel, yscale='log' if log else 'linear')
        axes.xaxis.get_major_locator().set_params(integer=True)
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
        missing = [p for p in ('scipy', *(['matplotlib'] if s['pictures'] else [])) if not importlib.util.find_spec(p)]
        if missing:
            raise ValueError(f'{", ".join(missing)} is missing; pip install scipy matplotlib')
        there = sorted(p.stem for p in ARMS.glob('*.py') if p.stem != 'data')
        unknown = [a for a in (*s['arms'], s['baseline']) if a not in there]
        if unknown:
            raise ValueError(f'arms: no {unknown[0]} in config/ablation (there are {", ".join(there)})')
        prepared = pathlib.Path(configurator.load(vars(train), [str(ARMS / f'{s["baseline"]}.py')], ['data_dir'])['data_dir'])
        if not s['report'] and not (prepared / 'report.json').exists():
            raise ValueError(f'{prepared}: not there yet; python demo_text.py && python prepare.py config/ablation/data.py')
        out, cores = pathlib.Path(s['out_dir']), len(os.sched_getaffinity(0))
        out.mkdir(parents=True, exist_ok=True)
        asked = [(arm, int(seed)) for seed in s['seeds'] for arm in s['arms'] or there]
        for seed in map(int, s['seeds'] if s['mechanism'] and not s['report'] else ()):
            unfinished = [a for a in (s['baseline'], 'offset_emb') if not final(out / f'{a}_{seed}', settings_of(a, seed, s)[0])]
            if unfinished:
                raise ValueError(f'{out}/{unfinished[0]}_{seed}: not run to its end yet; run it, without --mechanism')
            found = dict(frozen=frozen(seed, s), routes={arm: routes(arm, seed, s) for arm in ('offset_emb', 'projection')},
                         walk=walk(seed, s))
            keep(out / f'mechanism_{seed}.json', found)
        if not s['report'] and not s['mechanism']:
            jobs = s['jobs'] or (1 if torch.cuda.is_available() else cores)
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                waiting = {pool.submit(run, arm, seed, s, max(cores // jobs, 1)): (arm, seed) for arm, seed in asked}
                for i, done in enumerate(concurrent.futures.as_completed(waiting), 1):
                    if done.exception():
                        pool.shutdown(cancel_futures=True)  # those that run go on to their end, no other begins
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
        results = dict(baseline=s['baseline'], source=s['source'], torch=str(torch.__version__), arms=found,
                       differences=differences(found, s['baseline']),
                       mechanism={p.stem[10:]: rounded(json.loads(p.read_text())) for p in sorted(out.glob('mechanism_*.json'))})
        keep(pathlib.Path(s['json_file']), results)
        print(tables(results))
        if s['pictures']:
            draw(results, s['pictures'])


if __name__ == '__main__':
    main(sys.argv[1:])

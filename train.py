"""Trains the encoder: one process, many processes, CPU or GPU.

    python train.py config/tiny.py --max_steps=100
    torchrun --standalone --nproc_per_node=2 train.py config/tiny.py     # two ranks, gloo on CPUs
    torchrun --nproc_per_node=8 train.py config/v5.py                    # one node of GPUs, NCCL
    torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 train.py config/v5.py
    torchrun ... train.py config/v5.py --resume                          # goes on where it stopped, exactly

A step is `batch_tokens` tokens whatever the number of ranks; Ctrl-C and SIGTERM save and exit.
"""
import contextlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, fields

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm

import alarm
import configurator
import data
import eval as evaluation
import model as encoder
import muon
import objectives
import plan

# files
data_dir = 'data/mine'     # a folder made by prepare.py
out_dir = 'out/run'        # checkpoints and log.jsonl; an earlier run there is moved aside
resume = False             # go on from the newest checkpoint in out_dir
# encoder (model.py)
vocab_size = 0             # rows of the table; 0: the tokenizer's, padded to a multiple of 256
hidden = 768
n_layer = 28
n_head = 12
ffn = 2048
window = 128
global_every = 3
theta_local = 10_000.0
theta_global = 10_000.0
qk_norm = True
norm_eps = 1e-5
tied = False
decoder_bias = False
head_transform = False
# objective (objectives.py)
objective = 'mlm'          # 'mlm' or 'mlm_neighbors'
neighbor_head_kind = 'offset_emb'  # or 'projection'
neighbor_window = 2
neighbor_weight = 1.0
consistency_lambda = 0.1
neighbor_max_pairs = 0     # per micro-batch; 0: all
projection_init = 'identity'  # or 'random', 'zero_residual'
chunk = 1024               # rows of logits alive at once
# data (data.py)
sources = {}               # {source: share}; none: all in data_dir/train, each once per epoch
mix_by = 'epochs'          # a share is 'epochs' (times its size) or a 'weight' (of all rows)
pinned = {}                # {'train/NAME.bin': the sha256 in its .json, …}: refuse other shards
seq_len = 1024
batch_tokens = 262_144     # per optimizer step, over all ranks
micro_tokens = 32_768      # per forward and rank
mask_rate = 0.20
mask_replace = 'mask'      # all [MASK], or '80_10_10'
mask_span_mean = 0.0       # mean length of a run of masked words (tokens, where not whole_words); 0: each by itself
whole_words = []           # sources that mask whole words
# optimizer (muon.py) and schedule
optimizer = 'muon'         # or 'adamw'
lr = 8e-4
weight_decay = 0.1
adam_betas = [0.9, 0.95]
adam_eps = 1e-8
muon_momentum = 0.95
muon_scale = 'match_rms'   # or 'original'
muon_ns = 'keller'         # or 'polar_express'
muon_dtype = 'auto'        # of the Newton-Schulz products: bfloat16 where it is fast
clip = 1.0                 # norm of the whole gradient
warmup_steps = 2000
schedule = 'wsd'           # after the plateau 1 - sqrt; or 'cosine'
decay_start = 0            # step at which the learning rate begins to fall; 0: never
decay_end = 0              # step at which it is at its minimum; 0: the end of the last phase
min_lr_ratio = 0.0
ema_decay = 0.9999
phases = [dict(name='stable', steps=1000)]  # each may set what plan.PHASE_SETTINGS lists
max_steps = 0              # stop here; rescales nothing; 0: run all phases
# looking and saving
log_interval = 10
eval_interval = 1000
eval_tokens = 65_536       # per held-out source
save_interval = 1000
watch_n = 256              # places behind each figure that would show a collapse, at every evaluation; 0: no watch
on_collapse = 'warn'       # or 'stop': when the heads, or two masks near each other, become one
tensorboard = False        # also write TensorBoard events to out_dir
peak_tflops = 0.0          # the machine's dense peak, for MFU; 0: MFU is not printed
# machine
device = 'auto'
dtype = 'auto'             # of the products: bfloat16 where it is fast, else float32
compile_model = False      # torch.compile the encoder, in place; on CUDA only
seed = 1337

CHOICES = dict(schedule=('wsd', 'cosine'), mask_replace=('mask', '80_10_10'), mix_by=('epochs', 'weight'),
               on_collapse=('warn', 'stop'), device=('auto', 'cpu', 'cuda'), dtype=('auto', 'float32', 'bfloat16'))
RANGES = {  # a phase obeys them too
    'above 0': ('hidden', 'n_layer', 'n_head', 'ffn', 'chunk', 'seq_len', 'batch_tokens', 'micro_tokens', 'mask_rate',
                'theta_local', 'theta_global', 'norm_eps', 'lr', 'adam_eps', 'log_interval', 'eval_interval',
                'save_interval', 'steps'),
    'at least 0': ('vocab_size', 'max_steps', 'warmup_steps', 'decay_start', 'decay_end', 'weight_decay', 'adam_betas',
                   'muon_momentum', 'clip', 'min_lr_ratio', 'eval_tokens', 'neighbor_max_pairs', 'neighbor_weight',
                   'consistency_lambda', 'mask_span_mean', 'watch_n', 'ema_decay', 'peak_tflops', 'seed'),
    'at most 1': ('mask_rate', 'ema_decay', 'min_lr_ratio'),
    'below 1': ('adam_betas', 'muon_momentum'),
    f'below {2 ** 63}': ('seed',),
}
STOP = threading.Event()  # a signal came: acted on at the end of the step, by all ranks
OWN = re.compile(r'lock|log\.jsonl|log\.tmp|events\..*|(step|phase_[\w-]+)_[0-9]{8}\.pt(\.tmp)?')  # a run's files
RESUMED = ('step', 'raw', 'ema', 'optimizer', 'settings', 'history', 'began', 'looks', 'tokenizer', 'shards')
IDEAS = {  # what counts as one idea when a run is compared with its base
    'encoder': [f.name for f in fields(encoder.Config)],
    'objective': ['objective', 'mask_rate', 'mask_replace', 'mask_span_mean', 'whole_words', *objectives.NEIGHBOR_SETTINGS],
    'data': ['data_dir', 'sources', 'mix_by'],
    'length': ['phases', 'max_steps', 'decay_start', 'decay_end', 'batch_tokens', 'seq_len', 'warmup_steps'],
    'optimizer': ['optimizer', 'lr', 'weight_decay', 'adam_betas', 'adam_eps', 'muon_momentum', 'muon_scale', 'muon_ns',
                  'clip', 'schedule', 'min_lr_ratio', 'ema_decay'],
}

# ------------------------------------------------------------------------- the plan of the run


def check(s):
    """Raises ValueError with one line for the first setting, of a phase too, that no run can have."""
    if s['device'] == 'cuda' and not torch.cuda.is_available():
        raise ValueError("device='cuda': this machine has no CUDA device that torch can use; set device=auto")
    if s['tensorboard'] and not importlib.util.find_spec('tensorboard'):
        raise ValueError('tensorboard=True: the package is missing; pip install tensorboard')
    if len(s['adam_betas']) != 2:
        raise ValueError(f'adam_betas={s["adam_betas"]}: must be 2 numbers')
    for where, entry in [('', s), *((f'phases[{i}]: ', phase) for i, phase in enumerate(s['phases']))]:
        configurator.check(entry, globals() | dict(name='', steps=1), RANGES, CHOICES, where)
        for name, share in entry.get('sources', {}).items():
            if type(name) is not str or type(share) not in (int, float) or share <= 0:
                raise ValueError(f'{where}sources: {name!r}: {share!r}: a name and its share, a number above 0')
        if not re.fullmatch(r'[\w-]{1,80}', entry.get('name', 'none')):  # it becomes a file's
            raise ValueError(f'{where}name={entry["name"]!r}: must be 1 to 80 letters, digits, - or _')
        row = entry.get('seq_len', s['seq_len'])
        if s['objective'] == 'mlm_neighbors' and s['neighbor_window'] >= row:
            raise ValueError(f'{where}neighbor_window={s["neighbor_window"]}: must be below seq_len={row}')


# ------------------------------------------------------------------------------- many processes


class Ranks:
    """This process among the others; alone, every method is a no-op."""

    def __init__(self, device):
        self.rank, self.world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
        cuda = torch.cuda.is_available() if device == 'auto' else device == 'cuda'
        self.device = torch.device('cuda' if cuda else 'cpu')
        if self.device.type == 'cuda':
            torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group('cpu:gloo,cuda:nccl' if self.device.type == 'cuda' else 'gloo')

    def sum(self, tensor):
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, params, bucket=1 << 24):
        """Adds up the gradients of all ranks, in buckets of about 64 MB; every rank ends with
        the same bits. A parameter that met no token has gradient zero, so shapes agree."""
        if self.world == 1:
            return
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        edges = np.cumsum([p.numel() for p in params]) // bucket
        for _, group in itertools.groupby(zip(edges, params), key=lambda pair: pair[0]):
            grads = [p.grad for _, p in group]
            flat = torch.cat([g.flatten() for g in grads])
            dist.all_reduce(flat)
            for g, total in zip(grads, flat.split([g.numel() for g in grads])):
                g.copy_(total.view_as(g))

    def close(self):
        if self.world > 1:
            dist.destroy_process_group()


def to_device(batch, device):
    return {k: torch.as_tensor(v).to(device, non_blocking=True) if isinstance(v, (np.ndarray, torch.Tensor)) else v
            for k, v in batch.items()}

# ------------------------------------------------------------------------------------- the run


class Run:
    """A training run: everything that a step, an evaluation or a checkpoint needs."""

    def __init__(self, s, defaults=None):
        """Sets up from Settings. Raises ValueError or OSError with one line for what a user got
        wrong, before any output file is touched."""
        self.s, self.step, self.history, self.lines = s, 0, [], []
        self.norm, self.saved = 0.0, None  # of the last step's gradient; the last whole checkpoint
        check(s)
        wanted = dict.fromkeys(n for p in plan.reached(s) for n in p.get('sources') or s['sources'])
        self.sources = data.open_sources(s['data_dir'], 'train', wanted)
        self.held_out = data.open_sources(s['data_dir'], 'heldout', verify=True)
        self.tokenizer = data.tokenizer_json(s['data_dir'], self.sources)
        data.check_pinned(s['data_dir'], [*self.sources.values(), *self.held_out.values()], s['pinned'])
        any_source = next(iter(self.sources.values()))
        unknown = set(s['whole_words']) - set(self.sources)
        if unknown:
            raise ValueError(f'whole_words: no source {", ".join(unknown)} (there are {", ".join(self.sources)})')
        vocab_size = s['vocab_size'] or -(-any_source.vocab_size // 256) * 256
        if vocab_size < any_source.vocab_size:
            raise ValueError(f'vocab_size={s["vocab_size"]}: {any_source.shards[0].path} was written with '
                             f'{any_source.vocab_size} pieces; set vocab_size=0 to follow the tokenizer')
        shape = {f.name: s[f.name] for f in fields(encoder.Config)}
        self.config = encoder.Config(**shape | {'vocab_size': vocab_size})
        torch.manual_seed(s['seed'])
        self.model = encoder.MaskedLM(self.config)  # before the objective: one seed, one init, whatever the heads
        self.objective = objectives.build(s.since('objective'), s['hidden'])
        self.ranks = Ranks(s['device'])
        self.rank, self.world, self.device = self.ranks.rank, self.ranks.world, self.ranks.device
        self.phases, self.total = plan.phases(s, self.sources, self.world)
        self.stop_at = min(s['max_steps'] or self.total, self.total)
        self.batches = data.Ahead(self.make_batches, self.stop_at)
        bf16 = muon.iteration_dtype(s['dtype'], self.device) == torch.bfloat16
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=bf16)
        self.root = nn.ModuleDict({'model': self.model, 'objective': self.objective}).to(self.device)
        self.params = dict(self.root.named_parameters())
        self.ema = {n: p.detach().clone() for n, p in self.params.items()}
        self.optimizer = muon.build(
            self.root, self.model.encoder.blocks, optimizer=s['optimizer'], lr=s['lr'],
            weight_decay=s['weight_decay'], betas=tuple(s['adam_betas']), eps=s['adam_eps'],
            momentum=s['muon_momentum'], ns=s['muon_ns'], ns_dtype=s['muon_dtype'], scale=s['muon_scale'])
        self.out = pathlib.Path(s['out_dir'])
        self.began, self.looks = {}, []  # held-out perplexity as the phase began; what alarm.alarms goes by
        if s['resume']:
            self.load(encoder.newest(self.out, RESUMED))
        if s['compile_model'] and self.device.type == 'cuda':  # off CUDA, attention's shapes follow the documents
            self.model.encoder.compile()  # in place: no prefix in any key
        self.lines += [self.optimizer.describe(), *configurator.against_base(s, defaults or {}, IDEAS)]

    # -- one step

    def make_batches(self, step):
        """This rank's micro-batches of a step, and the counts of their terms: known before the first backward.
        Runs on a thread, a step ahead: it changes nothing here."""
        phase = self.phase(step)
        per_rank = phase.rows // phase.micro_rows // self.world
        batches = [phase.micro_batch(step, self.rank * per_rank + i) for i in range(per_rank)]
        counted = [self.objective.prepare(b, phase.s['neighbor_max_pairs']) for b in batches]
        if self.device.type == 'cuda':  # from pinned memory the copies run beside the computation
            batches = [{k: torch.from_numpy(v).pin_memory() if isinstance(v, np.ndarray) else v for k, v in b.items()}
                       for b in batches]
        return batches, {k: sum(c[k] for c in counted) for k in counted[0]}

    def train_step(self):
        """One optimizer step → {term: loss, …, 'stop': ranks that were told to stop}."""
        phase = self.phase()
        self.config.theta_local, self.config.theta_global = phase.s['theta_local'], phase.s['theta_global']
        batches, counts = self.batches(self.step)
        shared = self.ranks.sum(torch.tensor([*counts.values(), float(STOP.is_set())], dtype=torch.float64))
        counts = dict(zip(counts, shared.tolist()))
        self.check_gradient()  # now that this step's batches are made: the device had the time for the last one
        sums = {}
        for batch in batches:
            with self.autocast:
                loss, stats = self.objective(self.model, to_device(batch, self.device), counts)
            loss.backward()
            sums = {k: sums.get(k, 0) + v for k, v in stats.items()}
        params = self.optimizer.params
        self.ranks.sum_gradients(params)
        self.norm = nn.utils.clip_grad_norm_(params, self.s['clip'] or math.inf)  # once, before the step
        self.optimizer.step(plan.lr_at(self.step, self.s, self.total))
        self.optimizer.zero_grad()
        decay = min(self.s['ema_decay'], (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.ema.values()), [p.detach() for p in self.params.values()], 1 - decay)
        self.step += 1
        return dict(sums=sums, counts=counts, norm=self.norm, stop=shared[-1].item() > 0)

    def check_gradient(self):
        """FloatingPointError if the last step's gradient was not finite, on all ranks alike. Asked before the next
        step, log line, evaluation or checkpoint: inside the step, a GPU would wait for the next batches."""
        if not math.isfinite(self.norm):
            again = f'--resume from {self.saved}, the last good checkpoint,' if self.saved else 'start again'
            raise FloatingPointError(f'step {self.step}: the norm of the gradient is {float(self.norm)}; '
                                     f'{again} with a lower --lr')

    def phase(self, step=None):
        """The phase that a step belongs to; the last one after its end."""
        return next((p for p in self.phases if (self.step if step is None else step) < p.end), self.phases[-1])

    # -- looking

    def losses(self, out):
        """The losses of a step over all ranks, in nats, and what they add up to."""
        self.check_gradient()
        totals = self.ranks.sum(torch.stack([*out['sums'].values()]).double()).tolist()
        means = {k: v / max(out['counts'][k.removeprefix('kl')], 1) for k, v in zip(out['sums'], totals)}
        return dict(loss=self.objective.total(means), **means)

    def evaluate(self):
        """→ held-out figures of every source, and those of `alarm.watch` on the sources trained on (on all, where
        nothing of them is held out), under the EMA weights, the work shared by all ranks."""
        self.check_gradient()
        chars = evaluation.characters(Tokenizer.from_str(self.tokenizer))
        predict, length = evaluation.predictor(self.model), min(self.s['seq_len'], 1024)
        pieces = {name: list(source.pieces(length, self.s['eval_tokens'])) for name, source in self.held_out.items()}
        own = [piece for n in [n for n in self.sources if n in pieces] or pieces for piece in pieces[n]]  # or anyone's
        self.swap_ema()
        with torch.compiler.set_stance('force_eager'):  # batches of every size: each would be compiled
            found = {name: evaluation.perplexity(predict, p, chars, ranks=self.ranks) for name, p in pieces.items()}
            watched = alarm.watch(self.model, self.objective, own, self.phase().s['mask_rate'], self.s['watch_n'],
                                  ranks=self.ranks) if own and self.s['watch_n'] else {}
        self.swap_ema()
        return found, watched

    def swap_ema(self):
        """Exchanges raw and EMA weights, without a copy."""
        for name, p in self.params.items():
            p.data, self.ema[name] = self.ema[name], p.data

    # -- saving

    def checkpoint(self):
        raw = {n: p.data for n, p in self.params.items()}
        shards = [x for source in self.sources.values() for x in source.shards]
        return dict(step=self.step, phase=self.phase(self.step - 1).name, model_config=asdict(self.config),
                    raw=raw, ema=self.ema, optimizer=self.optimizer.state_dict(), settings=dict(self.s),
                    history=self.history, began=self.began, looks=self.looks, tokenizer=self.tokenizer,
                    tokenizer_hash=shards[0].tokenizer_hash, shards={x.path.name: x.info['sha256'] for x in shards})

    def save(self, name='step'):
        """Rank 0 writes out_dir/NAME_STEP.pt; of the 'step' ones the last two are kept."""
        self.check_gradient()
        self.saved = self.out / f'{name}_{self.step:08d}.pt'
        if self.rank == 0:
            encoder.save(self.saved, self.checkpoint())
            steps = sorted(p for p in self.out.glob(encoder.NAMES) if p.stem[:-9] == 'step')
            for old in [p for p in steps if p.name <= f'step_{self.step:08d}.pt'][:-2]:  # a later one is not ours
                old.unlink(missing_ok=True)

    def load(self, path):
        """Goes on from a checkpoint: weights, EMA, optimizer; hyperparameters are this launch's."""
        saved = encoder.read(path, RESUMED)
        mine = asdict(self.config) | {k: saved['model_config'][k] for k in ('theta_local', 'theta_global')}
        differ = [f'{k}={mine[k]} (saved: {v})' for k, v in saved['model_config'].items() if mine.get(k) != v]
        differ += [f'{k}={self.s[k]} (saved: {saved["settings"].get(k)})' for k in ('optimizer', 'objective')
                   if self.s[k] != saved['settings'].get(k)]
        if not self.ema.keys() == saved['raw'].keys() == saved['ema'].keys():
            differ += [f'neighbor_head_kind or neighbor_window: {self.s["neighbor_head_kind"]}']
        if saved['tokenizer'] != self.tokenizer:
            differ += [f'the tokenizer in {self.s["data_dir"]}']
        if differ:
            raise ValueError(f'{path}: cannot be resumed with {", ".join(differ)}: restore that, or start a new run '
                             'with --out_dir')
        for name, p in self.params.items():
            p.data.copy_(saved['raw'][name])
            self.ema[name].copy_(saved['ema'][name])
        self.optimizer.load_state_dict(saved['optimizer'])
        self.step, self.history, self.began, self.saved = saved['step'], saved['history'], saved['began'], path
        self.looks = saved['looks']
        shards = {x.path.name: x.info['sha256'] for source in self.sources.values() for x in source.shards}
        changed = {k: (v, self.s[k]) for k, v in saved['settings'].items() if self.s.get(k) != v and k != 'resume'}
        self.lines = [f'resumed {path} at step {self.step}']
        self.lines += [f'  {k}: {a!r} → {b!r}' for k, (a, b) in changed.items()]
        if shards != saved['shards']:
            self.lines.append('warning: the training shards are not those of the checkpoint; the rows will differ')


def open_log(path, step):
    """log.jsonl, cut after `step`: what was written after the checkpoint did not happen."""
    kept = []
    for line in path.read_bytes().decode('utf-8', 'replace').split('\n') if step and path.exists() else ():
        try:
            if json.loads(line)['step'] <= step:
                kept.append(line + '\n')
        except (ValueError, TypeError, KeyError):  # a line that a kill cut short
            continue
    temporary = path.with_suffix('.tmp')
    temporary.write_text(''.join(kept), 'utf-8')
    os.replace(temporary, path)
    return path.open('ab', 0)  # a full disk is met once, not again when a buffer is emptied


def revision():
    git = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=configurator.REPO, capture_output=True, text=True)
    return git.stdout.strip() or 'unknown'


def train(run):
    """Runs to the end, or to a signal; → the last evaluation."""
    s, first, board = run.s, run.rank == 0, None
    if first:
        log = open_log(run.out / 'log.jsonl', run.step)
        if s['tensorboard']:
            from torch.utils.tensorboard import SummaryWriter
            board = SummaryWriter(run.out)
    run.history.append(dict(step=run.step, settings={k: s[k] for k in sorted(s.given) if k in s}, git=revision(),
                            torch=str(torch.__version__), world=run.world))
    bar = tqdm(total=run.stop_at, initial=run.step, disable=not first or not sys.stderr.isatty(), smoothing=0.1)

    def say(line):
        if first:
            bar.write(line) if not bar.disable else print(line, flush=True)

    def record(**values):
        if first:
            log.write(json.dumps(dict(step=run.step, **values), ensure_ascii=False).encode() + b'\n')
            for k, v in values.items() if board else ():
                if isinstance(v, (int, float)):
                    board.add_scalar(k, v, run.step)

    def look(phase_edge=False):
        """Evaluate, print, and say what the phase has done to each source."""
        found, watched = run.evaluate()
        record(phase=run.phase(max(run.step - 1, 0)).name, heldout=found, watch=watched)
        say(f'step {run.step}: held-out perplexity ' +
            ', '.join(f'{n} {f["perplexity"]:.2f}' if f['n'] else f'{n} -' for n, f in found.items()))
        if watched:
            say(f'  {alarm.told(watched)}')
            run.looks += alarm.look(watched)
        change = {n: f['perplexity'] / run.began[n] - 1 for n, f in found.items() if f['n'] and n in run.began}
        if phase_edge and change:
            say('  since the phase began: ' + ', '.join(f'{n} {c:+.1%}{" (!)" * (c > 0.1)}' for n, c in change.items()))
        if phase_edge or not run.began:
            run.began = {n: f['perplexity'] for n, f in found.items() if f['n']}
        for cry in alarm.alarms(run.looks, run.objective.window) if watched else ():
            if s['on_collapse'] == 'stop':
                run.save()
                raise FloatingPointError(f'step {run.step}: {cry}')
            say(f'step {run.step}: {cry}')
        return found

    say('\n'.join(run.lines))
    for p in run.phases:
        say(f'phase {p.name}: steps {p.start} to {p.end}, rows of {p.s["seq_len"]}, theta {p.s["theta_local"]:g} / '
            f'{p.s["theta_global"]:g}, epochs ' + ', '.join(f'{n} {e:.2f}' for n, e in p.mixture.epochs().items()))
        rates = p.mask_rates() if first else {}
        say('  masked: ' + ', '.join(f'{n} {r:.1%}{" in whole words" * (n in s["whole_words"])}' for n, r in rates.items()))
        record(phase=p.name, masked=rates)
    found = look() if run.step == 0 else {}
    clock, done = time.time(), run.step
    with bar:
        while run.step < run.stop_at:
            phase, lr_now = run.phase(), plan.lr_at(run.step, s, run.total)
            out = run.train_step()
            bar.update(1)
            last = run.step == run.stop_at
            if run.step % s['log_interval'] == 0 or last or out['stop']:
                losses = run.losses(out)
                speed = (run.step - done) * s['batch_tokens'] / (time.time() - clock)
                flops = speed * encoder.flop_per_token(run.config, phase.s['seq_len'], phase.s['mask_rate']) / run.world
                mfu = dict(mfu=flops / s['peak_tflops'] / 1e12) if s['peak_tflops'] else {}
                record(phase=phase.name, lr=lr_now, theta=phase.s['theta_global'], grad_norm=float(out['norm']),
                       tokens=plan.tokens_seen(run.phases, run.step), tokens_per_s=speed, **losses, **mfu)
                say(f'step {run.step}/{run.stop_at} {phase.name}: loss {losses["loss"]:.4f} (mlm {losses["mlm"]:.4f}) '
                    f'lr {lr_now:.2e} norm {float(out["norm"]):.2f} {speed:,.0f} tokens/s' +
                    (f' MFU {mfu["mfu"]:.1%}' if mfu else ''))
            edge = run.step == phase.end
            if edge or last or run.step % s['eval_interval'] == 0:
                found = look(edge)
            if edge:
                run.save(f'phase_{phase.name}')
            if run.step % s['save_interval'] == 0 or last or out['stop']:
                run.save()
            if run.step % s['log_interval'] == 0:
                clock, done = time.time(), run.step  # what was looked at and saved is not training time
            if out['stop']:
                say(f'stopped at step {run.step} by a signal; saved. Add --resume to go on')
                break
    return found


def main(argv):
    s = configurator.load(globals(), argv, paths=('data_dir', 'out_dir'))
    with configurator.user_errors():
        run = Run(s, globals())
        if run.step >= run.stop_at:
            raise ValueError(f'{run.out}: is at step {run.step} of {run.stop_at} already; raise --max_steps or phases')
        lock = fault = None
        try:
            lock = configurator.claim(run.out, OWN, not s['resume']) if run.rank == 0 else None
        except (ValueError, OSError) as error:
            fault = error
        if run.ranks.sum(torch.tensor(int(fault is not None))):  # the others wait to hear it
            raise fault or ValueError(f'{run.out}: rank 0 could not take it')
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, lambda *_: STOP.set())
        with lock or contextlib.nullcontext():
            train(run)
    run.ranks.close()


if __name__ == '__main__':
    main(sys.argv[1:])

"""Everything measured without training.

    python eval.py --infill                        # newest checkpoint under out/
    python eval.py --ppl --infill --ckpt=out/tiny  # all checkpoints of a run, side by side
    python eval.py --separation --heads --ckpt=a.pt,b.pt --json=figures.json
    python eval.py --fill 'قال رسول الله صلى الله [MASK] وسلم'

Each measure is a function that returns a dict; keys of --json are metric / source / variant.
Masks come from (seed, place), so they are the same for every checkpoint and batch size.
"""
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import configurator
import data
import model as encoder
import objectives

ppl = False            # held-out perplexity and nats per character, per source
infill = False         # k masked tokens in a row, exact match
separation = False     # do two masks d apart get different predictions?
heads = False          # do the neighbor heads differ from the MLM head?
fill = ''              # a text with [MASK]: the likeliest pieces
ckpt = []              # files or run folders; none: the newest under out/
out_dir = 'out'        # where the newest is looked for
weights = 'ema'        # 'ema' (the released ones) or 'raw'
data_dir = ''          # prepared folder with held-out shards; '': the one it was trained on
sources = []           # held-out sources; none: all of them
seq_len = 0            # documents are cut to this; 0: the shortest training row, at most 1,024
eval_tokens = 200_000  # perplexity: at most this many tokens of each source; 0: all
n_spans = 2_000        # infill: spans per source and length (fewer where text is short)
n_pairs = 2_000        # separation: pairs per source and distance
iterative = False      # infill: fill the surest mask, look again
top = 5                # --fill: pieces per mask
seed = 1234            # of the masks
batch_tokens = 8_192   # per forward pass; changes no figure
device = 'auto'
json_file = ''         # also --json=FILE: figures for programs

SPANS, DISTANCES, MASK_RATE = (1, 2, 3, 5), range(1, 9), 0.15

# -------------------------------------------------------------------------- asking the encoder


def predictor(model, read=None):
    """model → predict(batch, positions): logits (m, V) fp32 at positions (m,) of a flat batch, or
    whatever `read` makes of h (m, d). Nothing below needs more of an encoder than this."""
    device = next(model.parameters()).device

    @torch.no_grad()
    def predict(batch, positions):
        ids, cu, at = (torch.as_tensor(x, device=device) for x in (batch['ids'], batch['cu'], positions))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == 'cuda'):
            h = model(ids, cu, batch['longest'])[at]
            return read(h) if read else model.decode(h).float()
    return predict


def ask(predict, items, batch_tokens):
    """items: iterable of (ids (n,) with masks in, positions (p,), …) → (item, logits (p, V)),
    as many items in one forward as fit into batch_tokens."""
    group, size = [], 0

    def answers():
        starts = np.cumsum([0] + [len(item[0]) for item in group])
        positions = np.concatenate([item[1] + a for item, a in zip(group, starts)])
        logits = predict(data.flat([item[0] for item in group]), positions)
        return zip(group, logits.split([len(item[1]) for item in group]))

    for item in items:
        if group and size + len(item[0]) > batch_tokens:
            yield from answers()
            group, size = [], 0
        group.append(item)
        size += len(item[0])
    if group:
        yield from answers()


def hidden_at(ids, positions):
    """A copy of ids with [MASK] at the positions, and what stood there."""
    gold = ids[positions]
    ids = ids.copy()
    ids[positions] = data.MASK
    return ids, positions, gold


def rng_of(*key):
    return np.random.default_rng([abs(int(k)) for k in key])

# ------------------------------------------------------------------------------------ measures


def characters(tokenizer):
    """Characters of each piece: (V,) int. A byte-level piece counts its bytes that begin a
    character, so the pieces of one letter add up to one."""
    vocab = tokenizer.get_vocab()
    pieces = sorted(vocab, key=vocab.get)
    if 'ByteLevel' not in json.loads(tokenizer.to_str())['decoder']['type']:
        return np.array([len(p) for p in pieces])
    # the stock byte alphabet: printable bytes are themselves, the others follow from U+0100 on
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte = {chr(b): b for b in plain}
    byte |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}
    return np.array([sum(byte.get(c, 0) & 0xC0 != 0x80 for c in p) for p in pieces])


def perplexity(predict, pieces, chars, batch_tokens=8_192, seed=1234, share=(0, 1)):
    """Sums for perplexity: 15% of single tokens, all [MASK]. share (rank, world): this rank's
    part of the pieces. → np.array([Σ nll, tokens scored, characters scored, top-1 hits])."""
    def items():
        for i, (ids, starts) in enumerate(pieces):
            if i % share[1] == share[0]:
                masked = ids.copy()
                at = data.mask_row(masked, starts, rng_of(seed, i), MASK_RATE, False, len(chars))
                if len(at):
                    yield masked, at, ids[at]
    sums = np.zeros(4)
    for (_, _, gold), logits in ask(predict, items(), batch_tokens):
        target = torch.as_tensor(gold, device=logits.device)
        sums += [float(F.cross_entropy(logits, target, reduction='sum')), len(gold), chars[gold].sum(),
                 int((logits.argmax(-1) == target).sum())]
    return sums


def figures(sums):
    """The sums of `perplexity`, over all ranks → its figures; none where nothing was scored."""
    nll, n, chars, hits = (float(x) for x in sums)
    if not n:
        return dict(n=0)
    return dict(perplexity=math.exp(nll / n), nats=nll / n, nats_per_char=nll / max(chars, 1), top1=hits / n, n=int(n))


def places(pieces, length, n, seed, words=False):
    """Draws n stretches of `length` tokens (or words), specials aside, each inside one piece,
    going round the pieces: (ids, first, end). Fewer where the text would repeat itself: at
    most one for every eight tokens of a piece."""
    given, round_ = 0, 0
    while given < n:
        before = given
        for i, (ids, starts) in enumerate(pieces):
            if given == n:
                return
            if round_ and round_ >= len(ids) // 8:
                continue
            ordinary = ids >= len(data.SPECIALS)
            edges = np.flatnonzero(starts) if words else np.arange(len(ids))
            edges = np.append(edges, len(ids))
            specials = np.cumsum(np.append(0, ~ordinary))
            first, end = edges[:-length], edges[length:]
            fits = np.flatnonzero(specials[end] == specials[first])
            if len(fits):
                k = fits[rng_of(seed, length, round_, i, words).integers(len(fits))]
                given += 1
                yield ids, int(first[k]), int(end[k])
        round_ += 1
        if given == before:
            return


def infilling(predict, pieces, n=2_000, batch_tokens=8_192, seed=1234, iterative=False):
    """Mask k tokens (or k words) in a row, everything else visible; exact when every argmax is
    right. One parallel pass, or with `iterative` the surest mask is filled and the rest asked
    again. → {'span1': {'exact', 'n'}, …, 'words1': …}"""
    out = {}
    for words in (False, True):
        for k in SPANS:
            items = [hidden_at(ids, np.arange(a, b)) for ids, a, b in places(pieces, k, n, seed, words)]
            right = surest_first(predict, items, batch_tokens) if iterative else \
                [bool((logits.argmax(-1).cpu().numpy() == gold).all())
                 for (_, _, gold), logits in ask(predict, items, batch_tokens)]
            out[f'{"words" if words else "span"}{k}'] = dict(exact=float(np.mean(right)) if right else None,
                                                            n=len(right))
    return out


def surest_first(predict, items, batch_tokens):
    """Iterative decoding: → [exact?] of items (ids, positions, gold), in some order."""
    right, open_ = [], [(ids.copy(), at, gold, at) for ids, at, gold in items]
    while open_:
        left = []
        for (ids, at, gold, span), logits in ask(predict, open_, batch_tokens):
            sure, piece = (x.cpu().numpy() for x in logits.softmax(-1).max(-1))
            i = int(sure.argmax())
            ids[at[i]] = piece[i]
            if len(at) > 1:
                left.append((ids, np.delete(at, i), gold, span))
            else:
                right.append(bool((ids[span] == gold).all()))
        open_ = left
    return right


def separating(predict, pieces, n=2_000, batch_tokens=8_192, seed=1234, distances=DISTANCES):
    """Mask two tokens d apart, everything else visible, and compare the predictions.
    → {'d1': {'divergence': KL(left ‖ right) in nats, 'agreement': of the two argmaxes,
    'top1', 'gold': probability of the right piece, over both places, 'n': pairs}, …}"""
    out = {}
    for d in distances:
        items = [hidden_at(ids, np.array([a, b - 1])) for ids, a, b in places(pieces, d + 1, n, seed)]
        rows = []
        for (_, _, gold), logits in ask(predict, items, batch_tokens):
            p = F.log_softmax(logits, -1)                                    # (2, V)
            best, gold = p.argmax(-1), torch.as_tensor(gold, device=p.device)
            rows.append(torch.stack([(p[0].exp() * (p[0] - p[1])).sum(), (best[0] == best[1]).float(),
                                     (best == gold).float().mean(), p.exp()[[0, 1], gold].mean()]))
        names = ('divergence', 'agreement', 'top1', 'gold')
        mean = torch.stack(rows).double().mean(0).tolist() if rows else [None] * 4
        out[f'd{d}'] = dict(zip(names, mean), n=len(rows))
    return out


@torch.no_grad()
def heads_of(model, objective, pieces, mask_rate, n=2_000, batch_tokens=8_192, seed=1234):
    """At masked places under the training mask rate: how far is each neighbor head from the MLM
    head? → {'+1': {'kl': KL(MLM ‖ head_j) in nats, 'ratio': ‖e_j‖/‖h‖ or ‖W_j h - h‖/‖h‖, 'n'},
    …, 'adjacent': {'kl': the yardstick, KL(left ‖ right) of two adjacent masks, 'n'}}"""
    def items():
        for i, (ids, starts) in enumerate(pieces):
            masked = ids.copy()
            at = data.mask_row(masked, starts, rng_of(seed, i), mask_rate, False, 0)
            if len(at):
                yield masked, at

    def kl(p, q):
        return (p.exp() * (p - q)).sum(-1)

    sums, total, yard = {}, 0, torch.zeros(2)
    for (_, at), h in ask(predictor(model, read=lambda h: h), items(), batch_tokens):
        if total >= n:
            break
        total += len(at)
        p = F.log_softmax(model.decode(h).float(), -1)                        # (m, V)
        for j, term in enumerate(objective.terms):
            other = objective.head(j, h)
            q = F.log_softmax(model.decode(other).float(), -1)
            ratio = ((other - h).float().norm(dim=-1) / h.float().norm(dim=-1)).sum()
            sums[term] = sums.get(term, 0) + torch.stack([kl(p, q).sum(), ratio]).cpu()
        left = np.flatnonzero(np.diff(at) == 1)
        yard += torch.tensor([float(kl(p[left], p[left + 1]).sum()), len(left)])
    out = {t: dict(kl=float(s[0]) / total, ratio=float(s[1]) / total, n=total) for t, s in sums.items()}
    return out | {'adjacent': dict(kl=float(yard[0] / yard[1]) if yard[1] else None, n=int(yard[1]))}


def filling(predict, tokenizer, text, top=5):
    """text with [MASK] → [[(piece, probability), …] for each mask], likeliest first."""
    ids = np.array([data.CLS, *tokenizer.encode(text).ids, data.SEP])
    at = np.flatnonzero(ids == data.MASK)
    if not len(at):
        raise ValueError(f'--fill: no [MASK] in {text!r}: put one where a piece is wanted')
    p = predict(data.flat([ids]), at).softmax(-1)[:, :tokenizer.get_vocab_size()]
    values, pieces = p.topk(top)
    return [[(tokenizer.decode([i]), v) for i, v in zip(row, ps)]
            for row, ps in zip(pieces.tolist(), values.tolist())]

# ----------------------------------------------------------------------- checkpoints and tables


def checkpoints(asked, out_dir):
    """Files of --ckpt, a folder standing for all of its checkpoints in order of their steps;
    nothing asked: the newest file under out_dir."""
    found = []
    for path in map(pathlib.Path, asked):
        inside = sorted(path.glob('*.pt'), key=lambda p: p.stem.rsplit('_', 1)[-1]) if path.is_dir() else [path]
        steps = {p.stem.rsplit('_', 1)[-1]: p for p in inside}  # a step kept twice counts once
        found += steps.values()
        if not inside:
            raise FileNotFoundError(f'{path}: no checkpoint (*.pt) in this folder')
    newest = sorted(pathlib.Path(out_dir).glob('*/*.pt'), key=lambda p: p.stat().st_mtime_ns)
    if not asked and not newest:
        raise FileNotFoundError(f'{out_dir}: no checkpoint yet; train one (make demo) or name one: --ckpt=FILE')
    return found if asked else newest[-1:]


def flatten(results):
    """{metric: {source: figures}} → {'metric/source/variant': number}."""
    flat = {}
    for metric, by_source in results.items():
        for source, values in by_source.items():
            for variant, value in values.items():
                if isinstance(value, dict):
                    flat |= {f'{metric}/{source}/{variant}.{k}': v for k, v in value.items()}
                else:
                    flat[f'{metric}/{source}/{variant}'] = value
    return flat


def table(columns):
    """{name: flat figures} → a table for people, one line a figure, one column a checkpoint."""
    keys = list(dict.fromkeys(k for flat in columns.values() for k in flat))
    width = max(map(len, keys))
    lines = [' ' * width + ''.join(f'  {name[-24:]:>24}' for name in columns)]
    for key in keys:
        cells = [flat.get(key) for flat in columns.values()]
        lines.append(f'{key:<{width}}' + ''.join(
            f'  {"-" if c is None else f"{c:,}" if isinstance(c, int) else f"{c:.4f}":>24}' for c in cells))
    return '\n'.join(lines)


def pick_device(name):
    return torch.device(('cuda' if torch.cuda.is_available() else 'cpu') if name == 'auto' else name)


def measure(path, s):
    """One checkpoint under eval.py's settings → {metric: {source: figures}}."""
    model, saved = encoder.load(path, s['weights'], pick_device(s['device']))
    predict, tokenizer = predictor(model), Tokenizer.from_str(saved['tokenizer'])
    if s['fill']:
        rows = filling(predict, tokenizer, s['fill'], s['top'])
        return {'fill': {f'mask{i + 1}': {repr(piece): p for piece, p in row} for i, row in enumerate(rows)}}
    trained, chars = saved['settings'], characters(tokenizer)
    held_out = data.open_sources(s['data_dir'] or trained['data_dir'], 'heldout', s['sources'])
    held_out = {n: held_out[n] for n in s['sources'] or held_out}
    for source in held_out.values():
        if source.shards[0].tokenizer_hash != saved['tokenizer_hash']:
            raise ValueError(f'{source.shards[0].path}: written with another tokenizer than {path} was trained with; '
                             'prepare the text with --tokenizer, or give the right --data_dir')
    length, out = s['seq_len'] or min(trained['seq_len'], 1024), {}
    common = dict(batch_tokens=s['batch_tokens'], seed=s['seed'])
    for name, source in held_out.items():
        pieces = list(source.pieces(length, s['eval_tokens']))
        if s['ppl']:
            out.setdefault('perplexity', {})[name] = figures(perplexity(predict, pieces, chars, **common))
        if s['infill']:
            out.setdefault('infill', {})[name] = infilling(predict, pieces, s['n_spans'],
                                                           iterative=s['iterative'], **common)
        if s['separation']:
            out.setdefault('separation', {})[name] = separating(predict, pieces, s['n_pairs'], **common)
        if s['heads']:
            objective = objectives.build(configurator.Settings(trained), model.config.hidden)
            if not hasattr(objective, 'head'):
                raise ValueError(f"{path}: trained with objective 'mlm': it has no neighbor heads to measure")
            objective.load_state_dict({k[10:]: v for k, v in saved[s['weights']].items() if k[:10] == 'objective.'})
            out.setdefault('heads', {})[name] = heads_of(model, objective.eval(), pieces,
                                                         trained['mask_rate'], **common)
    return out


if __name__ == '__main__':
    argv = [a.replace('--json', '--json_file', 1) if a.split('=')[0] == '--json' else a for a in sys.argv[1:]]
    settings = configurator.load(globals(), argv, paths=('ckpt', 'out_dir', 'data_dir', 'json_file'))
    with configurator.user_errors():
        if not any(settings[k] for k in ('ppl', 'infill', 'separation', 'heads', 'fill')):
            raise ValueError('nothing asked: give --ppl, --infill, --separation, --heads or --fill TEXT')
        files = checkpoints(settings['ckpt'], settings['out_dir'])
        columns = {}
        for file in files:
            print(f'{file}, {settings["weights"]} weights', flush=True)
            columns[str(file)] = flatten(measure(file, settings))
        print(table(columns))
        if settings['json_file']:
            text = json.dumps(columns, ensure_ascii=False, indent=1)
            pathlib.Path(settings['json_file']).write_text(text + '\n', 'utf-8')

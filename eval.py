"""Everything measured without training.

    python eval.py --infill                        # newest checkpoint under out/
    python eval.py --ppl --infill --ckpt=out/tiny  # all checkpoints of a run, side by side
    python eval.py --separation --heads --ckpt=a.pt,b.pt --json=figures.json
    python eval.py --fill 'قال رسول الله صلى الله [MASK] وسلم'
    python eval.py config/tiny.py --ppl            # newest checkpoint of that config's run
    python eval.py --separation --ckpt=HF_FOLDER --data_dir=data/mine      # anyone's masked LM (needs transformers)

Each measure is a function that returns a dict; keys of --json are metric/source/variant.
Masks follow from the seed and the text, so they are the same for every checkpoint and batch size.
"""
import itertools
import json
import math
import os
import pathlib
import re
import sys
import types

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
seq_len = 0            # documents are cut to this; 0: to the first checkpoint's training row, at most 1,024
trust_remote_code = False  # run the code that a Hugging Face folder in --ckpt brings along
eval_tokens = 200_000  # at most this many tokens of each source; 0: all
spans = [1, 2, 3, 5]   # infill: so many in a row,
kinds = ['span', 'words']  # of tokens, of words
distances = [1, 2, 3, 4, 5, 6, 7, 8]  # separation: tokens from one mask to the other
n_spans = 2_000        # infill: spans per source and length (fewer where there are no more)
n_pairs = 2_000        # separation: pairs per source and distance; heads: masks per source
iterative = False      # infill: fill the surest mask, look again
top = 5                # --fill: pieces per mask
seed = 1234            # of the masks
batch_tokens = 8_192   # per forward pass; changes no figure
device = 'auto'
json_file = ''         # also --json=FILE: figures for programs

MEASURES = ('ppl', 'infill', 'separation', 'heads')
RANGES = {'at least 1': ('n_spans', 'n_pairs', 'top', 'batch_tokens', 'spans', 'distances'),
          'at least 0': ('seq_len', 'eval_tokens', 'seed')}
NEEDED = ('step', 'settings', 'tokenizer', 'tokenizer_hash')  # of a checkpoint, besides its weights
MASK_RATE = 0.15  # of perplexity

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


# What a measure needs to know of train.py's Ranks, where one process does all of the work. Among several each
# takes every world-th item, and the sums behind a figure are summed.
ALONE = types.SimpleNamespace(rank=0, world=1, sum=lambda tensor: tensor)


def ask(predict, items, batch_tokens, ranks=ALONE):
    """items: iterable of (ids (n,) with masks in, positions (p,), …) → (item, logits (p, V)),
    as many items in one forward as fit into batch_tokens."""
    group, size = [], 0

    def answers():
        starts = np.cumsum([0] + [len(item[0]) for item in group])
        positions = np.concatenate([item[1] + a for item, a in zip(group, starts)])
        logits = predict(data.flat([item[0] for item in group]), positions)
        return zip(group, logits.split([len(item[1]) for item in group]))

    for item in itertools.islice(items, ranks.rank, None, ranks.world):
        if group and size + len(item[0]) > batch_tokens:
            yield from answers()
            group, size = [], 0
        group.append(item)
        size += len(item[0])
    if group:
        yield from answers()


def masked(pieces, rate, seed):
    """Pieces with single tokens masked at this rate, as items for `ask`: (ids, positions, gold)."""
    for i, (gold, starts) in enumerate(pieces):
        ids = gold.copy()
        at = data.mask_row(ids, starts, np.random.default_rng([seed, i]), rate, False, 0)
        if len(at):
            yield ids, at, gold[at]


def first(n, items):
    """The items up to their n-th masked place."""
    for ids, at, gold in items:
        if n > 0:
            yield ids, at[:n], gold[:n]
        n -= len(at)


def places(pieces, length, n, seed, words=False, ends=False):
    """The same items with `length` tokens (or words, in the tokenizer's sense) in a row masked, or
    only both `ends` of them: n drawn from all stretches that hold no special and lie in one piece,
    each at most once; all of them where there are fewer. A piece's last word does not count: a cut
    may have shortened it."""
    found = [np.zeros((0, 3), int)]
    for i, (ids, starts) in enumerate(pieces):
        edges = np.flatnonzero(starts) if words else np.arange(len(ids) + 1)
        specials = np.cumsum(np.append(0, ids < len(data.SPECIALS)))  # so many before each position
        a, b = edges[:-length], edges[length:]
        found.append(np.stack([np.full(len(a), i), a, b], 1)[specials[a] == specials[b]])
    found = np.concatenate(found)
    drawn = np.random.default_rng([seed, length, words]).permutation(len(found))[:n]
    for i, a, b in found[np.sort(drawn)].tolist():
        gold, at = pieces[i][0], np.array([a, b - 1]) if ends else np.arange(a, b)
        ids = gold.copy()
        ids[at] = data.MASK
        yield ids, at, gold[at]


def kl(p, q):
    """KL(p ‖ q) in nats of log-probabilities (…, V)."""
    return (p.exp() * (p - q)).sum(-1)


def means(names, rows, ranks=ALONE):
    """n rows of figures → {name: mean, …, 'n'}; the means are None where there is no row."""
    rows = np.array(rows, float).reshape(-1, len(names))
    *sums, n = ranks.sum(torch.tensor([*rows.sum(0), len(rows)], dtype=torch.float64)).tolist()
    return dict(zip(names, (x / n if n else None for x in sums)), n=int(n))

# ------------------------------------------------------------------------------------ measures


def characters(tokenizer):
    """Characters of (normalised) text in each piece: (V,) int, specials 0. A byte-level piece counts
    the bytes that begin a character, so the pieces of one letter add up to one. All 0 where pieces
    do not tell (a WordPiece drops blanks): then there is no figure per character."""
    pieces = [tokenizer.id_to_token(i) or '' for i in range(len(data.SPECIALS), tokenizer.get_vocab_size())]
    decoder = json.dumps(json.loads(tokenizer.to_str())['decoder'])
    if 'ByteLevel' in decoder:  # its letters for the bytes 0x80 … 0xBF, which go on with a character
        pieces = [re.sub('[\u0122-\u0143\u00a1-\u00ac\u00ae-\u00bf]', '', p) for p in pieces]
    elif 'Metaspace' not in decoder:
        pieces = [''] * len(pieces)
    return np.array([0] * len(data.SPECIALS) + [len(p) for p in pieces])


def perplexity(predict, pieces, chars, batch_tokens=8_192, seed=1234, ranks=ALONE):
    """15% of single tokens, all [MASK] → {'perplexity', 'nats' a token, 'nats_per_char', 'top1', 'n': tokens
    scored}; n alone where that is 0. chars (V,): characters in a piece."""
    sums = torch.zeros(4, dtype=torch.float64)
    for (_, _, gold), logits in ask(predict, masked(pieces, MASK_RATE, seed), batch_tokens, ranks):
        target = torch.as_tensor(gold, device=logits.device)
        sums += torch.tensor([float(F.cross_entropy(logits, target, reduction='sum')), len(gold), chars[gold].sum(),
                              int((logits.argmax(-1) == target).sum())])
    return figures(ranks.sum(sums).tolist())


def figures(sums):
    """The sums of `perplexity` → its figures; none where nothing was scored."""
    nll, n, chars, hits = sums
    if not n:
        return dict(n=0)
    return dict(perplexity=math.exp(min(nll / n, 700)), nats=nll / n,  # above that, exp raises
                nats_per_char=nll / chars if chars else None, top1=hits / n, n=int(n))


def infilling(predict, pieces, n=2_000, batch_tokens=8_192, seed=1234, iterative=False, spans=spans,
              kinds=kinds, ranks=ALONE):
    """Mask k tokens (or k words) in a row, everything else visible; exact when every argmax is
    right. One parallel pass, or with `iterative` the surest mask is filled and the rest asked
    again. → {'span1': {'exact', 'n'}, …, 'words1': …}"""
    out = {}
    for kind, k in itertools.product(kinds, spans):
        items = places(pieces, k, n, seed, kind == 'words')
        right = surest_first(predict, items, batch_tokens) if iterative else [
            (x.argmax(-1).cpu().numpy() == gold).all() for (_, _, gold), x in ask(predict, items, batch_tokens, ranks)]
        out[f'{kind}{k}'] = means(['exact'], right, ranks)
    return out


def surest_first(predict, items, batch_tokens):
    """Iterative decoding, in place: → [exact?] of items (ids, positions, gold), in any order."""
    right, items = [], [(ids, at, gold, at) for ids, at, gold in items]
    while items:
        left = []
        for (ids, at, gold, span), logits in ask(predict, items, batch_tokens):
            sure, piece = (x.cpu().numpy() for x in logits.softmax(-1).max(-1))
            i = sure.argmax()
            ids[at[i]] = piece[i]
            if len(at) > 1:
                left.append((ids, np.delete(at, i), gold, span))
            else:
                right.append((ids[span] == gold).all())
        items = left
    return right


def separating(predict, pieces, n=2_000, batch_tokens=8_192, seed=1234, distances=distances, ranks=ALONE):
    """Mask two tokens d apart, everything else visible, and compare the predictions.
    → {'d1': {'divergence': KL(left ‖ right) in nats, 'agreement': of the two argmaxes,
    'top1', 'gold': probability of the right piece, over both places, 'n': pairs}, …}"""
    out = {}
    for d in distances:
        rows = []
        for (_, _, gold), logits in ask(predict, places(pieces, d + 1, n, seed, ends=True), batch_tokens, ranks):
            p = F.log_softmax(logits, -1)                                    # (2, V)
            best, gold = p.argmax(-1), torch.as_tensor(gold, device=p.device)
            rows.append(torch.stack([kl(p[0], p[1]), (best[0] == best[1]).float(), (best == gold).float().mean(),
                                     p.exp()[[0, 1], gold].mean()]).tolist())
        out[f'd{d}'] = means(('divergence', 'agreement', 'top1', 'gold'), rows, ranks)
    return out


@torch.no_grad()
def heads_of(model, objective, pieces, mask_rate, n=2_000, batch_tokens=8_192, seed=1234, ranks=ALONE):
    """At n places masked under the training mask rate: how far is each neighbor head from the MLM
    head? → {'+1': {'kl': KL(MLM ‖ head_j) in nats, 'ratio': ‖e_j‖/‖h‖ or ‖W_j h - h‖/‖h‖, 'n'},
    …, 'adjacent': {'kl': the yardstick, KL(left ‖ right) of two adjacent masks, 'n'}}"""
    rows, yard = {term: [] for term in objective.terms}, []
    hidden = predictor(model, read=lambda h: h.float())
    for (_, at, _), h in ask(hidden, first(n, masked(pieces, mask_rate, seed)), batch_tokens, ranks):
        p = F.log_softmax(model.decode(h).float(), -1)                        # (m, V)
        for j, term in enumerate(objective.terms):
            other = objective.head(j, h)
            q = F.log_softmax(model.decode(other).float(), -1)
            rows[term] += torch.stack([kl(p, q), (other - h).norm(dim=-1) / h.norm(dim=-1)], 1).tolist()
        left = np.flatnonzero(np.diff(at) == 1)
        yard += kl(p[left], p[left + 1]).tolist()
    return {term: means(('kl', 'ratio'), found, ranks) for term, found in rows.items()} | {
        'adjacent': means(['kl'], yard, ranks)}


def filling(predict, tokenizer, text, top=5):
    """text with [MASK] → [[(piece, probability), …] for each mask], likeliest first."""
    size = tokenizer.get_vocab_size()
    if not 1 <= top <= size:
        raise ValueError(f'--top={top}: the vocabulary has {size} pieces, choose from 1 to that')
    ids = np.array([data.CLS, *tokenizer.encode(text, add_special_tokens=False).ids, data.SEP])
    at = np.flatnonzero(ids == data.MASK)
    if not len(at):
        raise ValueError(f'--fill: no [MASK] in {text!r}: put one where a piece is wanted')
    p = predict(data.flat([ids]), at).softmax(-1)[:, :size]                   # (masks, V)
    values, pieces = p.topk(top)
    return [[(tokenizer.decode([i], skip_special_tokens=False), v) for i, v in zip(*row)]
            for row in zip(pieces.tolist(), values.tolist())]

# ----------------------------------------------------------------------- checkpoints and tables


def foreign(path, s):
    """A Hugging Face masked LM's folder → predict, its characters (V,), and pieces(documents, longest): a text in
    its own tokens, cut and framed as it is used to. Its ids are shifted to make room for the five specials that
    the measures know; logits (m, V + 5) follow."""
    try:
        import transformers
    except ImportError:
        raise ValueError(f'{path}: a Hugging Face folder: pip install transformers') from None
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is amiss is said below, in one line
    how = dict(trust_remote_code=s['trust_remote_code'])
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **how)
        net, told = transformers.AutoModelForMaskedLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **how)
    except (ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ValueError(f'{path}: transformers cannot load it: {" ".join(str(error).split())}') from error
    if told['missing_keys']:
        raise ValueError(f'{path}: no masked LM, {sorted(told["missing_keys"])[0]} is missing: its answers would be random')
    net.to(s['device']).eval()
    K, own = len(data.SPECIALS), [getattr(tokenizer, f'{x}_token_id') for x in ('pad', 'unk', 'cls', 'sep', 'mask')]
    if not tokenizer.is_fast or None in own[2:]:
        raise ValueError(f'{path}: needs a fast tokenizer with [CLS], [SEP] and [MASK]')
    theirs = np.array([x or 0 for x in own] + list(range(len(tokenizer))))    # ours → theirs
    seen = min(tokenizer.model_max_length, getattr(net.config, 'max_position_embeddings', None) or 10 ** 9)

    @torch.no_grad()
    def predict(batch, positions):
        ids, cu = theirs[batch['ids']], np.asarray(batch['cu'])
        inside = np.arange(batch['longest']) < np.diff(cu)[:, None]           # (D, L): the padded twin that it needs
        padded = np.full(inside.shape, own[0] or 0)
        padded[inside] = ids
        given, mask = (torch.as_tensor(x, device=net.device) for x in (padded, inside.astype(int)))
        with torch.autocast(net.device.type, torch.bfloat16, enabled=net.device.type == 'cuda'):
            logits = net(input_ids=given, attention_mask=mask).logits         # (D, L, V)
        doc = np.searchsorted(cu, positions, 'right') - 1
        return F.pad(logits[doc, positions - cu[doc]].float(), (K, 0), value=-1e9)

    def pieces(documents, longest):
        longest = min(longest, seen - 2 * (net.config.model_type in ('roberta', 'xlm-roberta', 'camembert')))
        for text in documents:
            coded = tokenizer(text, add_special_tokens=False, verbose=False)
            words = np.array([-1 if w is None else w for w in coded.word_ids()])
            ids, starts = np.array(coded['input_ids'], int) + K, np.diff(words, prepend=-2) != 0
            ids[np.isin(ids - K, tokenizer.all_special_ids)] = data.UNK
            for a in range(0, len(ids), longest - 2):
                part = slice(a, a + longest - 2)
                yield np.array([data.CLS, *ids[part], data.SEP]), np.array([True, *starts[part], True])
    return predict, np.append(np.zeros(K, int), characters(tokenizer.backend_tokenizer)), pieces


def checkpoints(asked, out_dir):
    """Files of --ckpt, a folder standing for all checkpoints that train.py wrote there in order of their
    steps, or for itself, a Hugging Face model; nothing asked: the newest of these under out_dir."""
    found = []
    for path in map(pathlib.Path, asked):
        steps = {p.stem[-8:]: p for p in sorted(path.glob(encoder.NAMES))}  # a step kept twice counts once
        if not steps and not path.is_file() and not (path / 'config.json').is_file():
            raise FileNotFoundError(f'{path}: no checkpoint ' + ('(such as step_00000100.pt) in this folder; name the '
                                                                 'file itself' if path.is_dir() else 'there'))
        found += [steps[step] for step in sorted(steps)] or [path]
    if not asked:  # a run may be pruning there
        ages = {p: p.stat().st_mtime_ns for p in pathlib.Path(out_dir).rglob(encoder.NAMES) if p.exists()}
        found = sorted(ages, key=ages.get)[-1:]
    if not found:
        raise FileNotFoundError(f'{out_dir}: no checkpoint yet; train one (make demo) or name one: --ckpt=FILE')
    return found


def flatten(metric, source, found):
    """A measure's dict → {'metric/source/variant': number}, where variant may be 'span3.exact'."""
    return {f'{metric}/{source}/{variant}' + (f'.{name}' if name else ''): x for variant, inner in found.items()
            for name, x in (inner if isinstance(inner, dict) else {'': inner}).items()}


def table(columns):
    """{path: figures} → a table for people: a line per figure, a column per checkpoint, and last
    n, the cases behind the figure (of each checkpoint, where they differ)."""
    shared = os.path.commonpath([os.path.dirname(path) for path in columns])
    lines = [['', *(os.path.relpath(path, shared).removesuffix('.pt') for path in columns), 'n']]
    keys = dict.fromkeys(k for flat in columns.values() for k in flat if not k.startswith('fill/'))
    for key in sorted(keys, key=lambda k: k.split('/')[0]):  # by metric, the sources as they come
        cells = [flat.get(key) for flat in columns.values()]
        counts = [flat.get(re.sub('[^./]+$', 'n', key)) for flat in columns.values()]
        if key[-2:] not in ('/n', '.n') or not any(counts):  # nothing scored is worth a line of its own
            lines.append([key, *('-' if c is None else f'{c:.4g}' for c in cells),
                          ' '.join(dict.fromkeys('-' if c is None else f'{c:,}' for c in counts))])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join(f'{line[0]:<{widths[0]}}' + ''.join(f'  {c:>{w}}' for c, w in zip(line[1:], widths[1:]))
                     for line in lines)


def measure(path, s):
    """One checkpoint under eval.py's settings → its figures by metric/source/variant. The first one
    settles the length of the pieces for all, so that they are asked the same."""
    if path.is_dir():
        return measure_foreign(path, s)
    model, saved = encoder.load(path, s['weights'], s['device'], NEEDED)
    trained, tokenizer = saved['settings'], Tokenizer.from_str(saved['tokenizer'])
    predict, out = predictor(model), {}
    print(f'{path}: step {saved["step"]:,}, {s["weights"]} weights', flush=True)
    if s['fill']:
        for i, row in enumerate(filling(predict, tokenizer, s['fill'], s['top']), 1):
            # U+200E after each piece: else Arabic letters and the numbers beside them change places
            print(f'mask {i}: ' + '  '.join(f'{piece.strip() or repr(piece)}\u200e {p:.1%}' for piece, p in row))
            ranks = {f'top{k}': dict(piece=piece, p=p) for k, (piece, p) in enumerate(row, 1)}
            out |= flatten('fill', f'mask{i}', ranks)
    if not any(s[name] for name in MEASURES):
        return out
    if s['heads']:
        objective = objectives.build(configurator.Settings(trained), model.config.hidden).to(s['device'])
        if not hasattr(objective, 'head'):
            raise ValueError(f'{path}: trained with objective {trained["objective"]!r}: it has no neighbor heads')
        own = {k.removeprefix('objective.'): v for k, v in saved[s['weights']].items() if k.startswith('objective.')}
        objective.load_state_dict(own)
    held_out = data.open_sources(s['data_dir'] or trained['data_dir'], 'heldout', s['sources'])
    shard = next(iter(held_out.values())).shards[0]  # open_sources saw that all have one tokenizer
    if shard.tokenizer_hash != saved['tokenizer_hash']:
        raise ValueError(f'{shard.path}: written with another tokenizer than {path} was trained with; '
                         'prepare the text with --tokenizer, or give the right --data_dir')
    s['seq_len'] = s['seq_len'] or min(trained['seq_len'], 1024)
    s['data_dir'] = s['data_dir'] or trained['data_dir']  # for a folder of another make
    print(f'held-out text of {s["data_dir"]} in pieces of {s["seq_len"]:,}', flush=True)
    chars = characters(tokenizer)
    for name in s['sources'] or held_out:
        pieces = list(held_out[name].pieces(s['seq_len'], s['eval_tokens']))
        out |= figures_of(predict, pieces, chars, name, s)
        if s['heads']:
            out |= flatten('heads', name, heads_of(model, objective, pieces, trained['mask_rate'], s['n_pairs'],
                                                   s['batch_tokens'], s['seed']))
    return out


def measure_foreign(path, s):
    """`measure` for a Hugging Face folder: the same held-out documents, in its own tokens."""
    if s['fill'] or s['heads']:
        raise ValueError(f'{path}: --fill and --heads ask a checkpoint of train.py; this is a Hugging Face folder')
    if not s['data_dir']:
        raise ValueError(f'{path}: a Hugging Face folder brings no held-out text; name a prepared folder: --data_dir=data/mine')
    predict, chars, cut = foreign(path, s)
    held_out, out = data.open_sources(s['data_dir'], 'heldout', s['sources']), {}
    written_in = Tokenizer.from_str(data.tokenizer_json(s['data_dir'], held_out))
    print(f'{path}: held-out text of {s["data_dir"]}, decoded and in its own tokens', flush=True)
    for name in s['sources'] or held_out:
        texts = (written_in.decode(ids.tolist()) for ids, _ in held_out[name].pieces(1 << 62, s['eval_tokens']))
        out |= figures_of(predict, list(cut(texts, s['seq_len'] or 1024)), chars, name, s)
    return out


def figures_of(predict, pieces, chars, source, s):
    """The measures that need no more than predictions → figures by metric/source/variant."""
    out, common = {}, dict(batch_tokens=s['batch_tokens'], seed=s['seed'])
    if s['ppl']:
        out |= flatten('perplexity', source, perplexity(predict, pieces, chars, **common))
    if s['infill']:  # decoded one by one it is another metric
        out |= flatten('infill_iterative' if s['iterative'] else 'infill', source, infilling(
            predict, pieces, s['n_spans'], iterative=s['iterative'], spans=s['spans'], kinds=s['kinds'], **common))
    if s['separation']:
        out |= flatten('separation', source, separating(predict, pieces, s['n_pairs'], distances=s['distances'], **common))
    return out


def main(argv):
    argv = [a.replace('--json', '--json_file', 1) if a.split('=')[0] == '--json' else a for a in argv]
    s = configurator.load(globals(), argv, paths=('ckpt', 'out_dir', 'data_dir', 'json_file'),
                          shares=('out_dir', 'data_dir', 'device'))
    with configurator.user_errors():
        sys.stdout.reconfigure(errors='backslashreplace')  # Arabic must not fail in a C locale
        if not any(s[name] for name in (*MEASURES, 'fill')):
            raise ValueError('nothing asked: give --ppl, --infill, --separation, --heads or --fill TEXT')
        configurator.check(s, globals(), RANGES, {'weights': ('ema', 'raw'), 'kinds': ('span', 'words')})
        best = 'cuda' if torch.cuda.is_available() else 'cpu'
        s['device'] = best if s['device'] == 'auto' else s['device']
        if s['device'].split(':')[0] not in ('cpu', best):
            raise ValueError(f'device={s["device"]!r}: this machine has {best}')
        if s['json_file'] and not pathlib.Path(s['json_file']).parent.is_dir():
            raise ValueError(f'--json={s["json_file"]}: there is no such folder')
        if pathlib.Path(s['json_file'] or 'FILE').is_dir():
            raise ValueError(f'--json={s["json_file"]}: a folder; name a file, such as {s["json_file"]}/figures.json')
        columns = {}
        for file in checkpoints(s['ckpt'], s['out_dir']):
            try:
                columns[str(file)] = measure(file, s)
            except FileNotFoundError:
                if file.exists() or str(file) in s['ckpt']:
                    raise
                print(f'{file}: gone since the folder was read (a run keeps its last ones only); passed over',
                      file=sys.stderr, flush=True)
        if not columns:
            raise FileNotFoundError('every checkpoint was gone before its turn; ask again')
        if any(s[name] for name in MEASURES):
            print(table(columns))
        if s['json_file']:
            text = json.dumps(columns, ensure_ascii=False, indent=1)
            pathlib.Path(s['json_file']).write_text(text + '\n', 'utf-8')


if __name__ == '__main__':
    main(sys.argv[1:])

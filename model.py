"""AraNeoBERT: a NeoBERT encoder with local/global attention, QK-norm and two RoPE thetas.

One layout: a batch is flat, ids (T,), and `cu` (D+1,) says where its documents begin; attention
never crosses a boundary. T: tokens, D: documents, d: hidden, H: heads, e: head size = d / H.
Sources: NeoBERT (arXiv 2502.19587), ModernBERT (arXiv 2412.13663) for window and thetas.
"""
import math
import os
import pathlib
import sys
import zipfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch without it runs on scaled_dot_product_attention
    varlen_attn = None

# ------------------------------------------------------------------------------------- config


@dataclass
class Config:
    """The encoder's shape; the defaults are AraNeoBERT v5, `config/neobert.py` is NeoBERT."""
    vocab_size: int = 64_256      # 64,000 pieces and the specials, padded to a multiple of 256
    hidden: int = 768
    n_layer: int = 28
    n_head: int = 12
    ffn: int = 2048               # inner width of SwiGLU
    window: int = 128             # keys a local layer sees around a token: ±window/2 and itself
    global_every: int = 3         # layer i is global when i % global_every == 0; 1: all of them
    theta_local: float = 10_000.0
    theta_global: float = 160_000.0
    qk_norm: bool = True
    norm_eps: float = 1e-5
    tied: bool = False            # decoder = embedding table
    decoder_bias: bool = False
    head_transform: bool = False  # dense, gelu, norm before the decoder

    def __post_init__(self):
        if self.hidden % (2 * self.n_head):
            raise ValueError(f'hidden={self.hidden} does not divide into n_head={self.n_head} heads of an '
                             f'even size: choose hidden as a multiple of {2 * self.n_head}')
        if self.window < 2 or self.window % 2 or self.global_every < 1:
            raise ValueError(f'window={self.window} must be even and at least 2, global_every='
                             f'{self.global_every} at least 1 (1: every layer global)')

    def is_global(self, layer):
        return layer % self.global_every == 0


# ----------------------------------------------------------------------------------- attention


def rope_tables(position, theta, size):
    """position (T,) → cos, sin (T, 1, size/2) fp32. Computed per batch: no buffers to lose."""
    frequency = theta ** (-torch.arange(0, size, 2, device=position.device, dtype=torch.float32) / size)
    angle = position.float()[:, None, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Half-split RoPE: (x1, x2) → (x1 cos - x2 sin, x1 sin + x2 cos). x: (T, H, e), in fp32 by the tables."""
    x1, x2 = x.chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1)  # (T, H, e)


def local_chunks(x, window):
    """Keys or values (T, H, e) → (T/window, H, 2·window, e): chunk c holds the tokens that the
    queries c·window … (c+1)·window-1 can see, from half a window before to half after."""
    x = F.pad(x, (0, 0, 0, 0, window // 2, window // 2))
    return x.unfold(0, 2 * window, window).transpose(-1, -2)  # (C, H, 2W, e): no copy


def local_mask(doc, window):
    """doc (T,) with T a multiple of window → (T/window, 1, window, 2·window) bool, True where a
    query sees a key: same document and |i - j| <= window/2. Pads, doc -1, see each other only:
    every query has a key, so no row of the softmax is empty."""
    half = window // 2
    keys = F.pad(doc, (half, half), value=-1).unfold(0, 2 * window, window)  # (C, 2W)
    i = torch.arange(window, device=doc.device)[:, None] + half
    j = torch.arange(2 * window, device=doc.device)
    near = (i - j).abs() <= half                                             # (W, 2W)
    return (near & (doc.view(-1, window)[:, :, None] == keys[:, None, :]))[:, None]


class Layout:
    """What attention needs to know of a batch, computed once per forward: document boundaries,
    positions in the document, both RoPE tables, the mask of the local chunks."""

    def __init__(self, cu, total, longest, config, device, half):
        self.cu, self.longest, self.window = cu.to(device), longest, config.window
        self.kernel = half and device.type == 'cuda' and varlen_attn is not None
        token = torch.arange(total, device=device)
        doc = torch.searchsorted(self.cu, token, right=True, out_int32=True) - 1  # (T,), skips empty documents
        position = token - self.cu[doc]
        size = config.hidden // config.n_head
        self.rope = {True: rope_tables(position, config.theta_global, size),
                     False: rope_tables(position, config.theta_local, size)}
        if not self.kernel:
            self.lengths = [n for n in cu.diff().tolist() if n]
            if config.global_every > 1:
                self.mask = local_mask(F.pad(doc, (0, -total % config.window), value=-1), config.window)

    def attend(self, q, k, v, is_global):
        """q, k, v (T, H, e) → (T, H, e)."""
        if self.kernel:  # half precision on CUDA
            side = -1 if is_global else self.window // 2
            return varlen_attn(q, k, v, self.cu, self.cu, self.longest, self.longest, window_size=(side, side))
        if is_global:  # document by document: no mask at all
            documents = zip(*(x.transpose(0, 1)[None].split(self.lengths, 2) for x in (q, k, v)))
            out = [F.scaled_dot_product_attention(*one) for one in documents]  # (1, H, n, e) each
            return torch.cat(out, 2)[0].transpose(0, 1)
        T, H, e = q.shape  # local: overlapping chunks, cost linear in T
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, -T % self.window)) for x in (q, k, v))
        q = q.view(-1, self.window, H, e).transpose(1, 2)                    # (C, H, W, e)
        k, v = local_chunks(k, self.window), local_chunks(v, self.window)    # (C, H, 2W, e)
        out = F.scaled_dot_product_attention(q, k, v, self.mask)             # (C, H, W, e)
        return out.transpose(1, 2).reshape(-1, H, e)[:T]


# -------------------------------------------------------------------------------------- blocks


class RMSNorm(nn.Module):
    """x / rms(x) · gain over the last axis, in the gain's precision, fp32 (arXiv 1910.07467)."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.n_head, self.is_global = config.n_head, config.is_global(layer)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)  # rows: all Q, all K, all V
        self.qkv.parts = 3  # three matrices in one product: the optimizer treats them apart
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)
        size = config.hidden // config.n_head
        self.q_norm = RMSNorm(size, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(size, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x, layout):                                           # (T, d)
        q, k, v = self.qkv(x).view(len(x), 3, self.n_head, -1).unbind(1)     # (T, H, e) each
        cos, sin = layout.rope[self.is_global]
        q, k = (rotate(t, cos, sin).to(v.dtype) for t in (self.q_norm(q), self.k_norm(k)))
        return self.out(layout.attend(q, k, v, self.is_global).flatten(1))   # (T, d)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.gate_up.parts = 2
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x):                                                   # (T, d)
        gate, up = self.gate_up(x).chunk(2, -1)                              # (T, ffn) each
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.hidden, config.norm_eps)
        self.ffn = SwiGLU(config)

    def forward(self, x, layout):                                           # (T, d)
        x = x + self.attention(self.attention_norm(x), layout)
        return x + self.ffn(self.ffn_norm(x))


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.n_layer))
        self.norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, ids, cu, longest):
        """ids (T,) int64, cu (D+1,) int32 document boundaries (empty documents do no harm),
        longest: no document is longer → h (T, d) fp32."""
        x = self.embedding(ids)                                             # (T, d)
        device = x.device.type
        half = torch.is_autocast_enabled(device) or x.dtype in (torch.bfloat16, torch.float16)
        layout = Layout(cu, len(ids), longest, self.config, x.device, half)
        for block in self.blocks:
            x = block(x, layout)
        return self.norm(x)


class MaskedLM(nn.Module):
    """The encoder and its decoder: h (…, d) → logits (…, V)."""

    def __init__(self, config):
        super().__init__()
        self.config, self.encoder = config, Encoder(config)
        d = config.hidden
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), RMSNorm(d, config.norm_eps)) \
            if config.head_transform else nn.Identity()
        self.decoder = nn.Linear(d, config.vocab_size, bias=config.decoder_bias)
        initialise(self)
        if config.tied:
            self.decoder.weight = self.encoder.embedding.weight

    def forward(self, ids, cu, longest):
        return self.encoder(ids, cu, longest)                               # (T, d)

    def decode(self, h):
        return self.decoder(self.transform(h))                              # (…, V)


def initialise(model):
    """All of the init: matrices and tables N(0, 0.02²), the two products that write into the
    residual stream divided by sqrt(2·layers) as in GPT-2, biases 0, norm gains 1."""
    std = 0.02
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            into_residual = name.endswith(('attention.out', 'ffn.down'))
            scale = math.sqrt(2 * model.config.n_layer) if into_residual else 1.0
            nn.init.normal_(module.weight, std=std / scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def count(module):
    """Parameters, each tensor once."""
    return sum(p.numel() for p in module.parameters())


def flop_per_token(config, seq_len, mask_rate):
    """Forward and backward products of one token in a full row: 6 per matrix weight met, the
    decoder by masked tokens only, and attention's 12 · hidden · keys seen per layer."""
    matrices = config.n_layer * (4 * config.hidden ** 2 + 3 * config.hidden * config.ffn)
    n_global = sum(config.is_global(i) for i in range(config.n_layer))
    keys = n_global * seq_len + (config.n_layer - n_global) * min(config.window + 1, seq_len)
    return 6 * (matrices + mask_rate * config.vocab_size * config.hidden) + 12 * config.hidden * keys


# ---------------------------------------------------------------------------- checkpoint file


def check_plain(value, where='checkpoint'):
    """TypeError unless value is tensors and plain types all the way down: the file has to load
    with weights_only=True, and the moment to find out is before it is written."""
    if isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            check_plain(item, f'{where}[{key!r}]')
    elif type(value) not in (torch.Tensor, int, float, bool, str, type(None)):
        raise TypeError(f'{where} is a {type(value).__name__}: a checkpoint holds plain types and tensors')


NAMES = '*_' + 8 * '[0-9]' + '.pt'  # what train.py calls its checkpoints: step_00000100.pt, phase_decay_00000600.pt


def save(path, checkpoint):
    """Writes a dict of plain types and tensors under a temporary name, fsyncs, renames: whoever
    reads `path` finds the old file or the new one, whole. OSError with one line if it cannot."""
    check_plain(checkpoint)
    path = pathlib.Path(path)
    temporary = path.with_name(path.name + '.tmp')
    try:
        with open(temporary, 'wb') as f:
            torch.save(checkpoint, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, (OSError, RuntimeError)):  # torch makes the one of the other
            reason = next((e.strerror for e in (error, error.__context__) if isinstance(e, OSError)), error)
            raise OSError(f'{path}: could not be written ({reason}); the checkpoints before it are whole: '
                          'make room and --resume') from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the rename too must outlive a power cut
    os.fsync(folder)
    os.close(folder)


def read(path, needed=()):
    """→ the checkpoint's dict, on the CPU; ValueError if the file is damaged, something else, or
    lacks one of the keys that are `needed`."""
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f'{path}: no such checkpoint')
    try:
        with zipfile.ZipFile(path) as file:  # torch does not look at the checksums
            if file.testzip():
                raise zipfile.BadZipFile
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
    except FileNotFoundError:  # pruned in between
        raise
    except Exception as error:  # torch raises many kinds for a broken zip
        raise ValueError(f'{path}: not a readable checkpoint ({type(error).__name__}); '
                         'take the one before it') from error
    found = checkpoint if isinstance(checkpoint, dict) else ()
    missing = [k for k in ('model_config', *needed) if k not in found]
    if missing:
        raise ValueError(f'{path}: not a whole checkpoint of train.py (no {", ".join(missing)} in it)')
    return checkpoint


def newest(folder, needed=()):
    """The newest whole checkpoint of a run's folder; a damaged one is passed over, aloud."""
    for path in sorted(folder.glob(NAMES), key=lambda p: p.stem[-8:], reverse=True):
        try:
            read(path, needed)
            return path
        except ValueError as error:
            print(f'warning: {error}', file=sys.stderr, flush=True)
    raise FileNotFoundError(f'{folder}: no whole checkpoint here to --resume; leave it out to start')


def load(path, weights='ema', device='cpu', needed=()):
    """→ (MaskedLM in eval mode, checkpoint dict). weights: 'ema' (the released ones) or 'raw'."""
    checkpoint = read(path, (weights, *needed))
    prefix = 'model.'
    state = {k[len(prefix):]: v for k, v in checkpoint[weights].items() if k.startswith(prefix)}
    try:
        model = MaskedLM(Config(**checkpoint['model_config']))
        model.load_state_dict(state)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f'{path}: its weights and its model_config do not fit this code: {error}') from error
    return model.to(device).eval(), checkpoint


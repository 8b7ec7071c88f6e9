"""Verifies and times the GPU paths, in one run of under 8 minutes on one GPU.

    python tests/gpu_check.py            # everything; --quick leaves the timings out

What needs CUDA and so is not in the suite: the varlen kernel with windows, bf16 autocast, compile in
place, fused AdamW, Muon in bf16, NCCL. Prints one line a check; exit code 1 if one fails. Not yet
run: no GPU was at hand when it was written.
"""
import copy
import hashlib
import os
import pathlib
import sys
import tempfile
import time

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import configurator  # noqa: E402
import data  # noqa: E402
import model as encoder  # noqa: E402
import muon  # noqa: E402
import objectives  # noqa: E402
import train  # noqa: E402

FAILED = []


def check(name, ok, detail):
    print(f'{"ok  " if ok else "FAIL"} {name}: {detail}', flush=True)
    if not ok:
        FAILED.append(name)


def synthetic(folder, tokens=8_000_000):
    """Shards of random pieces in documents of a long-tailed length, and a tokenizer file to match."""
    rng, text = np.random.default_rng(0), '{}'
    (folder / 'tokenizer.json').write_text(text)
    for split, n in (('train', tokens), ('heldout', 100_000)):
        writer = data.ShardWriter(folder / split / 'a_00000.bin', 64_005, hashlib.sha256(text.encode()).hexdigest(), 'a', split)
        while writer.n_tokens < n:
            length = int(min(rng.lognormal(5.5, 1.2), 20_000)) + 1
            ids = np.concatenate([[data.CLS], rng.integers(5, 64_005, length), [data.SEP]])
            writer.add(ids, np.concatenate([[True], rng.random(length) < 0.6, [True]]))
        writer.close()


def kernel_is_the_reference():
    """bf16 varlen attention with windows against fp32 on the CPU, forward and backward; windows
    at their exact edge; another document moves nothing."""
    torch.manual_seed(0)
    net = encoder.MaskedLM(encoder.Config(vocab_size=1000, hidden=256, n_layer=4, n_head=4, ffn=512))
    for p in net.parameters():
        p.data.normal_(1.0 if p.ndim == 1 else 0.0, 0.1 if p.ndim == 1 else 0.06)
    lengths = [700, 1, 64, 65, 129, 300, 2, 787]
    cu = torch.tensor(np.cumsum([0, *lengths, 0, 0]), dtype=torch.int32)  # two empty documents
    ids = torch.randint(5, 1000, (sum(lengths),))
    want = net(ids, cu, 787)
    want.square().mean().backward()
    fast = copy.deepcopy(net).cuda()
    fast.zero_grad()
    layout = encoder.Layout(cu.cuda(), len(ids), 787, net.config, torch.device('cuda'), True)
    check('varlen kernel in use', layout.kernel, 'half precision on CUDA')
    with torch.autocast('cuda', torch.bfloat16):
        got = fast(ids.cuda(), cu.cuda(), 787)
    got.square().mean().backward()
    error = ((got.cpu() - want).norm() / want.norm()).item()
    check('forward, bf16 kernel against fp32', error < 2e-2, f'relative {error:.1e}, at most 2e-2')
    errors = [((b.grad.cpu() - a.grad).norm() / a.grad.norm()).item()
              for (n, a), b in zip(net.named_parameters(), fast.parameters()) if a.grad is not None]
    check('gradients', max(errors) < 0.1, f'worst relative {max(errors):.1e}, at most 1e-1')
    with torch.no_grad():
        fp32 = copy.deepcopy(net).cuda()(ids.cuda(), cu.cuda(), 787).cpu()
    error = ((fp32 - want).norm() / want.norm()).item()
    check('SDPA path on CUDA in fp32', error < 1e-3, f'relative {error:.1e}')

    q, k, v = (torch.randn(400, 4, 64, device='cuda', dtype=torch.bfloat16) for _ in range(3))
    one = torch.tensor([0, 400], dtype=torch.int32, device='cuda')
    layout = encoder.Layout(one, 400, 400, net.config, torch.device('cuda'), True)
    before, v2 = layout.attend(q, k, v, False), v.clone()
    v2[200] += 100
    moved = (layout.attend(q, k, v2, False) != before).flatten(1).any(1).nonzero().flatten().tolist()
    check('window is ±64', (min(moved), max(moved)) == (136, 264), f'token 200 moves {min(moved)} … {max(moved)}')


def muon_is_the_cpu_s():
    G = torch.randn(8, 768, 2048)
    want = muon.orthogonalize(G, dtype=torch.float32)
    got = muon.orthogonalize(G.cuda(), dtype=torch.bfloat16).float().cpu()
    error = ((got - want).norm() / want.norm()).item()
    check('Newton-Schulz in bf16', error < 0.04, f'relative {error:.1e}, at most 4e-2')
    for shape, n in (((768, 768), 112), ((768, 2048), 84)):
        G = torch.randn(n, *shape, device='cuda')
        seconds = timed(lambda: muon.orthogonalize(G), 10)  # noqa: B023 (used at once)
        flop = n * 5 * (4 * shape[0] ** 2 * shape[1] + 2 * shape[0] ** 3)
        print(f'     Newton-Schulz of {n} × {shape}: {seconds * 1e3:.2f} ms, {flop / seconds / 1e12:.0f} TFLOP/s')


def timed(f, n):
    f()
    torch.cuda.synchronize()
    start = time.time()
    for _ in range(n):
        f()
    torch.cuda.synchronize()
    return (time.time() - start) / n


def ceiling():
    """TFLOP/s of one large bf16 product: what MFU is measured against here."""
    a, b = (torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192 ** 3 / timed(lambda: a @ b, 20)


def steps_at_full_size(folder, peak):
    """v5 itself on synthetic rows: falls, does not recompile after step 3, tokens/s and MFU."""
    import torch._dynamo.utils as dynamo
    for seq_len, compiled in ((1024, False), (1024, True), (4096, True)):
        flags = [f'--data_dir={folder}', f'--out_dir={folder}/run', '--sources={}', '--whole_words=', '--batch_tokens=131072',
                 "--phases=[{'name': 'stable', 'steps': 1000}]", f'--seq_len={seq_len}', f'--compile_model={compiled}',
                 '--warmup_steps=10']
        s = configurator.load(vars(train), [str(configurator.REPO / 'config/v5.py'), *flags], ('data_dir', 'out_dir'))
        torch.cuda.reset_peak_memory_stats()
        run = train.Run(s, vars(train))
        first = run.losses(run.train_step())['mlm']
        for _ in range(2):
            run.train_step()
        torch.cuda.synchronize()
        graphs, start = dynamo.counters['stats']['unique_graphs'], time.time()
        for _ in range(8):
            out = run.train_step()
        torch.cuda.synchronize()
        speed = 8 * 131_072 / (time.time() - start)
        last = run.losses(out)['mlm']
        name = f'v5 at {seq_len}{" compiled" if compiled else ""}'
        check(name, last < first, f'mlm {first:.2f} → {last:.2f} in 11 steps')
        check(f'{name}, graphs', graphs == dynamo.counters['stats']['unique_graphs'], 'no recompile after step 3')
        flop = encoder.flop_per_token(run.config, seq_len, 0.2) * speed
        print(f'     {speed:,.0f} tokens/s, {flop / peak:.1%} of the {peak / 1e12:.0f} TFLOP/s of a large product, '
              f'peak {torch.cuda.max_memory_allocated() / 2 ** 30:.1f} GiB')
        del run
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def memory_does_not_follow_the_pairs():
    """v5's incident: peak memory of mlm_neighbors from 1 k to 64 k pairs at V = 64,256."""
    net = encoder.MaskedLM(encoder.Config(n_layer=2)).cuda()
    peaks = {}
    for cap in (1_000, 8_000, 64_000):
        o = objectives.MLMNeighbors(768, 'projection').cuda()
        rng = np.random.default_rng(1)
        orig = rng.integers(5, 64_000, 32_768)
        masked = np.flatnonzero(rng.random(32_768) < 0.8)
        batch = dict(ids=orig.copy(), orig=orig, masked=masked, cu=np.arange(0, 32_769, 1024, dtype=np.int32), longest=1024,
                     keys=[(1, 1, i) for i in range(32)])
        counts = o.prepare(batch, cap)
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast('cuda', torch.bfloat16):
            loss, _ = o(net, train.to_device(batch, torch.device('cuda')), counts)
        loss.backward()
        net.zero_grad()
        peaks[sum(batch['pairs'])] = torch.cuda.max_memory_allocated() / 2 ** 30
    spread = max(peaks.values()) / min(peaks.values())
    check('memory against pairs', spread < 1.2, ', '.join(f'{n:,} pairs {g:.2f} GiB' for n, g in peaks.items()))


def nccl_of_one(folder):
    """The distributed path on one GPU: NCCL for gradients, gloo for counts."""
    os.environ.update(RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', MASTER_ADDR='127.0.0.1', MASTER_PORT='29512')
    import torch.distributed as dist
    dist.init_process_group('cpu:gloo,cuda:nccl')
    gpu, cpu = torch.ones(3, device='cuda'), torch.ones(3, dtype=torch.float64)
    dist.all_reduce(gpu)
    dist.all_reduce(cpu)
    dist.destroy_process_group()
    check('NCCL and gloo side by side', gpu.sum() == 3 and cpu.sum() == 3, 'one rank')


if __name__ == '__main__':
    if not torch.cuda.is_available():
        sys.exit('gpu_check.py: no CUDA device here; the suite covers the rest (make test)')
    began = time.time()
    print(torch.cuda.get_device_name(), 'torch', torch.__version__)
    with tempfile.TemporaryDirectory() as name:
        steps = [kernel_is_the_reference, muon_is_the_cpu_s, memory_does_not_follow_the_pairs,
                 lambda: nccl_of_one(pathlib.Path(name))]
        if '--quick' not in sys.argv:
            synthetic(pathlib.Path(name))
            steps.append(lambda: steps_at_full_size(pathlib.Path(name), ceiling()))
        for step in steps:
            try:
                step()
            except Exception as error:  # one broken check must not hide the others
                check(step.__name__, False, f'{type(error).__name__}: {error}')
    print(f'{time.time() - began:.0f} s, {len(FAILED)} failed' + (f': {", ".join(FAILED)}' if FAILED else ''))
    sys.exit(bool(FAILED))

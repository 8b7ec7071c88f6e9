"""bench.py measures what it says: in turns, on the text given, every figure there."""
import json
import pathlib
import time

import bench
import configurator


def test_in_turns_takes_every_work_each_time():
    order = []
    seconds = bench.in_turns(3, a=lambda: (order.append('a'), time.sleep(0.02)), b=lambda: order.append('b'))
    assert order == ['a', 'b'] * 3 and [len(s) for s in seconds.values()] == [3, 3]
    assert min(seconds['a']) >= 0.02 > max(seconds['b'])


def test_text_is_taken_evenly(tmp_path):
    (tmp_path / 'a.txt').write_text('\n'.join(f'{i:04d}' * 25 for i in range(1000)))
    files, texts = bench.spread([f'{tmp_path}/a.txt'], 0.025, tmp_path, 3)
    assert len(texts) == 250 and [t[:4] for t in texts[:3]] == ['0000', '0004', '0008']
    written = [json.loads(line)['text'] for f in files for line in f.read_text().split('\n')]
    assert len(files) == 3 and sorted(written) == sorted(texts)


def test_data_figures(folder, capsys):
    s = configurator.load(vars(bench), [f'--text={folder.parent}/*.txt', f'--tokenizer={folder}/tokenizer.json', '--seq_len=64',
                                        '--repeats=1', '--tokens=65536'])
    found = bench.bench_data(s)
    mb = sum(len(line.encode()) for p in pathlib.Path(folder.parent).glob('*.txt') for line in p.read_text().split('\n')) / 1e6
    assert abs(found['megabytes'] - mb) < 1e-9 and all(v > 0 for v in found.values())
    assert found['shards_peak_mb_all'] >= 20 and 'text → shards' in capsys.readouterr().out

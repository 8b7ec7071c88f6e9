"""eval.py on a Hugging Face folder, made here: a small BERT whose special pieces have ids unlike ours."""
import json
import math
import sys

import numpy as np
import pytest
import torch
from conftest import refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import configurator
import data
import eval as evaluation

transformers = pytest.importorskip('transformers')
SPECIALS = {'sep': '[SEP]', 'mask': '[MASK]', 'unk': '[UNK]', 'pad': '[PAD]', 'cls': '[CLS]'}  # ids 0 … 4


def documents(folder):
    """The texts that are held out of source a, as they were written."""
    held_out = data.open_sources(folder, 'heldout')
    ours = Tokenizer.from_str(data.tokenizer_json(folder, held_out))
    return [ours.decode(ids.tolist()) for ids, _ in held_out['a'].pieces(1 << 62)]


@pytest.fixture(scope='module')
def hub(folder, tmp_path_factory):
    """bert/: random weights; blank/: zero weights; maskless/: its tokenizer has no mask."""
    root = tmp_path_factory.mktemp('hub')
    tok = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tok.normalizer, tok.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Whitespace()
    tok.train_from_iterator(documents(folder), trainers.WordPieceTrainer(vocab_size=150, special_tokens=list(SPECIALS.values())))
    torch.manual_seed(0)
    for name in ('bert', 'blank', 'maskless'):
        named = {f'{k}_token': v for k, v in SPECIALS.items() if (name, k) != ('maskless', 'mask')}
        transformers.PreTrainedTokenizerFast(tokenizer_object=tok, **named).save_pretrained(root / name)
        net = transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=tok.get_vocab_size() + 3, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=48, max_position_embeddings=40, initializer_range=0.3))
        for p in net.parameters() if name == 'blank' else ():
            p.data.zero_()
        net.save_pretrained(root / name)
    return root


def test_its_own_tokens_and_its_own_answers(folder, hub):
    """Pieces are its tokenizer's, framed and cut to what it takes; logits those of each document alone."""
    s = configurator.load(vars(evaluation), ['--device=cpu'])
    predict, chars, cut = evaluation.foreign(hub / 'bert', s)
    theirs = transformers.AutoTokenizer.from_pretrained(hub / 'bert')
    net = transformers.AutoModelForMaskedLM.from_pretrained(hub / 'bert').eval()
    texts = [*documents(folder)[:6], 'قال ☃ [MASK] قال']
    pieces = list(cut(texts, 30))
    shift = np.array([theirs.convert_tokens_to_ids(x) for x in data.SPECIALS] + list(range(len(theirs))))
    framed = [theirs(text, add_special_tokens=False)['input_ids'] for text in texts]
    body = [x for ids, _ in pieces for x in shift[ids[1:-1]].tolist()]
    unknown, mask = theirs.unk_token_id, theirs.mask_token_id
    assert unknown in body and body == [unknown if x == mask else x for ids in framed for x in ids]  # a [MASK] in the text is none
    assert {len(ids) for ids, _ in pieces} > {30} and max(len(ids) for ids, _ in cut(texts, 500)) == 40
    words = sum(int(starts[1:-1].sum()) for ids, starts in cut([documents(folder)[0]], 500))
    assert words == len(documents(folder)[0].split())
    items = [(ids.copy(), np.array([1, len(ids) - 2])) for ids, _ in pieces[:3]]
    for ids, at in items:
        ids[at] = data.MASK
    for (ids, at), got in evaluation.ask(predict, items, 10_000):
        with torch.no_grad():
            want = net(torch.tensor(shift[ids])[None]).logits[0, at]
        torch.testing.assert_close(got[:, len(data.SPECIALS):], want, rtol=1e-4, atol=1e-5)
        assert (got[:, :len(data.SPECIALS)] < -1e8).all()  # ours are not among its answers


def test_in_one_table_with_a_run(folder, hub, straight, tmp_path):
    file, ckpt = tmp_path / 'f.json', f'{hub}/blank,{hub}/bert,{straight}/step_00000016.pt'
    evaluation.main(['--ppl', '--infill', '--separation', f'--ckpt={ckpt}', f'--data_dir={folder}', '--sources=a',
                     '--n_spans=20', '--n_pairs=20', '--spans=1,2', '--distances=1,3', f'--json={file}'])
    blank, bert, ours = json.loads(file.read_text('utf-8')).values()
    assert blank.keys() == bert.keys() == ours.keys()
    size = transformers.AutoConfig.from_pretrained(hub / 'blank').vocab_size
    assert blank['perplexity/a/perplexity'] == pytest.approx(size, rel=1e-5) and blank['perplexity/a/nats_per_char'] is None
    assert blank['separation/a/d1.divergence'] == 0 and blank['separation/a/d3.agreement'] == 1
    assert bert['separation/a/d3.divergence'] > 0.01 and bert['infill/a/span2.n'] == bert['separation/a/d1.n'] == 20
    assert math.isfinite(bert['perplexity/a/nats']) and bert['perplexity/a/nats'] != blank['perplexity/a/nats']


def test_what_a_folder_cannot_be_asked(folder, hub, monkeypatch, capsys):
    def line(*argv):
        return refused('eval.py', monkeypatch, capsys, *argv)
    assert 'ask a checkpoint of train.py' in line('--heads', f'--ckpt={hub}/bert', f'--data_dir={folder}')
    assert 'name a prepared folder' in line('--ppl', f'--ckpt={hub}/bert')
    assert 'needs a fast tokenizer' in line('--ppl', f'--ckpt={hub}/maskless', f'--data_dir={folder}')
    (hub / 'bert/odd').mkdir(exist_ok=True)
    (hub / 'bert/odd/config.json').write_text('{"model_type": "nothing"}')
    assert 'transformers cannot load it' in line('--ppl', f'--ckpt={hub}/bert/odd', f'--data_dir={folder}')
    net = transformers.AutoModelForMaskedLM.from_pretrained(hub / 'bert')
    net.bert.save_pretrained(hub / 'headless')  # an encoder without its head
    transformers.AutoTokenizer.from_pretrained(hub / 'bert').save_pretrained(hub / 'headless')
    assert 'no masked LM, cls.predictions.' in line('--ppl', f'--ckpt={hub}/headless', f'--data_dir={folder}')
    monkeypatch.setitem(sys.modules, 'transformers', None)
    assert 'pip install transformers' in line('--ppl', f'--ckpt={hub}/bert', f'--data_dir={folder}')

# make demo: Arabic text in, a trained and questioned encoder out. make test: the whole suite.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python

.PHONY: demo test clean

demo: $(VENV)/demo.done
	$(PY) demo_text.py
	$(PY) prepare.py config/demo_data.py
	$(PY) -m torch.distributed.run --standalone --nproc_per_node=$$($(PY) -c \
		"import os, torch; print(min(2, torch.cuda.device_count() or os.cpu_count()))") train.py config/tiny.py
	$(PY) eval.py --ppl
	$(PY) eval.py --infill --separation --sources=hadith,tafsir --n_spans=500 --n_pairs=500
	$(PY) eval.py --fill 'قال رسول الله صلى الله [MASK] وسلم'

test: $(VENV)/test.done
	$(PY) -m ruff check --select E9,F,B006,B023,E722 .
	$(PY) -m pytest -q tests

$(VENV)/core.done: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -r requirements.txt
	touch $@

$(VENV)/demo.done: $(VENV)/core.done requirements-demo.txt
	$(PY) -m pip install -q -r requirements-demo.txt
	touch $@

$(VENV)/test.done: $(VENV)/demo.done requirements-test.txt
	$(PY) -m pip install -q -r requirements-test.txt
	touch $@

clean:
	rm -rf $(VENV)

# Every target sets itself up: the first one run on a fresh machine makes .venv, later ones reinstall nothing.

PYTHON ?= $(or $(shell command -v python3.11),python3)
BIN := .venv/bin
# The stamp is named after the contents of what it depends on: only a change of these files installs again.
STAMP := .venv/.installed-$(shell cat setup.py constraints.txt | cksum | cut -d ' ' -f 1)
JOBS ?= 2

.PHONY: .venv demo test check soak bench experiments clean

.venv: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo 'error: Python 3.11 is needed: install python3.11, or say make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@rm -f .venv/.installed-*
	@touch $@

demo: .venv
	$(BIN)/python train.py --experiment=digits --mode=train_and_eval --model_dir=runs/digits
	@$(BIN)/python -m official_ext.cli.summary runs/digits

# Model Garden's own test modules are among the tests: tests/model_garden/official_tests_test.py.
test: check
	$(BIN)/python -m pytest -n $(JOBS)

check: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:xdist tests/import_direction_test.py

# Kills trainings and damages their checkpoints for MINUTES, then prints a table. The tests marked `soak` do the same at
# chosen moments: .venv/bin/python -m pytest -m soak
MINUTES ?= 60
soak: .venv
	$(BIN)/python -m tests.soak --minutes=$(MINUTES)

bench: .venv
	$(BIN)/python benchmarks/trainer_overhead.py
	$(BIN)/python benchmarks/reinforcement.py

# Trains every experiment of experiments/ to its end, and prints a table of times and results.
experiments: .venv
	$(BIN)/python benchmarks/all_experiments.py

clean:
	rm -rf runs build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

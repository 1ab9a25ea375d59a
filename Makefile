# Every target sets itself up: the first one run on a fresh machine makes .venv, later ones reinstall nothing.

SUPPORTED := 3.11 3.12 3.13
PYTHONS := $(SUPPORTED:%=python%)
version_of = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# The first that runs: pyenv leaves commands in PATH that do not.
PYTHON ?= $(or $(firstword $(foreach python,$(PYTHONS),$(if $(call version_of,$(python)),$(python)))),python3)
VERSION := $(call version_of,$(PYTHON))
VENV := .venv
BIN := $(VENV)/bin
# Stamps are named after the interpreter and the contents of what they depend on: only a change of these installs again.
# The first is for the library and its console, the second adds what tests and benchmarks need, PyTorch among it.
NAMED_AFTER := $(VERSION)-$(shell cat setup.py constraints.txt | cksum | cut -d ' ' -f 1)
CORE_STAMP := $(VENV)/.core-$(NAMED_AFTER)
TEST_STAMP := $(VENV)/.installed-$(NAMED_AFTER)
# uv installs several times as fast as pip. PyTorch only computes values for tests to compare with: the CPU build, which
# is a tenth of the other, comes from TORCH_INDEX if that can be reached.
UV := $(shell command -v uv 2>/dev/null)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
IS_REACHABLE = $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(TORCH_INDEX)/torch/", timeout=10)' 2>/dev/null
ifdef UV
INSTALL = $(UV) pip install --python $(BIN)/python --constraint constraints.txt
CPU_TORCH = --torch-backend=cpu
else
# pip before 23.1, as in Debian 12, else runs the setup.py of old packages, which fails beside a newer setuptools.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 --constraint constraints.txt
CPU_TORCH = --extra-index-url $(TORCH_INDEX)
endif
JOBS ?= 2
# Hundreds of test processes import the same files. Container images set this to stay small.
unexport PYTHONDONTWRITEBYTECODE

# Peers of the benchmark that must not come into .venv: plain Keras 3, JAX.
PEERS := .venv-peers
PEERS_NEED := benchmarks/peers/requirements.txt
PEERS_STAMP := $(PEERS)/.installed-$(VERSION)-$(shell cat $(PEERS_NEED) | cksum | cut -d ' ' -f 1)

# The published models of JobSet, which need other versions than .venv has.
MANIFESTS := .venv-manifests
MANIFESTS_NEED := tests/operations/engines/published.txt
MANIFESTS_STAMP := $(MANIFESTS)/.installed-$(VERSION)-$(shell cat $(MANIFESTS_NEED) | cksum | cut -d ' ' -f 1)

# The compiler of benchmarks.gpu: JAX's plugin for CUDA, which needs no GPU, but Python 3.12 or newer.
GPU := .venv-gpu-compiler
GPU_PYTHON ?= $(or $(firstword $(foreach python,python3.13 python3.12,$(if $(call version_of,$(python)),$(python)))),python3)
GPU_NEED := benchmarks/gpu/requirements.txt
GPU_STAMP := $(GPU)/.installed-$(shell cat $(GPU_NEED) | cksum | cut -d ' ' -f 1)

.PHONY: .venv .venv-test .venv-peers .venv-manifests .venv-gpu-compiler gpu-programs demo console test test-fast coverage test-all test-slow check newer-tensorflow pythons smoke manifests soak powercut bench bench-quick experiments docs clean

.venv: $(CORE_STAMP)

$(CORE_STAMP):
ifeq ($(filter $(VERSION),$(SUPPORTED)),)
	@echo 'error: $(PYTHON) $(if $(VERSION),is Python $(VERSION),does not run); one of $(SUPPORTED) is needed: install it' \
	  '(Debian 12 and 13, Ubuntu 24.04: apt install python3-venv), or say make PYTHON=/path/to/python3.12' >&2; exit 1
else
	@# An environment of another Python is made anew.
	@test "$(call version_of,$(BIN)/python)" = "$(VERSION)" || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[console]'
	@rm -f $(VENV)/.core-* $(VENV)/.installed-*
	@touch $@
endif

.venv-test: $(TEST_STAMP)

$(TEST_STAMP): $(CORE_STAMP)
	$(INSTALL) $$($(IS_REACHABLE) && echo '$(CPU_TORCH)') --editable '.[test]'
	@touch $@

.venv-peers: .venv $(PEERS_STAMP)

$(PEERS_STAMP):
	@rm -rf $(PEERS)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --requirement $(PEERS_NEED)
	@touch $@

.venv-gpu-compiler: $(GPU_STAMP)

$(GPU_STAMP):
	@rm -rf $(GPU)
	$(GPU_PYTHON) -m venv $(GPU)
	$(GPU)/bin/python -m pip install --disable-pip-version-check --requirement $(GPU_NEED)
	@touch $@

.venv-manifests: $(MANIFESTS_STAMP)

$(MANIFESTS_STAMP):
	@rm -rf $(MANIFESTS)
	$(PYTHON) -m venv $(MANIFESTS)
	$(MANIFESTS)/bin/python -m pip install --disable-pip-version-check --requirement $(MANIFESTS_NEED)
	@touch $@

demo: .venv
	$(BIN)/python train.py --experiment=digits --mode=train_and_eval --model_dir=runs/digits
	@$(BIN)/python -m official_ext.cli.main runs show runs/digits

# The runs of runs/ in a browser, until Ctrl-C: PORT=8421 for another port.
PORT ?= 8420
console: .venv
	@mkdir -p runs
	@$(BIN)/python -m official_ext.cli.main console runs --port=$(PORT)

# Every promise in its short form: 9 to 13 minutes on two cores of a slow EPYC (Zen 4).
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
test: check
	$(PYTEST)

# Operations, files, commands and similar, in three minutes: no process of these tests imports TensorFlow.
FAST := tests/base tests/operations tests/cli tests/data tests/docs tests/language/text tests/training/devices \
  tests/makefile_test.py tests/import_direction_test.py
TEST_FAST := $(PYTEST) --no-tensorflow --ignore=tests/operations/console/browser $(FAST)
test-fast: .venv-test
	$(TEST_FAST)

# Compiles training steps for an H100 without one, in some minutes, and fails if one has grown: see benchmarks/gpu.
gpu-programs: .venv-test .venv-gpu-compiler
	$(BIN)/python -m benchmarks.gpu --compiler=$(GPU)/bin/python

# The same, and fails if they cover less than the floor in pyproject.toml. Child processes are not counted.
coverage: .venv-test
	$(TEST_FAST) --cov --cov-report=term:skip-covered

# Everything but `make soak`, in an hour or more: Model Garden's own test modules with this library's trainer too.
test-all: check
	$(PYTEST) -m 'not soak'

# The tests of `make test-all` that `make test` leaves out. Model Garden's models fill the memory of the processes that
# build them, because compiled programs are never freed: they run in separate processes. PART=1/4 runs a quarter of both,
# by the times in tests/durations.json, which RECORD=1 renews for the tests that run.
PART ?= 1/1
SLOW = $(PYTEST) -m 'slow and not soak' --splitting-algorithm=least_duration \
  --durations-path=tests/durations.json $(if $(RECORD),--store-durations) \
  --group=$(firstword $(subst /, ,$(PART))) --splits=$(lastword $(subst /, ,$(PART)))
test-slow: .venv-test
	$(SLOW) tests/model_garden
	$(SLOW) --ignore=tests/model_garden

check: .venv-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:xdist tests/import_direction_test.py

# `make test` with a TensorFlow that Model Garden does not ask for: see docs/how_to/newer_tensorflow.md.
NEWER := tensorflow~=2.21.0 tf-keras~=2.21.0 tensorflow-text~=2.21.0
newer-tensorflow:
	$(MAKE) VENV=.venv-newer .venv-test
	.venv-newer/bin/python -m pip install --disable-pip-version-check --no-deps $(NEWER)
	$(MAKE) VENV=.venv-newer test

# The smoke part of the tests on each installed Python, in a separate environment: PYTHONS='python3.12 /path/to/python3.13'.
pythons:
	@for python in $(PYTHONS); do \
	  if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
	    $(MAKE) PYTHON=$$python VENV=.venv-$$version smoke || exit 1; \
	  else echo "$$python: not installed"; fi; \
	done

smoke: .venv-test
	$(BIN)/python -m pytest -n $(JOBS) tests/readme_test.py tests/docs tests/golden tests/cli tests/train_test.py \
	  tests/resume_test.py tests/training/step/step_random_test.py tests/training/checkpoints/manager_test.py tests/data

# The manifests for JobSet, against its published models.
manifests: .venv .venv-manifests
	$(BIN)/python -m pytest -p no:xdist tests/operations/engines/published_test.py tests/operations/engines/manifests_test.py

# Kills trainings and damages their checkpoints for MINUTES, then prints a table; then kills queues, sweeps and consoles,
# and workers, on this machine and on engines (SLURM, Ray) that are installed: an hour more.
# The tests marked `soak` do the same at chosen moments: .venv/bin/python -m pytest -m soak
MINUTES ?= 60
soak: .venv-test
	$(BIN)/python -m tests.soak --minutes=$(MINUTES)
	$(BIN)/python -m pytest -m soak tests/operations/runs tests/operations/curves tests/operations/queue tests/operations/sweeps tests/operations/console
	$(BIN)/python -m pytest -m soak tests/multi_worker_test.py tests/mesh_test.py tests/operations/engines tests/cli

# Records runs by strace, and cuts their power after every call: synced data must exist, and the same command must
# reach the same end. STATES=1000 tries about so many states of each scenario; RESTORES=N runs so many of them again.
STATES ?= 0
RESTORES ?= 6
powercut: .venv-test
	$(BIN)/python -m tests.powercut --states=$(STATES) --restores=$(RESTORES)

# Beside other libraries, on a machine that does nothing else; about an hour on two cores. Then memory beside PyTorch, and
# the curves of docs/concepts/performance.md: MEMORY=resnet50, GROWTH='metrics resume'. BENCH='a c' measures some workloads alone
# again, and keeps the tables of the others; see `python -m benchmarks.peers --help`. A failure does not stop the rest.
RESULTS ?= benchmarks/RESULTS.md
bench: .venv-test .venv-peers
	@status=0; try() { echo "$$*"; "$$@" || status=1; }; \
	  try $(BIN)/python -m benchmarks.peers $(BENCH) --results=$(RESULTS); \
	  if test -z '$(BENCH)'; then \
	    try $(BIN)/python benchmarks/reinforcement.py; \
	    try $(BIN)/python -m benchmarks.memory $(MEMORY); \
	    try $(BIN)/python -m benchmarks.growth $(GROWTH); \
	  fi; exit $$status

# Ratios beside the last recorded ones on such a processor, in ten minutes, before and after a change that is about speed;
# it fails if one is slower by more than its rounds differ.
bench-quick: .venv-test
	$(BIN)/python -m benchmarks.peers --quick=$(RESULTS)

# Trains every experiment of experiments/ to its end, and prints a table of times and results.
experiments: .venv-test
	$(BIN)/python benchmarks/all_experiments.py

# The pages of docs as a site in build/site: a broken link or anchor is an error. DOCS=serve shows it while you write.
DOCS ?= build
docs: .venv-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(DOCS) --strict

clean:
	rm -rf runs build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

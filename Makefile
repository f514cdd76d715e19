# Each target creates .venv when it is missing or when a pyproject.toml or constraints.txt is newer.
PYTHON ?= python3
VENV := .venv
AT_ONCE := --numprocesses auto --maxprocesses 8 --dist worksteal  # a process for each core
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# On every core, where pip compiles on one. Files that are for another version of Python do not compile.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gateways test-flower presets swarm crash power hostile fuzz device replay check bench clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: $(VENV)/.installed  ## Train one model with 20 clients over loopback sockets, through a played network, under a minute
	@$(BIN)/unstale demo

test: $(VENV)/.installed-test  ## Run the tests, but for those that test-slow runs
	$(BIN)/python -m pytest $(AT_ONCE) -m "not slow"

test-slow: $(VENV)/.installed-test  ## Run the tests of whole runs: killed processes, pods, alerts, pages in a browser
	$(BIN)/python -m pytest $(AT_ONCE) -m slow

test-gateways: $(VENV)/.installed-test  ## Run the tests of real servers with their connections in gateway processes
	GATEWAYS=1 $(BIN)/python -m pytest $(AT_ONCE) tests/server tests/keys tests/hostile tests/backbone tests/client tests/join

test-flower: $(VENV)/.installed-test  ## Run the slow tests of Flower's apps with four versions of flwr, not only the oldest and newest
	FLOWER=all $(BIN)/python -m pytest $(AT_ONCE) -m slow tests/flower

swarm: $(VENV)/.installed-test  ## Play seeded runs: SEEDS=10000, or SEED=17 with its transcript
	PYTHONPATH=tests $(BIN)/python -m swarm $(if $(SEED),--seed $(SEED) --verbose,--seeds $(or $(SEEDS),1000))

crash: $(VENV)/.installed-test  ## Kill processes of real runs: KILLS=200 SEED=5, or one run of a seed, SEED=5 RUN=3
	PYTHONPATH=tests $(BIN)/python -m crash --seed $(or $(SEED),0) $(if $(RUN),--run $(RUN),--kills $(or $(KILLS),200))

power: $(VENV)/.installed-test  ## Cut the power of simulated machines: FAILURES=1000, or SEED=11 alone
	PYTHONPATH=tests $(BIN)/python -m power $(if $(SEED),--seed $(SEED),--failures $(or $(FAILURES),200))

hostile: $(VENV)/.installed-test  ## Attack real servers: every attack once, or SEED=7 COUNT=10 for drawn combinations; GATEWAYS=1
	$(BIN)/python -m tests.hostile $(if $(SEED),--seed $(SEED) --count $(or $(COUNT),10))

fuzz: $(VENV)/.installed-fuzz  ## Look for input that breaks codec or server: SECONDS=60, or RUNS=100000 a target; SEED=1 repeats
	PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(RUNS),--runs $(RUNS),--seconds $(or $(SECONDS),60)) --seed $(or $(SEED),0)

check: $(VENV)/.installed-dev  ## Everything that must hold: ruff, import-linter, mypy --strict, tests
	PATH="$(abspath $(BIN)):$$PATH" scripts/check

bench: $(VENV)/.installed-bench  ## Run the benchmarks; figures go to benchmarks/results/
	PYTHONPATH=tests $(BIN)/python -m benchmarks

presets: $(VENV)/.installed-test  ## Compute every published table and figure, very small: PRESETS="fh-t2 ar-f1" for some
	PYTHONPATH=papers/tests $(BIN)/python -m presets $(PRESETS)

device: $(VENV)/.installed-test  ## Write the table of docs/device.md: how often each part waits for a CUDA device
	PYTHONPATH=tests $(BIN)/python -m device

replay: $(VENV)/.installed-bench  ## Record runs of 500 rounds and compute them again
	$(BIN)/python -m benchmarks.replay

clean:  ## Remove the virtual environment
	rm -rf $(VENV)

$(BIN)/python:
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "unstale needs Python 3.11 or later; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml client/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing unstale and what it needs (PyTorch is large: a few minutes the first time) ..."
	@$(PIP) --editable ./client --editable .
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-%: pyproject.toml client/pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing unstale with its '$*' extra, and the papers (PyTorch is large: a few minutes the first time) ..."
	@$(PIP) --editable ./client --editable '.[$*]' --editable ./papers
	@$(COMPILE)
	@touch $@ $(VENV)/.installed

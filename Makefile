# One verb, one thing. Every verb makes the virtual environment it needs when there is none.
#
#   make train               learn Pong          make train ARGS="--seed 2 --stop-after-seconds 60"
#   make test                the fast tests      make test ARGS="tests/ops -k returns"
#   make check               lint, format, types, layers, spelling
#   make bench               this machine's limits and how close training comes to them
#   make learn               the slow tests: they learn for minutes
#   make docs                settings and metrics pages from the code, then the site

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Another environment with other versions: make test VENV=.venv-lowest CONSTRAINTS=constraints-lowest.txt
CONSTRAINTS ?= constraints.txt
# Tests run in four processes: many wait, for seconds or for others to start. On two cores six took 1.1 times as
# long and 1.3 times the processor's time. ARGS="-n 0 --pdb" stops in the debugger.
# GOMP_SPINCOUNT=0 (in `test`): test processes have more threads than a small machine has cores, so
# waiting threads must sleep, not spin; OMP_NUM_THREADS=1: where a test asks for no number of threads, one
# takes less of the processor's time than two. Bytecode is kept: tests start hundreds of processes.
WORKERS ?= 4

# Two stamps: training and looking at runs need a few packages, developing many more.
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
# Errors show; warnings about package folders that a machine has configured and not got do not.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS)

.DEFAULT_GOAL := help
.PHONY: help train test check bench learn docs clean

help: ## list the verbs
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-7s %s\n", $$1, $$2}'

train: $(RUN_STAMP) ## learn Pong on this machine (ARGS= for more settings)
	@echo 'The command gossamer is $(BIN)/gossamer here. To go on after Ctrl-C: make train ARGS="--resume last"'
	@$(BIN)/gossamer train --config pong $(ARGS)

bench: $(RUN_STAMP) ## this machine's limits and how close training comes to them
	@$(BIN)/gossamer bench $(ARGS)

test: $(DEV_STAMP) ## the fast tests
	@PYTHONDONTWRITEBYTECODE= GOMP_SPINCOUNT=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n $(WORKERS) --dist loadgroup $(ARGS)

learn: $(DEV_STAMP) ## the slow tests: learning to a score, minutes each
	@$(BIN)/python -m pytest -q -m slow --timeout=1800 $(ARGS)

check: $(DEV_STAMP) ## lint, format, types, layers, spelling
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run '$(BIN)/ruff format .'"; exit 1; }
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/codespell
	@echo "check: lint, format, types, layers and spelling are clean"

docs: $(DEV_STAMP) ## settings and metrics pages from the code, then the site in site/
	@$(BIN)/python scripts/gen_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

clean: ## remove caches and build outputs; runs/ and the virtual environment stay
	@rm -rf build dist site htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; set PYTHON=python3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: gossamer needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@echo "making $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUN_STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing gossamer into $(VENV) (a minute or two, once)"
	@$(INSTALL) -e '.[atari,compare,dashboard,video]'
	@touch $@

$(DEV_STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing gossamer and its development tools into $(VENV) (a minute or two, once)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(RUN_STAMP)

# Everything runs in .venv; `make help` lists the targets.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PACKAGES := cli core diagnostics envs store
STAMP := $(VENV)/.installed
export TOKENIZERS_PARALLELISM := false

.PHONY: help install demo test test-kill lint bench policy clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Create .venv and install everything

# torch first and pinned: a wider range may resolve to gigabytes of CUDA libraries.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: install  ## Train the shipped small policy, about three minutes
	$(BIN)/echoscope demo $(if $(HEADLESS),--headless)

test: install lint  ## Lint, types, and all tests but the slow ones, with coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' \
	  --cov=echoscope.core --cov=echoscope.store --cov=echoscope.envs --cov=echoscope.diagnostics \
	  --cov-report=term:skip-covered --cov-fail-under=90

test-kill: install  ## Kill the writer 100 times and a real trainer 100 times
	OMP_NUM_THREADS=1 ECHOSCOPE_KILLS=100 $(BIN)/python -m pytest -m slow -k kill --timeout=7200

lint: install  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/echoscope
	ln -sfn $(CURDIR)/__init__.py $(CURDIR)/py.typed $(addprefix $(CURDIR)/,$(PACKAGES)) build/types/echoscope/
	cd build/types && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p echoscope

bench: install  ## Every measured claim of the README
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	for file in benchmarks/*.py; do OMP_NUM_THREADS=1 $(BIN)/python $$file || exit 1; done

policy: install  ## Make the shipped small policy again from the scripted experts
	$(BIN)/python -m echoscope.core.policy_assets

clean:  ## Remove what the targets made, but no runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage

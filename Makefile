# Everything on a fresh clone with Python 3.11+: `make run` measures, `make test` tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PACKAGES := src tests benchmarks tools
# Tests start the command many times: without compiled files each start would compile everything.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test check live bench docs lock format sizes

run: $(VENV)/.local
	$(BIN)/sakiyomi run $(ARGS)

test: $(VENV)/.dev
	$(BIN)/pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check $(PACKAGES)
	$(BIN)/ruff format --check $(PACKAGES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sizes.py

live: $(VENV)/.dev $(VENV)/.local
	$(BIN)/pytest -m live $(ARGS)

bench: $(VENV)/.dev $(VENV)/.local
	$(BIN)/python benchmarks/client_cost.py
	$(BIN)/python benchmarks/ruler.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/headers.py

docs: .cache/docs/.done
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --quiet

.cache/docs/.done: requirements/docs.txt
	$(PYTHON) -m venv .cache/docs
	.cache/docs/bin/python -m pip --disable-pip-version-check -q install -r requirements/docs.txt
	@touch $@

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(PACKAGES)
	$(BIN)/ruff format $(PACKAGES)

# Writes requirements/dev.txt from requirements/dev.in in a fresh environment.
lock:
	rm -rf .cache/lock && $(PYTHON) -m venv .cache/lock
	.cache/lock/bin/python -m pip -q install -r requirements/dev.in
	(echo "# make lock; from dev.in"; .cache/lock/bin/python -m pip freeze --exclude-editable) \
	  > requirements/dev.txt

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sakiyomi needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: pyproject.toml | $(VENV)/bin/python
	@echo "installing sakiyomi and the embedded engine (once)"
	$(PIP) install -e '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml requirements/dev.txt | $(VENV)/bin/python
	@echo "installing what development needs (once)"
	$(PIP) install -r requirements/dev.txt
	$(PIP) install --no-deps -e .
	@touch $@

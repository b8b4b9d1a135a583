# Every target sets itself up first (tools/setup_env.py); when nothing changed that takes a moment.
# PYTHON=python3.12 chooses the Python, ARGS=... goes to the command.
.DEFAULT_GOAL := help
.PHONY: help setup demo up test test-all check fix bench docs templates lock clean
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
PY := $(or $(PYTHON),$(shell for p in python3 python3.13 python3.12 python3.11; do command -v $$p && break; done))

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile | expand -t 17

setup: ## make .venv from requirements.lock (PYTHON=python3.12)
	@test -n "$(PY)" || { echo "Trace needs Python 3.11, 3.12 or 3.13, and there is no python3 on PATH." >&2; exit 1; }
	@"$(PY)" tools/setup_env.py

demo: setup ## the whole platform on a dev chain, start to end
	@$(BIN)/trace demo $(ARGS)

up: setup ## the platform, until Ctrl-C
	@$(BIN)/trace up $(ARGS)

# Tests start hundreds of Pythons, and each rewrites the asserts of what it imports: the result is kept, always.
test: export PYTHONDONTWRITEBYTECODE =
test: setup ## the tests but those marked long, in three processes (ARGS="tests/store -x", WORKERS=0 for one, EXTRAS=aws)
	@$(BIN)/python tools/get_anvil.py
	@$(if $(filter aws,$(EXTRAS)),$(BIN)/python tools/get_checkov.py)
	@$(BIN)/python -m pytest -n $(or $(WORKERS),3) $(addprefix --extra ,$(EXTRAS)) $(ARGS)

# Each option of tests/conftest.py that says how long or how many, large.
LONG := --long --timeout 3600 --storm-seconds 180 --fault-seconds 120 --storms 20 \
	--sql-examples 1000 --bomb-examples 1000 --prefix-examples 5000 --version-examples 300 --parity-examples 40000 \
	--scale-ins 1000 --switch-reads 10000 --generated-code

test-all: override ARGS := $(LONG) $(ARGS)
test-all: test ## every test, with long storms and many made-up examples; over an hour

check: setup ## ruff, mypy, import-linter, and a strict build of the documentation
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/mkdocs build --strict

fix: setup ## what ruff can repair by itself
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: setup ## every benchmark in bench/, one after the other
	@set -e; for f in $$(grep -ls '^if __name__ == "__main__"' bench/*.py); do \
		n=$${f##*/}; echo "bench.$${n%.py}"; $(BIN)/python -m "bench.$${n%.py}" $(ARGS); done

docs: setup ## the generated parts of docs/
	@$(BIN)/python -m tools.write_docs $(ARGS)

templates: setup ## the CloudFormation of deploy/aws
	@$(BIN)/python -m deploy.aws.render

lock: ## requirements.lock again from pyproject.toml (needs uv; ARGS=--upgrade)
	@"$(PY)" tools/lock $(ARGS)

clean: ## remove .venv and caches (never .trace, which holds data)
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build ./*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

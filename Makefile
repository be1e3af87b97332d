# `make demo` and `make test` are all that a fresh clone needs: both make .venv and install into it first.

VENV := .venv
BIN := $(VENV)/bin
CHECKED := src tests examples benchmarks
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
# The first of these that starts and is new enough; give your own with PYTHON=/path/to/python3
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test check docs install clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## tune the small maze model and show what changed
	$(BIN)/dtm train maze-small

test: $(VENV)/.installed-dev  ## run the tests
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

check: $(VENV)/.installed-dev  ## lint, formatting and types
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

docs: $(VENV)/.installed-docs  ## build the documentation site into build/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: $(VENV)/.installed-dev  ## make .venv with the package (editable) and the developer's tools

clean:  ## remove .venv, caches and build products; runs/ and results/ stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "dtm needs Python 3.11 or newer with its venv module, and found none." \
		"Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "dtm needs Python 3.11 or newer with its venv module; PYTHON=$(PYTHON)" \
		"is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes first: alone it resolves at once, and a failed download is then told apart from the rest.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@

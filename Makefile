# Dragoman. `make help` lists the targets; `make demo` and `make test` are the two to start with.
# ARGS goes to the program that a target runs: make test ARGS="tests/unit -k tokenizer"

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

# The first Python on the path that is new enough; `make PYTHON=/some/python3.12 setup` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup test demo bench bench-servers soak platforms lint types format protos chart dashboards clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with everything in it

$(INSTALLED): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo 'Dragoman needs Python 3.11 or newer. Name one with: make PYTHON=/path/to/python3.12 setup' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo 'Installing into $(VENV); the first time this fetches PyTorch and takes a few minutes.'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Two processes, the tests of a file in one, in the order of tests/conftest.py: most tests wait more than they compute.
test: setup ## run every test
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

demo: setup ## serve the shipped model, send it real requests, show the answers and the metrics
	@$(BIN)/python -m dragoman.demo $(ARGS)

bench: setup ## measure the server beside its step loop and CTranslate2: ten minutes
	@$(BIN)/python -m tests.benchmark $(ARGS)
	@$(BIN)/python -m tests.benchmark.page
	@$(BIN)/python -m tests.benchmark.readme

bench-servers: setup ## measure the server beside Triton and a plain asyncio server, in int8: ten minutes
	@$(BIN)/python -m tests.benchmark.servers $(ARGS)
	@$(BIN)/python -m tests.benchmark.page

soak: setup ## load a server for ten minutes with all that clients do, and see what they leave behind
	@$(BIN)/python -m tests.soak $(ARGS)

platforms: setup ## hold the answers of emulated processors, x86 and ARM64, against this one's: ten minutes
	@$(BIN)/python -m tests.platforms $(ARGS)
	@$(BIN)/python -m tests.platforms --arm64 $(ARGS)

lint: setup ## check formatting, lint and the direction of imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: setup ## check types
	@$(BIN)/mypy

format: setup ## rewrite the code in the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

protos: setup ## renew the stubs in protos/dragoman/v1 from the .proto files
	@$(BIN)/python protos/generate.py

chart: setup ## renew what is made from the Helm chart and from the server's options in deploy/
	@$(BIN)/python -m deploy.generate

dashboards: setup ## renew the dashboards and recording rules from deploy/monitoring/build
	@$(BIN)/python -m deploy.monitoring.build

clean: ## remove .venv, caches and what was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find training export server protos tests -name __pycache__ -type d -prune -exec rm -rf {} +

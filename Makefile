# Dragoman. `make help` lists the targets; `make demo` and `make test` are the two to start with.
# ARGS is passed to the program that a target runs: make test ARGS="tests/unit -k tokenizer"

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Stamps of what is installed: the server; all but Ray and pyarrow; everything. Each includes the ones before it.
SERVES := $(VENV)/.serves
INSTALLED := $(VENV)/.installed
TESTS := $(VENV)/.tests
ARGS ?=

# The first Python on the path that is recent enough; override with `make PYTHON=/some/python3.12 setup`.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests test demo bench bench-servers soak platforms lint types format protos chart dashboards clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv with all dependencies but Ray and pyarrow, which only some tests need

setup-tests: $(TESTS) ## create .venv with all dependencies

# $(call install,EXTRAS,STAMPS,MESSAGE)
# Python compiles what a program imports. To compile all of PyTorch beforehand takes as long as to install it.
define install
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo 'Dragoman needs Python 3.11 or newer. Specify one: make PYTHON=/path/to/python3.12 setup' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	@echo 'Installing into $(VENV); the first time, this $(3).'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[$(1)]'
	@touch $(2)
endef

$(SERVES): pyproject.toml constraints.txt
	$(call install,server,$(SERVES),takes a minute)

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,dev,$(SERVES) $(INSTALLED),downloads PyTorch and takes a few minutes)

$(TESTS): pyproject.toml constraints.txt
	$(call install,test,$(SERVES) $(INSTALLED) $(TESTS),downloads PyTorch and takes a few minutes)

# Two processes, each with whole files in the order of tests/conftest.py: most tests wait more than they compute.
test: setup-tests ## run all tests
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

demo: $(SERVES) ## serve the shipped model, send requests, show answers and metrics
	@$(BIN)/python -m dragoman.demo $(ARGS)

bench: setup ## compare the server with its bare step loop, CTranslate2 and transformers: a quarter of an hour
	@$(BIN)/python -m tests.benchmark $(ARGS)
	@$(BIN)/python -m tests.benchmark.imports $(ARGS)
	@$(BIN)/python -m tests.benchmark.page
	@$(BIN)/python -m tests.benchmark.readme

bench-servers: setup ## compare the server with Triton and a plain asyncio server, in int8: ten minutes
	@$(BIN)/python -m tests.benchmark.servers $(ARGS)
	@$(BIN)/python -m tests.benchmark.page

soak: setup ## load a server for ten minutes with good and bad clients, and check what they leave behind
	@$(BIN)/python -m tests.soak $(ARGS)

platforms: setup ## compare answers of emulated x86 and ARM64 processors with this one's: ten minutes
	@$(BIN)/python -m tests.platforms $(ARGS)
	@$(BIN)/python -m tests.platforms --arm64 $(ARGS)

lint: setup ## check formatting, lint and import layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: setup ## check types
	@$(BIN)/mypy

format: setup ## format the code and fix lint
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

protos: setup ## regenerate the stubs in protos/dragoman/v1 from the .proto files
	@$(BIN)/python protos/generate.py

chart: setup ## regenerate the files in deploy/ made from the Helm chart and the server's options
	@$(BIN)/python -m deploy.generate

dashboards: setup ## regenerate the dashboards and recording rules from deploy/monitoring/build
	@$(BIN)/python -m deploy.monitoring.build

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find training export server protos tests -name __pycache__ -type d -prune -exec rm -rf {} +

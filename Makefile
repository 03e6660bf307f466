# Targets install what they need: uv below .tools, Python packages in .venv, the lab's programs in the user's cache directory.
SHELL := /bin/sh
.DEFAULT_GOAL := help
export UV_PYTHON_DOWNLOADS ?= never
unexport PYTHONDONTWRITEBYTECODE

RUN = uv=$$(.ci/uv) && UV=$$uv $$uv run --quiet --frozen --all-extras --all-groups
ARGS ?=

.PHONY: help demo lab lab-down test test-all test-pythons check format bench chaos

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Measure latency, place pods with both schedulers, compare; ARGS="--json --placement affinity"
	@$(RUN) python -m lab demo $(ARGS)

lab: ## Start a lab that keeps running; `make lab-down` stops it
	@$(RUN) python -m lab up --programs $(ARGS)

lab-down: ## Stop the lab
	@$(RUN) python -m lab down $(ARGS)

test: ## Run unit tests, and an integration test of each rule; ARGS=tests/unit runs a part
	@$(RUN) .ci/test $(ARGS)

test-all: ## Run all tests, also with real nodes, Kubernetes minors, Prometheus, browser; ARGS="-m browser" runs one group
	@$(RUN) .ci/test --all $(ARGS)

test-pythons: ## Run unit tests on the other supported Pythons that are installed
	@UV=$$(.ci/uv) .ci/unit-pythons $(ARGS)

check: ## Check lint rules, types, import layers and dependencies
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy kubekit netperf agent controller lab tests docs
	@$(RUN) lint-imports
	@$(RUN) deptry .

format: ## Format code
	@$(RUN) ruff check --fix-only .
	@$(RUN) ruff format .

bench: ## Check budgets of time and memory; ARGS=--json prints one JSON object
	@$(RUN) python tests/bench/run.py $(ARGS)

chaos: ## Inject random faults into a lab for ten minutes, then check the audit log; ARGS="--seed 7 --minutes 2"
	@$(RUN) python -m tests.chaos $(ARGS)

include release.mk

# Targets install what they need: uv below .tools, Python packages in .venv, the lab's programs in the user's cache directory.
SHELL := /bin/sh
.DEFAULT_GOAL := help
export UV_PYTHON_DOWNLOADS ?= never
unexport PYTHONDONTWRITEBYTECODE

RUN = uv=$$(.ci/uv) && UV=$$uv $$uv run --quiet --frozen --all-extras --all-groups
ARGS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Measure latency, place pods and compare; ARGS=--json prints one JSON object, ARGS="--placement affinity" uses no extender
	@$(RUN) python -m lab demo $(ARGS)

.PHONY: lab
lab: ## Start a lab that keeps running; `make lab-down` stops it
	@$(RUN) python -m lab up --programs $(ARGS)

.PHONY: lab-down
lab-down: ## Stop the lab
	@$(RUN) python -m lab down $(ARGS)

.PHONY: test
test: ## Unit tests, and an integration test of each rule; ARGS=tests/unit for a part
	@$(RUN) .ci/test $(ARGS)

.PHONY: test-all
test-all: ## All tests, also real nodes, other Kubernetes minors, Prometheus, browser, ...; ARGS="-m browser" for one group
	@$(RUN) .ci/test --all $(ARGS)

.PHONY: test-pythons
test-pythons: ## Unit tests on the other supported Pythons that are installed
	@UV=$$(.ci/uv) .ci/unit-pythons $(ARGS)

.PHONY: check
check: ## Check lint rules, types, import layers and dependencies
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy kubekit netperf agent controller lab tests
	@$(RUN) lint-imports
	@$(RUN) deptry .

.PHONY: format
format: ## Format code
	@$(RUN) ruff check --fix-only .
	@$(RUN) ruff format .

.PHONY: bench
bench: ## Check budgets of time and memory; ARGS=--json prints one JSON object
	@$(RUN) python tests/bench/run.py $(ARGS)

.PHONY: chaos
chaos: ## Random faults on a lab for ten minutes, then a check of the audit log; ARGS="--seed 7 --minutes 2"
	@$(RUN) python -m tests.chaos $(ARGS)

include release.mk

# Everything sets itself up: uv is found or installed below .tools, Python packages go to .venv, the lab's binaries to the
# user's cache directory. See README.md.
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
demo: ## The main job on real input; ARGS=--json prints one JSON object, ARGS="--placement affinity" uses no extender
	@$(RUN) python -m lab demo $(ARGS)

.PHONY: lab
lab: ## A lab left running to play with; `make lab-down` ends it
	@$(RUN) python -m lab up --programs $(ARGS)

.PHONY: lab-down
lab-down: ## End the lab
	@$(RUN) python -m lab down $(ARGS)

.PHONY: test
test: ## Unit tests, and each rule once on real parts; ARGS=tests/unit for some
	@$(RUN) .ci/test $(ARGS)

.PHONY: test-all
test-all: ## Every test: real nodes, other Kubernetes minors, Prometheus, browser, ...; ARGS="-m browser" for one group
	@$(RUN) .ci/test --all $(ARGS)

.PHONY: test-pythons
test-pythons: ## Unit tests on each other supported Python that this machine has
	@UV=$$(.ci/uv) .ci/unit-pythons $(ARGS)

.PHONY: check
check: ## Lint, types, layers, dependencies
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy kubekit netperf agent controller lab tests
	@$(RUN) lint-imports
	@$(RUN) deptry .

.PHONY: format
format: ## Put code into its standard form
	@$(RUN) ruff check --fix-only .
	@$(RUN) ruff format .

.PHONY: bench
bench: ## Measure the budgets; ARGS=--json prints one JSON object
	@$(RUN) python tests/bench/run.py $(ARGS)

.PHONY: chaos
chaos: ## Ten minutes of random faults on a lab, then a check of what happened; ARGS="--seed 7 --minutes 2" for others
	@$(RUN) python -m tests.chaos $(ARGS)

include release.mk

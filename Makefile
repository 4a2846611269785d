# Everything a developer types. `make` alone prints this help.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo demo-short test unit thorough chaos-consumer lint types imports check format generate bench services clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/onceward: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --group test
	@touch $@

install: $(BIN)/onceward ## Make the virtual environment (.venv) with everything in it

demo: install ## Run the human-resources scenario on real services and prove its result
	$(BIN)/python -m examples.hr.demo

demo-short: install ## The same for 400 employees
	$(BIN)/python -m examples.hr.demo --employees 400 --failing 4 --outage 5

test: install ## Run every test, on real services started for it
	$(BIN)/python -m pytest

unit: install ## Run the tests that need no service
	$(BIN)/python -m pytest tests/unit

chaos-consumer: install ## Attack the consumer in all modes, 200,000 commands each, and send it 100,000 spoiled records (hours)
	$(BIN)/python -m tests.chaos.fuzz_trial
	$(BIN)/python -m tests.chaos

thorough: install ## The tests that need no service, property tests with many more examples: takes minutes
	ONCEWARD_HYPOTHESIS=thorough $(BIN)/python -m pytest tests/unit

lint: install ## Check style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: install ## Check types
	$(BIN)/python -m mypy

imports: install ## Check that imports point one way
	$(BIN)/lint-imports

check: lint types imports ## Check style, types and imports

format: install ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

generate: install ## Write again what is generated: command classes, docs/events.md, docs/settings.md
	$(BIN)/onceward schemas generate examples/hr/schemas --out examples/hr/commands.py
	$(BIN)/onceward schemas generate tests/support/schemas --out tests/support/commands.py
	$(BIN)/python -m onceward_runtime.events > docs/events.md
	$(BIN)/python -m onceward_runtime.settings_page > docs/settings.md

bench: install ## Measure against the hand-written references, ratios in one run
	$(BIN)/python -m benchmarks

services: install ## Start Kafka, PostgreSQL and the registry for development
	$(BIN)/onceward dev up

clean: ## Remove caches and the virtual environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

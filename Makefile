# Each target sets up .venv first: see .ci/setup. Needs git, make and Python >= 3.11.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The modules that judge: `make coverage` holds them, and the whole, to [tool.coverage.report] fail_under.
CORE := amounts boundary budgets calls catalogue charging context detectors findings fingerprint/* generators hints history \
	ledger/* limits model_names money pipeline policy policy_checks policy_file policy_syntax prices pricing refusal run \
	run_state scratchpad spending tools verdict
comma := ,
empty :=
space := $(empty) $(empty)

.PHONY: help setup demo test test-libraries stack stack-up check lint coverage bench clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv

$(READY): pyproject.toml uv.lock .ci/setup
	@sh .ci/setup $(VENV)
	@touch $@

demo: $(READY)  ## five agents under the guard, no network: who is stopped, and why
	@$(BIN)/loopwatch demo

test: $(READY)  ## the tests
	@$(BIN)/python -m pytest -q -n auto -m "not libraries"

test-libraries: $(READY)  ## the tests with other libraries, in environments of their own (half a GB, kept in ~/.cache)
	@$(BIN)/python .ci/libraries
	@$(BIN)/python -m pytest -q -n auto -m libraries

lint: $(READY)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

stack: $(READY)  ## the real collector, Prometheus, Alertmanager (built by Go) and Redis in .stack/bin; minutes, once
	@$(BIN)/python .ci/stack

stack-up: $(READY)  ## run them on 127.0.0.1 with the demo agents, until Ctrl-C
	@$(BIN)/python stack/local_stack.py

check: lint test  ## lint and test

coverage: $(READY)  ## the tests under branch coverage; the modules that judge must be covered
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q -n auto -m "not measure and not libraries" --ignore tests/stack \
		--ignore tests/test_panels_live.py --deselect tests/test_alerts.py::test_the_unit_tests_of_the_rules \
		--deselect tests/test_alerts.py::test_the_unit_tests_notice_thresholds_that_are_never_reached
	@$(BIN)/coverage combine -q
	$(BIN)/coverage report
	$(BIN)/coverage report --include='$(subst $(space),$(comma),$(CORE:%=otel_loopwatch/%.py))'

bench: $(READY)  ## cost against a plain span, as ratios of one run
	@$(BIN)/python benchmarks/overhead.py
	@$(BIN)/python benchmarks/hashing.py
	@$(BIN)/python benchmarks/scale.py

clean:  ## remove .venv and caches
	rm -rf $(VENV) .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist

# `make demo` runs the embedded demo hunt, `make test` and `make test-slow` the tests; each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready
PYTEST := $(VENV)/bin/pytest -q --dist loadgroup --durations 30
WORKERS ?= 4
TESTS := $(PYTEST) -n $(WORKERS) $(ARGS)

.PHONY: demo test test-slow calibrate unit lint compiled packages test-packages clean

demo: packages $(STAMP)
	$(VENV)/bin/bisect demo $(ARGS)

# More workers than cores: many of these tests wait for the programs that they start.
test: test-packages $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint compiled
	$(TESTS) -m "not slow and not calibrate"

# Hunts here are right with a probability, by measurements of a machine that other tests load. A test that fails is run once
# more, alone, and stays in the output.
test-slow: test-packages $(STAMP)
	$(TESTS) -m "slow and not calibrate" || { test $$? = 1 && echo "What failed is run once more, alone:" && \
		$(TESTS) -m "slow and not calibrate" -n 1 -x --last-failed --last-failed-no-failures none; }

# What takes hours and changes with the search only; its results stand in benchmarks/calibration.md.
calibrate: test-packages $(STAMP)
	$(TESTS) -m calibrate

unit: $(STAMP)
	$(PYTEST) -n 2 -m "not slow and not calibrate and not tools and not dbms and not e2e and not calibration" $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/python tests/words.py

# Once, beside the linters: on a clean checkout each worker would compile all tests for itself.
compiled: $(STAMP)
	@$(VENV)/bin/pytest -q --collect-only >.pytest.log || { cat .pytest.log; exit 1; }
	@rm .pytest.log

packages:
	@sh setup/packages.sh

test-packages:
	@sh setup/packages.sh tests

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is older. Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/pip
	@echo "Installing Python packages into $(VENV): some minutes where the machine or the network is slow."
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# `make demo` runs the embedded demo hunt, `make test` passes the tests; each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.ready

.PHONY: demo test unit lint packages test-packages clean

demo: packages $(STAMP)
	$(VENV)/bin/bisect demo $(ARGS)

test: test-packages $(STAMP) lint
	$(VENV)/bin/pytest -q -n 2 $(ARGS)

unit: $(STAMP)
	$(VENV)/bin/pytest -q -n 2 -m "not tools and not dbms and not e2e and not calibration" $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

packages:
	@sh setup/packages.sh

test-packages:
	@sh setup/packages.sh tests

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is older. Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

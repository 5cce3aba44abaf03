# make demo   set up, train the main job on embedded data, show its score, predictions and a picture
# make test   set up, then style, types, import contracts and tests
#
# Both work on a bare machine with Python 3.11 or newer and change nothing outside this folder.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := runs/demo
# Twice quiet: warnings are hidden, errors are shown.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# The first of these that is new enough and can make a virtual environment; PYTHON=... overrides.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

.PHONY: help install install-test demo test format clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(VENV)/.installed

install-test: $(VENV)/.installed-test

# Torch comes first and alone, so that a CPU build is taken where the index offers one.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer with its venv module (on Debian: python3-venv); say PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "Making a virtual environment in $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing regard and what it needs into $(VENV) (some minutes the first time)"
	@$(PIP) install -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing what the tests need"
	@$(PIP) install -c constraints.txt -e ".[data,test]"
	@touch $@

# The run folder belongs to this target alone: it starts afresh every time.
demo: install
	@rm -rf $(DEMO)
	$(BIN)/regard train dates --run $(DEMO)
	$(BIN)/regard evaluate $(DEMO)
	printf '%s\n' "3 maart 2019" "Tuesday, 12th of May 1998" "samedi 14 juillet 2029" "4. huhtikuuta 2011" \
		| $(BIN)/regard predict $(DEMO) -
	$(BIN)/regard look $(DEMO) "Tuesday, 12th of May 1998" --out $(DEMO)/attention.png
	@echo "The picture of where it looked: $(DEMO)/attention.png"

test: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m pytest

format: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) build dist

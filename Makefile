# make demo       set up, train a Transformer on embedded dates, show its score, predictions and attention
# make test       set up, then check style, types and import contracts, and run the tests
# make report     test coverage and the twenty slowest tests: figures to read, not limits
# make test-next  the tests with the newest torch, numba and llvmlite, in an environment of their own: NEXT="torch==2.14.0"
# make campaigns  random tests of reads, engines, files, folders, options and kills, an hour or more: SEED=... CASES=... NAMES="reads files"
# make viewer     build regard/look/page/page.html from viewer/ (needs Node.js with npm)
# make gallery    pages and pictures of the attention of trained runs, for the docs: RUNS="runs/a runs/b"
#
# They need Python 3.11 or newer, and change nothing outside this folder, with one exception: the
# tests of the viewer need Chromium; if there is none, `make test` installs it, as root on Debian by apt-get,
# elsewhere by Playwright into its own cache.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := runs/demo
# Tests side by side, files whole, the longest first (tests/conftest.py), each process with one thread. Three for two
# cores: some tests wait for a browser or another program.
JOBS ?= 3
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Bytecode is saved even where the environment disables it: the tests start many programs, and each would compile all.
TESTING := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONDONTWRITEBYTECODE=
# Twice quiet: warnings are hidden, errors are shown.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet

# The first of these that is new enough and can make a virtual environment; PYTHON=... overrides.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

.PHONY: help install install-test install-browser demo test check compile-float32 compile-float64 compile-models test-viewer test-next report campaigns viewer gallery format clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(VENV)/.bytecode

install-test: $(VENV)/.installed-test

# Torch comes first and alone, so that a CPU build is taken where the index offers one.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or newer with its venv module (on Debian: python3-venv); say PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "Making a virtual environment in $(VENV) with $(PYTHON)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing regard and what it needs into $(VENV) (some minutes the first time)"
	@$(PIP) install --no-compile -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@$(PIP) install --no-compile -c constraints.txt -e ".[train]"
	@touch $@

# Bytecode of all packages, on all cores; pip compiles on one. The tests compile what they import.
$(VENV)/.bytecode: $(VENV)/.installed
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true  # some hold files of other Pythons
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "Installing what the tests need"
	@$(BIN)/python -m tests.requirements | $(PIP) install --no-compile -c constraints.txt -r /dev/stdin
	@touch $@

# The viewer's tests need a browser: the system's, Debian's, or the one that Playwright fetches.
BROWSERS := chromium chromium-browser google-chrome
install-browser: install-test
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	echo "Installing Chromium, which the viewer's tests need"; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; \
	then apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else $(BIN)/playwright install chromium; fi

# A smaller model than that of the recipe, in fewer examples (benchmarks/README.md).
DEMO_OPTIONS := --model.core.layers 2 --model.core.decoder-layers 1 --model.core.positions rotary \
	--source-tokenizer.vocab-size 800 --train.optimizer muon --train.batch-tokens 2048 \
	--train.steps 1000 --train.warmup 50 --train.validate-every 500
# The run folder belongs to this target alone: it starts afresh every time.
demo: install
	@rm -rf $(DEMO)
	$(BIN)/regard train dates --run $(DEMO) $(DEMO_OPTIONS)
	$(BIN)/regard evaluate $(DEMO)
	printf '%s\n' "3 maart 2019" "Tuesday, 12th of May 1998" "samedi 14 juillet 2029" "4. huhtikuuta 2011" \
		| $(BIN)/regard predict $(DEMO) -
	@mkdir -p $(DEMO)/looks
	$(BIN)/regard look $(DEMO) "Tuesday, 12th of May 1998" --out $(DEMO)/looks/attention.png
	$(BIN)/regard look $(DEMO) "Tuesday, 12th of May 1998" "3 maart 2019" --out $(DEMO)/looks/look.html
	@echo "Where it looked: $(DEMO)/looks/attention.png, and as a page to explore $(DEMO)/looks/look.html"

# The viewer's sources are checked while packages are installed; then checks and compilation run side by side.
test: $(VENV)/.installed
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=line install-browser check compile-float32 compile-float64 compile-models
	$(TESTING) $(BIN)/python -m pytest $(SIDE_BY_SIDE) -r s

check: install-test test-viewer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports --no-cache --no-logo

compile-float32 compile-float64 compile-models: install-test
	$(TESTING) $(BIN)/python -m tests.warm_up $(@:compile-%=%)

# Without npm the built page is tested all the same, by the tests in a browser.
test-viewer:
	@if command -v npm >/dev/null; then cd viewer && npm ci --silent --no-audit --no-fund && npm run --silent check && npm test --silent; \
	else echo "make: no npm, so the viewer's sources are not checked; its built page is"; fi

report: install-test install-browser
	$(TESTING) $(BIN)/python -m pytest $(SIDE_BY_SIDE) -q --durations=20 --cov=regard --cov-report=term

# Beyond the bounds of pyproject.toml, which are lifted here. All other packages are those of constraints.txt.
NEXT ?= torch numba llvmlite
VENV_NEXT ?= .venv-next
test-next: install-browser
	@$(VENV_NEXT)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV_NEXT)
	@grep -v -E '^(torch|numba|llvmlite|triton)==' constraints.txt > $(VENV_NEXT)/constraints.txt
	@$(BIN)/python -m tests.requirements > $(VENV_NEXT)/requirements.txt
	$(VENV_NEXT)/bin/python -m pip --disable-pip-version-check --quiet install -c $(VENV_NEXT)/constraints.txt $(NEXT) -r $(VENV_NEXT)/requirements.txt
	$(VENV_NEXT)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -e .
	$(TESTING) $(VENV_NEXT)/bin/python -m pytest $(SIDE_BY_SIDE) tests/compat tests

# Random cases by the thousand; `make test` runs a sample of each. Each process computes with one thread.
SEED ?= 1
campaigns: install-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaigns $(NAMES) --seed $(SEED) --processes $(JOBS) $(if $(CASES),--cases $(CASES))

viewer:
	cd viewer && npm ci --silent --no-audit --no-fund && npm run --silent build

gallery: install-browser
	$(BIN)/python -m docs.gallery.make $(RUNS)

format: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV_NEXT) $(DEMO) build dist

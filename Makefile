# Needs Python 3.11 or later. make creates the virtual environment on first use, and again when
# pyproject.toml changes. With Java 17, the tests of the Spark pipeline run too.

# The demo uses the newest Python that works on this machine. Tests use the Python that you chose, because it decides which
# Django is installed. Each name is tried, because a shim of pyenv may exist for a version that is not active.
NEWEST = $(shell for one in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$one -c "import ensurepip, ssl, venv" >/dev/null 2>&1 && { echo $$one; break; }; done)
PYTHON ?= $(if $(filter demo play,$(MAKECMDGOALS)),$(or $(NEWEST),python3),python3)
VENV ?= .venv
PY := $(VENV)/bin/python
ARGS ?=
# With npm, the tests check every page with axe-core. It is no part of the package.
AXE := $(if $(shell npm --version 2>/dev/null),tests/browser/node_modules/.package-lock.json)

comma := ,
JAVA := $(shell java -version >/dev/null 2>&1 && echo yes)
DEMO_EXTRAS ?= demo,tasks
DEV_EXTRAS ?= dev,docs,demo,prometheus,opentelemetry,tasks$(if $(JAVA),$(comma)spark)

ifdef NO_SKIPS
export JOBQUEUE_NO_SKIPS := $(NO_SKIPS)
endif

.PHONY: help demo play report test lint bench bench-spark nemesis mutants docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/.demo-installed  ## open a shop in your browser, with workers, customers and the admin; ARGS='--port 8001'
	@$(PY) -m example_project.demo $(ARGS)

play: $(VENV)/.demo-installed  ## show strict order in your terminal, in twelve seconds
	@$(PY) -m example_project.play $(ARGS)

report: $(VENV)/.report-installed  ## archive and analyze the jobs of the demo's shop, and open the report; needs Java 17
	@$(PY) -m example_project.report $(ARGS)

# Races and faults have a run of their own, because they depend on the clock. They mostly wait, so three processes
# share two processors. Tests of one file run in one process, because they share a server.
test: $(VENV)/.dev-installed $(AXE)  ## run every test that this machine can run; NO_SKIPS=1: skips are failures
ifeq ($(strip $(ARGS)),)
	$(PY) -m pytest -q -n 2 --dist loadgroup -m "not concurrency and not faults"
	$(PY) -m pytest -q -n 3 --dist loadfile -m "concurrency or faults"
else
	$(PY) -m pytest -q $(ARGS)
endif

lint: $(VENV)/.dev-installed  ## check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(VENV)/.dev-installed  ## measure the speed on this machine
	$(PY) -m tests.benchmarks $(ARGS)

bench-spark: $(VENV)/.dev-installed  ## measure the pipeline, compared with Spark's own JDBC source; needs libpostgresql-jdbc-java
	$(PY) -m tests.benchmarks.spark $(ARGS)

nemesis: $(VENV)/.dev-installed  ## try to break every promise: ARGS="--minutes 10 --seed 7 --configuration default"
	$(PY) -m tests.nemesis $(ARGS)

mutants: $(VENV)/.dev-installed  ## check that a test fails without each condition of the SQL and of the deciding functions: ARGS="--minutes 50"
	$(PY) -m tests.mutants $(ARGS)

docs: $(VENV)/.dev-installed  ## build the documentation in docs/_build
	$(PY) -m sphinx -W --keep-going -q docs docs/_build

clean:  ## remove all that make created
	rm -rf $(VENV) .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build build dist

$(VENV)/.demo-installed: pyproject.toml | $(PY)
	$(call install,$(DEMO_EXTRAS))

$(VENV)/.report-installed: pyproject.toml | $(PY)
	$(call install,$(DEMO_EXTRAS)$(comma)spark)

$(VENV)/.dev-installed: pyproject.toml | $(PY)
	$(call install,$(DEV_EXTRAS))

tests/browser/node_modules/.package-lock.json: tests/browser/package-lock.json
	cd tests/browser && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "django-jobqueue needs Python 3.11 or later: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "The venv module is missing: apt-get install python3-venv" >&2; exit 1; }

# Uses uv if it is installed or can be installed, because it is many times faster; otherwise pip.
define install
	@echo "installing .[$(1)] into $(VENV)"
	@if uv --version >/dev/null 2>&1; then uv=uv; \
	else $(PY) -m pip install --quiet uv || true; uv=$(VENV)/bin/uv; fi; \
	$$uv pip install --quiet --python $(PY) -e '.[$(1)]' || \
	$(PY) -m pip install --quiet -e '.[$(1)]'
	@touch $@
endef

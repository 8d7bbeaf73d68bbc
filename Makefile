.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.installed-demo
UI := $(VENV)/.installed-ui
COMMA := ,
PROTOC := $(VENV)/protoc
DOCS := $(VENV)/docs
DG := $(VENV)/dg
PLOTS := $(VENV)/plots
PROTO_OUT ?= lance_dagster/format/_proto
# The first that is new enough; looked for only when .venv has to be made.
PYTHON = $(shell for python in python3.11 python3; do \
  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check

export DAGSTER_DISABLE_TELEMETRY := yes

# Where the demo keeps its tables: on this disk, or on the S3 server of the tests, which needs no account.
STORE ?= local

# The first seed of the random histories and how many there are; the factor by which property tests run longer.
SEEDS ?= 1:5000
SOAK ?= 10
# Three processes for two cores, because tests wait for programs that they start; no more than usual memory holds.
WORKERS ?= $(shell count=$$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )); echo $$(( count < 8 ? count : 8 )))
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
# The marks of tests that have a target of their own.
ELSEWHERE := (soak or cluster or ceph)

.PHONY: help install demo ui test test-slow azurite test-azure test-ceph test-cluster soak supported lint proto docs bench lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)$$/  make \1\t\2/' | expand -t 21

# What makes $(VENV) where it is missing, and installs the checkout with some extras. The stamps are written last: an
# interrupted installation starts again.
define installed
	@if [ -z "$(PYTHON)" ]; then \
	  echo "make: Python 3.11 or newer is needed, as python3.11 or python3 on the PATH" >&2; exit 1; \
	fi
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "make: this Python cannot make a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; \
	}
	@echo "Installing what $(2) needs, in the releases of requirements.lock; the first time this downloads $(3)"
	$(PIP) install --constraint requirements.lock pip
	$(PIP) install --constraint requirements.lock --editable '.[$(1)]'
endef

install: $(STAMP) ## Make .venv with everything this checkout needs, Java included; nothing to do when nothing changed

# It has all that the other two have, so their targets then install nothing more.
$(STAMP): pyproject.toml requirements.lock
	$(call installed,dev,the whole checkout,about 900 MB)
	@rm -rf $(PROTOC)
	$(PIP) install --no-deps --target $(PROTOC) --group protoc
	@touch $(DEMO) $(UI) $@
	@echo "$(VENV) is ready"

$(DEMO): pyproject.toml requirements.lock
	$(call installed,example,the demo,about 670 MB)
	@touch $@

$(UI): pyproject.toml requirements.lock
	$(call installed,example$(COMMA)ui,the example with its web UI,about 690 MB)
	@touch $(DEMO) $@

# The S3 server of the tests needs their packages.
demo: $(if $(filter s3,$(STORE)),install,$(DEMO)) ## Run the example project through the whole loop: write, audit, publish, promote, announce; STORE=s3 on S3
	@case "$(STORE)" in \
	  local) exec $(BIN)/python -m example_project.demo;; \
	  s3) exec $(BIN)/python -m tests.servers.demo;; \
	  *) echo "make: STORE is local or s3, and not $(STORE)" >&2; exit 2;; \
	esac

# The command `dg` brings packages that nothing else needs, so it has an environment of its own, which sees $(VENV).
$(DG)/.installed: pyproject.toml requirements.lock | $(UI)
	@rm -rf $(DG)
	@$(BIN)/python -m venv --without-pip $(DG)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(DG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment.pth"
	$(PIP) --python $(DG)/bin/python install --quiet --constraint requirements.lock --group dg
	@touch $@

ui: $(UI) $(DG)/.installed ## Open the example project in Dagster's web UI
	@$(BIN)/python -m example_project.prepare
	@DAGSTER_HOME="$(CURDIR)/.demo/dagster_home" $(DG)/bin/dg dev -w workspace.yaml

test: install ## Run the tests but the slow ones; ARGS='-k merge' passes options to pytest
	@$(PYTEST) -m 'not slow and not $(ELSEWHERE)' $(ARGS)

test-slow: install ## Run the slow tests: the web UI, the demo, kills, power cuts, damage, and most of Spark
	@$(PYTEST) -m 'slow and not $(ELSEWHERE)' $(ARGS)

# No script of a package runs at its installation: Azurite needs none, and npm 9, which Debian 12 has, fails on them.
azurite: install ## Install Azurite, the emulator of Azure's Blob Storage, into .venv with npm; `make test` uses it
	@npm install --loglevel=error --ignore-scripts --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.37.0

test-azure: azurite ## Test the stores of S3, Azure and Google, those of Azure on Azurite
	@LANCE_DAGSTER_AZURITE_REQUIRED=1 $(BIN)/python -m pytest tests/store/test_providers.py $(ARGS)

test-ceph: install ## Test the store and the policies of S3 on Ceph, which Debian has: apt-get install radosgw ceph-mon ceph-osd
	@$(BIN)/python -m pytest -n 0 -m ceph tests/store/test_ceph.py tests/store/test_ceph_access.py $(ARGS)

test-cluster: install ## Test Spark on a standalone cluster: a master and two workers in processes of their own
	@$(BIN)/python -m pytest -n 0 -m cluster tests/cluster $(ARGS)

soak: install ## Run the long tests that the others leave out or cut short; SEEDS='1:5000' SOAK=10 say how long
	@LANCE_DAGSTER_SEEDS=$(SEEDS) LANCE_DAGSTER_SOAK=$(SOAK) $(PYTEST) -m 'soak or scaled' $(ARGS)

supported: install ## Test the plugin, Spark and pylance with the oldest and newest allowed releases, and some between
	@$(BIN)/python .ci/supported.py $(ARGS)

lint: install ## Check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

proto: install ## Write the protobuf classes again from protos/
	@PYTHONPATH=$(PROTOC) $(BIN)/python -m grpc_tools.protoc -Iprotos \
	  --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) protos/*.proto

# Like the protobuf compiler, in a folder of its own: only this target needs these packages.
$(DOCS)/.installed: pyproject.toml
	@rm -rf $(DOCS)
	$(PIP) install --quiet --constraint requirements.lock --target $(DOCS) --group docs
	@touch $@

docs: install $(DOCS)/.installed ## Build the site of the documentation into site/; fails on dead links
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(DOCS) $(BIN)/python -m mkdocs build --quiet
	@echo "Open site/index.html"

# Like the site's packages, in a folder of its own, so that nothing which is measured sees the plots' libraries.
$(PLOTS)/.installed: pyproject.toml
	@rm -rf $(PLOTS)
	$(PIP) install --quiet --constraint requirements.lock --target $(PLOTS) --group plots
	@touch $@

bench: install $(PLOTS)/.installed ## Measure, and write benchmarks/RESULTS.md with its plots; ARGS says what
	@if [ ! -d benchmarks ]; then \
	  echo "make: this checkout has no benchmarks/ folder, so there is nothing to measure" >&2; exit 1; \
	fi
	@$(BIN)/python -m benchmarks $(ARGS)
	@PYTHONPATH=$(PLOTS) $(BIN)/python -m benchmarks.plots

# Resolves from pyproject.toml alone, without looking at what is installed or locked.
lock: install ## Choose the newest allowed release of every dependency and write requirements.lock
	@echo "Resolving; this asks the package index for every dependency and takes some minutes"
	@$(PIP) install --dry-run --ignore-installed --quiet --report $(VENV)/lock.json --editable '.[dev]'
	@$(BIN)/python .ci/lock.py $(VENV)/lock.json > $(VENV)/requirements.lock
	@mv $(VENV)/requirements.lock requirements.lock

clean: ## Remove .venv, the demo's folder and every cache
	@rm -rf $(VENV) .demo site .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

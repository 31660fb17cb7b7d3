# Builds, tests and lints from a fresh clone; needs python3 (3.11 or newer, with venv) and a C++20 compiler, no root.
# `make help` lists the targets and the variables.

# An existing virtual environment to use as it is; without it, one is made in .venv and filled from the registry.
SHARDWRIGHT_VENV ?=
PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
CUDA_TORCH_SPEC ?= torch==2.14.1
BUILD_DIR ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
PYTEST_ARGS ?=
# C++ suites that 'make test' leaves to 'make test-all' are called Slow....
CPP_TESTS ?= -Slow*
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 1

ifeq ($(SHARDWRIGHT_VENV),)
VENV := $(CURDIR)/.venv
DEPENDENCIES := $(VENV)/.dependencies
else
VENV := $(SHARDWRIGHT_VENV)
DEPENDENCIES := $(VENV)/bin/python
endif
BIN := $(VENV)/bin
PY := $(BIN)/python
# Lines of the C++ sources, for clang-format.
CPP_FILES = $(shell find csrc tests/cpp -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort)
CLANG_FORMAT = $(shell PATH="$(BIN):$$PATH" command -v clang-format)
# The package is used in place; one thread per process, for the tests start several.
RUN := PYTHONPATH="$(CURDIR)/python$${PYTHONPATH:+:$$PYTHONPATH}" OMP_NUM_THREADS=1

.PHONY: help build build-cuda demo test test-all test-cpp test-python test-asan test-tsan fuzz lint format tidy clean
.DELETE_ON_ERROR:

help:
	@echo "make demo      train a small GPT on 4 processes under a searched plan"
	@echo "make test      C++ and Python tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make test-asan, make test-tsan  C++ tests of the planner under sanitizers"
	@echo "make fuzz      the reader of problem files, for FUZZ_SECONDS ($(FUZZ_SECONDS)) with FUZZ_SEED ($(FUZZ_SEED))"
	@echo "make build     compiled modules into python/shardwright"
	@echo "make lint      ruff, mypy, clang-format;  make format rewrites;  make tidy runs clang-tidy"
	@echo "make clean     remove what was built (keeps .venv)"
	@echo
	@echo "SHARDWRIGHT_VENV=DIR  use this virtual environment instead of .venv"
	@echo "TORCH_SPEC=SPEC       what pip installs as torch ($(TORCH_SPEC))"
	@echo "CMAKE_ARGS=ARGS       more arguments for CMake, e.g. -DSHARDWRIGHT_SANITIZE=address,undefined"
	@echo "PYTEST_ARGS=ARGS      more arguments for pytest"

ifeq ($(SHARDWRIGHT_VENV),)
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "shardwright needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv," \
	         "or make SHARDWRIGHT_VENV=DIR with one made otherwise"; exit 1; }
	$(PYTHON) -m venv "$(VENV)"

$(DEPENDENCIES): requirements-dev.txt | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check $(TORCH_SPEC)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@
else
$(DEPENDENCIES):
	@echo "SHARDWRIGHT_VENV=$(SHARDWRIGHT_VENV) is not a virtual environment (no bin/python)"; exit 1
endif

$(BUILD_DIR)/build.ninja: $(DEPENDENCIES) CMakeLists.txt $(wildcard cmake/*)
	PATH="$(BIN):$$PATH" cmake -S . -B "$(BUILD_DIR)" -G Ninja -DPython_EXECUTABLE="$(PY)" $(CMAKE_ARGS)

# Ninja knows what is out of date; it always gets asked.
build: $(BUILD_DIR)/build.ninja
	PATH="$(BIN):$$PATH" cmake --build "$(BUILD_DIR)" -j $(JOBS)

# Compiles the CUDA sources against a CUDA build of torch, beside the ordinary build; needs nvcc, no GPU.
build-cuda:
	$(MAKE) build SHARDWRIGHT_VENV= VENV="$(CURDIR)/.venv-cuda" TORCH_SPEC="$(CUDA_TORCH_SPEC)" \
	  BUILD_DIR=build-cuda \
	  CMAKE_ARGS="-DSHARDWRIGHT_CUDA=on -DSHARDWRIGHT_BUILD_TESTS=OFF -DSHARDWRIGHT_MODULE_DIR=$(CURDIR)/build-cuda/modules"

demo: build
	$(RUN) $(PY) examples/demo.py

test: test-cpp
	$(RUN) $(PY) -m pytest -m "not slow" --junitxml="$(BUILD_DIR)/test_python.xml" $(PYTEST_ARGS)

test-all: CPP_TESTS = *
test-all: test-cpp
	$(RUN) $(PY) -m pytest --junitxml="$(BUILD_DIR)/test_python.xml" $(PYTEST_ARGS)

test-python: build
	$(RUN) $(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

test-cpp: build
	@if [ ! -x "$(BUILD_DIR)/shardwright_tests" ]; then \
	  echo "C++ tests skipped: GoogleTest is not on this machine (apt-get install libgtest-dev, then make clean test)"; \
	else \
	  for binary in shardwright_tests shardwright_runtime_tests; do \
	    [ ! -x "$(BUILD_DIR)/$$binary" ] || "$(BUILD_DIR)/$$binary" --gtest_brief=1 \
	      --gtest_filter="$(CPP_TESTS)" --gtest_output="xml:$(BUILD_DIR)/$$binary.xml" || exit 1; \
	  done; \
	fi

# C++ tests of the planner (no torch) built with sanitizers, beside the ordinary build. CBC's worker is
# forked from a process with several threads.
test-asan fuzz: SANITIZE = address,undefined
test-asan fuzz: export ASAN_OPTIONS = detect_leaks=1
test-asan fuzz: export UBSAN_OPTIONS = print_stacktrace=1
test-tsan: SANITIZE = thread
test-tsan: export TSAN_OPTIONS = die_after_fork=0 halt_on_error=1
SANITIZED_BUILD = PATH="$(BIN):$$PATH" cmake -S . -B $(1) -G Ninja -DPython_EXECUTABLE="$(PY)" \
  -DSHARDWRIGHT_SANITIZE=$(SANITIZE) -DSHARDWRIGHT_BUILD_RUNTIME=OFF -DSHARDWRIGHT_FUZZ=ON $(CMAKE_ARGS) && \
  PATH="$(BIN):$$PATH" cmake --build $(1) -j $(JOBS) --target

test-asan test-tsan: $(DEPENDENCIES)
	$(call SANITIZED_BUILD,build-$(@:test-%=%)) shardwright_tests
	build-$(@:test-%=%)/shardwright_tests --gtest_brief=1 --gtest_filter="$(CPP_TESTS)"

# Mutated problem files, guided by coverage, under the same sanitizers.
fuzz: $(DEPENDENCIES)
	$(call SANITIZED_BUILD,build-asan) shardwright_fuzz_reader
	build-asan/shardwright_fuzz_reader $(FUZZ_SECONDS) $(FUZZ_SEED)

# Every check runs, so that one run shows all findings.
lint: $(DEPENDENCIES)
	@failed=0; \
	check() { echo "$$*"; "$$@" || failed=1; }; \
	check $(BIN)/ruff check . ; \
	check $(BIN)/ruff format --check . ; \
	check $(BIN)/mypy; \
	if [ -n "$(CLANG_FORMAT)" ]; then \
	  echo "$(CLANG_FORMAT) --dry-run -Werror"; \
	  "$(CLANG_FORMAT)" --dry-run -Werror $(CPP_FILES) || failed=1; \
	else echo "clang-format: not found, C++ formatting is not checked"; fi; \
	check $(PY) tests/lint/check_tree.py; \
	exit $$failed

format: $(DEPENDENCIES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	"$(CLANG_FORMAT)" -i $(CPP_FILES)

tidy: build
	clang-tidy -p "$(BUILD_DIR)" --quiet $(filter-out csrc/runtime/% csrc/bindings/runtime/%,$(filter csrc/%.cpp,$(CPP_FILES)))

clean:
	rm -rf "$(BUILD_DIR)" build-* dist python/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find python -name '*.so' -delete
	find python tests -name __pycache__ -type d -prune -exec rm -rf {} +

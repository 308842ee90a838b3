# make demo        set up, then the whole path on a laptop: data, staging, training to target, checks, report
# make test        set up everything, including Horovod and the test tools, then lint and run the tests
# make test-slow   the tests marked slow, which make test leaves out
# make test-avx2   the numeric tests of the networks as on a processor without AVX-512
# make lint        ruff, mypy and shellcheck
# make tutorial    run docs/start/tutorial.md and write what its commands print into it
# make papers      the figures of the five papers that this machine can show; LOGS=DIR: a clone of hpc_results_v0.7
# make docs        the documentation and the API as a site: build/docs/site/index.html
# Everything lives in .venv and build/ of this checkout; `make clean` removes both, and the demo's files.

VENV := .venv
BIN  := $(VENV)/bin
DEMO := results/demo
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo $$p; break; }; done)

# Containers often set it: each of the many processes of the tests would then compile the suite anew.
unexport PYTHONDONTWRITEBYTECODE

# A worker that dies is replaced once; unless limited, each new one would begin with the test that killed the last.
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=1

.PHONY: help demo test test-slow test-avx2 lint tutorial papers docs clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n 's/^# //p' Makefile | head -9

# TensorFlow of these environments computes on the CPU, also beside a GPU, which a run would not leave idle unasked.
demo test test-slow test-avx2: export CUDA_VISIBLE_DEVICES =
demo test test-slow test-avx2: export HIP_VISIBLE_DEVICES =
demo test test-slow test-avx2: export ZE_AFFINITY_MASK =
demo: $(VENV)/.demo
	@echo '== data: 4,608 samples of 576 small universes in the official layout (kept for next time)'
	@$(BIN)/mlhpc data make cosmoflow --preset demo
	@echo '== run: stage, train to target, evaluate'
	@rm -rf $(DEMO) build/demo-stage
	@$(BIN)/mlhpc run cosmoflow --preset demo --stage build/demo-stage --out $(DEMO)
	@echo '== check: the official checker and our own rules'
	@$(BIN)/mlhpc check $(DEMO)
	@echo '== report'
	@$(BIN)/mlhpc report $(DEMO)

test: $(VENV)/.test lint
	@echo '== tests'
	@$(PYTEST) --no-loadscope-reorder -m 'not slow'

test-slow: $(VENV)/.test
	@echo '== slow tests'
	@$(PYTEST) -m slow

# As on a processor with AVX2 only: oneDNN, PyTorch and the oneDNN in TensorFlow read these variables. TensorFlow's
# bfloat16 is left out: it asks the processor itself what oneDNN may do, and ends on an illegal instruction.
test-avx2: $(VENV)/.test
	@if grep -q avx512 /proc/cpuinfo; then echo '== numeric tests, with the instruction set held to AVX2'; \
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST) -m 'not slow' -k 'not (tf and bfloat16)' \
	tests/numeric/common tests/numeric/cosmoflow tests/numeric/deepcam tests/numeric/resnet50; \
	else echo '== this processor has no AVX-512: make test has run the numeric tests with AVX2'; fi

lint: $(VENV)/.test
	@echo '== lint: ruff'
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo '== types: mypy'
	@$(BIN)/mypy && MYPYPATH=tests/perf $(BIN)/mypy --allow-untyped-calls --allow-subclassing-any tests
	@if command -v shellcheck >/dev/null; then echo '== shell: shellcheck'; \
	shellcheck -x .ci/run environment.sh run_scripts/*.sbatch run_scripts/*.lsf run_scripts/*.sh run_scripts/*/*.sh; else echo '== shell: shellcheck is not installed, skipped'; fi

tutorial: $(VENV)/.test
	@$(BIN)/python tests/helpers/tutorial.py

papers: $(VENV)/.test
	@$(BIN)/mlhpc papers --all $(if $(LOGS),--logs '$(LOGS)')

# The pages lie as in the checkout, so that their links need no change.
docs: build/docs/.venv
	@rm -rf build/docs/pages && mkdir -p build/docs/pages && ln -s $(CURDIR)/*.md $(CURDIR)/docs build/docs/pages/
	@NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build && echo 'build/docs/site/index.html'

build/docs/.venv: constraints.txt
	@test -n '$(PYTHON)' || { echo 'make docs needs Python 3.11 or later with venv; run make PYTHON=/path/to/python'; exit 2; }
	@$(PYTHON) -m venv build/docs/venv
	@build/docs/venv/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs-material mkdocstrings-python
	@touch $@

$(VENV)/.demo: environment.sh setup.cfg setup.py constraints.txt
	@./environment.sh demo '$(PYTHON)'
	@touch $@

$(VENV)/.test: environment.sh setup.cfg setup.py constraints.txt common/data/codecs/_decode.c common/formats/_crc32c.c cosmoflow/cpu/_pooled.c
	@./environment.sh test '$(PYTHON)'
	@touch $(VENV)/.demo $@

clean:
	rm -rf $(VENV) build results/demo data/cosmoflow-demo

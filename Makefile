# make demo        set up, then the whole path on a laptop: data, staging, training to target, checks, report
# make test        set up everything, including Horovod and the test tools, then lint and run the tests
# make test-slow   the tests marked slow, which make test leaves out
# make lint        ruff, mypy and shellcheck
# make docs        the documentation and the API as a site: build/docs/site/index.html
# Everything lives in .venv and build/ of this checkout; `make clean` removes both, and the demo's files.

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check
DEMO := results/demo
ROOMS := $(addprefix $(CURDIR)/,benchmarks common cosmoflow deepcam iobench perf resnet50 submission)
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
	&& { echo $$p; break; }; done)

# Containers often set it: each of the many processes of the tests would then compile the suite anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow lint docs clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n 's/^# //p' Makefile | head -6

demo: $(VENV)/.demo
	@echo '== data: 18 432 samples of 2 304 small universes in the official layout (kept for next time)'
	@$(BIN)/mlhpc data make cosmoflow --preset smoke
	@echo '== run: stage, train to target, evaluate'
	@rm -rf $(DEMO)
	@$(BIN)/mlhpc run cosmoflow --preset smoke --stage build/demo-stage --out $(DEMO)
	@echo '== check: the official checker and our own rules'
	@$(BIN)/mlhpc check $(DEMO)
	@echo '== report'
	@$(BIN)/mlhpc report $(DEMO)

test: $(VENV)/.test lint
	@echo '== tests'
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not slow'

test-slow: $(VENV)/.test
	@echo '== slow tests'
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

lint: $(VENV)/.test
	@echo '== lint: ruff'
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo '== types: mypy'
	@rm -rf build/typecheck && mkdir -p build/typecheck/mlhpc && ln -s $(CURDIR)/mlhpc/* build/typecheck/mlhpc/
	@for room in benchmarks common cosmoflow deepcam iobench perf resnet50 submission; do ln -s $(CURDIR)/$$room build/typecheck/mlhpc/$$room; done
	@cd build/typecheck && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p mlhpc
	@if command -v shellcheck >/dev/null; then echo '== shell: shellcheck'; \
	shellcheck -x .ci/run run_scripts/*.sbatch run_scripts/*.lsf run_scripts/*.sh run_scripts/*/*.sh; else echo '== shell: shellcheck is not installed, skipped'; fi

# The pages lie as in the checkout, so that their links need no change; the packages as they are installed.
docs: build/docs/.venv
	@rm -rf build/docs/pages build/docs/sources && mkdir -p build/docs/pages build/docs/sources/mlhpc
	@ln -s $(CURDIR)/*.md $(CURDIR)/docs build/docs/pages/
	@ln -s $(CURDIR)/mlhpc/* $(ROOMS) build/docs/sources/mlhpc/
	@NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build && echo 'build/docs/site/index.html'

build/docs/.venv: constraints.txt
	@test -n '$(PYTHON)' || { echo 'make docs needs Python 3.11 or later with venv; run make PYTHON=/path/to/python'; exit 2; }
	@$(PYTHON) -m venv build/docs/venv
	@build/docs/venv/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt mkdocs-material mkdocstrings-python
	@touch $@

$(VENV)/.venv:
	@test -n '$(PYTHON)' || { echo 'mlhpc needs Python 3.11 or 3.12 with venv; install it or run make PYTHON=/path/to/python'; exit 2; }
	@echo '== environment: $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.venv setup.cfg setup.py constraints.txt common/data/codecs/_decode.c cosmoflow/cpu/_pooled.c
	@echo '== environment: TensorFlow and the suite (about a minute)'
	@$(PIP) install -q -c constraints.txt -e '.[cosmoflow]'
	@touch $@

# Horovod compiles against this TensorFlow, so no cached wheel may be used, and the build is checked. It needs an
# old setuptools, and PyTorch a new one: hence the order.
$(VENV)/.test: $(VENV)/.demo
	@echo '== environment: Horovod, compiled here (about two minutes)'
	@mkdir -p build
	@$(PIP) install -q -c constraints.txt 'setuptools<70' wheel cmake packaging cloudpickle psutil pyyaml cffi
	@env PATH="$(CURDIR)/$(BIN):$$PATH" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
	HOROVOD_WITH_GLOO=1 $$(command -v mpicc >/dev/null && echo HOROVOD_WITH_MPI=1 || echo HOROVOD_WITHOUT_MPI=1) \
	$(PIP) install -q --no-cache-dir --no-build-isolation --no-binary horovod -c constraints.txt horovod >build/horovod.log 2>&1 \
	|| { tail -n 30 build/horovod.log; echo 'Horovod did not build: the whole log is build/horovod.log'; exit 1; }
	@$(BIN)/horovodrun --check-build 2>/dev/null | grep -q '\[X\] TensorFlow' && $(BIN)/horovodrun --check-build 2>/dev/null | grep -q '\[X\] Gloo' \
	|| { echo 'Horovod was built without TensorFlow or Gloo: make clean, then again'; exit 1; }
	@echo '== environment: test tools, and PyTorch to compare with (about a minute)'
	@$(PIP) install -q -c constraints.txt -e '.[cosmoflow,cosmoflow-pytorch,deepcam,resnet50,codecs,dali,io,parquet,s3,mlflow,test]'
	@$(BIN)/python -m pip check
	@touch $@

clean:
	rm -rf $(VENV) build results/demo data/cosmoflow-smoke

#!/usr/bin/env bash
# environment.sh demo|test: installs into .venv what `make demo` or `make test` needs. The Makefile calls it.
# Indexes, folders of wheels, proxies and certificates are those that pip is configured with. uv installs, since it
# takes a third of pip's time; where uv cannot be had or fails, pip does. build/environment.log has what both printed.
set -euo pipefail
cd "$(dirname "$0")"
what=$1
python=$PWD/.venv/bin/python
log=$PWD/build/environment.log

# refuse WORD...: one line, status 2.
refuse() { echo "make $what: $*"; exit 2; }

# pip_setting NAME: a setting of pip, from its environment variable or a configuration file.
pip_setting() {
  local variable=PIP_${1^^}
  variable=${variable//-/_}
  [ -z "${!variable:-}" ] || { echo "${!variable}"; return; }
  sed -n "s/^\(global\|install\)\.$1='\(.*\)'\$/\2/p" <<<"$pip_settings" | tail -n 1
}

# The same for uv, which does not read pip's.
configure_uv() {
  local value
  pip_settings=$("$python" -m pip config list 2>/dev/null)
  export UV_PYTHON_DOWNLOADS=never UV_INDEX_STRATEGY=unsafe-best-match UV_NO_PROGRESS=1 UV_SYSTEM_CERTS=1 # as pip
  value=$(pip_setting index-url); [ -z "$value" ] || export UV_DEFAULT_INDEX=$value
  value=$(pip_setting extra-index-url); [ -z "$value" ] || export UV_INDEX=${value//$'\n'/ }
  value=$(pip_setting find-links); [ -z "$value" ] || export UV_FIND_LINKS=${value//[[:space:]]/,}
  value=$(pip_setting cert); [ -z "$value" ] || export SSL_CERT_FILE=$value
  value=$(pip_setting proxy); [ -z "$value" ] || export ALL_PROXY=$value
  value=$(pip_setting trusted-host); [ -z "$value" ] || export UV_INSECURE_HOST=$value
  case $(pip_setting no-index) in 1 | [Tt]rue | yes | on) uv_options+=(--no-index) ;; esac # it reads no variable for this
}

# install ARGUMENT...: of `pip install`, within the tested versions.
install() {
  if [ -n "$uv" ]; then
    "$uv" pip install "${uv_options[@]}" --python "$python" --compile-bytecode --reinstall-package mlhpc \
      -c constraints.txt "$@" \
      >>"$log" 2>&1 && return
    echo "   uv could not install them (build/environment.log says why); now with pip"
    uv=
  fi
  "$python" -m pip install -c constraints.txt "$@" >>"$log" 2>&1
}

# A line every four seconds: a slow network must not look like a hang.
free_mb() { df -Pk . | awk 'NR == 2 {print int($4 / 1024)}'; }
report_size() {
  while sleep 4; do printf '   %d s: %s MB in .venv\n' "$SECONDS" "$(nice du -sm .venv | cut -f 1)"; done
}

failed() {
  tail -n 15 "$log"
  echo "the environment is incomplete: the lines above are the end of build/environment.log; make $what goes on from here"
}

# compiles_mpi: whether Horovod can be built with MPI. An mpicc without mpi.h, as of Debian's package mpich, cannot.
compiles_mpi() {
  printf '#include <mpi.h>\nint main(int n, char **words) { return MPI_Init(&n, &words); }\n' >build/mpi.cc
  mpicxx build/mpi.cc -o build/mpi >>"$log" 2>&1
}

# build_horovod: a wheel in build/horovod, compiled against the TensorFlow in .venv, hence never a cached one. Its tools
# have an environment of their own, since Horovod needs a setuptools that is older than PyTorch's.
build_horovod() {
  local tools=build/horovod/tools
  rm -rf build/horovod
  "$python" -m venv --without-pip "$tools"
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tensorflow.pth"
  "$python" -m pip --python "$tools/bin/python" install --ignore-installed -c constraints.txt \
    'setuptools<70' wheel cmake packaging cloudpickle psutil pyyaml cffi
  # Horovod asks for -O3 -g, which takes twice as long; the tests have two ranks.
  printf '#!/bin/sh\nexec g++ "$@" -O1 -g0\n' >"$tools/bin/quick-g++"
  chmod +x "$tools/bin/quick-g++"
  env CXX="$PWD/$tools/bin/quick-g++" PATH="$PWD/$tools/bin:$PATH" MAKEFLAGS="-j$(nproc)" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 "$(compiles_mpi && echo HOROVOD_WITH_MPI=1 || echo HOROVOD_WITHOUT_MPI=1)" \
    "$python" -m pip --python "$tools/bin/python" wheel --no-cache-dir --no-build-isolation --no-deps \
    --no-binary horovod -c constraints.txt -w build/horovod horovod
}

[ -d src/mlhpc/common ] || refuse "src/mlhpc/common is no link to common; clone onto a file system with symbolic links (git config core.symlinks true)"
case $(uname -s) in Linux) ;; *) refuse "the suite runs on Linux; on $(uname -s) use a container or a virtual machine" ;; esac
if [ ! -e .venv/bin/pip ]; then
  [ -n "${2:-}" ] || refuse "needs Python 3.11, 3.12 or 3.13 with venv (Debian: apt install python3-venv); or make $what PYTHON=/path/to/python"
  need=$([ "$what" = demo ] && echo 2500 || echo 12000)
  [ "$(free_mb)" -ge "$need" ] || refuse "needs $need MB for .venv and what is unpacked on the way, and $PWD has $(free_mb) MB left"
fi
version=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
case $what-${version:-$("$2" -c 'import sys; print("%d.%d" % sys.version_info[:2])')} in
  test-3.1[3-9]) refuse "needs Python 3.11 or 3.12: Horovod 0.28.1 does not compile against the TensorFlow for 3.13" ;;
esac

mkdir -p build
heartbeat=
trap '[ -z "$heartbeat" ] || kill "$heartbeat" 2>/dev/null' EXIT
report_size &
heartbeat=$!

if [ ! -e .venv/bin/pip ]; then
  size=$([ "$what" = demo ] && echo '400 MB to download, 1.5 GB' || echo 'several GB to download, 9 GB')
  echo "== environment: .venv with $2 ($size on disk)"
  "$2" -m venv .venv
fi
uv=
uv_options=()
if "$python" -m pip install -q -c constraints.txt uv >"$log" 2>&1; then
  uv=$PWD/.venv/bin/uv
  configure_uv
fi

case $what in
  demo) # nothing of it is compiled in C: the demo decodes no codec and does not use PyTorch
    MLHPC_WITHOUT_C=1 install -e '.[demo]' || { failed; exit 1; } ;;
  test)
    MLHPC_WITHOUT_C=1 install -e '.[cosmoflow]' || { failed; exit 1; }
    build_horovod >build/horovod.log 2>&1 & # it compiles while the rest is fetched
    horovod=$!
    install -e '.[cosmoflow,cosmoflow-pytorch,deepcam,resnet50,codecs,dali,io,parquet,darshan,s3,mlflow,tune,test]' \
      || { failed; exit 1; }
    if ! wait "$horovod"; then
      tail -n 30 build/horovod.log
      echo 'Horovod did not build: the whole log is build/horovod.log'
      exit 1
    fi
    install build/horovod/horovod-*.whl || { failed; exit 1; }
    built=$(.venv/bin/horovodrun --check-build 2>/dev/null)
    if ! grep -q '\[X\] TensorFlow' <<<"$built" || ! grep -q '\[X\] Gloo' <<<"$built"; then
      echo 'Horovod was built without TensorFlow or Gloo: make clean, then again'
      exit 1
    fi
    "$python" -m pip check ;;
esac

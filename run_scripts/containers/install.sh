#!/bin/bash
# The installation in both images: install.sh FRAMEWORK, on Ubuntu 24.04 with its Python 3.12.
# One framework per image: TensorFlow's wheels bring CUDA 12, PyTorch's CUDA 13, and cuDNN and NCCL of both have the
# same paths.
# HOROVOD_GPU_OPERATIONS= (empty) compiles Horovod for CPUs, where there is no CUDA toolkit; images are for GPUs.
set -euo pipefail
if [[ ${1:-} != tensorflow && ${1:-} != pytorch ]]; then echo "install.sh: pass tensorflow or pytorch" >&2; exit 2; fi

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends python3 python3-dev python3-venv g++ make git
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/venv
export PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
case $1 in
  tensorflow) # Horovod needs an old setuptools, its TensorFlow (docs/reference/dependencies.md), NCCL the CUDA toolkit
    pip install -c constraints.txt 'setuptools<70' wheel cmake packaging cloudpickle psutil pyyaml cffi
    pip install -c constraints.txt '.[cosmoflow-gpu,codecs,nvidia]'
    operations=${HOROVOD_GPU_OPERATIONS-NCCL}
    env -u HOROVOD_GPU_OPERATIONS ${operations:+HOROVOD_GPU_OPERATIONS=$operations} HOROVOD_WITH_TENSORFLOW=1 \
      HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
      pip install --no-build-isolation --no-binary horovod -c constraints.txt horovod
    horovodrun --check-build | tee /dev/stderr | grep "\[X\] ${operations:-Gloo}" >/dev/null ;;
  pytorch) pip install -c constraints.txt '.[deepcam,resnet50,cosmoflow-pytorch,codecs,dali,nvidia]' ;;
esac
cudas=$(pip list --format=freeze | sed -n 's/^nvidia-.*-cu\(1[0-9]\)=.*/\1/p' | sort -u)
if (($(wc -w <<<"$cudas") > 1)); then echo "install.sh: wheels of CUDA" "$cudas" "in one environment" >&2; exit 1; fi

#!/bin/bash
# What both images do: the suite of this folder with both frameworks, and Horovod built for this TensorFlow.
# Ubuntu 24.04 with the CUDA toolkit (the base images); Python is its 3.12.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends python3 python3-dev python3-venv g++ make git
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/venv
export PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
# Horovod wants an old setuptools and the TensorFlow it is for (docs/dependencies.md).
pip install -c constraints.txt 'setuptools<70' wheel cmake packaging cloudpickle psutil pyyaml cffi
pip install -c constraints.txt '.[cosmoflow-gpu]'
HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 \
  HOROVOD_WITHOUT_MPI=1 HOROVOD_GPU_OPERATIONS=NCCL \
  pip install --no-build-isolation --no-binary horovod -c constraints.txt horovod
pip install -c constraints.txt '.[deepcam,resnet50]'
horovodrun --check-build | tee /dev/stderr | grep '\[X\] NCCL' >/dev/null

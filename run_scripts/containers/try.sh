#!/bin/bash
# The images' install step without a container engine: try.sh FRAMEWORK FOLDER, as root, from the top of a clone.
# It makes a bare Debian 12 in FOLDER (debootstrap; 300 MB, and 7 GB with PyTorch), copies what git tracks into its
# /opt/mlhpc, runs install.sh there, and then what needs no GPU. The images are Ubuntu 24.04 with Python 3.12; Debian 12
# has Python 3.11. FOLDER is kept for inspection: rm -rf --one-file-system FOLDER.
set -euo pipefail
if (($# != 2)) || [[ -e $2 ]]; then echo "try.sh: give tensorflow or pytorch, and a new folder" >&2; exit 2; fi
if ((EUID)) || ! command -v debootstrap >/dev/null; then echo "try.sh: needs root and debootstrap" >&2; exit 2; fi
root=$2
inside() { env -i PATH=/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"; }

debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
mkdir -p "$root/opt/mlhpc"
git ls-files -z | tar --null -T - -c | tar -C "$root/opt/mlhpc" -x
# How this machine reaches the network: name service, certificates, pip's index.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
if [[ -f /etc/pip.conf ]]; then cp /etc/pip.conf "$root/etc/"; fi
trap 'umount "$root/proc" "$root/dev/shm" 2>/dev/null || true' EXIT
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm" && mount -t tmpfs -o size=2g tmpfs "$root/dev/shm"

# There is no CUDA toolkit, so Horovod is compiled without NCCL.
inside /bin/bash -c "cd /opt/mlhpc && HOROVOD_GPU_OPERATIONS= bash run_scripts/containers/install.sh $1"
if [[ $1 == tensorflow ]]; then benchmark=cosmoflow target=10; else benchmark=deepcam target=1e-6; fi  # met at once
inside /bin/bash -c "cd /root && mlhpc list && mlhpc doctor $benchmark; mlhpc data make $benchmark --preset smoke \
  --set data.train_samples=8 --set data.eval_samples=4 --out data && mlhpc run $benchmark --preset smoke --data data \
  --set data.train_samples=8 --set data.eval_samples=4 --set training.max_epochs=1 --set target.value=$target \
  --set hyperparameters.global_batch_size=4 --stage /tmp/stage --out out && mlhpc check out"

# shellcheck shell=bash
# Frontier-like: Slurm, four MI250X per node whose eight dies (GCDs) are eight devices, 56 cores for jobs, Slingshot,
# an NVMe in every node. Submit with
#   MLHPC_SITE=frontier BENCHMARK=deepcam PRESET=closed sbatch -A PROJECT -C nvme -N 16 \
#     --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=7 run_scripts/run.sbatch
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# EDIT: the environment, with a PyTorch for ROCm (pytorch.org). CosmoFlow: --set training.framework=pytorch.
module load PrgEnv-gnu rocm craype-accel-amd-gfx90a
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

SHARED=${SHARED:-${MEMBERWORK:-${SCRATCH:?}}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# The NVMe, available only with -C nvme.
export STAGE=${STAGE:-/mnt/bb/$USER/mlhpc-$SLURM_JOB_ID}

# A rank uses the die of its local rank, so all eight must be visible. Cores next to it: the default order of ranks.
export SLURM_GPU_BIND=none SLURM_CPU_BIND=cores
export GLOO_SOCKET_IFNAME=hsn0 NCCL_SOCKET_IFNAME=hsn0
# EDIT: Slingshot is used through the plugin for libfabric (aws-ofi-nccl for RCCL). "mlhpc doctor" shows what is used.
# export LD_LIBRARY_PATH=/path/of/the/plugin:$LD_LIBRARY_PATH NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB
# MIOpen caches its convolution measurements in files with locks, which shared file systems handle badly.
export MIOPEN_USER_DB_PATH=/tmp/miopen-$SLURM_JOB_ID MIOPEN_CUSTOM_CACHE_DIR=/tmp/miopen-$SLURM_JOB_ID

# shellcheck shell=bash
# Summit-like: LSF and jsrun, six V100 and 42 cores per node, InfiniBand, a shared GPFS, an NVMe in every node.
# Sourced at the top of the checkout by run_scripts/summit.lsf; BENCHMARK and PRESET are set, and DATA, OUT, STAGE
# may be.

# EDIT: the environment, with a Horovod built with MPI (its launcher is jsrun). On POWER there are no wheels of the
# frameworks: they have to be built.
module load gcc cuda nccl
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# EDIT: the shared file system. -alloc_flags NVME makes the NVMe of a node available.
SHARED=${SHARED:-${MEMBERWORK:?}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${LSB_JOBID:?}}
export STAGE=${STAGE:-/mnt/bb/$USER/mlhpc-$LSB_JOBID}

# The host file begins with the batch node, which is not a compute node.
mapfile -t HOSTS < <(tail -n +2 "${LSB_DJOB_HOSTFILE:?}" | uniq)
export NODES=${#HOSTS[@]} RANKS_PER_NODE=${RANKS_PER_NODE:-6} GPUS_PER_NODE=6 CORES_PER_NODE=42
# jsrun does not tell the ranks where rank 0 is, which torch.distributed needs to know.
export MLHPC_LEADER=${MLHPC_LEADER:-${HOSTS[0]}}
# Spectrum MPI reads GPU memory with -gpu; torch starts without MPI.
export SMPIARGS=-gpu
if [[ $BENCHMARK != cosmoflow ]]; then SMPIARGS=-disable_gpu_hooks; fi
export HOROVOD_GLOO_IFACE=ib0 GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0

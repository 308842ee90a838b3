# shellcheck shell=bash
# Summit-like: LSF and jsrun, six V100 and 42 cores a node, InfiniBand, a shared GPFS, an NVMe in every node.
# Sourced at the top of the checkout by run_scripts/summit.lsf, which sets BENCHMARK and PRESET; what is set stays.

# EDIT: the environment, with a Horovod that was built with MPI (jsrun is its launcher). On POWER there are no
# wheels of the frameworks: they have to be built.
module load gcc cuda nccl
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# EDIT: the shared file system. The NVMe of a node is there with -alloc_flags NVME.
SHARED=${SHARED:-${MEMBERWORK:?}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${LSB_JOBID:?}}
export STAGE=${STAGE:-/mnt/bb/$USER/mlhpc-$LSB_JOBID}

# The host file begins with the batch node, which is no compute node.
mapfile -t HOSTS < <(tail -n +2 "${LSB_DJOB_HOSTFILE:?}" | uniq)
export NODES=${#HOSTS[@]} RANKS_PER_NODE=${RANKS_PER_NODE:-6} GPUS_PER_NODE=6 CORES_PER_NODE=42
# jsrun does not tell the ranks where rank 0 is, and what torch starts with needs it.
export MLHPC_LEADER=${MLHPC_LEADER:-${HOSTS[0]}}
# Spectrum MPI reads GPU memory with this; torch starts without MPI.
export SMPIARGS=-gpu
if [[ $BENCHMARK != cosmoflow ]]; then SMPIARGS=-disable_gpu_hooks; fi
export HOROVOD_GLOO_IFACE=ib0 GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0

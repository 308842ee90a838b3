# shellcheck shell=bash
# A generic Slurm cluster: a file system that all nodes share, a disk in every node, optionally GPUs.
# Copy it and change what is marked EDIT, or let "mlhpc doctor --site NAME" write a first version. docs/guide/sites.md.
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# EDIT: modules and environment, the same on all nodes.
# module purge
# module load gcc openmpi
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# EDIT: the file system that all nodes share.
SHARED=${SHARED:-${SCRATCH:-$PWD}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}

# EDIT: the disk of a node. See "mlhpc doctor": is it a disk or memory, and how much is free?
export STAGE=${STAGE:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/mlhpc-$SLURM_JOB_ID}

# A rank uses the GPU of its local rank, so all GPUs of the node must be visible to it.
export SLURM_GPU_BIND=none
# EDIT: NUMA (docs/guide/sites.md, "Cores and NUMA nodes"). Cores and memory next to each other:
# export SLURM_CPU_BIND=cores SLURM_MEM_BIND=local MLHPC_BIND=cores
# or lists, such as those close to the GPU of each local rank:
# export SLURM_CPU_BIND=none MLHPC_BIND=0-15:16-31
# EDIT: the network of the collectives, if the first interface is not the fast one (ip -br addr).
# export HOROVOD_GLOO_IFACE=ib0 GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0
# EDIT: the transport of GPUs: IB, or with aws-ofi-nccl on Slingshot and EFA "AWS Libfabric". Sockets are then refused.
# export NCCL_NET=IB
# EDIT: on many nodes, the environment as one file (run_scripts/pack.sh).
# source run_scripts/unpack.sh "$SHARED/mlhpc.tar" /dev/shm

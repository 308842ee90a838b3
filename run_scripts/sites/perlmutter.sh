# shellcheck shell=bash
# Perlmutter-like: Slurm, four A100 and 64 cores per node, Slingshot, Lustre, no disk in the nodes. Submit with
#   MLHPC_SITE=perlmutter BENCHMARK=cosmoflow PRESET=closed sbatch -A ACCOUNT -C gpu -q regular -N 16 \
#     --gpus-per-node=4 --ntasks-per-node=4 --cpus-per-task=32 run_scripts/run.sbatch
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# EDIT: the environment, created once on a login node (docs/guide/sites.md), or a container (LAUNCH_WRAP).
module load cudatoolkit python
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

SHARED=${SHARED:-${PSCRATCH:-${SCRATCH:?}}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# /tmp of these nodes is memory (tmpfs): the data set has to fit in it next to the training. If it does not, add
# --set staging.mode=shard to the options of the run, which gives each node only its part.
export STAGE=${STAGE:-/tmp/mlhpc-$SLURM_JOB_ID}

# A rank uses the GPU of its local rank, so all GPUs of the node must be visible to it.
export SLURM_GPU_BIND=none SLURM_CPU_BIND=cores
export HOROVOD_GLOO_IFACE=hsn0 GLOO_SOCKET_IFNAME=hsn0 NCCL_SOCKET_IFNAME=hsn
# EDIT: Slingshot is used through the plugin for libfabric (aws-ofi-nccl), in later versions OFI or Libfabric. With
# NCCL_NET, NCCL refuses sockets; "mlhpc doctor" shows the transport.
export NCCL_NET=${NCCL_NET:-AWS Libfabric} NCCL_NET_GDR_LEVEL=PHB

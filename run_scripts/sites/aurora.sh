# shellcheck shell=bash
# Aurora-like: PBS and mpiexec (PALS), six Data Center GPUs Max per node with two tiles each, 104 cores, Slingshot, no
# disk in the nodes. Sourced at the top of the checkout by run_scripts/aurora.pbs; BENCHMARK and PRESET are set, and
# DATA, OUT, STAGE may be.

# EDIT: the environment, with a PyTorch for XPU (pytorch.org). CosmoFlow: --set training.framework=pytorch.
module load frameworks
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

SHARED=${SHARED:-${SCRATCH:?set it to the folder of the project on the shared file system}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${PBS_JOBID:?}}
# /tmp of these nodes is memory: the data set has to fit in it next to the training, or add --set staging.mode=shard.
export STAGE=${STAGE:-/tmp/mlhpc-$PBS_JOBID}

mapfile -t HOSTS < <(uniq "${PBS_NODEFILE:?}")
export NODES=${#HOSTS[@]} RANKS_PER_NODE=${RANKS_PER_NODE:-12}
# mpiexec does not tell the ranks where rank 0 is, which torch.distributed needs to know.
export MLHPC_LEADER=${MLHPC_LEADER:-${HOSTS[0]}}
# Tiles are separate devices; a rank uses that of its local rank.
export ZE_FLAT_DEVICE_HIERARCHY=FLAT
export CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi GLOO_SOCKET_IFNAME=hsn0

# shellcheck shell=bash
# A site: the settings that differ between clusters. Copy it, and select yours with MLHPC_SITE=name.
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# Environment. On a cluster: module purge; module load gcc openmpi
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# Data set and results: on the file system that all nodes share.
export DATA=${DATA:-data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# Staging: storage of each node, with the same path on all nodes. Removed when the run ends.
export STAGE=${STAGE:-${TMPDIR:-/tmp}/mlhpc-$SLURM_JOB_ID}

# Several NUMA nodes: a share of the cores for each rank of mlhpc run --ranks N (docs/guide/sites.md).
# export MLHPC_BIND=cores

# Network, if the defaults are wrong: HOROVOD_GLOO_IFACE (such as ib0) for the collectives, MLHPC_LEADER
# (an address of the first node) for the roll call.

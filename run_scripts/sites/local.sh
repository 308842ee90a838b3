# shellcheck shell=bash
# A site: what differs between clusters, and nothing else. Copy it, and select yours with MLHPC_SITE=name.
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# Environment. A cluster would have here: module purge; module load gcc openmpi
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# Data set and results: on the file system that all nodes share.
export DATA=${DATA:-data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# Staging: storage of each node, under the same name on all. Removed when the run ends.
export STAGE=${STAGE:-${TMPDIR:-/tmp}/mlhpc-$SLURM_JOB_ID}

# Network, where the defaults are wrong: HOROVOD_GLOO_IFACE (such as ib0) for the collectives, MLHPC_LEADER
# (an address of the first node) for the roll call.

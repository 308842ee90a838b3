# shellcheck shell=bash
# A site: what differs between clusters, and nothing else. Copy it, and choose yours with MLHPC_SITE=name.
# Sourced at the top of the checkout by run_scripts/*.sbatch, which set BENCHMARK and PRESET; what is set already stays.

# Modules and environment. A cluster would have here, say: module load gcc openmpi
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

# The data set and the results: on the file system that all nodes share.
export DATA=${DATA:-data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# Staging: storage of each node, of the same name on all. A run that ends well removes what it staged.
export STAGE=${STAGE:-${TMPDIR:-/tmp}/mlhpc-$SLURM_JOB_ID}

# Network, where the defaults are wrong: HOROVOD_GLOO_IFACE (such as ib0) for the collectives, MLHPC_LEADER
# (an address of the first node) for the roll call.

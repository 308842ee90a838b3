# shellcheck shell=bash
# A machine of CPUs: Slurm, one A64FX per node (SVE), 48 cores in four groups with 8 GiB of HBM each, InfiniBand.
# One rank per group (CMG), so that its threads use the memory next to them. Submit with
#   MLHPC_SITE=a64fx BENCHMARK=cosmoflow PRESET=closed sbatch -p PARTITION -N 16 \
#     --ntasks-per-node=4 --cpus-per-task=12 run_scripts/run.sbatch --set training.framework=pytorch
# Sourced at the top of the checkout by run_scripts/*; BENCHMARK and PRESET are set, and DATA, OUT, STAGE may be.

# EDIT: the environment. Wheels for aarch64 use SVE through oneDNN and the Arm Compute Library.
# module load gcc python
if [[ -d .venv/bin ]]; then PATH=$PWD/.venv/bin:$PATH; fi

SHARED=${SHARED:-${SCRATCH:-$PWD}}
export DATA=${DATA:-$SHARED/data/${BENCHMARK:?}-$PRESET}
export OUT=${OUT:-$SHARED/results/$BENCHMARK-$PRESET-${SLURM_JOB_ID:?}}
# EDIT: a disk of the node; without one, the first node-local storage that "mlhpc doctor" finds. /tmp may be memory, of
# which there is little: 32 GiB in all. A sample too large for 8 GiB: --set training.spatial=[4,1,1] (CosmoFlow).
export STAGE=${STAGE:-${TMPDIR:-/tmp}/mlhpc-$SLURM_JOB_ID}

export SLURM_CPU_BIND=cores SLURM_MEM_BIND=local
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-12} OMP_PROC_BIND=close OMP_PLACES=cores
export HOROVOD_GLOO_IFACE=ib0 GLOO_SOCKET_IFNAME=ib0

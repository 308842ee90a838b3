# shellcheck shell=bash
# Common start of every Slurm script: what to run, the site, and settings for all sites. Sourced, not run.
BENCHMARK=${BENCHMARK:?set it to cosmoflow, deepcam or resnet50 (with sbatch --export=NONE: --export=BENCHMARK=...)}
PRESET=${PRESET:-smoke}
if [[ ${SLURM_HET_SIZE:-1} != 1 ]]; then
  echo "mlhpc: heterogeneous jobs are not supported: submit one component (sbatch without ':')" >&2
  exit 2
fi

user_stage=${STAGE:-}
# shellcheck source=run_scripts/sites/local.sh
source "run_scripts/sites/${MLHPC_SITE:-local}.sh"
echo "mlhpc: job $SLURM_JOB_ID, site ${MLHPC_SITE:-local}: $BENCHMARK, preset $PRESET;" \
  "data $DATA; stage $STAGE; results $OUT"

# After sbatch --export=NONE srun would start the ranks without this environment, PATH included.
export SLURM_EXPORT_ENV=ALL
# srun does not inherit --cpus-per-task from sbatch (since Slurm 22.05).
if [[ ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

# The ranks prove to one another that they know this: without it, who knows the job's id could take part.
MLHPC_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export MLHPC_TOKEN

# Words between srun's options and mlhpc: "apptainer exec --nv mlhpc.sif", "--container-image=mlhpc.sqsh", numactl.
# No other job can use a stage named after this one: rank.sh removes it when the ranks end, for whatever reason.
export STAGE LAUNCH_WRAP=${LAUNCH_WRAP:-}
if [[ -z $user_stage && ${STAGE##*/} == *-"$SLURM_JOB_ID" ]]; then LAUNCH_WRAP+=" run_scripts/rank.sh"; fi

#!/bin/bash
# One machine, no batch system. From the top of the checkout:
#   run_scripts/laptop.sh [BENCHMARK [PRESET]] [options of mlhpc run, such as --ranks 2]
# Makes the data set if it is missing, runs, checks and reports.
set -euo pipefail

BENCHMARK=cosmoflow PRESET=smoke
if [[ ${1:-} && $1 != -* ]]; then BENCHMARK=$1; shift; fi
if [[ ${1:-} && $1 != -* ]]; then PRESET=$1; shift; fi
export SLURM_JOB_ID=$$  # the site names folders by the job
# shellcheck source=run_scripts/sites/local.sh
source "run_scripts/sites/${MLHPC_SITE:-local}.sh"
unset SLURM_JOB_ID

mlhpc doctor "$BENCHMARK" --stage "$STAGE" --out "$OUT"
[[ -e $DATA/manifest.json ]] || mlhpc data make "$BENCHMARK" --preset "$PRESET" --out "$DATA"
mlhpc run "$BENCHMARK" --preset "$PRESET" --data "$DATA" --stage "$STAGE" --out "$OUT" "$@"
mlhpc check "$OUT" || true  # a small preset has findings: its size is not the official one
mlhpc report "$OUT"

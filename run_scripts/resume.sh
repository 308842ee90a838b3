# shellcheck shell=bash
# A chain of jobs: the run in OUT continues from its last checkpoint if it is unfinished. Earlier parts become OUT.1,
# OUT.2, ... Sets the options of mlhpc run; sourced, not run.
OUT=${OUT%/}
if grep -qsE '"status": "(success|emulated)"' "$OUT/result.json"; then
  echo "mlhpc: nothing to continue: $OUT has ended"
  exit
fi
if grep -qs '"status": "failed"' "$OUT/result.json"; then
  echo "mlhpc: nothing to continue: $OUT has missed its target"
  exit 3
fi
# A rank keeps a lock on its events until it ends. Where the file system has no locks, flock fails with another status.
locked=0
[[ ! -e $OUT/events.rank0.jsonl ]] || flock --nonblock "$OUT/events.rank0.jsonl" true 2>/dev/null || locked=$?
if [[ $locked == 1 ]]; then
  echo "mlhpc: $OUT is still running; submit this with --dependency=afterany" >&2
  exit 2
fi
part=0
while [[ -e $OUT.$((part + 1)) ]]; do part=$((part + 1)); done
if [[ -e $OUT ]]; then part=$((part + 1)) && mv -- "$OUT" "$OUT.$part"; fi
for (( ; part > 0; part--)); do
  if [[ -e $OUT.$part/checkpoint.npz ]]; then
    echo "mlhpc: continuing from the checkpoint in $OUT.$part"
    set -- --resume "$OUT.$part" "$@"
    break
  fi
done

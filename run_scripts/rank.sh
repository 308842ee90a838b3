#!/bin/bash
# One rank of a job whose stage is named after the job: srun ... run_scripts/rank.sh COMMAND ...
# However the ranks end (scancel, time limit, a lost rank), the last one on a node removes the stage, which no other
# job could find. Every rank holds a shared lock; the one that can have it exclusively is the last.
set -uo pipefail

lock=${STAGE:?}.lock
mkdir -p "${lock%/*}"
# Reopened if the locked file has just been removed with the stage of an earlier run.
until [[ $lock -ef /dev/fd/9 ]]; do exec 9>>"$lock" && flock --shared 9 || exit; done

"$@" 9>&- & # processes that a rank leaves running do not hold the lock
rank=$!
# proctrack/cgroup signals this process only. Bash makes its background processes ignore SIGINT.
trap 'kill -TERM "$rank" 2>/dev/null' TERM INT
trap 'kill -USR1 "$rank" 2>/dev/null' USR1
while kill -0 "$rank" 2>/dev/null; do wait "$rank"; done # a signal interrupts wait
wait "$rank"
status=$?

if flock --exclusive --nonblock 9; then rm -rf --one-file-system -- "$STAGE" "$lock"; fi
exit "$status"

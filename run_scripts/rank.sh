#!/bin/bash
# One rank of a job whose stage is named after the job: srun ... run_scripts/rank.sh COMMAND ...
# However the ranks end (scancel, time limit, a lost rank), the last one on a node removes the stage, which no other
# job could find. Every rank holds a shared lock; the one that can have it exclusively is the last.
# The lock is inside the stage, which must be this user's alone: in /tmp others could hold it, or put a link there.
set -uo pipefail

lock=${STAGE:?}/.ranks
own() { [[ -d $STAGE && ! -L $STAGE && -O $STAGE && -z $(find "$STAGE" -maxdepth 0 -perm /022) ]]; }
mkdir -p -- "$(dirname -- "$STAGE")"
# Again if the locked file has just been removed with the stage of an earlier run.
until [[ $lock -ef /dev/fd/9 ]]; do
  mkdir -m 0700 -- "$STAGE" 2>/dev/null
  own || { echo "mlhpc: $STAGE is not a folder of yours alone (mode 0700); choose another STAGE" >&2; exit 2; }
  exec 9>>"$lock" && flock --shared 9 || exit
done

"$@" 9>&- & # processes that a rank leaves running do not hold the lock
rank=$!
# proctrack/cgroup signals this process only. Bash makes its background processes ignore SIGINT.
trap 'kill -TERM "$rank" 2>/dev/null' TERM INT
trap 'kill -USR1 "$rank" 2>/dev/null' USR1
while kill -0 "$rank" 2>/dev/null; do wait "$rank"; done # a signal interrupts wait
wait "$rank"
status=$?

if flock --exclusive --nonblock 9; then rm -rf --one-file-system -- "$STAGE"; fi
exit "$status"

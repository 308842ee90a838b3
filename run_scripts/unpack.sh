# shellcheck shell=bash
# Copies an environment (run_scripts/pack.sh) to every node of a Slurm job; with the job it is removed. In a site:
#   source run_scripts/unpack.sh "$SHARED/mlhpc.tar" /dev/shm
environment=${2:?the folder to unpack in}/mlhpc-environment-${SLURM_JOB_ID:?}
on_each_node() {
  srun --export=ALL --overlap --mem=0 --gres=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
    --ntasks-per-node=1 bash -c "set -e; umask 077; $1" bash "$environment"
}

sbcast --force -- "${1:?the file to unpack}" "$environment.tar"
# shellcheck disable=SC2016 # for the shell on the node
on_each_node 'exec 9>"$1.lock"; flock 9; [[ ! -x $1/bin/mlhpc ]] || exit 0
  mkdir -p "$1/bin"; tar -xf "$1.tar" -C "$1"; rm "$1.tar"
  if [[ -d $1/python ]]; then
    ln -sf "$1/python/bin/python3" "$1/venv/bin/python"
    sed -i "s|^home = .*|home = $1/python/bin|" "$1/venv/pyvenv.cfg"
  fi
  printf "#!/bin/bash\nexport PYTHONSAFEPATH=1\nexec %q -m mlhpc \"\$@\"\n" "$1/venv/bin/python" >"$1/bin/mlhpc"
  chmod +x "$1/bin/mlhpc"'
# At the end of the job Slurm sends SIGTERM to this step.
# shellcheck disable=SC2016
on_each_node 'trap "rm -rf -- $(printf "%q " "$1" "$1.lock")" EXIT; trap exit TERM; sleep infinity & wait' &
PATH=$environment/bin:$PATH

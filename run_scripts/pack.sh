#!/bin/bash
# Packs the environment into one file, which run_scripts/unpack.sh copies to every node: in place, thousands of files
# would each be a request to the shared file system. On a login node: run_scripts/pack.sh FILE.tar [options of tar]
# PYTHON: of the environment, in which mlhpc is installed (without -e).
set -euo pipefail

file=${1:?usage: run_scripts/pack.sh FILE.tar [options of tar]}
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
if [[ -e $file ]]; then echo "pack.sh: $file already exists; choose another" >&2 && exit 2; fi
# From another folder: those of the checkout would be imported here.
at=$(cd / && "$python" -c 'import sys, mlhpc; print(sys.prefix, sys.base_prefix, mlhpc.__path__[0], sep="\n")')
{ read -r prefix && read -r base && read -r mlhpc; } <<<"$at"
if [[ $mlhpc != "$prefix"/* ]]; then
  echo "pack.sh: mlhpc is in $mlhpc, outside $prefix; install it there, without -e" >&2
  exit 2
fi
folders=("${prefix#/}")
# A system's Python is on every node.
if [[ $base != /usr && $base != "$prefix" ]]; then folders+=("${base#/}"); fi

trap 'rm -f "$file.part"' EXIT
tar -cf "$file.part" "${@:2}" --transform "flags=rh;s|^${prefix#/}|venv|;s|^${base#/}|python|" -C / "${folders[@]}"
mv -- "$file.part" "$file"
echo "$file: $prefix and its Python, $(du -h -- "$file" | cut -f1)"

#!/usr/bin/env bash
# The pins in constraints/. Nothing is installed but uv, where it is missing, in a folder that is thrown away.
#   bash scripts/pins.sh --check     resolve them for Python 3.10 to 3.13 on Linux, for the CPU's, the GPU's and the trackers'
#   bash scripts/pins.sh             write gpu.txt and trackers.txt anew, from the versions of the CPU's files
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

case "${1:-}" in
  "" | --check) ;;
  -h | --help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "unknown argument '$1'; usage: pins.sh [--check]" ;;
esac
uv="${UV:-uv}"
own="$(mktemp -d)"
trap 'rm -rf "$own"' EXIT
if ! command -v -- "$uv" >/dev/null; then
  [ -z "${UV:-}" ] || die "UV=$UV is not an executable"
  python3 -m venv "$own/venv"
  "$own/venv/bin/pip" install --quiet --disable-pip-version-check uv
  uv="$own/venv/bin/uv"
fi

# vllm and flash are left out: vllm pins a torch of its own, and flash-attn is built against the torch that is there.
gpu=(--extra dev --extra lmms --extra liger)
cpu=(--extra dev --extra lmms)

if [ "${1:-}" = --check ]; then
  for version in 3.10 3.11 3.12 3.13; do
    of_cpu=constraints/cpu-py311.txt
    [ "$version" != 3.10 ] || of_cpu=constraints/cpu-py310.txt
    for file in "$of_cpu" constraints/gpu.txt constraints/trackers.txt; do
      extras=("${cpu[@]}")
      [ "$file" != constraints/gpu.txt ] || extras=("${gpu[@]}")
      [ "$file" != constraints/trackers.txt ] || extras=(--extra trackers)
      "$uv" pip compile --quiet pyproject.toml "${extras[@]}" -c "$file" \
        --python-version "$version" --python-platform x86_64-manylinux_2_28 >/dev/null || die "Python $version: $file does not resolve"
      printf 'Python %s: %s resolves\n' "$version" "$file"
    done
  done
  exit 0
fi

wanted="$own/wanted.txt" found="$own/found.txt"
{
  sed "/^#/d; s/\$/ ; python_version >= '3.11'/" constraints/cpu-py311.txt
  sed "/^#/d; s/\$/ ; python_version < '3.11'/" constraints/cpu-py310.txt
} >"$wanted"
"$uv" pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate pyproject.toml "${gpu[@]}" -c "$wanted" -o "$found" >/dev/null
{
  cat <<'TEXT'
# Machines with an NVIDIA GPU, Python 3.10 to 3.13: the versions of the CPU's files, and what CUDA needs beside them. Written by
# scripts/pins.sh from the package index; no GPU has run them together yet. The index's torch is built for CUDA 13.0. For an older driver install the
# build of torch 2.13.0 for its CUDA beforehand: a local version (2.13.0+cu126) fits the pin and stays.
TEXT
  grep -v "sys_platform == 'win32'\|sys_platform == 'emscripten'" "$found"
  grep '^lmms-eval==' constraints/cpu-py311.txt
} >constraints/gpu.txt
printf 'constraints/gpu.txt: %d pins\n' "$(grep -vc '^#' constraints/gpu.txt)"

# Of the newest trackers mlflow asks for pyarrow < 26, swanlab for protobuf < 7, trackio for pillow < 13: not the trainer's pins.
grep -viE '^(pillow|protobuf|pyarrow)==' "$wanted" >"$own/others.txt"
printf 'pytest\npytest-timeout\nhypothesis\nmlflow>=3\nswanlab>=0.10\ntrackio>=0.43\n' >"$own/tests.in"
"$uv" pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate pyproject.toml "$own/tests.in" --extra trackers \
  -c "$own/others.txt" -o "$found" >/dev/null
{
  cat <<'TEXT'
# The environment of the trackers (scripts/setup.sh trackers), Python 3.10 to 3.13: the versions of the CPU's files, but for pillow, protobuf and
# pyarrow, of which mlflow, swanlab and trackio want older ones. Written by scripts/pins.sh from the package index.
TEXT
  grep -v "sys_platform == 'win32'\|sys_platform == 'emscripten'" "$found"
} >constraints/trackers.txt
printf 'constraints/trackers.txt: %d pins\n' "$(grep -vc '^#' constraints/trackers.txt)"

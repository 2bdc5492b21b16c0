#!/usr/bin/env bash
# Print the line that trains a recipe on several GPUs or machines, or run it.
#   bash scripts/launch.sh --gpus 8 configs/recipes/video_tempsamp_3b.yaml             the line for one machine
#   bash scripts/launch.sh --gpus 8 --run configs/recipes/video_tempsamp_3b.yaml       run it here
#   bash scripts/launch.sh --gpus 8 --nodes 4 --host HOST RECIPE [key=value ...]       the line for each of four machines
#   bash scripts/launch.sh --gpus 8 --nodes 4 --with slurm RECIPE [key=value ...]      a script for sbatch
# The options are those of `vlmrl launch`; docs/launch.md explains them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "" | -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
bash "$ROOT/scripts/setup.sh" >&2
exec "$(environment_python)" -m vlmrl launch "$@"

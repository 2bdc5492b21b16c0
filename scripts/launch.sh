#!/usr/bin/env bash
# Train a recipe on several GPUs or machines; the same command resumes.
#   bash scripts/launch.sh configs/recipes/video_tempsamp_3b.yaml --gpus 8
#   bash scripts/launch.sh RECIPE [key=value ...] --gpus 8 --nodes 4 --host HOST       this machine's part, on each of four
# The options are those of `vlmrl train`; `vlmrl plan RECIPE --launch` prints the line that it runs; docs/launch.md explains both.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "" | -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
bash "$ROOT/scripts/setup.sh" >&2
exec "$(environment_python)" -m vlmrl train "$@"

#!/usr/bin/env bash
# Evaluate a checkpoint and write tables and a report.
#   bash scripts/eval.sh CHECKPOINT [--suite NAME] [...]      e.g. bash scripts/eval.sh runs/toy_video/final
# CHECKPOINT is a model folder or a finished run. The suite is toy_video unless --suite says otherwise; `vlmrl list suites` lists them,
# and `vlmrl eval --help` what else can be given.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  "") die "which checkpoint? usage: scripts/eval.sh CHECKPOINT [--suite NAME] [...]" ;;
  -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
[ -e "$1" ] || die "$1: no such checkpoint; scripts/train_video.sh makes runs/toy_video/final"

suite=(--suite toy_video)
for argument in "$@"; do
  case "$argument" in --suite | --suite=*) suite=() ;; esac
done

bash "$ROOT/scripts/setup.sh"
python="$(environment_python)"
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m vlmrl.cli eval "$@" ${suite[@]+"${suite[@]}"}

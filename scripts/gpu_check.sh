#!/usr/bin/env bash
# The first thing to run on a GPU, about twenty minutes: does training work here, how fast, what fits. On a CPU it runs as far as it goes.
#   bash scripts/gpu_check.sh [--only NAME ...] [--list] [--quick] [--device auto|cpu|cuda] [--out gpu_check.json]
# Prints a line per check (ok, FAIL or skip with a reason), a table and the overrides for this machine. Exit code: number of failures.
# What each line means and what to do when it fails: docs/gpu_check.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
bash "$ROOT/scripts/setup.sh" >/dev/null
python="$(environment_python)"
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$ROOT"
exec "$python" -m benchmarks.gpu_check "$@"

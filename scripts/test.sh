#!/usr/bin/env bash
# Everything that has to pass: lint, format, types, tests.
#   bash scripts/test.sh                          all of it
#   bash scripts/test.sh --fast                   minutes: lint, format, the house rules, and the whole core without a trained run
#   bash scripts/test.sh tests/unit/data -k row   other arguments go to pytest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

case "${1:-}" in
  --fast) fast=yes; shift ;;
  -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) fast=no ;;
esac

bash scripts/setup.sh dev
python="$(environment_python)"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

"$python" -m ruff check .
"$python" -m ruff format --check .
if [ "$fast" = yes ]; then
  # The folders of the core. What in them loads the shared model, starts processes or takes seconds is marked `not_fast`; properties are
  # tried on fewer examples.
  VLMRL_TEST_PROFILE=fast exec "$python" -m pytest -q -n 2 --dist worksteal -m "not slow and not gpu and not not_fast" tests/test_layering.py \
    tests/invariants tests/unit/algo tests/unit/answers tests/unit/config tests/unit/data tests/unit/metrics tests/unit/policy \
    tests/unit/rewards tests/unit/rollout tests/unit/run tests/unit/sampling tests/unit/train "$@"
fi
# pyright takes one core for minutes and says no more than yes or no: it runs beside the tests, and what it found comes last.
types="$(mktemp)"
trap 'rm -f "$types"' EXIT
"$python" -m pyright --pythonpath "$python" >"$types" 2>&1 &
typed=$! failed=0
"$python" -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=25 --durations-min=5 "$@" || failed=$?
wait "$typed" || failed=$?
cat "$types"
exit "$failed"

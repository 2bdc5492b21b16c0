#!/usr/bin/env bash
# Which claims of papers hold on the toy world, on a CPU; writes docs/benchmarks/claims.md and claims.json. Stop it and go on at will.
#   bash scripts/claims.sh [--only CLAIM ...] [--seeds 0 1 2 3 4] [--jobs 2] [--plan]      (--help lists the claims)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bash "$ROOT/scripts/setup.sh" >/dev/null
python="$(environment_python)"
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$ROOT"
exec "$python" "$ROOT/benchmarks/claims.py" "$@"

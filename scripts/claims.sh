#!/usr/bin/env bash
# Which claims of papers hold on generated worlds, on a CPU, by the plan docs/benchmarks/claims_plan.md; writes docs/benchmarks/claims.md and
# claims.json. Stop it and go on at will; --quick proves in minutes that the machinery runs, and decides nothing.
#   bash scripts/claims.sh [--only CLAIM ...] [--seeds N] [--jobs 2] [--list] [--quick | --pilot]      (--help lists the claims)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bash "$ROOT/scripts/setup.sh" >/dev/null
python="$(environment_python)"
export TOKENIZERS_PARALLELISM=false PYTHONPATH="$ROOT"
exec "$python" -m benchmarks.claims "$@"

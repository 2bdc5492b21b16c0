#!/usr/bin/env bash
# Everything that has to pass: lint, format, types, tests. Arguments go to pytest, for example: scripts/test.sh tests/unit -k cli
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

bash scripts/setup.sh dev
python="$(environment_python)"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m pyright --pythonpath "$python"
exec "$python" -m pytest -q -n 2 --dist loadfile "$@"

#!/usr/bin/env bash
# A part of the suite beside other versions than the pins: policy families, rollout, a short run, export. constraints/tested.json names them.
#   bash scripts/matrix.sh trackers             every tracker of run.trackers for real, in the environment of scripts/setup.sh trackers
#   bash scripts/matrix.sh                      the rows that there are
#   bash scripts/matrix.sh ROW                  in an environment of its own, .venv-ROW, made here
#   bash scripts/matrix.sh ROW --in PYTHON      in an environment that has the row's versions already
#   bash scripts/matrix.sh ROW -k forward       other arguments go to pytest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

PART=(tests/unit/families tests/unit/policy/test_family.py tests/unit/policy/test_forward.py tests/unit/policy/test_positions.py
  tests/unit/policy/test_vision.py tests/unit/policy/test_lora.py tests/unit/policy/test_load_refused.py tests/unit/rollout/test_engine_hf.py
  tests/unit/run/test_export.py tests/e2e/test_own_reward.py::test_a_reward_of_a_script_trains)

read_row='import json, sys
rows = {row["name"]: row for row in json.load(open("constraints/tested.json"))}
for name in rows if len(sys.argv) == 1 else [sys.argv[1]]:
    row = rows.get(name) or sys.exit(f"error: no row {name!r}; there are: " + ", ".join(rows))
    print(name, row["torch"], row["torchvision"], row["transformers"])'
any="$(command -v python3 || command -v python)" || die "no python3 on PATH"

case "${1:-}" in
  "") exec "$any" -c "$read_row" ;;
  -h | --help) sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  trackers)
    shift
    bash scripts/setup.sh trackers
    export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
    exec "$ROOT/.venv-trackers/bin/python" -m pytest -q -rs tests/unit/extras/trackers tests/faults/test_resume_trackers.py "$@"
    ;;
esac
row="$("$any" -c "$read_row" "$1")" || exit 64
read -r name torch torchvision transformers <<<"$row"
shift
if [ "${1:-}" = --in ]; then
  python="${2:?--in needs the interpreter of an environment}"
  shift 2
else
  python="$ROOT/.venv-$name/bin/python"
  [ -x "$python" ] || "$any" -m venv "$ROOT/.venv-$name"
  install() { "$python" -m pip install --quiet --no-input --disable-pip-version-check "$@"; }
  # Both at once: torchvision is built for one torch. The pins hold for all that these three leave open.
  install "torch==$torch" "torchvision==$torchvision" "transformers==$transformers"
  pins="$(mktemp)"
  trap 'rm -f "$pins"' EXIT
  grep -viE '^(torch|torchvision|transformers|tokenizers|huggingface_hub|huggingface-hub|safetensors)==' constraints/cpu-py311.txt >"$pins"
  install -e ".[lora,decord]" pytest pytest-timeout hypothesis -c "$pins"
fi
"$python" - "$torch" "$torchvision" "$transformers" <<'PYTHON'
import sys
from importlib.metadata import version

found = [version(name).partition("+")[0] for name in ("torch", "torchvision", "transformers")]
if found != sys.argv[1:]:
    sys.exit(f"error: the row says torch, torchvision, transformers {sys.argv[1:]}, the environment has {found}")
PYTHON
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
"$python" -m pytest -q --durations=10 "${PART[@]}" "$@"

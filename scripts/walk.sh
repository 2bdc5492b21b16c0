#!/usr/bin/env bash
# A new user's first walk: builds the wheel, installs it into a fresh environment with the CPU's pins, and runs the commands of the first
# pages in an empty folder that has nothing else. Prints each with its seconds; exit code 1 if one failed or did not say what it should.
#   bash scripts/walk.sh                whole: toy_video and three notebooks are trained as they stand
#   bash scripts/walk.sh --quick        a few videos and steps each: that everything runs, not what it teaches
#   bash scripts/walk.sh --in FOLDER    walk there, and leave everything; without it a folder is made and removed
#   bash scripts/walk.sh --env FOLDER   an environment that holds what the wheel needs: the wheel alone is installed into it
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quick=no at="" env=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --quick) quick=yes; shift ;;
    --in | --env)
      [ $# -ge 2 ] || die "$1 needs a folder"
      if [ "$1" = --in ]; then at="$2"; else env="$2"; fi
      shift 2 ;;
    *) die "unknown argument '$1'; usage: walk.sh [--quick] [--in FOLDER] [--env FOLDER]" ;;
  esac
done
if [ -z "$at" ]; then
  at="$(mktemp -d)"
  trap 'rm -rf "$at"' EXIT
fi
mkdir -p "$at/here" "$at/home"
at="$(cd "$at" && pwd)"
[ -z "$(ls -A "$at/here")" ] || die "--in $at: a walk begins in an empty folder, and $at/here is not; remove it, or give another"
unset PYTHONPATH VIRTUAL_ENV # of the checkout, which the wheel has to do without
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false COLUMNS=160

failed=0 began=$SECONDS
say() { # say "what failed, or nothing" seconds command...
  local wrong="$1" took="$2"
  shift 2
  printf '%6d s  %s\n' "$took" "$*"
  [ -z "$wrong" ] || { printf '          FAILED: %s\n' "$wrong"; sed 's/^/          | /' "$at/said" | tail -n 30; failed=$((failed + 1)); }
}
walk() { # walk "words that it must say" command...
  local wanted="$1" start=$SECONDS wrong=""
  shift
  "$@" >"$at/said" 2>&1 || wrong="exit code $?"
  [ -n "$wrong" ] || [ -z "$wanted" ] || grep -qE -- "$wanted" "$at/said" || wrong="does not say '$wanted'"
  say "$wrong" $((SECONDS - start)) "$@"
}
live() { # live "python that asks it, with its output in the first argument" command...: until it is asked, then it is stopped as by Ctrl-C
  local asks="$1" start=$SECONDS wrong="" job
  shift
  : >"$at/said"
  "$@" >"$at/said" 2>&1 &
  job=$!
  while kill -0 "$job" 2>/dev/null && ! grep -q 'http:/' "$at/said" && [ $((SECONDS - start)) -lt 600 ]; do sleep 0.5; done
  "$at/env/bin/python" -c "$asks" "$at/said" >>"$at/said" 2>&1 || wrong="asked it, exit code $?"
  kill -INT "$job" 2>/dev/null || true
  wait "$job" || wrong="${wrong:-ended with code $?}"
  say "$wrong" $((SECONDS - start)) "$@"
}

if [ -n "$env" ]; then
  ln -sfn "$(cd "$env" && pwd)" "$at/env"
else
  base=""
  for name in python3.11 python3.12 python3.13 python3.10 python3; do
    if [ -z "$base" ] && command -v "$name" >/dev/null && new_enough "$name"; then base="$name"; fi
  done
  [ -n "$base" ] || die "no Python 3.10 or newer on PATH"
  walk "" "$base" -m venv "$at/env"
fi
pip=("$at/env/bin/python" -m pip --disable-pip-version-check --quiet)
walk "" "${pip[@]}" wheel "$ROOT" --no-deps -w "$at/dist"
wheel="$(ls "$at"/dist/vlmrl-*.whl)"
if [ -n "$env" ]; then
  walk "" "${pip[@]}" install --no-deps --force-reinstall "$wheel"
else
  # As docs/install.md has it, with torch from pip's own index: which of its builds that is depends on the machine.
  walk "" "${pip[@]}" install --no-deps "$wheel"
  (cd "$at/here" && "$at/env/bin/python" -m vlmrl.extras.install.pins --cpu >"$at/pins.txt") || die "the wheel prints no pins"
  mapfile -t torch < <(grep -E '^(torch|torchvision)==' "$at/pins.txt")
  walk "" "${pip[@]}" install "${torch[@]}"
  walk "" "${pip[@]}" install "${wheel}[view,serve,lora]" -c "$at/pins.txt"
fi
[ "$failed" = 0 ] || die "nothing is installed"

# From here on only what is installed, and a home of its own: the cache of generated worlds is empty too.
export PATH="$at/env/bin:$PATH" HOME="$at/home"
cd "$at/here"
smaller=() limit=()
if [ "$quick" = yes ]; then
  export VLMRL_QUICK=1
  smaller=(toy.world.pretrain=32 toy.world.sft=16 toy.world.train=16 toy.world.validation=8 toy.world.test=8 toy.base.steps=2
    toy.base.batch=16 stages.sft.steps=2 stages.rl.steps=2)
  limit=(--limit 8)
fi

walk '^[0-9]+\.[0-9]' vlmrl --version
walk 'Exit codes' vlmrl --help
walk 'Exit codes' python -m vlmrl --help
walk 'torch' vlmrl check
walk '^torch==' vlmrl tools pins
walk 'g2rpo' vlmrl list
walk 'evidence' vlmrl list temporal_iou
walk 'toy_video' vlmrl list recipes
walk '"name": "grpo"' vlmrl list advantage --json
walk 'toy_video' vlmrl list suites
walk 'python .*/data/aitz/prepare.py ' vlmrl list suites gui
walk 'desk' vlmrl list environments
walk 'recipe: ok' vlmrl check toy_video --no-data
walk 'fits' vlmrl plan video_3b_1x80gb --gpu h100
walk 'report' vlmrl train toy_video ${smaller[@]+"${smaller[@]}"}
walk 'already finished' vlmrl train toy_video ${smaller[@]+"${smaller[@]}"}
walk 'finished' vlmrl list runs
walk '"status": "finished"' vlmrl list runs --json
walk 'index.html' vlmrl view runs/toy_video --save saved
rows="$(ls "$HOME"/.cache/vlmrl/world-*/test.jsonl | head -n 1)"
world=()
[ "$quick" = no ] || world=(--data-root "$(dirname "$rows")") # the suite's own world has 600 videos
for model in stages/sft final; do
  walk 'exact' vlmrl eval "runs/toy_video/$model" --suite toy_video ${limit[@]+"${limit[@]}"} ${world[@]+"${world[@]}"}
done
walk 'exact' vlmrl compare runs/toy_video/stages/suites/sft-toy_video runs/toy_video/suites/final-toy_video --out compared
video="$(dirname "$rows")/$(python -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["video"])' "$rows")"
question="$(python -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["prompt"])' "$rows")"
walk 'answer' vlmrl serve runs/toy_video/final --ask "$question" --video "$video" --out answer.png
walk 'mine.yaml' vlmrl new mine --task video_qa
walk 'recipe: ok' vlmrl check mine.yaml --no-data
walk 'first_steps.ipynb' vlmrl new --examples examples
cp "$ROOT/tests/support/notebooks.py" "$at/" # Python looks for modules beside its script, and the checkout's are none of a user's
for name in your_data first_steps; do
  mkdir -p "books/$name"
  walk '.' env -C "books/$name" python "$at/notebooks.py" "$PWD/examples/$name.ipynb"
done
live 'import re, sys, urllib.request as u; a = re.search(r"http:/\S+", open(sys.argv[1]).read())[0]; o = u.build_opener(u.ProxyHandler({}), u.HTTPCookieProcessor()); assert b"<html" in o.open(a).read()' \
  vlmrl view runs/toy_video
live 'import json, re, sys, urllib.request as u; s = open(sys.argv[1]).read(); a, k = re.search(r"base url: (\S+)", s)[1], re.search(r"api key: +(\S+)", s)[1]
ask = json.dumps({"model": "toy_video", "temperature": 0, "messages": [{"role": "user", "content": "Where is the ball?"}]}).encode()
sent = u.Request(a + "/chat/completions", ask, {"Authorization": "Bearer " + k, "Content-Type": "application/json"})
print(json.load(u.build_opener(u.ProxyHandler({})).open(sent))["choices"][0]["message"])' \
  vlmrl serve runs/toy_video/final --port 0
walk 'nothing was uploaded' vlmrl publish runs/toy_video/final --to me/toy --license apache-2.0 --dry-run
walk 'world' vlmrl list caches
for script in "$ROOT"/tests/e2e/walks/*_*.sh; do # what four kinds of users type; one that lacks something here says so
  walk ' commands$|^skipped' env QUICK=1 bash -c 'bash "$0" || [ $? = 77 ]' "$script"
  sed -n 's/^ /         &/p; /^skipped/s/^/          /p' "$at/said"
done
printf '%6d s  in all, %d failed\n' $((SECONDS - began)) "$failed"
[ "$failed" = 0 ]

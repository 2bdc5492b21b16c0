#!/usr/bin/env bash
# Train a method as its paper does, and evaluate it. docs/reproduce/NAME.md says what to download and how to prepare it.
#
#   bash scripts/reproduce.sh NAME --data DIR [--eval-data DIR] [--gpus N] [key=value ...]
#       configs/recipes/NAME.yaml on the rows in DIR: check them, train, and evaluate on the paper's sets where their rows are given
#
#   bash scripts/reproduce.sh NAME --stand-in [key=value ...]
#       the same method on a generated world with a tiny model, on a CPU, in minutes
#
#   NAME: g2rpo, fgrpo, ton, tempsamp, curriculum_gui
#
# key=value are overrides of the recipe, for example run.name=mine stages.rl.steps=200. The same command resumes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name="" data="" tests="" gpus=1 stand_in="" overrides=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --data | --eval-data | --gpus)
      [ $# -ge 2 ] || die "$1 needs a value; see --help"
      case "$1" in
        --data) data="$2" ;;
        --eval-data) tests="$2" ;;
        --gpus) gpus="$2" ;;
      esac
      shift 2 ;;
    --stand-in) stand_in=yes; shift ;;
    --*) die "unknown option '$1'; see --help" ;;
    *=*) overrides+=("$1"); shift ;;
    *) [ -z "$name" ] || die "two names: '$name' and '$1'"; name="$1"; shift ;;
  esac
done

# The recipe on a generated world, the suite, and the files of rows.
case "$name" in
  g2rpo) toy=toy_g2rpo suite=ovt18 files="train.jsonl" ;;
  fgrpo) toy=toy_fgrpo suite=spatial7 files="sft.jsonl train.jsonl" ;;
  ton) toy=toy_ton suite=counting files="sft.jsonl train.jsonl" ;;
  tempsamp) toy=toy_grounding suite=temporal files="train.jsonl" ;;
  curriculum_gui) toy=toy_curriculum_gui suite=gui files="train.jsonl" ;;
  "") die "which method? g2rpo, fgrpo, ton, tempsamp or curriculum_gui; see --help" ;;
  *) die "no kit for '$name'; there are g2rpo, fgrpo, ton, tempsamp and curriculum_gui" ;;
esac
case "$gpus" in "" | *[!0-9]* | 0) die "--gpus: expected a number from 1, got '$gpus'" ;; esac

if [ -n "$stand_in" ]; then
  [ -z "$data$tests" ] || die "--stand-in makes rows of its own; leave out --data and --eval-data"
  recipe="$ROOT/configs/recipes/$toy.yaml" settings=()
else
  [ -n "$data" ] || die "give the rows with --data DIR (docs/reproduce/$name.md), or --stand-in"
  for file in $files; do
    [ -f "$data/$file" ] || die "--data: no file '$data/$file'; docs/reproduce/$name.md says how to make it"
  done
  data="$(cd "$data" && pwd)"
  recipe="$ROOT/configs/recipes/$name.yaml" settings=("data.root='${data//\'/\'\'}'")
fi
[ -z "$tests" ] || [ -d "$tests" ] || die "--eval-data: no folder '$tests'"

bash "$ROOT/scripts/setup.sh"
python="$(environment_python)"
arguments=("$recipe" ${settings[@]+"${settings[@]}"} ${overrides[@]+"${overrides[@]}"})
[ -n "$stand_in" ] || "$python" -m vlmrl check "${arguments[@]}"
if [ "$gpus" = 1 ]; then
  "$python" -m vlmrl train "${arguments[@]}"
else
  "$python" -m vlmrl launch --run --gpus "$gpus" "${arguments[@]}"
fi
if [ -n "$tests" ]; then
  run="runs/$name"
  for one in ${overrides[@]+"${overrides[@]}"}; do
    case "$one" in run.name=*) run="runs/${one#run.name=}" ;; run.root=*) die "with --eval-data leave run.root out; evaluate with: vlmrl eval" ;; esac
  done
  "$python" -m vlmrl eval "$run" --suite "$suite" --data-root "$tests"
fi

#!/usr/bin/env bash
# Train a vision-language model on videos with RL.
#
#   bash scripts/train_video.sh [key=value ...]
#       a generated world and a tiny model, on a CPU, in minutes: generate, pretrain, train, evaluate, report
#
#   bash scripts/train_video.sh toy_grounding [key=value ...]
#       the same with another recipe of configs/recipes/: temporal grounding in generated videos, as TempSamp-R1
#
#   bash scripts/train_video.sh --model M --data FILE [--media-root DIR] [--gpus N] [key=value ...]
#       TempSamp-R1 temporal grounding with your model and rows (configs/recipes/video_tempsamp_3b.yaml)
#         --model M         folder or hub id of a Qwen2-VL or Qwen2.5-VL model
#         --data FILE       JSONL or Parquet rows
#         --media-root DIR  folder that the rows' video paths are relative to (default: the folder of FILE)
#         --gpus N          processes, one per GPU (default: 1)
#
# key=value are overrides of the recipe, for example run.name=mine stages.think.steps=200. The same command resumes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

model="" data="" media="" gpus=1 toy="" overrides=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --model | --data | --media-root | --gpus)
      [ $# -ge 2 ] || die "$1 needs a value; see --help"
      case "$1" in
        --model) model="$2" ;;
        --data) data="$2" ;;
        --media-root) media="$2" ;;
        --gpus) gpus="$2" ;;
      esac
      shift 2 ;;
    --*) die "unknown option '$1'; see --help" ;;
    *=*) overrides+=("$1"); shift ;;
    toy_*)
      [ -z "$toy" ] || die "two recipes: '$toy' and '$1'"
      [ -f "$ROOT/configs/recipes/$1.yaml" ] || die "no recipe configs/recipes/$1.yaml; see --help"
      toy="$1"; shift ;;
    *) die "unexpected argument '$1': options start with --, overrides are key=value; see --help" ;;
  esac
done

case "$gpus" in "" | *[!0-9]* | 0) die "--gpus: expected a number from 1, got '$gpus'" ;; esac
if [ -z "$model$data$media" ]; then
  [ "$gpus" = 1 ] || die "--gpus goes with --model and --data; the generated world runs in one process"
  recipe="$ROOT/configs/recipes/${toy:-toy_video}.yaml" settings=()
else
  [ -z "$toy" ] || die "'$toy' is a recipe with a model and data of its own; leave out --model, --data and --media-root"
  [ -n "$model" ] || die "--data needs --model: a folder or hub id of a Qwen2.5-VL model"
  [ -n "$data" ] || die "--model needs --data: a JSONL or Parquet file of rows"
  [ -f "$data" ] || die "--data: no file '$data'; give a JSONL or Parquet file of rows"
  media="${media:-$(dirname "$data")}"
  [ -d "$media" ] || die "--media-root: no folder '$media'; give the folder that the rows' video paths are relative to"
  data="$(cd "$(dirname "$data")" && pwd)/$(basename "$data")"
  media="$(cd "$media" && pwd)"
  # Values are quoted for YAML, where only the quote itself is special between single quotes.
  quoted() { printf "'%s'" "${1//\'/\'\'}"; }
  recipe="$ROOT/configs/recipes/video_tempsamp_3b.yaml"
  settings=("model.path=$(quoted "$model")" "data.root=$(quoted "$(dirname "$data")")")
  for stage in answer think; do
    settings+=("stages.$stage.source.path=$(quoted "$(basename "$data")")" "stages.$stage.source.media_root=$(quoted "$media")")
  done
fi

bash "$ROOT/scripts/setup.sh"
python="$(environment_python)"
arguments=(train "$recipe" ${settings[@]+"${settings[@]}"} ${overrides[@]+"${overrides[@]}"})
if [ "$gpus" -gt 1 ]; then
  exec "$python" -m accelerate.commands.launch --multi_gpu --num_machines 1 --num_processes "$gpus" --mixed_precision no --dynamo_backend no \
    -m vlmrl.cli "${arguments[@]}"
fi
exec "$python" -m vlmrl.cli "${arguments[@]}"

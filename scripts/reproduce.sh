#!/usr/bin/env bash
# Train a method as its paper does, and evaluate it. docs/reproduce/NAME.md says what to download and how to prepare it.
#
#   bash scripts/reproduce.sh NAME --download DIR [--data DIR] [--allow-partial] [--eval-data DIR] [--gpus N] [key=value ...]
#       make the rows from the official download in DIR, into --data (runs/NAME-rows) where they are not there yet; check them, ask the model
#       in three wordings before it is trained (runs/NAME-prompts; docs/reproduce/prompts.md), train configs/recipes/NAME.yaml, evaluate on
#       the paper's sets where their rows are given, and set the figures beside the printed ones
#
#   bash scripts/reproduce.sh NAME --data DIR [--eval-data DIR] [--gpus N] [key=value ...]
#       the same with rows that are there
#
#   bash scripts/reproduce.sh NAME --stand-in [key=value ...]
#       the same method on a generated world with a tiny model, on a CPU, in minutes
#
#   NAME: g2rpo, fgrpo, ton, tempsamp, curriculum_gui, click
#       click has four arms in place of one recipe (configs/studies/click.yaml); it trains the first seed of each, and compares them
#
#   --check       make the rows and check them, and stop; no weights are loaded. Without rows: read the recipe and plan its hours, and stop
#   --no-prompts  train without asking the base model first; not for click
#
# key=value are overrides of the recipe, for example run.name=mine stages.rl.steps=200. The same command resumes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name="" data="" download="" tests="" gpus=1 stand_in="" check="" ask=yes partial=() overrides=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --data | --download | --eval-data | --gpus)
      [ $# -ge 2 ] || die "$1 needs a value; see --help"
      case "$1" in
        --data) data="$2" ;;
        --download) download="$2" ;;
        --eval-data) tests="$2" ;;
        --gpus) gpus="$2" ;;
      esac
      shift 2 ;;
    --stand-in) stand_in=yes; shift ;;
    --check) check=yes; shift ;;
    --no-prompts) ask=""; shift ;;
    --allow-partial) partial=(--allow-partial); shift ;;
    --*) die "unknown option '$1'; see --help" ;;
    *=*) overrides+=("$1"); shift ;;
    *) [ -z "$name" ] || die "two names: '$name' and '$1'"; name="$1"; shift ;;
  esac
done

# The recipe on a generated world, the suite, the files of rows, and where a stage's media lie: in a folder of the download, or (`=media`) of
# the rows, for downloads that have them inside their tables.
case "$name" in
  g2rpo) toy=toy_g2rpo suite=g2rpo files="train.jsonl" media="rl:" ;;
  fgrpo) toy=toy_fgrpo suite=fgrpo files="sft.jsonl train.jsonl" media="sft:/vgr rl=media" ;;
  ton) toy=toy_ton suite=ton files="train.jsonl sft.jsonl" media="sft=media rl=media" ;;
  tempsamp) toy=toy_grounding suite=tempsamp files="train.jsonl" media="answer: think:" ;;
  curriculum_gui) toy=toy_curriculum_gui suite=curriculum_gui files="train.jsonl" media="rl=media" ;;
  click) toy=toy_click suite=click files="train.jsonl held_out.jsonl" media="" ;;
  "") die "which method? g2rpo, fgrpo, ton, tempsamp, curriculum_gui or click; see --help" ;;
  *) die "no kit for '$name'; there are g2rpo, fgrpo, ton, tempsamp, curriculum_gui and click" ;;
esac
case "$gpus" in "" | *[!0-9]* | 0) die "--gpus: expected a number from 1, got '$gpus'" ;; esac
if [ "$name" = click ]; then
  [ -n "$ask" ] || die "--no-prompts: click trains its arms in the wording that is found so"
  [ "$gpus" = 1 ] || die "--gpus: click is for one GPU; see docs/study.md for the runs of a study on several"
  for one in ${overrides[@]+"${overrides[@]}"}; do
    case "$one" in
      run.name=* | run.root=*) die "'$one': the study names the runs of click (runs/click)" ;;
      media.*pixels=*) die "'$one': rows and test sets of click are in pixels of what is seen, and were made for the recipe's" ;;
    esac
  done
fi

settings=() make=()
if [ -n "$stand_in" ]; then
  [ -z "$data$download$tests" ] || die "--stand-in makes rows of its own; leave out --data, --download and --eval-data"
  recipe="$ROOT/configs/recipes/$toy.yaml"
elif [ -n "$check" ] && [ -z "$data$download$tests" ]; then
  bash "$ROOT/scripts/setup.sh"
  "$(environment_python)" -m vlmrl plan "$ROOT/configs/recipes/$name.yaml" ${overrides[@]+"${overrides[@]}"}
  echo "recipe: ok. No rows are given, so none were checked: docs/reproduce/$name.md says what to download, --download DIR makes them of it"
  exit 0
else
  [ "$name" != click ] || [ -n "$tests$check" ] ||
    die "click compares its arms on test sets; give their rows with --eval-data DIR (docs/reproduce/click.md)"
  [ -n "$data$download" ] || die "give the official download with --download DIR (docs/reproduce/$name.md), its rows with --data DIR, or --stand-in"
  [ -z "$download" ] || [ -d "$download" ] || die "--download: no folder '$download'"
  [ -n "$data" ] || data="runs/$name-rows"
  for file in $files; do
    [ -f "$data/$file" ] || make+=("$file")
  done
  [ -n "$download" ] || [ "${#make[@]}" = 0 ] || die "--data: no file '$data/${make[0]}'; docs/reproduce/$name.md says how to make it"
  mkdir -p "$data"
  data="$(cd "$data" && pwd)"
  recipe="$ROOT/configs/recipes/$name.yaml" settings=("data.root='${data//\'/\'\'}'")
  [ -z "$download" ] || download="$(cd "$download" && pwd)"
  for one in $media; do
    case "$one" in
      *=*) settings+=("stages.${one%%=*}.source.media_root=${one#*=}") ;;
      *) [ -z "$download" ] || { folder="$download${one#*:}"; settings+=("stages.${one%%:*}.source.media_root='${folder//\'/\'\'}'"); } ;;
    esac
  done
fi
[ -z "$tests" ] || [ -d "$tests" ] || die "--eval-data: no folder '$tests'"

bash "$ROOT/scripts/setup.sh"
python="$(environment_python)"

rows() { # rows "dataset" "folder of the download" "split" "file that the rows become" [options]
  "$python" "$ROOT/data/$1/prepare.py" "$2" "$data/made" --split "$3" ${partial[@]+"${partial[@]}"} "${@:5}"
  if [ -d "$data/made/media" ]; then
    if [ ! -e "$data/media" ]; then
      mv "$data/made/media" "$data/media"
    else # an earlier call was stopped here; or they are somebody's
      diff -rq "$data/made/media" "$data/media" >/dev/null || die "--data: '$data/media' is there and holds other media; move it, or give another folder"
      rm -r "$data/made/media"
    fi
  fi
  mv "$data/made/$3.jsonl" "$data/$4"
}
link_pictures() { # link_pictures "rows" "folder that their pictures lie in" "folder for them": rows of a stage have one root of media
  "$python" - "$@" <<'END'
import json, os, shutil, sys
from pathlib import Path

rows, there, here = map(Path, sys.argv[1:])
for name in sorted({json.loads(line)["image"] for line in rows.open(encoding="utf-8")}):
    if (there / name).is_file() and not (here / name).exists():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(there / name, here / name)
        except OSError:  # another file system
            shutil.copy(there / name, here / name)
END
}
# hold_out "rows" "how many" "file for them" "how many others" "file for those": in the order of their pictures' hashes, each on one side
hold_out() {
  "$python" - "$@" "$data/media" <<'END'
import hashlib, json, sys
from pathlib import Path

rows, held, held_file, most, file, media = sys.argv[1:]
lines = Path(rows).read_text(encoding="utf-8").splitlines(keepends=True)
hashed = sorted((hashlib.sha256((Path(media) / json.loads(line)["image"]).read_bytes()).hexdigest(), line) for line in lines)
border = min(int(held), len(hashed) // 5)
while 0 < border < len(hashed) and hashed[border][0] == hashed[border - 1][0]:
    border += 1
for target, part in ((held_file, hashed[:border]), (file, hashed[border : border + int(most)])):
    Path(target).write_text("".join(line for _, line in part), encoding="utf-8")
END
}
make_rows() { # make_rows "file": one of those that the kit trains on
  case "$name/$1" in
    g2rpo/train.jsonl) rows onethinker "$download" rl train.jsonl ;;
    fgrpo/train.jsonl) # as many as the paper takes; its 13,000 rows with boxes are another set's, and which rows is not known
      [ -f "$data/sat.jsonl" ] || rows sat "$download/sat" train sat.jsonl
      rows vgr "$download/vgr" shortcot vgr.jsonl
      grep -v '"boxes": \[\]' "$data/vgr.jsonl" | head -n 13000 >"$data/boxes.jsonl"
      link_pictures "$data/boxes.jsonl" "$download/vgr" "$data/media"
      { head -n 36000 "$data/sat.jsonl"; cat "$data/boxes.jsonl"; } >"$data/mixed.jsonl"
      mv "$data/mixed.jsonl" "$data/train.jsonl" ;;
    fgrpo/sft.jsonl) rows vgr "$download/vgr" longcot sft.jsonl ;;
    tempsamp/train.jsonl) rows charades_sta "$download" train train.jsonl ;;
    curriculum_gui/train.jsonl) rows android_control "$download" train train.jsonl ;;
    click/*) # the clicks with a box, in pixels of what the model sees; 128 rows are held out, and 2,000 of the others train
      rows gui_r1 "$download" train whole.jsonl --form point-4014080
      hold_out "$data/whole.jsonl" 128 "$data/held_out.jsonl" 2000 "$data/train.jsonl" ;;
    ton/train.jsonl) # the paper takes 1,000 rows; which ones is not known
      rows clevr_cogen "$download" train whole.jsonl
      head -n 1000 "$data/whole.jsonl" >"$data/train.jsonl" ;;
    ton/sft.jsonl) # the starting model writes the thoughts, from question and answer
      "$python" -m vlmrl tools thoughts "$recipe" "$data/sft.jsonl" ${settings[@]+"${settings[@]}"} stages.sft.source.path=train.jsonl \
        ${overrides[@]+"${overrides[@]}"} --check ;;
  esac
}
for file in ${make[@]+"${make[@]}"}; do [ -f "$data/$file" ] || make_rows "$file"; done
arguments=("$recipe" ${settings[@]+"${settings[@]}"} ${overrides[@]+"${overrides[@]}"})
[ -n "$stand_in" ] && [ -z "$check" ] || "$python" -m vlmrl check "${arguments[@]}"
[ -z "$check" ] || exit 0

# The model before training, in three wordings. What it gains by words alone is no gain of training (docs/reproduce/prompts.md).
kit="${stand_in:+toy_}$name"
wordings=papers asked="runs/$kit-prompts" held=()
[ "$name" != click ] || { wordings="$kit"; held=(--rows "$([ -n "$stand_in" ] && echo validation.jsonl || echo held_out.jsonl)"); }
[ -z "$ask" ] || "$python" -m vlmrl tools prompts "$recipe" "$ROOT/configs/prompts/$wordings.yaml" "$asked" "${arguments[@]:1}" ${held[@]+"${held[@]}"}

study() { # study: the arms of click, in the wording that the model answers best; the first seed of each
  local file="runs/$kit-study.yaml" out="runs/$kit" place="" line pair words
  [ -z "$tests" ] || place="$(cd "$tests" && pwd)"
  mkdir -p runs
  "$python" - "$ROOT" "$kit" "$recipe" "$file" "$asked/best.json" "$place" "${arguments[@]:1}" <<'END'
import json, sys
from pathlib import Path

import yaml

root, kit, recipe, file, best, tests, *given = sys.argv[1:]
study = yaml.safe_load((Path(root) / f"configs/studies/{kit}.yaml").read_text(encoding="utf-8"))
chosen = json.loads(Path(best).read_text(encoding="utf-8"))
pairs = (one.partition("=") for one in chosen)
words = {key.rpartition(".")[2]: yaml.safe_load(value) for key, _, value in pairs}
if tests:
    tasks = [{"use": name, **words} for name in ("screenspot_v2_point", "screenspot_pro_point")]
    suite = Path(file).with_name(f"{kit}-suite.yaml").absolute()
    suite.write_text(yaml.safe_dump({"id": f"{kit}_worded", "version": 1, "tasks": tasks}, sort_keys=False), encoding="utf-8")
    given += [f"eval.suite={json.dumps(str(suite))}", f"eval.data_root={json.dumps(tests)}"]
for arm in study["arms"].values():
    for stage in arm.get("stages", []) if isinstance(arm, dict) else []:
        stage["answer_format"] = words.get("answer_format", stage["answer_format"])
shared = [f"{key}={json.dumps(value)}" for key, value in study.get("set", {}).items()]
study |= {"name": kit, "recipe": str(Path(recipe).absolute()), "set": [*shared, *given, *chosen]}
Path(file).write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
END
  "$python" -m vlmrl study "$file" --out "$out" --plan
  while IFS= read -r line; do
    eval "words=($line)" # as the command quotes them
    case "$line" in *" tools toy prepare "* | *run.name=*-s0\ *) "$python" -m vlmrl "${words[@]:1}" </dev/null ;; esac
  done < <("$python" -m vlmrl study "$file" --out "$out" --list 2>/dev/null)
  for pair in base:sft base:grpo sft:grpo grpo:guard; do
    words=()
    for line in "${pair%%:*}" "${pair#*:}"; do words+=("$out/runs/$line-s0${tests:+/eval/suite/rl}"); done
    "$python" -m vlmrl compare "${words[@]}" --out "$out/compared/${pair/:/-}" || [ $? = 1 ] # 1: one of them is worse, which is a result
  done
  echo "one seed of each arm is compared in $out/compared; over seeds: vlmrl study $file --out $out"
}
if [ "$name" = click ]; then
  study
  exit 0
fi
if [ "$gpus" = 1 ]; then
  "$python" -m vlmrl train "${arguments[@]}"
else
  "$python" -m vlmrl train --gpus "$gpus" "${arguments[@]}"
fi
if [ -n "$tests" ]; then
  run="runs/$name"
  for one in ${overrides[@]+"${overrides[@]}"}; do
    case "$one" in run.name=*) run="runs/${one#run.name=}" ;; run.root=*) die "with --eval-data leave run.root out; evaluate with: vlmrl eval" ;; esac
  done
  "$python" -m vlmrl eval "$run/final" --suite "$suite" --data-root "$tests"
  "$python" -m vlmrl compare "$run/suites/final-$suite" --published --out "$run/published"
fi

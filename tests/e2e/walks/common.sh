# What the walks share: sourced by each, which then calls `begin "$@"`, `walk` for each command, and `finish`. A walk is what a user types,
# with the `vlmrl` on PATH, in an empty folder: every command is printed with its seconds, and one that fails or does not say what it
# should ends the walk with exit code 1. A walk that lacks something on this machine says so with `lacks` and ends with exit code 77.
set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false COLUMNS=160

begin() { # begin [FOLDER]: go there; without it to a folder that is removed at the end
  command -v vlmrl >/dev/null || { echo "no vlmrl on PATH; install it first: pip install vlmrl" >&2; exit 64; }
  said="$(mktemp)" made=""
  trap 'rm -rf "$said" ${made:+"$made"}' EXIT
  [ $# -gt 0 ] || made="$(mktemp -d)"
  at="${1:-$made}"
  mkdir -p "$at"
  [ -z "$(ls -A "$at")" ] || { echo "$at: a walk begins in an empty folder, and this one is not; give another" >&2; exit 64; }
  cd "$at"
  commands=0 began=$SECONDS
}
lacks() { # lacks "what, and how to install it"
  echo "skipped: needs $1"
  exit 77
}
file() { # file NAME: what a user writes, from the standard input
  mkdir -p "$(dirname "$1")"
  cat >"$1"
  printf '        %s  (%d lines)\n' "$1" "$(wc -l <"$1")"
}
tiny() { # tiny FOLDER: stands in for a user's model: a Qwen2.5-VL of a million random weights
  python - "$1" <<'PY' >/dev/null 2>&1
import sys
from pathlib import Path
from vlmrl.extras.toy.kinds import tokenizer_corpus
from vlmrl.extras.toy.model import build_model

build_model(Path(sys.argv[1]), seed=0, corpus=tokenizer_corpus("grounding"))
PY
}
balls() { # balls FILE SEED COUNT: stands in for a user's Parquet file: pictures as bytes, questions, numbers
  python - "$@" <<'PY'
import io
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

file, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng, rows = random.Random(seed), []
for n in range(count):
    balls, picture, data = rng.randint(1, 6), Image.new("RGB", (112, 112), "white"), io.BytesIO()
    for k in range(balls):
        x, y = 8 + 34 * (k % 3), 8 + 50 * (k // 3)
        ImageDraw.Draw(picture).ellipse((x, y, x + 22, y + 22), fill=rng.choice(("red", "blue", "green")))
    picture.save(data, "PNG")
    picture = {"bytes": data.getvalue(), "path": None}
    rows.append({"image": picture, "problem": f"How many balls are in picture {seed}-{n}?", "solution": str(balls)})
pq.write_table(pa.Table.from_pylist(rows), file)
PY
}
screens() { # screens FILE SEED COUNT: stands in for a user's JSON file: screenshots, instructions, boxes to click in pixels
  python - "$@" <<'PY'
import json
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

file, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng, rows = random.Random(seed), []
Path("shots").mkdir(exist_ok=True)
for n in range(count):
    picture, name = Image.new("RGB", (336, 224), "white"), f"shots/{seed}-{n}.png"
    x, y = rng.randint(4, 240), rng.randint(4, 170)
    ImageDraw.Draw(picture).rectangle((x, y, x + 80, y + 44), fill=rng.choice(("red", "blue", "green")))
    picture.save(name)
    rows.append({"screenshot": name, "instruction": f"Press the button of screen {seed}-{n}.", "bbox": [x, y, x + 80, y + 44]})
Path(file).write_text(json.dumps(rows, indent=1))
PY
}
walk() { # walk "words that it must say" command...
  local wanted="$1" start=$SECONDS wrong=""
  shift
  "$@" >"$said" 2>&1 || wrong="exit code $?"
  [ -n "$wrong" ] || grep -qE -- "$wanted" "$said" || wrong="does not say '$wanted'"
  commands=$((commands + 1))
  printf '%5d s ' $((SECONDS - start))
  printf ' %q' "$@"
  echo
  [ -z "$wrong" ] || { printf '         FAILED: %s\n' "$wrong"; tail -n 30 "$said" | sed 's/^/         | /'; exit 1; }
}
finish() {
  printf '%5d s  in all, %d commands\n' $((SECONDS - began)) "$commands"
}

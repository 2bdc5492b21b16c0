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

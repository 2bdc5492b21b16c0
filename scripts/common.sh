# Sourced by the other scripts: which Python environment is used.
#   VLMRL_PYTHON=/path/to/python   that interpreter's environment
#   an active VIRTUAL_ENV          that environment
#   otherwise                      .venv in the checkout (scripts/setup.sh makes it)

# Packages are installed without bytecode. Where a container forbids to write it, every process would compile torch and transformers anew.
unset PYTHONDONTWRITEBYTECODE

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

die() {
  printf 'error: %s\n' "$*" >&2
  exit 64
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

# Prints the environment's interpreter; its file need not exist yet.
environment_python() {
  if [ -n "${VLMRL_PYTHON:-}" ]; then
    command -v -- "$VLMRL_PYTHON" || die "VLMRL_PYTHON=$VLMRL_PYTHON is not an executable"
  elif [ -n "${VIRTUAL_ENV:-}" ] && [ -x "$VIRTUAL_ENV/bin/python" ]; then
    printf '%s\n' "$VIRTUAL_ENV/bin/python"
  else
    printf '%s\n' "$ROOT/.venv/bin/python"
  fi
}

#!/usr/bin/env bash
# Build the site of docs/ into build/site, strictly: a dead link or a page that is not in the navigation is an error. Needs no network.
#   bash scripts/docs.sh                 build it; open build/site/index.html
#   bash scripts/docs.sh --serve [PORT]  show it on 127.0.0.1 and build it anew when a page changes (default 8000)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

serve=""
case "${1:-}" in
  "") ;;
  --serve) serve="${2:-8000}" ;;
  -h | --help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) die "unknown argument '$1'; usage: docs.sh [--serve [PORT]]" ;;
esac
case "$serve" in *[!0-9]*) die "--serve: expected a port, got '$serve'" ;; esac

bash scripts/setup.sh dev
python="$(environment_python)"
# The theme's notice about a later mkdocs is no matter of this site.
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" NO_MKDOCS_2_WARNING=1
if [ -n "$serve" ]; then
  exec "$python" -m mkdocs serve --strict --dev-addr "127.0.0.1:$serve"
fi
exec "$python" -m mkdocs build --strict

#!/usr/bin/env bash
# (c) A table with intervals from a Parquet file of one's own: one command.
#   bash tests/e2e/walks/c_table.sh [FOLDER]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
begin "$@"
tiny model
balls val.parquet 1 12
walk '12' vlmrl eval model --rows val.parquet --max-new-tokens 16
finish

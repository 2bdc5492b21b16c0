#!/usr/bin/env bash
# (b) Screenshots and boxes to click in a JSON file of one's own: a recipe from the rows, training, and an evaluation of rows of the same kind.
#   bash tests/e2e/walks/b_screenshots.sh [FOLDER]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
begin "$@"
tiny model
screens train.json 0 72
screens val.json 1 12

short=(stages.rl.steps=2 stages.rl.rollout.num_generations=4 stages.rl.rollout.prompts_per_step=2 stages.rl.rollout.max_new_tokens=16
  eval.max_new_tokens=16 eval.limit=4)
walk 'all can be used' vlmrl new clicks --data train.json --model model
walk 'model: ' vlmrl train clicks.yaml "${short[@]}"
walk '12' vlmrl eval runs/clicks --rows val.json --max-new-tokens 16
finish

#!/usr/bin/env bash
# (a) Rows in a Parquet file with pictures as bytes, two reward functions as TRL takes them, adapters: three commands, and then the same in one cell.
#   bash tests/e2e/walks/a_rows_and_rewards.sh [FOLDER]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
begin "$@"
tiny model
balls train.parquet 0 80

short=(stages.rl.steps=2 stages.rl.rollout.num_generations=4 stages.rl.rollout.prompts_per_step=2 stages.rl.rollout.max_new_tokens=16
  eval.max_new_tokens=16 eval.limit=4)
walk 'all can be used' vlmrl new mine --data train.parquet --model model
walk 'recipe: ok' vlmrl check mine.yaml
walk 'model: ' vlmrl train mine.yaml "${short[@]}"

file cell.py <<'PY'
import re

import vlmrl


def count(completions, solution, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [float(re.findall(r"\d+", text)[-1:] == [gold]) for text, gold in zip(texts, solution)]


def brief(completions, **kwargs):
    return [float(len(completion[0]["content"]) < 40) for completion in completions]


run = vlmrl.grpo("model", "train.parquet", reward=[count, (brief, 0.1)], lora=4, steps=2, out="runs/cell",
                 rollout={"num_generations": 4, "prompts_per_step": 2, "max_new_tokens": 16})
print(run)
PY
walk 'runs/cell' python cell.py
finish

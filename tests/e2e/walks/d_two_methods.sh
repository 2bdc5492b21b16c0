#!/usr/bin/env bash
# (d) An advantage of one's own against GRPO over three seeds: a command for each method, and one that compares them.
#   bash tests/e2e/walks/d_two_methods.sh [FOLDER]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
begin "$@"

file idea.py <<'PY'
from vlmrl import advantage


@advantage("largest_off")
def largest_off(x, *, share: float = 0.5):
    """Rewards less a share of the largest of their group."""
    return x.reward_N - share * x.reward_N.max()
PY
short=(toy.world.pretrain=32 toy.world.sft=16 toy.world.train=16 toy.world.validation=8 toy.world.test=8 toy.base.steps=2 toy.base.batch=16
  stages.sft.steps=2 stages.rl.steps=2)
walk 'grpo-s2' vlmrl train toy_video --seeds 0,1,2 run.name=grpo "${short[@]}"
walk 'idea-s2' vlmrl train toy_video --seeds 0,1,2 run.name=idea 'plugins=[idea]' 'stages.rl.advantage={name: largest_off}' "${short[@]}"
walk '3 seeds' vlmrl compare runs/grpo-s0 runs/grpo-s1 runs/grpo-s2 -- runs/idea-s0 runs/idea-s1 runs/idea-s2
finish

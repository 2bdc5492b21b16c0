"""Recipes with an environment: what is refused, what is pointed out, and what may change at resume."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.config.combinations import contradictions, doubts
from vlmrl.config.schema import Config, validate
from vlmrl.methods import method_problems, registries
from vlmrl.run.session import fixed_options

FOUND = registries()
EPISODES: dict[str, Any] = {
    "environment": {"name": "toy_desk", "max_turns": 4},
    "rewards": [{"name": "environment_reward"}],
    "advantage": {"name": "gigpo"},
}


def config(**stage: Any) -> Config:
    rl = {"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1} | EPISODES | stage
    return Config.model_validate({"model": {"path": "m"}, "stages": [{k: v for k, v in rl.items() if v is not None}]})


def problems(cfg: Config) -> list[str]:
    return [*validate(cfg), *method_problems(cfg)]


@pytest.mark.parametrize("advantage", ["gigpo", "hgpo", "trajectory", "trajectory_loop", "turn_return"])
def test_methods_of_attempts_are_taken(advantage: str) -> None:
    assert problems(config(advantage={"name": advantage}, history={"screens": 2, "every": 3})) == []
    assert doubts(config(advantage={"name": advantage}, forward="chains"), FOUND) == []


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ({"environment": {"name": "toy_desks"}}, "did you mean 'toy_desk'"),
        ({"environment": {"name": "toy_desk", "crash_shares": 0.1}}, "crash_share"),
        ({"environment": {"name": "toy_desk", "max_turn": 3}}, "did you mean 'max_turns'"),
        ({"advantage": {"name": "grpo"}}, "take an advantage that needs trajectories"),
        ({"group_loss": {"name": "disco"}}, "no group_loss"),
        ({"environment": None, "advantage": None}, "name one under `environment`"),
        ({"environment": None, "rewards": [{"name": "exact"}], "history": {"screens": 1}}, "there is no environment"),
        ({"environment": None, "rewards": [{"name": "exact"}], "advantage": None, "forward": "chains"}, "forward: chains packs the turns"),
        ({"environment": None, "rewards": [{"name": "exact"}], "advantage": None, "forward": "trees"}, "forward: trees packs the turns"),
        ({"history": {"every": 2}}, "give history.screens"),
        ({"history": {"actions": False}}, "give history.screens"),
        ({"rollout": {"strategy": {"name": "offpolicy_gt"}}}, "a group is episodes"),
        ({"rollout": {"forks": {0: 2}}}, "turn 0 is none of 1 to"),
        ({"rollout": {"forks": {1: 1}}}, "does not fork"),
        ({"rollout": {"forks": {1: 3}, "num_generations": 4}}, "(4) must be a multiple"),
        ({"environment": None, "rewards": [{"name": "exact"}], "advantage": None, "rollout": {"forks": {1: 2}}}, "there is none; remove"),
        ({"rollout": {"staleness": 1}}, "rollout.staleness (1) with importance_correction 'none'"),
    ],
)
def test_refused(stage: dict[str, Any], part: str) -> None:
    assert any(part in problem for problem in problems(config(**stage))), problems(config(**stage))


def test_what_nobody_reads_is_pointed_out() -> None:
    (said,) = doubts(config(rewards=[{"name": "tool_calls"}]), FOUND)
    assert "no reward reads what the environment gives" in said
    assert contradictions(config(), FOUND) == []


def test_how_processes_run_may_change_at_resume_and_what_is_seen_may_not() -> None:
    def fixed(**environment: Any) -> Any:
        return fixed_options(config(environment={"name": "toy_desk"} | environment))

    assert fixed() == fixed(workers=3, deadline=5.0, memory=1 << 28, retries=0, max_faults=0.5)
    assert fixed() != fixed(max_turns=3)
    assert fixed() != fixed(crash_share=0.5)


def test_methods_of_branches_need_an_environment() -> None:
    found = problems(config(environment=None, rewards=[{"name": "temporal_iou"}], advantage={"name": "spo_tree"}))
    assert any("advantage 'spo_tree' compares the turns of attempts in an environment" in text for text in found), found
    assert not any("compares the turns" in text for text in problems(config(advantage={"name": "spo_tree"})))

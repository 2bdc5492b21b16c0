"""`rollout.staleness`: what a recipe may combine it with, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.config.schema import Config, validate
from vlmrl.methods import method_problems

BASE: dict[str, Any] = {
    "name": "rl",
    "kind": "grpo",
    "source": {"path": "a"},
    "steps": 1,
    "rewards": [{"name": "exact"}],
    "importance_correction": {"name": "tis"},
}


def problems(staleness: int, *, strategy: str = "plain", **stage: Any) -> list[str]:
    rollout = {"staleness": staleness, "strategy": {"name": strategy}}
    config = Config.model_validate({"model": {"path": "m"}, "stages": [BASE | {"rollout": rollout} | stage]})
    return [*validate(config), *method_problems(config)]


@pytest.mark.parametrize("correction", ["tis", "mis", "icepop", "sequence"])
def test_every_correction_allows_it(correction: str) -> None:
    assert problems(4, importance_correction={"name": correction}) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"importance_correction": {"name": "none"}}, "rollout.staleness (1) with importance_correction 'none'"),
    ({"importance_correction": {"name": "none"}, "group_loss": {"name": "disco"}}, "takes no importance_correction for older answers"),
    ({"filters": [{"name": "zero_variance"}], "dynamic_sampling": {"max_batches": 3}}, "dynamic_sampling.max_batches (3)"),
    ({"strategy": "sage"}, "strategy Sage samples again once it knows the rewards"),
    ({"strategy": "replay"}, "strategy Replay completes groups from its memory"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED)
def test_what_it_does_not_go_with_is_refused_and_named(change: dict[str, Any], text: str) -> None:
    assert any(text in problem for problem in problems(1, **change)), problems(1, **change)
    assert not any("staleness" in problem for problem in problems(0, **change))


@pytest.mark.parametrize("strategy", ["plain", "offpolicy_gt"])
def test_strategies_that_complete_a_group_alone_are_allowed(strategy: str) -> None:
    assert problems(2, strategy=strategy) == []


def test_a_wrong_strategy_is_reported_once() -> None:
    assert len(problems(1, strategy="no_such")) == 1


def test_a_kind_of_stage_without_a_correction_refuses_it() -> None:
    from examples.rejection_sampling import RejectionSection

    fields = {"name": "raft", "kind": "rejection_sampling", "source": {"path": "a"}, "steps": 1, "rewards": ({"name": "exact"},)}
    given = RejectionSection.model_validate(fields | {"rollout": {"staleness": 1}})
    assert given.problems() == ["rollout.staleness (1): a stage of kind 'rejection_sampling' has no importance_correction; set it to 0"]
    assert RejectionSection.model_validate(fields).problems() == []

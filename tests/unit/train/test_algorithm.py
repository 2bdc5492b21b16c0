"""The order in which methods act on a step's rewards, and what they see and remember."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.builders import inputs
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.config.schema import GrpoSection
from vlmrl.errors import ConfigError
from vlmrl.methods import registries
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage import algorithm as module
from vlmrl.train.stage.algorithm import Algorithm, Bound, advantage_problem, credit_tokens, select


def bound(slot: str, name: str, call: Any, **extra: Any) -> Bound:
    return Bound(slot=slot, name=name, call=call, extra=extra, arguments=extra.pop("arguments", {}), defaults={})


def section() -> GrpoSection:
    registries()  # imports the methods that it names
    return GrpoSection.model_validate({"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": ({"name": "exact"},)})


def batch_of(x: AdvantageInputs, mine: list[int], mask: list[list[int]]) -> StepBatch:
    """This rank's rows `mine` with a token mask; the rest are other ranks'."""
    return StepBatch(
        x=x,
        trajectories=[None] * len(x.reward_N),
        attempt_N=None,
        baseline_N=torch.full_like(x.reward_N, float("nan")),
        turns=False,
        keep_N=torch.ones_like(x.valid_N),
        counted_N=x.valid_N,
        mine=torch.tensor(mine),
        groups=[],
        rows=[],
        rollouts=[],
        mask_NT=torch.tensor(mask, dtype=torch.bool),
    )


def test_reweighting_stands_before_and_behind_credit_and_sees_its_own_rows() -> None:
    x = inputs([(1.0, 0, True), (3.0, 0, True), (5.0, 1, True)])
    x = dataclasses.replace(x, entropy_NT=torch.tensor([[9.0, 9.0, 9.0], [1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]))
    seen: list[tuple[int, ...]] = []

    def doubled(x: AdvantageInputs, adv: Tensor) -> Tensor:
        seen.append(tuple(adv.shape))
        return 2 * adv

    def by_entropy(x: AdvantageInputs, adv: Tensor) -> Tensor:
        seen.append(tuple(x.provided["entropy_NT"].shape))
        return adv * x.provided["entropy_NT"]

    algorithm = dataclasses.replace(
        Algorithm.of(section()),
        advantage=bound("advantage", "raw", lambda x: x.reward_N),
        reweight=[bound("reweight", "by_entropy", by_entropy, per="token"), bound("reweight", "doubled", doubled)],
    )
    adv_NT, adv_N = credit_tokens(algorithm, batch_of(x, [1, 2], [[1, 1], [1, 0]]))
    assert adv_N.tolist() == [2.0, 6.0, 10.0], "of all ranks, before credit"
    assert adv_NT.tolist() == [[6.0, 12.0], [30.0, 0.0]], "of this rank, cut to its tokens, nothing outside the responses"
    assert seen == [(3,), (2, 2)]


def test_a_memory_moves_on_once_per_step_and_is_seen_before_it_moves() -> None:
    seen: list[list[float]] = []

    def update(state: Any, x: AdvantageInputs, *, step: float = 1.0) -> dict[str, Any]:
        return {"total": [state.get("total", [0.0])[0] + step * float(x.reward_N.sum())], "rows": torch.tensor([len(x.reward_N)])}

    def remembering(x: AdvantageInputs, *, step: float = 1.0) -> Tensor:
        assert x.memory is not None
        seen.append(x.memory["total"].tolist() if x.memory else [])
        return x.reward_N

    method = bound("advantage", "remembering", remembering, remembers=update, arguments={"step": 2.0})
    algorithm = dataclasses.replace(Algorithm.of(section()), advantage=method)
    x = inputs([(1.0, 0, True), (3.0, 0, True)])
    for _ in range(2):
        credit_tokens(algorithm, batch_of(x, [0], [[1]]))
    assert seen == [[], [8.0]], "all ranks' rewards, with the recipe's argument"
    assert method.memory.value["total"] == [16.0]
    assert method.memory.value["rows"].tolist() == [2]


def test_only_slots_that_act_once_a_step_can_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.bind

    def with_memory(registry: Any, method: Any) -> Bound:
        found = real(registry, method)
        return dataclasses.replace(found, extra={**found.extra, "remembers": dict}) if registry.slot == "policy_loss" else found

    monkeypatch.setattr(module, "bind", with_memory)
    with pytest.raises(ConfigError, match="policy_loss 'ppo_clip' cannot remember: only reward_shaping, advantage"):
        Algorithm.of(section())


def test_an_advantage_that_is_not_finite_is_named_with_its_methods_and_rewards() -> None:
    x = inputs([(1.0, 0, True), (3e11, 0, True), (5.0, 1, False)])
    batch = batch_of(x, [0, 1, 2], [[1], [1], [1]])
    algorithm = dataclasses.replace(Algorithm.of(section()), reweight=[bound("reweight", "cubed", lambda x, adv: adv**3)])
    nan, inf = float("nan"), float("inf")
    assert advantage_problem(algorithm, batch, torch.tensor([1.0, -2.0, nan])) is None, "nobody judged the last row"
    text = advantage_problem(algorithm, batch, torch.tensor([1.0, -inf, nan]))
    assert text is not None
    assert text.startswith("1 of 3 advantages are not finite, the first is -inf with the rewards task 3e+11; they went through ")
    assert "advantage g" in text
    assert "reweight cubed" in text
    dropped = dataclasses.replace(batch, keep_N=torch.tensor([True, False, True]))
    assert advantage_problem(algorithm, dropped, torch.tensor([1.0, -inf, nan])) is None


def test_filters_act_in_order_and_only_some_hide_rows_from_the_advantage() -> None:
    batch = batch_of(inputs([(1.0, 0, True), (2.0, 0, True), (3.0, 1, True), (4.0, 1, False)]), [0, 1], [[1], [1]])
    low = bound("rollout_filter", "low", lambda x: (x.reward_N > 1, "low"))
    middle = bound("rollout_filter", "middle", lambda x: ((x.reward_N != 1) & (x.reward_N != 2), "middle"), before_advantage=True)
    select([low, middle], batch)
    assert batch.keep_N.tolist() == [False, False, True, False], "a reward that nobody gave is above nothing"
    assert batch.counted_N.tolist() == [False, False, True, False]
    assert batch.measured == {"filter/low": 0.5, "filter/middle": 0.25}, "a row counts for the first filter that leaves it out"

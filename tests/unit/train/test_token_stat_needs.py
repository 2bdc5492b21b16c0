"""Quantities of the logits from a method's needs to its inputs: both passes, every layout, any split, and names that cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.builders import inputs
from tests.support.tiny import Tiny
from tests.unit.train.test_step import batch, learner, weights
from vlmrl.algo.auxiliary.entropy import entropy_bonus
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.needs import TOKEN_STATS, need, token_stat
from vlmrl.algo.registries import policy_loss, reducer
from vlmrl.errors import ConfigError
from vlmrl.train.stage import providers
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.loss import Auxiliary, TokenObjective
from vlmrl.train.stage.provide import Providers
from vlmrl.train.step import Learner, optimizer_step, score_tokens, scored_inputs


def method(*needs: str) -> Bound:
    return Bound(slot="reweight", name="m", call=lambda x: x, extra={"needs": needs}, arguments={}, defaults={})


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Two quantities with values that can be had otherwise, as a plug-in would register them."""
    before = dict(TOKEN_STATS)

    @token_stat("surprise")
    def surprise(logp_MV: Tensor) -> Tensor:
        """The entropy, another way."""
        return torch.special.entr(logp_MV.exp()).sum(1)

    @token_stat("collision")
    def collision(logp_MV: Tensor) -> Tensor:
        """Probability that two draws are the same."""
        return (2 * logp_MV).exp().sum(1)

    yield
    for name in set(TOKEN_STATS) - set(before):
        del TOKEN_STATS[name]


def with_needs(tiny: Tiny, *needs: str, **how: Any) -> Learner:
    """A learner at a temperature and with a forbidden id, as `open_stage` sets it up for a method."""
    one = learner(tiny, **how)
    one.temperature, one.forbidden = 0.7, (tiny.bundle.end_ids[0], 3)
    one.stats = Providers.of([method(*needs)]).stats_of("BT")
    return one


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
@pytest.mark.parametrize("rows_per_micro", [8, 1])
def test_before_the_updates(layout: str, rows_per_micro: int, tiny: Tiny) -> None:
    """In every layout and split: the entropy by another formula, and the collision by the log-probs at half of the temperature."""
    data = batch(tiny)
    longest = max(len(r.prompt.ids) + len(r.response) for r in data.rows)
    one = with_needs(tiny, max_tokens_per_microbatch=longest * rows_per_micro, layout=layout)
    used = Providers.of([method("surprise_NT", "collision_NT", "logp_NT")])
    of: Any = SimpleNamespace(x=scored_batch(data), mine=torch.arange(8), rows=data.rows, mask_NT=data.mask_NT)
    used.fill(SimpleNamespace(learner=one, providers=used), of, [method("surprise_NT", "collision_NT", "logp_NT")])
    plain = score_tokens(one, data.rows)
    colder = score_tokens(dataclasses.replace(one, temperature=0.35), data.rows)
    assert torch.equal(need(of.x, "logp_NT", "m"), plain.logp_NT)
    torch.testing.assert_close(need(of.x, "surprise_NT", "m"), plain.entropy_NT, rtol=0, atol=1e-5)
    collision_NT, expected_NT = need(of.x, "collision_NT", "m"), 2 * plain.logp_NT - colder.logp_NT
    torch.testing.assert_close(collision_NT[data.mask_NT].log(), expected_NT[data.mask_NT], rtol=0, atol=1e-5)
    assert not collision_NT[~data.mask_NT].any()


def scored_batch(data: Any) -> Any:
    return inputs([(float(n), row.group, True) for n, row in enumerate(data.rows)])


def test_one_pass_gives_all_of_them(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def spy(learner: Learner, rows: Any, *, stats: Any) -> Any:
        calls.append(list(stats))
        return score_tokens(learner, rows, stats=stats)

    monkeypatch.setattr(providers.tokens, "score_tokens", spy)
    data = batch(tiny)
    methods = [method("entropy_NT"), method("collision_NT", "surprise_BT"), method("surprise_NT")]
    used = Providers.of(methods)
    of: Any = SimpleNamespace(x=scored_batch(data), mine=torch.arange(8), rows=data.rows, mask_NT=data.mask_NT)
    used.fill(SimpleNamespace(learner=learner(tiny), providers=used), of, methods)
    assert calls == [["collision_NT", "surprise_NT"]]
    assert {"entropy_NT", "collision_NT", "surprise_NT"} <= set(of.x.provided)
    assert list(used.stats_of("BT")) == ["surprise_BT"]


def test_nothing_is_computed_that_nobody_needs(tiny: Tiny) -> None:
    seen: list[LossInputs] = []

    def spy(x: LossInputs) -> LossOutput:
        seen.append(x)
        return policy_loss.bind("ppo_clip")(x)

    one = learner(tiny)
    optimizer_step(one, batch(tiny), TokenObjective(loss=spy, reducer=reducer.bind("token_mean")))
    assert one.stats == {}
    assert all(not x.provided for x in seen)


def test_in_a_loss_without_gradient_unless_asked_for(tiny: Tiny) -> None:
    data, seen = batch(tiny), []

    def spy(x: LossInputs) -> LossOutput:
        seen.append(x)
        return LossOutput(x.logp_BT * 0 + x.need("surprise_BT", "m") + x.need("differentiable_collision_BT", "m"))

    one = with_needs(tiny, "surprise_BT", "differentiable_collision_BT")
    wanted = score_tokens(one, data.rows, stats=one.stats)
    optimizer_step(one, data, TokenObjective(loss=spy, reducer=reducer.bind("token_mean")))
    (x,) = seen
    assert not x.need("surprise_BT", "m").requires_grad
    assert x.need("differentiable_collision_BT", "m").requires_grad
    assert not {"collision_BT", "differentiable_surprise_BT"} & set(x.provided), "what nobody declared is not there"
    for name, value in wanted.stats.items():
        torch.testing.assert_close(x.provided[name].detach(), value, rtol=0, atol=1e-6)
    assert set(scored_inputs(one, data).provided) == set(x.provided), "the pass before a constraint or group loss has them too"


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
def test_any_split_gives_the_update_of_the_entropy_bonus(layout: str, tiny: Tiny) -> None:
    """The gradient through the quantity is that of the fused entropy, in both layouts and in one micro-batch or many."""
    data = dataclasses.replace(batch(tiny), adv_NT=torch.zeros_like(batch(tiny).adv_NT))
    longest = max(len(r.prompt.ids) + len(r.response) for r in data.rows)
    results = []

    def bonus(x: LossInputs) -> LossOutput:
        return LossOutput(-x.need("differentiable_surprise_BT", "bonus"))

    for loss, rows_per_micro in ((entropy_bonus, 8), (bonus, 8), (bonus, 3), (bonus, 1)):
        one = with_needs(tiny, "differentiable_surprise_BT", max_tokens_per_microbatch=longest * rows_per_micro, layout=layout)
        one.entropy_gradient = loss is entropy_bonus
        of = Auxiliary(name="bonus", loss=loss, weight=1.0)
        objective = TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("token_mean"), auxiliary=[of])
        report = optimizer_step(one, data, objective)
        results.append((weights(one), report.loss))
    start = weights(learner(tiny))
    assert (results[0][0] - start).abs().max() > 1e-5
    for after, loss in results[1:]:
        torch.testing.assert_close(after, results[0][0], rtol=0, atol=2e-6)
        assert loss == pytest.approx(results[0][1], abs=1e-6)


def test_names_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="needs 'colision_NT', which nothing provides; did you mean 'collision_NT'"):
        Providers.of([method("colision_NT")])
    with pytest.raises(ConfigError, match="which nothing provides"):
        Providers.of([method("differentiable_collision_NT")])
    with pytest.raises(ValueError, match="token_stat 'collision' is registered twice"):
        token_stat("collision")(torch.special.entr)
    with pytest.raises(ValueError, match="leave it out"):
        token_stat("differentiable_collision")(torch.special.entr)

    def nameless(logp_MV: Tensor) -> Tensor:
        return logp_MV.amax(1)

    with pytest.raises(ValueError, match="'top' needs a docstring"):
        token_stat("top")(nameless)


@pytest.mark.parametrize("name", ["entropy", "logp_ref"])
def test_a_name_that_a_field_has_is_an_error(name: str) -> None:
    @token_stat(name)
    def mine(logp_MV: Tensor) -> Tensor:
        """Another one."""
        return logp_MV.amax(1)

    with pytest.raises(ConfigError, match=f"'{name}_NT' of reweight 'm' is a token_stat and a field too"):
        Providers.of([method(f"{name}_NT")])

"""One optimizer step: any split gives the same update, what is not finite is not applied, out of memory is survived."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from tests.support.tiny import Tiny
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss, reducer
from vlmrl.errors import NumericsError
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import Row, response_mask
from vlmrl.train.replicas import ReplicaUpdates
from vlmrl.train.stage.loss import TokenObjective
from vlmrl.train.step import Learner, Minibatch, optimizer_step, score_rows, scored_inputs


def learner(tiny: Tiny, max_tokens_per_microbatch: int = 10**6, layout: str = "shared_prefix") -> Learner:
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    named = freeze(policy, ())
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.1)
    return Learner(
        policy=policy,
        vision=tiny.vision,
        updates=ReplicaUpdates(named, optimizer, [name for name, _ in named]),
        named=named,
        max_grad_norm=1e9,
        max_tokens_per_microbatch=max_tokens_per_microbatch,
        layout=layout,
    )


def batch(tiny: Tiny) -> Minibatch:
    prompts = tiny.prompts(4)
    rows = tuple(
        Row(index=n, group=n // 2, prompt=prompts[n // 2], response=tuple(tiny.bundle.tokenize("12.5 red" * (1 + n % 3)))) for n in range(8)
    )
    mask = response_mask(rows)
    return Minibatch(rows=rows, adv_NT=torch.linspace(-1, 1, 8)[:, None] * mask, mask_NT=mask)


def weights(of: Learner) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for _, p in of.named])


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
@pytest.mark.parametrize("name", ["seq_mean", "token_mean"])
def test_any_split_gives_the_same_update(name: str, layout: str, tiny: Tiny) -> None:
    data = batch(tiny)
    longest = max(len(r.prompt.ids) + len(r.response) for r in data.rows)
    results = []
    for rows_per_micro in (8, 4, 3, 1):
        one = learner(tiny, longest * rows_per_micro, layout)
        report = optimizer_step(one, data, TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind(name)))
        assert report.applied
        results.append((weights(one), report.loss, report.grad_norm))
    start = weights(learner(tiny))
    for after, loss, norm in results:
        assert (after - start).abs().max() > 1e-4, "the step must move the weights"
        assert torch.allclose(after, results[0][0], atol=2e-6)
        assert loss == pytest.approx(results[0][1], abs=1e-6)
        assert norm == pytest.approx(results[0][2], rel=1e-4)


def test_reduction_by_hand(tiny: Tiny) -> None:
    """loss -> -logp: seq_mean is the mean over rows of the mean over tokens, token_mean the mean over all tokens."""
    data = batch(tiny)
    one = learner(tiny)
    logp = score_rows(one, data.rows)
    lengths = data.mask_NT.sum(1)

    def nll(x: LossInputs) -> LossOutput:
        return LossOutput(-x.logp_BT, {})

    by_row = -(logp.sum(1) / lengths).mean()
    by_token = -logp.sum() / lengths.sum()
    for name, expected in (("seq_mean", by_row), ("token_mean", by_token)):
        assert optimizer_step(learner(tiny), data, TokenObjective(loss=nll, reducer=reducer.bind(name))).loss == pytest.approx(
            float(expected), abs=1e-5
        )


def test_ratio_is_exactly_one_without_old_logprobs(tiny: Tiny) -> None:
    seen: list[torch.Tensor] = []

    def spy(x: LossInputs) -> LossOutput:
        seen.append((x.logp_BT - x.logp_old_BT).detach().abs().max())
        return policy_loss.bind("ppo_clip")(x)

    optimizer_step(learner(tiny), batch(tiny), TokenObjective(loss=spy, reducer=reducer.bind("seq_mean")))
    assert all(float(gap) == 0.0 for gap in seen)


def test_non_finite_loss_is_not_applied(tiny: Tiny) -> None:
    one, data = learner(tiny), batch(tiny)
    before = weights(one)

    def poisoned(x: LossInputs) -> LossOutput:
        return LossOutput(x.logp_BT * float("nan"), {})

    report = optimizer_step(one, data, TokenObjective(loss=poisoned, reducer=reducer.bind("seq_mean")))
    assert not report.applied
    assert torch.equal(weights(one), before)
    assert one.policy.version == 0
    assert all(p.grad is None for _, p in one.named)


def test_non_finite_gradient_alone_is_not_applied(tiny: Tiny) -> None:
    one, data = learner(tiny), batch(tiny)
    name, parameter = one.named[0]
    parameter.register_hook(lambda g: g * float("inf"))
    before = weights(one)
    assert not optimizer_step(one, data, TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean"))).applied, name
    assert torch.equal(weights(one), before)


@pytest.mark.parametrize(("kind", "limit"), [("shared_prefix", 125), ("repeat", 500)])
def test_out_of_memory_halves_the_budget_and_gives_the_same_update(
    kind: str, limit: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batch(tiny)
    whole, split = learner(tiny, 8 * limit, kind), learner(tiny, 8 * limit, kind)
    optimizer_step(whole, data, TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean")))
    layout, calls = LAYOUTS[kind], []

    def tight(rows: Any, *args: Any, **kw: Any) -> Any:
        out = layout.pack(rows, *args, **kw)
        calls.append(out.tokens)
        if out.tokens > limit:
            raise torch.OutOfMemoryError("injected")
        return out

    monkeypatch.setitem(LAYOUTS, kind, dataclasses.replace(layout, pack=tight))
    assert optimizer_step(split, data, TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean"))).applied
    assert split.max_tokens_per_microbatch == limit
    assert torch.allclose(weights(split), weights(whole), atol=2e-6)


def test_out_of_memory_for_ever_stops(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kw: Any) -> Any:
        raise torch.OutOfMemoryError("injected")

    layout = dataclasses.replace(LAYOUTS["shared_prefix"], pack=never)
    monkeypatch.setitem(LAYOUTS, "shared_prefix", layout)
    with pytest.raises(NumericsError, match="max_tokens_per_microbatch"):
        optimizer_step(learner(tiny), batch(tiny), TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean")))


def test_statistics_leave_out_rows_that_are_not_the_policys(tiny: Tiny) -> None:
    data = batch(tiny)
    counted = torch.tensor([True, False] * 4)
    data = dataclasses.replace(data, statistics_N=counted)
    report = optimizer_step(learner(tiny), data, TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean")))
    one = learner(tiny)
    from vlmrl.policy.repeat import pack, repeat

    rows = [row for row, keep in zip(data.rows, counted.tolist(), strict=True) if keep]
    micro = pack(rows, one.policy.positions, one.policy.device, pad_id=0)
    with torch.no_grad():
        scored = repeat(one.policy, micro, one.vision, temperature=1.0, forbidden=(), train=False)
    assert report.metrics["entropy"] == pytest.approx(float(scored.entropy_BT[micro.mask_BT].mean()), abs=1e-5)


def test_gap_to_the_sampler_is_measured_over_sampled_tokens(tiny: Tiny) -> None:
    data = batch(tiny)
    logp = score_rows(learner(tiny), data.rows)
    sampled = torch.where(data.mask_NT, logp - 0.25, torch.nan)
    sampled[0] = torch.nan  # a ground-truth row: nothing was sampled
    report = optimizer_step(
        learner(tiny),
        dataclasses.replace(data, logp_sampled_NT=sampled),
        TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean")),
    )
    assert report.metrics["sampling/logp_gap"] == pytest.approx(0.25, abs=1e-5)
    assert report.metrics["sampling/kl"] == pytest.approx(2.718281828**0.25 - 1 - 0.25, abs=1e-5)
    far = torch.where(sampled.isfinite(), logp - 200.0, torch.nan)
    report = optimizer_step(
        learner(tiny),
        dataclasses.replace(data, logp_sampled_NT=far),
        TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean")),
    )
    assert report.metrics["sampling/kl"] == pytest.approx(math.expm1(20.0) - 200.0, rel=1e-5), "one token is no infinite mean"


def test_a_pass_over_a_whole_minibatch_is_cut_to_its_own_rows(tiny: Tiny) -> None:
    """Tensors of a minibatch are as wide as the longest row of the step, which may be in another minibatch of the step."""
    whole, one = batch(tiny), learner(tiny, 10_000)
    short = [n for n, row in enumerate(whole.rows) if n % 3 == 0]
    old_NT = score_rows(one, whole.rows)
    part = dataclasses.replace(
        whole,
        rows=tuple(whole.rows[n] for n in short),
        adv_NT=whole.adv_NT[short],
        mask_NT=whole.mask_NT[short],
        logp_old_NT=old_NT[short],
        logp_ref_NT=old_NT[short] - 1,
    )
    x = scored_inputs(one, part)
    assert x.logp_BT.shape[1] < old_NT.shape[1]
    assert x.logp_old_BT.shape == x.logp_BT.shape == x.mask_BT.shape
    assert x.logp_ref_BT is not None
    assert torch.equal(x.logp_old_BT[x.mask_BT] - 1, x.logp_ref_BT[x.mask_BT])

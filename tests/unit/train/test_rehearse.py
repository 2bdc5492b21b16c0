"""The rehearsal of a stage: the largest micro-batch goes first, and training has the same bits as without."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from tests.support.tiny import Tiny
from vlmrl.algo.registries import policy_loss, reducer
from vlmrl.config.section import OptimSection
from vlmrl.errors import NumericsError
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.vision import VisionCache
from vlmrl.train import dist
from vlmrl.train import step as step_module
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.replicas import ReplicaUpdates
from vlmrl.train.stage.loss import TokenObjective
from vlmrl.train.step import Learner, Minibatch, optimizer_step


def learner(tiny: Tiny, *, rehearse: bool, budget: int, layout: str = "shared_prefix", **more: Any) -> Learner:
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    named = freeze(policy, more.get("frozen", ()))
    return Learner(
        policy=policy,
        vision=VisionCache(tiny.store, budget_bytes=2**28),
        updates=ReplicaUpdates(named, *make_optimizer(named, OptimSection(kind=more.get("kind", "adamw"), lr=1e-2))),
        named=named,
        max_grad_norm=1.0,
        max_tokens_per_microbatch=budget,
        layout=layout,
        rehearse=rehearse,
    )


def batch(tiny: Tiny, lengths: tuple[int, ...] = (1, 2, 6, 1, 2, 1, 1, 2)) -> Minibatch:
    """Groups of two; the third row has the longest answer."""
    prompts = tiny.prompts(4)
    rows = tuple(
        Row(index=n, group=n // 2, prompt=prompts[n // 2], response=tuple(tiny.bundle.tokenize("12.5 red" * times)))
        for n, times in enumerate(lengths)
    )
    mask = response_mask(rows)
    return Minibatch(rows=rows, adv_NT=torch.linspace(-1, 1, len(rows))[:, None] * mask, mask_NT=mask)


class Objective(TokenObjective):
    """Counts its calls: one for each micro-batch that is accumulated."""

    calls = 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        type(self).calls += 1
        return super().__call__(*args, **more)


def objective() -> Objective:
    Objective.calls = 0
    return Objective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("seq_mean"))


def single(tiny: Tiny) -> int:
    """Tokens of the largest row alone."""
    return max(len(row.prompt.ids) + len(row.response) for row in batch(tiny).rows)


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
@pytest.mark.parametrize("frozen", [(), ("vision", "projector")])
def test_training_has_the_same_bits(frozen: tuple[str, ...], layout: str, tiny: Tiny) -> None:
    seen: list[dict[str, Any]] = []
    for rehearse in (False, True):
        one = learner(tiny, rehearse=rehearse, budget=single(tiny), layout=layout, frozen=frozen)
        torch.manual_seed(3)
        before = dict(tiny.store.stats)
        reports = [optimizer_step(one, batch(tiny), objective()) for _ in range(2)]
        stats = {key: tiny.store.stats[key] - before[key] for key in ("decoded", "cache_hits", "opened", "evicted")}
        assert not one.rehearse
        seen.append(
            {
                "weights": [p.detach() for _, p in one.named],
                "reports": reports,
                "random": torch.random.get_rng_state().tolist(),
                "counters": (one.vision.patches_encoded, one.vision.hits, one.vision.disk_hits, list(one.vision._features), stats),
                "training": one.policy.model.training,
                "version": one.policy.version,
            }
        )
    plain, rehearsed = seen
    assert all(torch.equal(a, b) for a, b in zip(plain.pop("weights"), rehearsed.pop("weights"), strict=True))
    assert plain == rehearsed
    assert plain["version"] == 2
    assert plain["counters"][0] > 0


def forward_with_room(monkeypatch: pytest.MonkeyPatch, layout: str, limit: int) -> list[int]:
    """Make passes of more tokens than `limit` run out of memory; the tokens of every pass that was tried."""
    real, tried = LAYOUTS[layout], list[int]()

    def forward(policy: Any, micro: Any, *args: Any, **more: Any) -> Any:
        tried.append(micro.tokens)
        if micro.tokens > limit:
            raise torch.OutOfMemoryError("injected")
        return real.forward(policy, micro, *args, **more)

    monkeypatch.setitem(LAYOUTS, layout, dataclasses.replace(real, forward=forward))
    return tried


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
def test_too_little_memory_shows_before_anything_is_accumulated(layout: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is halved until the largest micro-batch fits; without a rehearsal smaller ones have been accumulated by then."""
    budget = 2 * single(tiny)
    data, plan = batch(tiny), LAYOUTS[layout]
    device = torch.device("cpu")
    parts = [[data.rows[n] for n in places] for places in plan.split(data.rows, budget)]
    sizes = [plan.pack(part, tiny.policy.positions, device, pad_id=0).tokens for part in parts]
    assert len(sizes) > 1
    accumulated: list[int] = []
    for rehearse in (False, True):
        with monkeypatch.context() as patch:
            tried = forward_with_room(patch, layout, max(sizes) - 1)
            counted = objective()
            at_failure: list[int] = []
            gather = dist.gather

            def halving(value: Any, counted: Objective = counted, at: list[int] = at_failure, gather: Any = gather) -> Any:
                if value is False:
                    at.append(type(counted).calls)
                return gather(value)

            patch.setattr(dist, "gather", halving)
            one = learner(tiny, rehearse=rehearse, budget=budget, layout=layout)
            assert optimizer_step(one, data, counted).applied
            assert one.max_tokens_per_microbatch == budget // 2
            accumulated.append(at_failure[0])
            if rehearse:
                assert tried[0] == max(sizes), "the largest goes first"
    assert accumulated[1] == 0
    assert accumulated[0] == sizes.index(max(sizes))


def test_another_rank_without_memory_halves_here_too(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    one = learner(tiny, rehearse=True, budget=4 * single(tiny))
    answers = iter([False])

    def gather(value: Any) -> list[Any]:
        return [value, next(answers, True)] if isinstance(value, bool) else [value]

    monkeypatch.setattr(dist, "gather", gather)
    counted = objective()
    optimizer_step(one, batch(tiny), counted)
    assert one.max_tokens_per_microbatch == 2 * single(tiny)
    assert not one.rehearse


def test_where_nothing_fits_it_stops_in_words(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    forward_with_room(monkeypatch, "shared_prefix", 0)
    counted = objective()
    with pytest.raises(NumericsError, match="out of memory with max_tokens_per_microbatch down to"):
        optimizer_step(learner(tiny, rehearse=True, budget=10**6), batch(tiny), counted)
    assert counted.calls == 0


def test_a_rank_without_rows_takes_no_part(tiny: Tiny) -> None:
    one = learner(tiny, rehearse=True, budget=10**6)
    empty = Minibatch(rows=(), adv_NT=torch.zeros(0, 1), mask_NT=torch.zeros(0, 1, dtype=torch.bool))
    step_module.rehearse(one, empty.rows)
    assert all(p.grad is None for _, p in one.named)


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit"])
def test_gradients_and_moments_are_there_meanwhile(kind: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as the second step finds: so the first cannot fit where the second does not."""
    if kind == "adamw8bit":
        pytest.importorskip("bitsandbytes")
    one = learner(tiny, rehearse=False, budget=10**6, kind=kind)
    real, held = torch.empty_like, list[torch.Tensor]()

    def empty_like(*args: Any, **more: Any) -> torch.Tensor:
        held.append(real(*args, **more))
        return held[-1]

    monkeypatch.setattr(torch, "empty_like", empty_like)
    with one.updates.occupied():
        assert all(p.grad is not None and p.grad.shape == p.shape for _, p in one.named)
        promised = sum(tensor.nbytes for tensor in held)
    monkeypatch.undo()
    assert all(p.grad is None for _, p in one.named)
    optimizer_step(one, batch(tiny), objective())
    state = [one.updates.optimizer.state[p] for _, p in one.named if one.updates.optimizer.state.get(p)]
    kept = sum(value.nbytes for of in state for name, value in of.items() if name in ("exp_avg", "exp_avg_sq", "state1", "state2"))
    assert promised >= kept > 0.9 * promised
    monkeypatch.setattr(torch, "empty_like", empty_like)
    held.clear()
    with one.updates.occupied():
        assert sum(tensor.nbytes for tensor in held) < 0.1 * promised, "what is there already is not taken twice"

"""One test for all policy losses: c = -dL/dlogp against its closed form, on a grid of (ratio, advantage) and on answers of several
tokens. The closed forms are plain Python and share no code with the losses. A registered loss without an entry fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, metric
from vlmrl.algo import registries
from vlmrl.algo.inputs import LossInputs
from vlmrl.methods import registries as load_all

load_all()
LOSSES = registries.policy_loss.names()


@dataclass(frozen=True)
class Token:
    """One token as a closed form sees it."""

    ratio: float
    adv: float
    logp: float
    row: tuple[float, ...]
    """Ratios of all tokens of its answer."""
    off: bool
    """Not sampled by the policy."""
    mean: float
    """`score_mean_B` of its answer."""


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def ppo(ratio: float, adv: float, low: float, high: float, delta: float = math.inf) -> float:
    stopped = (adv > 0 and ratio > high) or (adv < 0 and (ratio < low or ratio > delta))
    return 0.0 if stopped else ratio * adv


def logs(t: Token) -> list[float]:
    return [math.log(r) for r in t.row]


def gspo(low: float, high: float) -> Callable[[Token], float]:
    return lambda t: ppo(math.exp(sum(logs(t)) / len(t.row)), t.adv, 1 - low, 1 + high)


def sapo(positive: float, negative: float) -> Callable[[Token], float]:
    def form(t: Token) -> float:
        s = 1 / (1 + math.exp(-(positive if t.adv > 0 else negative) * (t.ratio - 1)))
        return 4 * s * (1 - s) * t.ratio * t.adv

    return form


def luffy(gamma: float, low: float = 0.0, high: float = math.inf) -> Callable[[Token], float]:
    def form(t: Token) -> float:
        pi = math.exp(t.logp)
        return t.adv * gamma * pi / (pi + gamma) ** 2 if t.off else ppo(t.ratio, t.adv, low, high)

    return form


def by_sign(positive: tuple[float, float], negative: tuple[float, float]) -> Callable[[Token], float]:
    return lambda t: clip(t.ratio, *(positive if t.adv > 0 else negative)) * t.adv


def gbpo(low: float, high: float) -> Callable[[Token], float]:
    """In a group whose median advantage is 0."""

    def form(t: Token) -> float:
        target = 1 + high if t.adv > 0 else 1 - low
        return abs(t.adv) * math.copysign(1.0, target - t.ratio) * t.ratio

    return form


FORMS: dict[str, list[tuple[dict[str, Any], Callable[[Token], float]]]] = {
    "ppo_clip": [
        ({}, lambda t: ppo(t.ratio, t.adv, 0.8, 1.2)),
        ({"clip_high": 0.28}, lambda t: ppo(t.ratio, t.adv, 0.8, 1.28)),
        ({"dual_clip": 3.5}, lambda t: ppo(t.ratio, t.adv, 0.8, 1.2, 3.5)),
        ({"delta": 4.5}, lambda t: ppo(t.ratio, t.adv, 0.8, 1.2, 4.5)),
    ],
    "gspo": [({}, gspo(3e-4, 4e-4)), ({"clip_low": 0.2, "clip_high": 0.4}, gspo(0.2, 0.4))],
    "cispo": [
        ({}, lambda t: clip(t.ratio, 0, 5) * t.adv),
        ({"ratio_min": 0.8, "ratio_max": 1.2}, lambda t: clip(t.ratio, 0.8, 1.2) * t.adv),
    ],
    "dispo": [
        ({}, by_sign((0, 5), (0, 5))),
        (
            {"positive_min": 0.7, "positive_max": 1.4, "negative_min": 0.1, "negative_max": 3.0},
            by_sign((0.7, 1.4), (0.1, 3.0)),
        ),
    ],
    "sapo": [({}, sapo(1.0, 1.05)), ({"tau_positive": 2.0, "tau_negative": 3.0}, sapo(2.0, 3.0))],
    "opmd": [
        ({}, lambda t: t.adv - (sum(logs(t)) - t.mean)),
        ({"tau": 0.5}, lambda t: t.adv - 0.5 * (sum(logs(t)) - t.mean)),
        ({"form": "scaled"}, lambda t: t.adv / 2),
        ({"form": "scaled", "tau": 3.0}, lambda t: t.adv / 4),
    ],
    "asymre": [
        ({}, lambda t: t.adv + 0.1),
        ({"shift": 0.0}, lambda t: t.adv),
        ({"shift": -0.3, "rows": "offpolicy"}, lambda t: t.adv + (0.3 if t.off else 0.0)),
    ],
    "luffy": [({}, luffy(0.1)), ({"gamma": 0.5, "clip_low": 0.2, "clip_high": 0.3}, luffy(0.5, 0.8, 1.3))],
    "reg_grpo_proposed": [
        ({}, lambda t: t.adv - (sum(logs(t)) / len(t.row) - t.mean) / 0.05),
        ({"eta": 2.0}, lambda t: t.adv - (sum(logs(t)) / len(t.row) - t.mean) / 2.0),
    ],
    "rec": [
        ({}, lambda t: t.adv if ppo(t.ratio, t.adv, 0.8, 1.2) else 0.0),
        ({"clip_low": 0.6, "clip_high": 2.5}, lambda t: t.adv if ppo(t.ratio, t.adv, 0.4, 3.5) else 0.0),
    ],
    "mdpo_proposed": [
        ({}, lambda t: t.ratio * (t.adv - 0.1 * math.log(t.ratio))),
        ({"weight": 2.0}, lambda t: t.ratio * (t.adv - 2 * math.log(t.ratio))),
    ],
    "gbpo": [
        ({"clip_low": 0.25, "clip_high": 0.35}, gbpo(0.25, 0.35)),
        ({"clip_low": 0.45, "clip_high": 2.5}, gbpo(0.45, 2.5)),
    ],
    "rank_grpo": [({}, gspo(0.2, 0.2)), ({"clip": 0.3}, gspo(0.3, 0.3))],
    "p3o_proposed": [({}, lambda t: ppo(math.exp(sum(logs(t))), t.adv, 0.8, 1.2))],
    "r2vpo": [
        ({}, lambda t: t.ratio * (t.adv - 0.08 * (t.ratio - 1))),
        ({"weight": 0.5}, lambda t: t.ratio * (t.adv - (t.ratio - 1))),
    ],
}
"""Loss -> (arguments, closed form of c before the reducer)."""

NOT_REINFORCE: list[tuple[str, dict[str, Any]]] = [
    ("asymre", {}),
    ("opmd", {"form": "scaled"}),
    ("opmd", {"form": "scaled", "tau": 3.0}),
]
"""What does not give c = A at ratio 1 for rows of the policy, by definition: a shifted baseline, and a scaled gradient."""

RATIOS = [0.05, 0.3, 0.5, 0.79, 0.9, 0.9999, 1.0, 1.0003, 1.1, 1.19, 1.25, 1.5, 2.0, 3.0, 4.0, 4.9, 8.0]
ADVANTAGES = [-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0]
LONG = [[(1.1, 1.0), (0.7, 1.0), (1.3, 1.0)], [(1.0, -0.5), (2.0, -0.5)], [(0.6, 2.0), (0.9, -1.0), (1.7, 0.0), (1.2, 1.0)]]
"""Answers of several tokens; the last has an advantage per token."""

CASES = [(name, arguments, form) for name in LOSSES for arguments, form in FORMS.get(name, [])]


def cases() -> Any:
    return pytest.mark.parametrize(("name", "arguments", "form"), CASES, ids=[f"{name}-{arguments}" for name, arguments, _ in CASES])


def one_segment(rows) -> dict[str, Any]:
    """Groups whose median advantage is 0, and answers of one sentence."""
    return {
        "adv_median_B": torch.zeros(len(rows), dtype=torch.float64),
        "item_BT": torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64),
    }


def check(name: str, arguments: dict[str, Any], form: Callable[[Token], float], rows, mean: float, off: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    logp = [[-3 * float(torch.rand((), generator=generator)) - 0.01 for _ in row] for row in rows]
    x = loss_inputs(
        rows,
        logp,
        offpolicy_B=torch.full((len(rows),), off),
        score_mean_B=torch.full((len(rows),), mean, dtype=torch.float64),
        **one_segment(rows),
    )
    found = coefficients(registries.policy_loss.get(name).function, x, **arguments)
    for b, row in enumerate(rows):
        ratios = tuple(r for r, _ in row)
        expected = [form(Token(r, a, logp[b][t], ratios, off, mean)) for t, (r, a) in enumerate(row)]
        assert found[b] == pytest.approx(expected, rel=1e-9, abs=1e-12), f"row {row}"


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_closed_form(name):
    assert FORMS.get(name), f"policy_loss '{name}' has no closed form of its coefficient; add it to FORMS"


@cases()
@pytest.mark.parametrize("off", [False, True])
def test_coefficient_of_single_tokens(name, arguments, form, off):
    check(name, arguments, form, [[(r, a)] for r in RATIOS for a in ADVANTAGES], 0.07, off)


@cases()
@pytest.mark.parametrize("off", [False, True])
def test_coefficient_in_answers_of_several_tokens(name, arguments, form, off):
    check(name, arguments, form, LONG, -0.03, off)


@cases()
def test_on_policy_identity(name, arguments, form):
    rows = [[(1.0, a)] for a in ADVANTAGES] + [[(1.0, 1.0), (1.0, -2.0), (1.0, 0.5)]]
    off, mean = torch.zeros(len(rows), dtype=torch.bool), torch.zeros(len(rows), dtype=torch.float64)
    x = loss_inputs(rows, offpolicy_B=off, score_mean_B=mean, **one_segment(rows))
    method = registries.policy_loss.bind(name, arguments)
    found = coefficients(method, x)
    same = all(c == pytest.approx([a for _, a in row], abs=1e-12) for c, row in zip(found, rows, strict=True))
    assert same == ((name, arguments) not in NOT_REINFORCE)
    for key in method(x).metrics:
        if key.startswith("clip_ratio"):
            assert metric(method, x, key) == (0, 10)


@cases()
@pytest.mark.parametrize("gap", [-80.0, 80.0])
@pytest.mark.parametrize("adv", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("off", [False, True])
def test_finite_at_log_ratio_80(name, arguments, form, gap, adv, dtype, off):
    logp = torch.full((2, 3), -100.0 + gap, dtype=dtype, requires_grad=True)
    x = LossInputs(
        logp_BT=logp,
        logp_old_BT=torch.full((2, 3), -100.0, dtype=dtype),
        logp_ref_BT=None,
        adv_BT=torch.full((2, 3), adv, dtype=dtype),
        mask_BT=torch.ones(2, 3, dtype=torch.bool),
        group_B=torch.zeros(2, dtype=torch.int64),
        offpolicy_B=torch.full((2,), off),
        provided={
            "score_mean_B": torch.zeros(2, dtype=dtype),
            "adv_median_B": torch.zeros(2, dtype=dtype),
            "item_BT": torch.tensor([[-1, 0, 1], [0, 1, 2]]),
        },
    )
    loss = registries.policy_loss.bind(name, arguments)(x).loss_BT.sum()
    (grad,) = torch.autograd.grad(loss, logp)
    assert loss.isfinite()
    assert grad.isfinite().all()


def complaints(name: str) -> list[str]:
    """What a loss says, for each of its cases, about inputs without any optional field."""
    found: list[str] = []
    for arguments, _ in FORMS.get(name, []):
        try:
            registries.policy_loss.bind(name, arguments)(loss_inputs([[(1.0, 1.0)]]))
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_needed_is_declared_and_its_absence_is_named(name):
    needs = registries.policy_loss.get(name).extra.get("needs", ())
    found = complaints(name)
    assert bool(found) == bool(needs), f"policy_loss '{name}' declares needs={needs} and says {found}"
    for message in found:
        assert f"'{name}'" in message
        assert any(field in message for field in needs)

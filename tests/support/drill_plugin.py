"""Rewards and a loss that go wrong on purpose, for runs of the fault drill. Registered as a user's plug-in would register them."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch

from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.loss.ppo_clip import ppo_clip
from vlmrl.algo.registries import policy_loss
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group

CALLS = [0]


@reward("drill_reward", best=None)
def drill_reward(group: Group, ctx: RewardContext, *, kind: str) -> Any:
    """Length of the text, unless the kind says otherwise. The self-test before a run gets honest values: it is not what is drilled."""
    good = [min(1.0, len(r.text) / 20) for r in group.rollouts]
    if group.id.startswith("self_test/"):
        return [float(group.prompt.sample.answer in r.text) for r in group.rollouts]
    if kind == "hang":
        time.sleep(1000)
    if kind == "spin":
        while True:
            pass
    if kind == "raise":
        raise ValueError("no score today")
    if kind == "exit":
        os._exit(7)
    if kind == "segfault":
        ctypes.string_at(0)
    wrong = {
        "nan": [float("nan")] * len(good),
        "inf": [float("inf")] * len(good),
        "huge": [value * 1e300 for value in good],
        "none": [None] * len(good),
        "short": good[:1],
        "text": ["1"] * len(good),
        "bool": [True] * len(good),
        "generator": (value for value in good),
        "equal": [0.5] * len(good),
    }
    return wrong.get(kind, good)


@policy_loss("drill_loss")
def drill_loss(x: LossInputs, *, kind: str, at: int = 2, times: int = 1) -> LossOutput:
    """The clipped loss, but not finite in some calls."""
    CALLS[0] += 1
    out = ppo_clip(x)
    if at <= CALLS[0] < at + times:
        return LossOutput(out.loss_BT * float(kind), out.metrics)
    return out


def spoil(weights: dict[str, torch.Tensor], value: float) -> dict[str, torch.Tensor]:
    """Weights with one wrong number in the head (or what stands for it)."""
    name = "lm_head.weight" if "lm_head.weight" in weights else next(n for n in sorted(weights) if "embed_tokens" in n)
    out = {key: tensor.clone() for key, tensor in weights.items()}
    out[name][0, 0] = value
    return out

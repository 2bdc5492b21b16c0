"""Reweight `trajectory_mean`: with token_mean, a mean over attempts of means over their tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.attempts import attempts
from tests.support.builders import inputs
from vlmrl.algo.ratio import token_mean
from vlmrl.algo.reweight.trajectory_mean import trajectory_mean
from vlmrl.config.combinations import contradictions
from vlmrl.config.schema import Config
from vlmrl.methods import registries

NAN = float("nan")
LENGTHS = [3, 1, 2, 4, 5]


def rows(*rewards):
    x = attempts(*[[(0, 0, r) for r in attempt] for attempt in rewards])
    return dataclasses.replace(x, length_N=torch.tensor(LENGTHS[: len(x.reward_N)]), group_N=torch.arange(len(x.reward_N)))


def reduced(x, adv_N):
    """The token mean of -A over the responses, as the trainer takes it."""
    mask_NT = torch.arange(max(LENGTHS))[None, :] < x.length_N[:, None]
    reduction = token_mean(mask_NT)
    return float((reduction.weight_BT * -adv_N[:, None]).sum() / reduction.count)


def test_trajectory_mean_is_the_mean_over_attempts_of_the_mean_over_tokens():
    x = rows([0, 1], [0], [1, 0])  # tokens 3 + 1, 2, 4 + 5
    adv_N = torch.tensor([1.0, 2.0, -3.0, 0.5, 0.25]).double()
    by_hand = -((3 * 1.0 + 1 * 2.0) / 4 + -3.0 + (4 * 0.5 + 5 * 0.25) / 9) / 3
    assert reduced(x, trajectory_mean(x, adv_N)) == pytest.approx(by_hand)
    assert reduced(x, adv_N) != pytest.approx(by_hand)


def test_equal_attempts_keep_what_they_have_and_a_fault_does_not_count():
    x = dataclasses.replace(rows([0, 1], [0, 1]), length_N=torch.tensor([3, 1, 2, 2]))
    adv_N = torch.tensor([1.0, 1.0, -1.0, -1.0]).double()
    assert trajectory_mean(x, adv_N).tolist() == adv_N.tolist()
    faulty = rows([0, 1], [0], [NAN, 0])
    out = trajectory_mean(faulty, torch.ones(5).double())
    assert out.tolist() == pytest.approx([0.75, 0.75, 1.5, 1.0, 1.0]), "6 tokens of two attempts: 3 / 4 and 3 / 2"


def test_it_needs_trajectories_and_token_mean():
    with pytest.raises(ValueError, match="'trajectory_mean' needs trajectory_N"):
        trajectory_mean(inputs([(1.0, 0, True)]), torch.zeros(1))
    stage = {"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, "rewards": [{"name": "gui_action"}]}
    stage |= {"reweight": [{"name": "trajectory_mean"}]}

    def said(**more):
        config = Config.model_validate({"model": {"path": "m"}, "stages": [stage | more]})
        return [text for text in contradictions(config, registries()) if "trajectory_mean" in text]

    assert len(said(reduce={"name": "seq_mean"})) == 1
    assert said(reduce={"name": "token_mean"}) == []

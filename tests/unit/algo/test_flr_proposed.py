"""Shaping `flr_proposed`, and the provider of what it needs."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.algo.reward_shaping.flr_proposed import flr_proposed
from vlmrl.errors import RowError
from vlmrl.train.stage.providers import follow_up
from vlmrl.types import Prompt


def step(liked, disliked):
    x = inputs([(0.5, 0, True) for _ in liked])
    provided = {"liked_N": torch.tensor(liked, dtype=torch.float64), "disliked_N": torch.tensor(disliked, dtype=torch.float64)}
    return dataclasses.replace(x, provided=provided)


def test_flr_proposed_by_hand():
    x = step([-1.0, -3.0, math.nan], [-2.0, -1.5, math.nan])
    out = flr_proposed(x.rewards_NK, x.valid_N, x, reward="task", weight=0.2)
    assert out[:, 0].tolist() == pytest.approx([0.7, 0.2, 0.5])
    for wrong in ({"weight": -1.0}, {"positive": []}, {"negative": [" "]}):
        with pytest.raises(ValueError, match="flr_proposed"):
            flr_proposed(x.rewards_NK, x.valid_N, x, reward="task", **wrong)


class Stage:
    """Scores a token by its number: log-prob -ord / 100, and writes down what was asked."""

    def __init__(self):
        self.policy = SimpleNamespace(bundle=SimpleNamespace(tokenize=lambda text: list(map(ord, text))))
        self.loader = SimpleNamespace(encoder=self)
        self.asked = []

    def encode(self, sample, answer_format):
        if "long" in sample.question:
            raise RowError("overlong", "too long")
        return Prompt(sample=sample, ids=(1,), media=(), spans=(), answer_format=answer_format)

    def score_reference(self, rows):
        self.asked = [row.prompt.sample.question for row in rows]
        out = torch.zeros((len(rows), max((len(row.response) for row in rows), default=0)))
        for n, row in enumerate(rows):
            out[n, : len(row.response)] = -torch.tensor(row.response) / 100
        return out


def test_follow_ups_are_scored_behind_the_answer():
    stage, mine = Stage(), group(["yes", "long"], sample())
    batch = SimpleNamespace(groups=[(0, SimpleNamespace(group=mine))], rollouts=mine.rollouts, rows=[None, None])
    arguments = {"positive": ["aa", "c"], "negative": ["e"]}
    found = follow_up.follow_ups(stage, batch, SimpleNamespace(argument=arguments.__getitem__))
    assert found["liked_N"].tolist() == [pytest.approx((-0.97 - 0.99) / 2), pytest.approx(math.nan, nan_ok=True)]
    assert found["disliked_N"].tolist()[0] == pytest.approx(-1.01)
    assert stage.asked == ["A person asked: When?\nAn assistant answered:\nyes\nSay what the person answers."] * 3

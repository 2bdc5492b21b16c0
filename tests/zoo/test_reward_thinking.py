"""rewards.thinking, and what the shape `trust` makes of it."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.builders import group, inputs, sample
from tests.support.judge_server import prompt_of, score, serving, text
from vlmrl.protocols import RewardContext
from vlmrl.zoo.reward_shaping.trust import trust
from vlmrl.zoo.rewards.thinking import thinking

CTX = RewardContext()
OF = sample("A", gt={})
TEXTS = [
    "<think>first</think><answer>A</answer>",
    "<think>second</think><answer>B</answer>",
    "<think>  </think><answer>A</answer>",
    "<answer>A</answer>",
    "<think>never closed <answer>A</answer>",
]


def test_thinking_scores_thoughts_right_or_wrong() -> None:
    with serving(score(0.8), score(0.3)) as s:
        assert thinking(group(TEXTS, OF), CTX, endpoint=s.endpoint) == [0.8, 0.3, 0.0, 0.0, 0.0]
        assert s.server.calls == 2
        assert "\nfirst\n" in prompt_of(s.server.requests[0][0])


def test_thinking_of_the_released_code_asks_about_right_rows_only() -> None:
    with serving(score(0.8)) as s:
        assert thinking(group(TEXTS, OF), CTX, endpoint=s.endpoint, judge_wrong=False) == [0.8, 0.0, 0.0, 0.0, 0.0]
        assert s.server.calls == 1


def test_thinking_correct_by() -> None:
    with serving() as s:
        of = group(TEXTS[:2], sample("3", gt={}))
        assert thinking(of, CTX, endpoint=s.endpoint, judge_wrong=False, correct_by="every") == [1.0, 1.0]
        for service in ("thinking", "judge"):
            with pytest.raises(ValueError, match="by rule"):
                thinking(of, CTX, endpoint=s.endpoint, judge_wrong=False, correct_by=service)
        with pytest.raises(KeyError, match="did you mean 'exact'"):
            thinking(of, CTX, endpoint=s.endpoint, judge_wrong=False, correct_by="exakt")


def test_thinking_needs_a_template_with_thoughts() -> None:
    with serving() as s:
        assert thinking(group(TEXTS[:1], OF, answer_format="answer_only"), CTX, endpoint=s.endpoint) == [None]
        assert s.server.requests == []


def test_thinking_that_prefers_wrong_answers_is_trusted_less() -> None:
    """mu_c = 0.5, mu_w = 0.8: gamma = exp(-0.3) = 0.7408, R = gamma * 0.3 * q at the start."""
    with serving(score(0.5), score(0.8)) as s:
        q = thinking(group(TEXTS[:2], OF), CTX, endpoint=s.endpoint)
    x = inputs([(1.0, 0, True), (0.0, 0, True)])
    x = type(x)(**{**{f: getattr(x, f) for f in x.__dataclass_fields__}, "columns": ("exact", "thinking")})
    rewards = torch.tensor([[1.0, q[0]], [0.0, q[1]]], dtype=torch.float64)
    out = trust(rewards, torch.tensor([True, True]), x, reward="thinking", outcome="exact")
    assert math.exp(-0.3) == pytest.approx(0.7408, abs=1e-4)
    assert out[:, 1].tolist() == pytest.approx([math.exp(-0.3) * 0.3 * 0.5, math.exp(-0.3) * 0.3 * 0.8])


def test_thinking_without_a_verdict_is_missing() -> None:
    with serving(otherwise=text("no")) as s:
        column = thinking(group(TEXTS[:2], OF), CTX, endpoint=s.endpoint)
        assert column == [None, None]
        assert column.reasons == {"no_json": 2}  # type: ignore[attr-defined]

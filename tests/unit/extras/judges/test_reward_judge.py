"""judges.rewards.judge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import group, sample
from tests.support.judge_server import images_of, prompt_of, score, serving, text
from vlmrl.errors import ConfigError
from vlmrl.extras.judges.rewards.judge import judge
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, MediaHandle, MediaRef

CTX = RewardContext()
OF = sample("a red car", gt={})


class Medium:
    frames = np.full((1, 2, 2, 3), 7, np.uint8)
    times = None


def with_image(of: Group) -> Group:
    one = replace(of.prompt.sample, media=(MediaRef(kind="image", path="a.png"),))
    handle = MediaHandle(kind="image", key="k", grid_thw=(1, 2, 2), tokens=1)
    return replace(of, prompt=replace(of.prompt, sample=one, media=(handle,)))


def test_judge_scores_what_only_a_judge_can() -> None:
    texts = [
        "<think>t</think><answer>the car is red</answer>",
        "<think>t</think><answer>A  RED car</answer>",
        "<think>a red car</think>",
        "<think>t</think><answer></answer>",
        "<think>t</think><answer>blue</answer>",
    ]
    with serving(score(0.75), score(0)) as s:
        assert judge(group(texts, OF), CTX, endpoint=s.endpoint) == [0.75, 1.0, 0.0, 0.0, 0.0]
        assert s.server.calls == 2
        shown = prompt_of(s.server.requests[0][0])
        assert "\nthe car is red\n" in shown
        assert "\na red car\n" in shown
        assert "\nt\n" not in shown  # never the thought


def test_judge_sees_the_pixels_of_the_policy() -> None:
    of = with_image(group(["<answer>x</answer>"], OF, answer_format="answer_only"))
    with serving(score(0.5)) as s:
        assert judge(of, RewardContext(media={"k": Medium()}), endpoint=s.endpoint) == [0.5]
        assert len(images_of(s.server.requests[0][0])) == 1
        with pytest.raises(ValueError, match="not in the reward's context"):
            judge(of, CTX, endpoint=s.endpoint)
        assert judge(of, CTX, endpoint=s.endpoint, with_pictures=False) == [1.0]
        assert images_of(s.server.requests[1][0]) == []


def test_judge_rows_that_it_is_not_for() -> None:
    of = group(["<answer>x</answer>"] * 2, OF)
    with serving() as s:
        assert judge(of, CTX, endpoint=s.endpoint, answer_types=("exact_text",)) == [None, None]
        assert judge(group(["<answer>x</answer>"], sample(" ", gt={})), CTX, endpoint=s.endpoint) == [None]
        assert s.server.requests == []
        assert judge(of, CTX, endpoint=s.endpoint, answer_types=("time_span",)) == [1.0, 1.0]


def test_judge_instructions_and_exactness() -> None:
    of = group(["<answer>a red car</answer>"], OF)
    with serving(score(0.5)) as s:
        assert judge(of, CTX, endpoint=s.endpoint, exact_first=False, instructions="Units must match.") == [0.5]
        assert "Also: Units must match." in prompt_of(s.server.requests[0][0])


def test_judge_never_invents_a_score() -> None:
    """A verdict that stays unreadable is None with its reason, and the other rows keep theirs."""
    of = group(["<answer>one</answer>", "<answer>two</answer>"], OF)
    with serving(text("great!"), text("really!"), score(7), score(0.25)) as s:
        column = judge(of, CTX, endpoint=s.endpoint)
        assert column == [None, 0.25]
        assert column.reasons == {"out_of_range": 1}  # type: ignore[attr-defined]
        assert s.services.meters.reasons() == {"judge/out_of_range": 1}


def test_judge_is_a_service_and_checks_its_endpoint() -> None:
    assert reward.get("judge").extra == {"service": True}
    with pytest.raises(ConfigError, match="'model' is missing"):
        judge(group(["<answer>x</answer>"], OF), CTX, endpoint={"url": "https://judge.example"})

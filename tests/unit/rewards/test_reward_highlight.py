"""rewards.highlight."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.highlight import highlight
from vlmrl.rewards.run.runner import RewardRunner

ROW = dataclasses.replace(
    sample('{"highlights": [[1.0, 4.0], [3.0, 2.0]]}', gt={"highlights": [[1.0, 4.0], [3.0, 2.0]]}), answer_type="highlight"
)
TEXTS = [
    '<answer>{"highlights": [[3.0, 2.0], [1.0, 4.0]]}</answer>',
    "<answer>1.0, 3.0 seconds. scores 4, 2</answer>",
    '<answer>{"highlights": [[0.5, 3.0]]}</answer>',
    '<answer>{"highlights": [[50, 4.0]]}</answer>',
    "<answer>at the end</answer>",
    "1.0, 3.0 seconds. scores 4, 2",
]


def test_highlight() -> None:
    one = 0.6 * 5 / 9 + 0.4 / 2.6  # P 1, R 1/2; weighted error 0.8 * 1 + 0.2 * 4
    missed = 0.4 / (1 + 0.8 * 16 + 0.2 * 4)
    assert highlight(group(TEXTS, ROW), RewardContext()) == pytest.approx([1, 1, one, missed, 0, 0])


def test_highlight_arguments() -> None:
    assert highlight(group(TEXTS[2:3], ROW), RewardContext(), w_f2=2, w_saliency=0) == pytest.approx([5 / 9])
    with pytest.raises(ValueError, match="positive"):
        highlight(group(TEXTS, ROW), RewardContext(), w_f2=-1)


def test_the_row_says_how_long_a_clip_is() -> None:
    short = dataclasses.replace(ROW, gt={**ROW.gt, "clip_seconds": 1})
    assert highlight(group(TEXTS[:3], short), RewardContext())[:2] == [1, 1]
    assert highlight(group(TEXTS[2:3], short), RewardContext()) == pytest.approx([0.4 / (1 + 0.8 * 16 + 0.2 * 4)])  # now another clip
    with pytest.raises(ValueError, match="one saliency per 4 s clip"):
        highlight(group(TEXTS, dataclasses.replace(ROW, gt={**ROW.gt, "clip_seconds": 4})), RewardContext())


def test_other_samples_and_gold() -> None:
    assert highlight(group(TEXTS), RewardContext()) == [None] * 6
    assert RewardRunner([("highlight", 1.0, highlight)]).self_test([ROW], "think") == []

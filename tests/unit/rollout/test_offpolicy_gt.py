"""rollout.strategy.offpolicy_gt with a tokenizer of one token per character."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.temporal_iou import temporal_iou_reward
from vlmrl.rollout.strategy.offpolicy_gt import offpolicy_gt

TEXTS = ["<think>far</think><answer>8 to 9</answer>", "<think>near</think><answer>3 to 4</answer>", "<answer>3 to 5</answer>"]


def tokens(text: str) -> list[int]:
    return [ord(c) for c in text]


def score(g):
    return temporal_iou_reward(g, RewardContext())


def test_offpolicy_gt():
    mine = group(TEXTS)
    method = offpolicy_gt()
    assert method.sampled(8) == 7
    out = method.complete(mine, score, tokens)
    row = out.rollouts[-1]
    assert out.rollouts[:-1] == mine.rollouts
    assert row.text == "<think>near</think><answer>3.0 to 5.0</answer>"
    assert row.ids == tuple(tokens(row.text))
    assert (row.k, row.logprobs, row.provenance, row.on_policy, row.policy_version) == (3, (), "ground_truth", False, 4)
    assert temporal_iou_reward(out, RewardContext())[-1] == 1.0
    assert format_reward(out, RewardContext())[-1] == 1.0


@pytest.mark.parametrize("texts", [["x", TEXTS[2]], ["<think>a"]])
def test_without_a_well_formed_row_the_group_stays_as_it_is(texts):
    mine = group(texts)
    assert offpolicy_gt().complete(mine, score, tokens) is mine


def test_unjudged_rows_lend_no_thought_and_the_first_of_equals_wins():
    mine = group(["<think>a</think><answer>1</answer>", "<think>b</think><answer>1</answer>", "<think>c</think><answer>1</answer>"])
    out = offpolicy_gt().complete(mine, lambda g: [None, 0.5, 0.5], tokens)
    assert out.rollouts[-1].text.startswith("<think>b</think>")


def test_templates_and_modes_without_a_thought():
    out = offpolicy_gt().complete(group(["x"], answer_format="answer_only"), score, tokens)
    assert out.rollouts[-1].text == "<answer>3.0 to 5.0</answer>"
    out = offpolicy_gt(gt_cot="answer_only").complete(group(["x"]), score, tokens)
    assert out.rollouts[-1].text == "<think>\n\n</think><answer>3.0 to 5.0</answer>"


@pytest.mark.parametrize("i", range(50))
def test_the_row_scores_one_for_any_span(i):
    start, end = i * 7.31, i * 7.31 + 0.5 + i / 3
    answer = f"{start:.2f} to {end:.2f}"
    of = sample(answer, {"time": [float(f"{start:.2f}"), float(f"{end:.2f}")]})
    out = offpolicy_gt().complete(group(["x"], of, "answer_only"), score, tokens)
    assert temporal_iou_reward(out, RewardContext())[-1] == 1.0


def test_off_leaves_out_the_row_where_there_are_thoughts():
    mine = group(TEXTS)
    assert offpolicy_gt(gt_cot="off").complete(mine, score, tokens) is mine
    out = offpolicy_gt(gt_cot="off").complete(group(["x"], answer_format="answer_only"), score, tokens)
    assert out.rollouts[-1].text == "<answer>3.0 to 5.0</answer>"

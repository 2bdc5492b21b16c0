"""rollout.strategy.offpolicy_gt with a tokenizer of one token per character."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import group, inputs, sample
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.advantage.tempsamp_anchor import tempsamp_anchor
from vlmrl.algo.reward_shaping.tempsamp import tempsamp_nonlinear
from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.methods import method_problems
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


@pytest.mark.parametrize("texts", [["x", "<answer>3 to 4</answer>"], TEXTS])
def test_the_bare_row_is_in_every_group(texts):
    out = offpolicy_gt(gt_cot="bare").complete(group(texts), score, tokens)
    assert out.rollouts[-1].text == "<answer>3.0 to 5.0</answer>"
    assert out.rollouts[-1].provenance == "ground_truth"
    assert temporal_iou_reward(out, RewardContext())[-1] == 1.0


def test_a_fallback_is_for_groups_without_a_thought_to_splice():
    form = {"bare": "<answer>3.0 to 5.0</answer>", "answer_only": "<think>\n\n</think><answer>3.0 to 5.0</answer>"}
    for fallback, text in form.items():
        method = offpolicy_gt(fallback=fallback)
        assert method.complete(group(["x", TEXTS[2]]), score, tokens).rollouts[-1].text == text
        assert method.complete(group(TEXTS), score, tokens).rollouts[-1].text == "<think>near</think><answer>3.0 to 5.0</answer>"


def test_a_fallback_that_would_do_nothing_is_refused():
    with pytest.raises(ConfigError, match="fallback 'bare' is for gt_cot 'splice', and gt_cot is 'off': it would do nothing"):
        load("video_tempsamp_3b", ["stages.think.rollout.strategy.gt_cot=off"], also=method_problems)
    load("video_tempsamp_3b", ["stages.think.rollout.strategy={name: offpolicy_gt, fallback: answer_only}"], also=method_problems)


def advantages(texts, **options):
    """(plain, shaped, anchored) advantages of a group after the strategy, lists of as many numbers as it has rows."""
    out = offpolicy_gt(**options).complete(group(texts), score, tokens)
    values = score(out)
    given = [n for n, rollout in enumerate(out.rollouts) if not rollout.on_policy]
    x = inputs([(float(value or 0), 0, True) for value in values], off_policy=given)
    shaped = tempsamp_nonlinear(x.rewards_NK, x.valid_N, x, reward="task")[:, 0]
    found = grpo(x), grpo(dataclasses.replace(x, reward_N=shaped)), tempsamp_anchor(x)
    return [[round(value, 4) for value in one.tolist()] for one in found]


def test_without_a_well_formed_row_the_repairs_are_one_unless_a_fallback_is_named():
    """No answer has a thought, and none can be read: without a ground-truth row the method is nothing at all."""
    unreadable = ["so", "<answer>later</answer>", "<think>3 to 5"]
    assert advantages(unreadable) == [[0.0] * 3] * 3
    plain, shaped, anchored = advantages(unreadable, fallback="bare")
    assert plain == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-3)
    assert shaped == pytest.approx(plain, abs=1e-3), "two values are two values, whatever their distance"
    assert shaped != plain
    assert anchored == [0.0] * 4, "no best sampled answer to anchor to"
    # readable answers, still without thoughts: overlaps 1/2 (3 to 4), 0, 3/4 (3.5 to 5) beside the true one
    readable = ["<answer>3 to 4</answer>", "<answer>8 to 9</answer>", "<answer>3.5 to 5</answer>"]
    assert len(advantages(readable)[0]) == 3
    plain, shaped, anchored = advantages(readable, fallback="bare")
    assert plain == pytest.approx([-0.1464, -1.3174, 0.4391, 1.0247], abs=1e-3)
    # .5964, .0868, .7702, .8018 by eq. 4: mean .5638, sample deviation .3306
    assert shaped == pytest.approx([0.0986, -1.4429, 0.6243, 0.7200], abs=1e-3)
    assert anchored == pytest.approx([0.2182, -1.0911, 0.8729, 1.2 * 0.8729], abs=1e-3)


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

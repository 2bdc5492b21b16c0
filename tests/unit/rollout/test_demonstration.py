"""rollout.strategy.demonstration: which trace joins a group, as it is, and when it does not."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.errors import DataError
from vlmrl.protocols import RewardContext
from vlmrl.rewards.temporal_iou import temporal_iou_reward
from vlmrl.rollout.strategy.demonstration import demonstration, traces

TRACE = "<think>seen</think><answer>3 to 5</answer>"


def tokens(text: str) -> list[int]:
    return [*map(ord, text), 0]


def score(g):
    return temporal_iou_reward(g, RewardContext())


def test_demonstration():
    mine = group(["x", "y"], sample(meta={"demonstrations": [TRACE]}))
    method = demonstration()
    assert method.sampled(8) == 7
    out = method.complete(mine, score, tokens)
    assert out.rollouts[:2] == mine.rollouts
    row = out.rollouts[2]
    assert (row.k, row.text, row.ids, row.logprobs, row.provenance) == (2, TRACE, tuple(tokens(TRACE)), (), "ground_truth")


@pytest.mark.parametrize("text", ["<think>seen</think><answer>8 to 9</answer>", "no answer"])
def test_a_trace_without_reward_is_dropped(text):
    mine = group(["x"], sample(meta={"demonstrations": [text]}))
    assert demonstration().complete(mine, score, tokens) is mine


def test_the_bound_is_exclusive():
    mine = group(["x"], sample(meta={"demonstrations": [TRACE]}))
    assert demonstration(above=1.0).complete(mine, score, tokens) is mine
    assert demonstration(above=0.99).complete(mine, score, tokens) is not mine
    assert demonstration().complete(mine, lambda g: [None, None], tokens) is mine


def test_without_demonstrations_the_rows_own_thought_is_one():
    assert traces(sample(thought="T"), "think") == ["<think>T</think><answer>3.0 to 5.0</answer>"]
    assert traces(sample(), "answer_only") == ["<answer>3.0 to 5.0</answer>"]
    assert traces(sample(thought=" "), "think") == []
    mine = group(["x"])
    assert demonstration().complete(mine, score, tokens) is mine


def test_several_traces_take_turns_by_group():
    import dataclasses

    texts = [f"<think>{c}</think><answer>3 to 5</answer>" for c in "abc"]
    mine = group(["x"], sample(meta={"demonstrations": texts}))
    seen = [demonstration().complete(dataclasses.replace(mine, id=f"rl/{i}/0/row"), score, tokens).rollouts[1].text for i in range(40)]
    assert set(seen) == set(texts)
    assert demonstration().complete(dataclasses.replace(mine, id="rl/7/0/row"), score, tokens).rollouts[1].text == seen[7]


@pytest.mark.parametrize("bad", ["text", [1], [" "]])
def test_demonstrations_of_another_form_name_the_row(bad):
    with pytest.raises(DataError, match="row 'row'"):
        traces(sample(meta={"demonstrations": bad}), "think")

"""What holds for every registered reward: one finite number or None per rollout, whatever the policy wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import group
from vlmrl import protocols
from vlmrl.methods import registries as load_all
from vlmrl.rewards.answer import gold_text
from vlmrl.rewards.runner import contract_problem

load_all()
REWARDS = [n for n in protocols.reward.names() if protocols.reward.get(n).function.__module__.startswith("vlmrl.")]
CTX = protocols.RewardContext()
PIECES = ["<think>", "</think>", "<answer>", "</answer>", "3 to 5", "{", "}", '{"time":[', "NaN", "9" * 400, "\n", "1:", "é"]
TEXTS = st.lists(st.one_of(st.text(max_size=8), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", REWARDS)
@given(texts=TEXTS)
def test_any_text_gets_one_finite_number_in_range_and_no_error(name, texts):
    function = protocols.reward.bind(name)
    out = function(group(texts), CTX)
    assert contract_problem(out, len(texts)) is None
    assert all(v is None or 0 <= v <= 1 for v in out)
    assert list(out) == [function(group([t]), CTX)[0] for t in texts]


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("template", ["answer_only", "think_answer"])
def test_the_gold_answer_scores_one(name, template):
    mine = group(["", "<answer>junk</answer>x"], template=template)
    gold = group([gold_text(mine.prompt.sample, template, None)], template=template)
    assert list(protocols.reward.bind(name)(gold, CTX)) == [1.0]
    assert list(protocols.reward.bind(name)(mine, CTX)) == [0.0, 0.0]


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("piece", PIECES)
def test_64_kilobytes_of_one_piece(name, piece):
    text = "<answer>" + piece * (65536 // len(piece))
    out = protocols.reward.bind(name)(group([text, text + "</answer>"]), CTX)
    assert contract_problem(out, 2) is None

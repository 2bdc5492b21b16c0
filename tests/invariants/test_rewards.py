"""What holds for every registered reward: one finite number or None per rollout, whatever the policy wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import group, sample
from vlmrl import protocols
from vlmrl.data.row import parse_row
from vlmrl.methods import registries as load_all
from vlmrl.rewards.answer import gold_text
from vlmrl.rewards.runner import contract_problem
from vlmrl.toy import gui, multitask, spatial, think

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


def known_samples():
    """A sample of every kind that the toy world has, and the one of the other tests."""
    out = [sample()]
    for kind in (multitask, spatial, think, gui):
        for index in range(8):
            rows = [item.row for item in kind.items(0, "test", index)]
            out += [parse_row(row, source="toy:1", media_root="") for row in rows]
    return out


SAMPLES = known_samples()


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("template", ["answer_only", "think_answer"])
def test_the_gold_answer_scores_one(name, template):
    """Of every sample that the reward is for; nothing scores on junk, and a reward that is for no sample here is not tested at all."""
    if name.startswith("rule_") and template == "answer_only":
        pytest.skip("a rule about the thought has nothing to judge in an answer alone")
    function, judged = protocols.reward.bind(name), 0
    for one in SAMPLES:
        gold = group([gold_text(one, template, one.thought)], one, template=template)
        (score,) = function(gold, CTX)
        if score is None:
            continue
        judged += 1
        assert score == 1.0, one.id
        junk = group(["", "<answer>junk</answer>x"], one, template=template)
        assert all(not value for value in function(junk, CTX)), one.id
    assert judged


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("piece", PIECES)
def test_64_kilobytes_of_one_piece(name, piece):
    text = "<answer>" + piece * (65536 // len(piece))
    out = protocols.reward.bind(name)(group([text, text + "</answer>"]), CTX)
    assert contract_problem(out, 2) is None

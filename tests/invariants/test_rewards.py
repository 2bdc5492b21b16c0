"""What holds for every registered reward: one finite number or None per rollout, whatever the policy wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl import protocols
from vlmrl.answers.tags import gold_text
from vlmrl.data.row import parse_row
from vlmrl.extras.toy import gui, multitask, spatial, think
from vlmrl.methods import registries as load_all
from vlmrl.rewards.run.runner import contract_problem

load_all()
OURS = [n for n in protocols.reward.names() if protocols.reward.get(n).ours]
REWARDS = [n for n in OURS if not protocols.reward.get(n).extra.get("service") and n != "python"]
"""Those that decide by rule: what a service or a function of somebody else says is not ours to promise."""
ARGUMENTS = {
    "length": {"low": 1, "high": 10**6, "maximum": 2 * 10**6},
    "overlong": {"maximum": 10**6, "buffer": 10},
    "cosine_length": {"maximum": 10**6},
    "surrogate_length": {"maximum": 10**6},
}
"""What a reward must be told."""
OF_FORM = {"think_format", "structure", "length", "overlong", "cosine_length", "repetition", "surrogate_length", "refine_proposed"}
"""Those that look at the form alone, which junk may have."""
CTX = protocols.RewardContext()
PIECES = ["<think>", "</think>", "<answer>", "</answer>", "3 to 5", "{", "}", '{"time":[', "NaN", "9" * 400, "\n", "1:", "é"]
TEXTS = st.lists(st.one_of(st.text(max_size=8), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)), min_size=1, max_size=4)


def bind(name):
    return protocols.reward.bind(name, ARGUMENTS.get(name, {}))


def compares(name):
    """Whether a reward looks at the whole group, so that a rollout's number depends on its neighbours."""
    return protocols.reward.get(name).extra.get("compares", False)


def best(name):
    """The most that a column gives; None where its registration promises nothing."""
    return protocols.reward.get(name).extra.get("best", 1.0)


@pytest.mark.parametrize("name", REWARDS)
@given(texts=TEXTS)
def test_any_text_gets_one_finite_number_in_range_and_no_error(name, texts):
    function = bind(name)
    out = function(group(texts), CTX)
    assert contract_problem(out, len(texts)) is None
    low = 0 if best(name) == 1 else -10
    assert all(v is None or low <= v <= 1 for v in out)
    if not compares(name):
        assert list(out) == [function(group([t]), CTX)[0] for t in texts]


OTHER_KEYS = {"task": "t", "prompt": "What is it?", "image": "a.png"}
OTHER_ROWS = [
    {"answer_type": "choice", "options": ["a cat", "a dog"], "answer": "B"},
    {"answer_type": "math", "answer": "\\frac{1}{2}"},
    {"answer_type": "short_text", "answer": "NO EXIT"},
    {"answer_type": "exact_text", "answer": "a man opens a door"},
    {"answer_type": "regression", "answer": "12.5", "gt": {"number": 12.5}},
    {"answer_type": "point", "answer": "[150, 150]", "gt": {"boxes": [[100, 100, 200, 200]]}, "meta": {"frame": "norm1000"}},
    {
        "answer_type": "point",
        "answer": "[[1, 0]]",
        "gt": {"mask": {"size": [2, 2], "counts": [2, 2]}},
        "meta": {"frame": "pixel", "size": [2, 2]},
    },
    {"answer_type": "highlight", "gt": {"highlights": [[2, 3], [4, 4]]}},
    {"answer_type": "tracking", "gt": {"track": {"0": [1, 2, 30, 40], "5": [2, 3, 31, 41]}}, "meta": {"frame": "norm1000"}},
    {
        "answer_type": "spatio_temporal",
        "gt": {"tube": {"time": [1, 3], "boxes": {"1": [1, 2, 30, 40]}}},
        "meta": {"frame": "norm1000"},
    },
    {
        "answer_type": "segmentation",
        "gt": {"segmentation": {"boxes": [1, 2, 30, 40], "positive_points": [[5, 5]], "negative_points": [[90, 90]]}},
        "meta": {"frame": "norm1000"},
    },
    {"answer_type": "exact_text", "answer": "cat", "meta": {"attempt": "dog", "items": ["cat"]}},
    {"answer_type": "exact_text", "answer": "red", "meta": {"route": {"query": "which colour", "retriever": "text"}}},
]


def known_samples():
    """A sample of every kind that the toy world has, of every other answer type, and the one of the other tests."""
    out = [sample(), *(parse_row(row | OTHER_KEYS | {"id": str(n)}, source="here:1", media_root="") for n, row in enumerate(OTHER_ROWS))]
    for kind in (multitask, spatial, think, gui):
        for index in range(8):
            rows = [item.row for item in kind.items(0, "test", index)]
            out += [parse_row(row, source="toy:1", media_root="") for row in rows]
    return out


SAMPLES = known_samples()


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("answer_format", ["answer_only", "think_answer"])
def test_the_gold_answer_scores_one(name, answer_format):
    """Of every sample that the reward is for; nothing scores on junk, and a reward that is for no sample here is not tested at all."""
    if answer_format == "answer_only" and (name.startswith("rule_") or name == "think_format"):
        pytest.skip("a rule about the thought has nothing to judge in an answer alone")
    if compares(name) or protocols.reward.get(name).extra.get("needs_environment"):
        pytest.skip("it knows no gold answer")
    function, judged = bind(name), 0
    for one in SAMPLES:
        gold = group([gold_text(one, answer_format, one.thought)], one, answer_format=answer_format)
        (score,) = function(gold, CTX)
        if score is None:
            continue
        judged += 1
        assert best(name) in (None, score), one.id
        if name in OF_FORM:
            continue
        junk = group(["", "<answer>junk</answer>x"], one, answer_format=answer_format)
        assert all(not value for value in function(junk, CTX)), one.id
    assert judged


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("piece", PIECES)
def test_64_kilobytes_of_one_piece(name, piece):
    text = "<answer>" + piece * (65536 // len(piece))
    out = bind(name)(group([text, text + "</answer>"]), CTX)
    assert contract_problem(out, 2) is None

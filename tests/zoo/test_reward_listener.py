"""rewards.listener."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from tests.support.builders import group, sample
from tests.support.judge_server import Act, Reply, prompt_of, says, serving, status
from vlmrl.extras.judges.verdicts import Unreadable
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.listener import choices_of, listener, probs_check, read_probs

CTX = RewardContext()
OPTIONS = ["A. cat", "B. dog", "C. bird"]
TEXTS = ["<think>It has wings. It is small. It flies. It sings. The answer is C.</think><answer>C</answer>"]


def of(answer: str = "C", row: str = "row", options: Any = OPTIONS) -> Any:
    made = sample(answer, gt={}, meta={"options": options}, id=row)
    return made.__class__(**{**{f: getattr(made, f) for f in made.__dataclass_fields__}, "question": "What is it?\n" + "\n".join(OPTIONS)})


def reply_with(top: list[dict[str, Any]]) -> Reply:
    return Reply(body=json.dumps({"choices": [{"message": {"content": "A"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}).encode())


def prefers(masses: dict[str, float]) -> Act:
    """A listener with these masses by the text of the option, wherever it stands; the rest goes to another token."""

    def act(body: dict[str, Any]) -> Reply:
        shown = dict(re.findall(r"^([A-C])\. (\w+)$", prompt_of(body), re.M))
        top = [{"token": " " + letter, "logprob": math.log(masses[option])} for letter, option in shown.items() if option in masses]
        return reply_with([*top, {"token": "The", "logprob": -1.0}])

    return act


def test_listener_is_the_probability_of_the_true_option_in_any_order() -> None:
    """Masses 0.1, 0.1, 0.3 of 0.5 in all: 0.6 for the bird, wherever it is shown."""
    orders: set[str] = set()
    with serving(otherwise=prefers({"cat": 0.1, "dog": 0.1, "bird": 0.3}), cache=False) as s:
        for i in range(8):
            out = listener(group(TEXTS, of(row=f"row {i}")), CTX, endpoint=s.endpoint)
            assert out == pytest.approx([0.6])
            shown = prompt_of(s.server.requests[-1][0])
            orders.add("".join(re.findall(r"^[A-C]\. (\w)", shown, re.M)))
        body = s.server.requests[0][0]
    assert len(orders) > 2
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"]) == (1, True, 20)
    assert "response_format" not in body


def test_listener_does_not_hear_the_answer() -> None:
    with serving(otherwise=prefers({"bird": 0.5})) as s:
        listener(group(TEXTS, of()), CTX, endpoint=s.endpoint)
        shown = prompt_of(s.server.requests[0][0])
    assert "It has wings. It is small. It flies. It sings." in shown.replace("\n", " ")
    assert "answer is C" not in shown
    assert "<answer>" not in shown
    assert shown.count("C. ") == 1  # the options stand once, in the listener's order


def test_listener_is_clamped_so_that_right_beats_wrong() -> None:
    for masses, expected in (({"bird": 0.9}, 0.99), ({"cat": 0.9}, 0.01)):
        with serving(otherwise=prefers(masses)) as s:
            assert listener(group(TEXTS, of()), CTX, endpoint=s.endpoint) == [expected]
    assert 0.5 + 0.5 * 0.01 > 0.5 * 0.99


def test_listener_edges() -> None:
    texts = ["<think>The answer is C.</think><answer>C</answer>", "<think>wings</think>", "<answer>C</answer>"]
    with serving() as s:
        assert listener(group(texts, of()), CTX, endpoint=s.endpoint) == [1 / 3, 0.0, 1 / 3]
        assert listener(group(texts, sample("C", gt={})), CTX, endpoint=s.endpoint) == [None] * 3
        assert s.server.requests == []
        with pytest.raises(ValueError, match="none of the options"):
            listener(group(texts, of("D")), CTX, endpoint=s.endpoint)
        with pytest.raises(ValueError, match="2 to 20 options"):
            listener(group(texts, of(options=["A. cat"])), CTX, endpoint=s.endpoint)


def test_listener_open_answers() -> None:
    row = sample("a red car", gt={})
    texts = ["<think>Wheels. Paint. Doors. Glass.</think><answer>x</answer>", "<think></think><answer>x</answer>"]
    for answer, expected in (("A red  car", 1.0), ("a dog", 0.0)):
        with serving(says({"answer": answer})) as s:
            assert listener(group(texts, row), CTX, endpoint=s.endpoint, open_answers=True) == [expected, 0.0]


def test_listener_without_logprobs_is_missing() -> None:
    with serving(otherwise=says({"score": 1})) as s:
        column = listener(group(TEXTS, of()), CTX, endpoint=s.endpoint)
        assert column == [None]
        assert column.reasons == {"no_logprobs": 1}  # type: ignore[attr-defined]
    with serving(status(400)) as s:  # what servers say that do not give them
        assert listener(group(TEXTS, of()), CTX, endpoint=s.endpoint) == [None]


@pytest.mark.parametrize("answer", ["C", "c", "(C)", "C.", "bird", "C. bird", " Bird "])
def test_true_option_by_letter_or_text(answer: str) -> None:
    choices = choices_of(of(answer), OPTIONS, shuffle=True)
    assert choices.lines[choices.true].endswith("bird")
    assert choices.question == "What is it?"


def test_options_within_a_sentence_keep_their_order() -> None:
    row = sample("yes", gt={}, meta={"options": ["yes", "no"]})
    row = row.__class__(**{**{f: getattr(row, f) for f in row.__dataclass_fields__}, "question": "Is it red, yes or no?"})
    assert choices_of(row, ["yes", "no"], shuffle=True).lines == ("A. yes", "B. no")


@pytest.mark.parametrize(
    ("top", "reason"),
    [
        ([{"token": "The", "logprob": -0.1}], "no_option"),
        ([{"token": "A", "logprob": float("nan")}], "out_of_range"),
        ([{"token": "A", "logprob": 5.0}], "out_of_range"),
        ([{"token": "A"}], "missing"),
        (["A"], "envelope"),
        ("A", "no_logprobs"),
    ],
)
def test_logprobs_that_are_refused(top: Any, reason: str) -> None:
    reply = {"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}
    with pytest.raises(Unreadable) as caught:
        read_probs(3)(reply, "")
    assert caught.value.reason == reason


def test_letters_are_pooled() -> None:
    top = [{"token": t, "logprob": math.log(0.2)} for t in ("A", " a", "(A)", "B")]
    found = read_probs(2)({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}, "")
    assert found["probs"] == pytest.approx([0.75, 0.25])
    assert probs_check(2)(found) == found
    for wrong in ([0.5], [0.5, 0.6], None):
        with pytest.raises(Unreadable):
            probs_check(2)({"probs": wrong})

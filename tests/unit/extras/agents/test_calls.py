"""agents.calls: a turn is one call or the answer, and what is neither says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers.tags import FREE
from vlmrl.extras.agents.calls import Call, Final, Unusable, read_turn

ZOOM = Call(name="zoom", arguments={"box": [0, 0, 500, 500]})


@pytest.mark.parametrize(
    ("text", "answer_format", "read"),
    [
        (ZOOM.text(), FREE, ZOOM),
        (f"Let me look. {ZOOM.text()}", FREE, ZOOM),
        (ZOOM.text().removesuffix("</tool_call>"), FREE, ZOOM),  # cut at its end token
        ("B", FREE, Final("B")),
        ("<think>look</think> B", FREE, Final("B")),
        (f"<think>{ZOOM.text()}</think> B", FREE, Final("B")),  # a call in a thought is a thought
        (f"<think>look</think>{ZOOM.text()}", "think", ZOOM),
        (f"<think></think><answer>{ZOOM.text()}</answer>", "think_or_not", ZOOM),
        ("<answer>B</answer>", "answer_only", Final("B")),
        (f"{ZOOM.text()}<answer>B</answer>", "answer_only", Final("B")),  # the answer ends the episode, whatever stands beside it
    ],
)
def test_a_turn_is_a_call_or_the_answer(text: str, answer_format: str, read: Call | Final) -> None:
    assert read_turn(text, answer_format) == read


@pytest.mark.parametrize(
    ("text", "answer_format", "said"),
    [
        ("B", "answer_only", "neither a tool call nor an answer"),
        (f"<think>{ZOOM.text()}", "think", "neither a tool call nor an answer"),  # its thought never ends
        (ZOOM.text() * 2, FREE, "2 tool calls in one turn"),
        ("<tool_call>zoom(1, 2)</tool_call>", FREE, "not JSON of the form"),
        ("<tool_call>[]</tool_call>", FREE, "not JSON of the form"),
        ("<tool_call></tool_call>", FREE, "not JSON of the form"),
        ('<tool_call>{"name": "zoom"}</tool_call>', FREE, "has a name"),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', FREE, "has a name"),
        ('<tool_call>{"name": "zoom", "arguments": [1]}</tool_call>', FREE, "has a name"),
        ('<tool_call>{"name": "zoom", "arguments": {}, "id": 1}</tool_call>', FREE, "nothing else"),
        (f"<tool_call>{'[' * 3000}</tool_call>", FREE, "not JSON"),
        (f"<tool_call>{' ' * 5000}</tool_call>", FREE, "more than 4096 characters"),
    ],
)
def test_what_is_neither_says_why(text: str, answer_format: str, said: str) -> None:
    with pytest.raises(Unusable, match=said):
        read_turn(text, answer_format)


@given(st.text(max_size=80), st.sampled_from([FREE, "think", "answer_only", "think_or_not"]))
def test_any_text_is_read_or_told(text: str, answer_format: str) -> None:
    for whole in (text, f"<tool_call>{text}", f"<answer>{text}</answer>"):
        try:
            read: object = read_turn(whole, answer_format)
        except Unusable as told:
            read = told
        assert isinstance(read, Call | Final) or str(read).endswith(".")

"""judges.rewards.faithful_judges: consistency, semantic_grounding, spatial_grounding."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from tests.support.judge_server import Act, images_of, prompt_of, says, serving, text
from vlmrl.extras.judges.material import NO_BOX, cited_boxes, is_trivial, sentences, spread, without_answer
from vlmrl.extras.judges.rewards.faithful_judges import consistency, semantic_grounding, spatial_grounding
from vlmrl.protocols import RewardContext
from vlmrl.types import Group, MediaHandle, MediaRef

CTX = RewardContext()
OF = sample("A", gt={})


def label(name: str) -> Act:
    return says({"label": name})


class Medium:
    frames = np.full((1, 2, 2, 3), 7, np.uint8)
    times = None


def with_image(of: Group) -> Group:
    one = replace(of.prompt.sample, media=(MediaRef(kind="image", path="a.png"),))
    return replace(of, prompt=replace(of.prompt, sample=one, media=(MediaHandle(kind="image", key="k", grid_thw=(1, 2, 2), tokens=1),)))


SEEN = RewardContext(media={"k": Medium()})


def by_sentence(labels: dict[str, str]) -> Act:
    """Labels by the sentence that is asked about."""

    def verdict(body: dict[str, Any]) -> dict[str, Any]:
        found = re.findall(r"BEGIN sentence(?: to check)? \w+\n(.*)\n", prompt_of(body))
        return {"label": labels[found[0]]}

    return says(verdict)


def test_consistency_judges_right_rows_by_text_alone() -> None:
    texts = [
        "<think>so A</think><answer>A</answer>",
        "<think>so B</think><answer>A</answer>",
        "<think>so B</think><answer>B</answer>",
        "<think></think><answer>A</answer>",
        "<think>A</think>",
    ]
    of = with_image(group(texts, OF))
    with serving(label("YES"), label("no")) as s:
        assert consistency(of, CTX, endpoint=s.endpoint) == [1.0, 0.0, None, 0.0, None]
        assert s.server.calls == 2
        assert all(images_of(body) == [] for body, _, _ in s.server.requests)
        assert consistency(of, CTX, endpoint=s.endpoint, require_thought=False)[3] is None


def test_consistency_every_row() -> None:
    with serving(label("YES")) as s:
        assert consistency(group(["<think>so B</think><answer>B</answer>"], OF), CTX, endpoint=s.endpoint, correct_by="every") == [1.0]


@pytest.mark.parametrize("reply", ["YES", '{"label": "YES"}', '{"id": "x", "label": "MAYBE"}'])
def test_consistency_of_an_unreadable_judge_is_missing_not_no(reply: str) -> None:
    with serving(otherwise=text(reply)) as s:
        column = consistency(group(["<think>so A</think><answer>A</answer>"], OF), CTX, endpoint=s.endpoint)
        assert column == [None]
        assert sum(column.reasons.values()) == 1  # type: ignore[attr-defined]


THOUGHT = "Let me think. The car is red. The dog is left. It may rain. The sign says STOP."


def test_semantic_grounding_is_the_share_of_checked_sentences() -> None:
    labels = {"The car is red.": "CORRECT", "The dog is left.": "INCORRECT", "It may rain.": "SKIP", "The sign says STOP.": "CORRECT"}
    of = with_image(group([f"<think>{THOUGHT}</think><answer>A</answer>"], OF))
    with serving(otherwise=by_sentence(labels)) as s:
        assert semantic_grounding(of, SEEN, endpoint=s.endpoint) == pytest.approx([2 / 3])
        assert s.server.calls == 4  # "Let me think." is trivial
        assert all(len(images_of(body)) == 1 for body, _, _ in s.server.requests)
        last = prompt_of(s.server.requests[3][0])
        assert "Let me think. The car is red. The dog is left. It may rain.\nEND sentences before" in last


def test_semantic_grounding_masks() -> None:
    texts = [
        "<think>Let me think.</think><answer>A</answer>",
        "<think>Rain.</think><answer>A</answer>",
        "<think> </think><answer>A</answer>",
        "<think>The car is red.</think><answer>B</answer>",
        "<answer>A</answer>",
    ]
    of = with_image(group(texts, OF))
    with serving(label("SKIP")) as s:
        assert semantic_grounding(of, SEEN, endpoint=s.endpoint) == [None, None, 0.0, None, 0.0]
        assert s.server.calls == 1
        assert semantic_grounding(of, SEEN, endpoint=s.endpoint, require_thought=False) == [None] * 5
        with pytest.raises(ValueError, match="max_sentences"):
            semantic_grounding(of, SEEN, endpoint=s.endpoint, max_sentences=0)


def test_semantic_grounding_misses_the_row_of_a_missing_verdict_only() -> None:
    texts = ["<think>The car is red. The dog is left.</think><answer>A</answer>", "<think>The sky is blue.</think><answer>A</answer>"]
    with serving(label("CORRECT"), text("?"), text("?"), text("?"), label("CORRECT")) as s:
        column = semantic_grounding(with_image(group(texts, OF)), SEEN, endpoint=s.endpoint)
        assert column == [None, 1.0]
        assert column.reasons == {"no_json": 1}  # type: ignore[attr-defined]


def test_semantic_grounding_of_a_flood_asks_evenly_spaced_sentences() -> None:
    thought = " ".join(f"The car {i} is red." for i in range(100))
    with serving(otherwise=label("CORRECT")) as s:
        of = with_image(group([f"<think>{thought}</think><answer>A</answer>"], OF))
        assert semantic_grounding(of, SEEN, endpoint=s.endpoint, max_sentences=4) == [1.0]
        asked = [re.findall(r"to check \w+\nThe car (\d+)", prompt_of(body))[0] for body, _, _ in s.server.requests]
        assert asked == ["0", "33", "66", "99"]


def boxes(*given_boxes: str) -> str:
    return "<think>" + " ".join(f"Car <bbox>{b}</bbox>." for b in given_boxes) + "</think><answer>A</answer>"


def test_spatial_grounding_by_true_boxes_asks_nobody() -> None:
    """Eq. 1: the best assignment of CIoU over the longer list, pairs clamped at 0."""
    of = sample("A", gt={"boxes": [[0, 0, 10, 10]]})
    texts = [
        boxes("[0,0,10,10]"),
        boxes("[0,0,10,10]", "[0,0,10,10]"),
        boxes("[90,90,100,100]"),
        boxes("[0,0,10,10]", "[oops]"),
        "<think>no box</think><answer>A</answer>",
        "<answer>A</answer>",
        boxes("[5,0,15,10]"),
        boxes("[0,0,10,10]").replace("</bbox>", ""),
    ]
    out = spatial_grounding(group(texts, of), CTX)
    assert out == pytest.approx([1, 0.5, 0, 0.5, 0, 0, 0.2564, 0], abs=1e-4)
    named = sample("A", gt={"objects": {"car": [0, 0, 10, 10], "dog": [20, 20, 30, 30]}})
    both = [boxes("[20,20,30,30]", "[0,0,10,10]"), boxes("[0,0,10,10]")]
    assert spatial_grounding(group(both, named), CTX) == pytest.approx([1, 0.5])


def test_spatial_grounding_without_true_boxes() -> None:
    of = sample("A", gt={}, meta={"frame": "norm1000"})
    texts = [boxes("[1,2,3,4]", "[5,6,7,8]", "[9,9,1,1]"), "<think>no box</think><answer>A</answer>"]
    shown = with_image(group(texts, of))
    assert spatial_grounding(shown, SEEN) == [None, None]
    with serving(label("CORRECT"), label("SKIP")) as s:
        assert spatial_grounding(shown, SEEN, endpoint=s.endpoint) == [0.5, None]
        assert "[1, 2, 3, 4]" in prompt_of(s.server.requests[0][0])
        assert "0 to 1000" in prompt_of(s.server.requests[0][0])
        assert s.server.calls == 2
        without = with_image(group(texts, sample("A", gt={})))
        with pytest.raises(ValueError, match=r"meta\.frame"):
            spatial_grounding(without, SEEN, endpoint=s.endpoint)


@pytest.mark.parametrize(
    ("text_in", "found"),
    [
        ("<bbox>[1,2,3,4]</bbox>", [(1, 2, 3, 4)]),
        ("<bbox> [ 1.5 , -2, +3 ,4. ] </bbox> and <bbox>[5,6,7,8]</bbox>", [(1.5, -2, 3, 4), (5, 6, 7, 8)]),
        ("<bbox>[1,2,3]</bbox>", [NO_BOX]),
        ("<bbox>[1,2,3,4]", [NO_BOX]),
        ("<bbox>[1,2,3,9999999999]</bbox>", [NO_BOX]),
        ("<bbox><bbox>[1,2,3,4]</bbox>", [NO_BOX, (1, 2, 3, 4)]),
        ("[1,2,3,4]", []),
    ],
)
def test_cited_boxes(text_in: str, found: list[Any]) -> None:
    assert cited_boxes(text_in) == found


def test_sentences_and_trivial_ones() -> None:
    assert sentences("A is 1.5 m. B!  C?\nD") == ["A is 1.5 m.", "B!", "C?", "D"]
    assert [is_trivial(t) for t in ("Let me think.", "Wait, the red one.", "Therefore 3.", "The car.", "So it goes.", "")] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]


def test_answers_are_taken_out_of_the_end_only() -> None:
    assert without_answer("The answer is A at first. x. y. z. So the answer is B.") == "The answer is A at first. x. y. z."
    assert without_answer("Final answer: B") == ""
    assert without_answer("It is red. I choose (C). Because it is red.") == "It is red. Because it is red."
    assert without_answer("The option board is red.") == "The option board is red."


@given(st.integers(0, 300), st.integers(1, 40))
def test_spread(count: int, most: int) -> None:
    places = spread(count, most)
    assert len(places) == min(count, most)
    assert sorted(set(places)) == places
    assert not places or (places[0] == 0 and (most == 1 or places[-1] == count - 1))

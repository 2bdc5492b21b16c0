"""metrics.spatial: the thought language and its rules."""

from __future__ import annotations

import pytest

from vlmrl.metrics.spatial import as_relation, grounded_share, holds, implied_answer, is_consistent, read_thought

ASKED = ("red square", "left of", "grey circle")
RED, GREY = (100.0, 250.0, 350.0, 500.0), (600.0, 100.0, 850.0, 400.0)
GOLD = {"red square": RED, "grey circle": GREY}
FIRST = "The red square is at <bbox>[100,250,350,500]</bbox>."
SECOND = "The grey circle is at <bbox>[600,100,850,400]</bbox>."
GOOD = f"{FIRST} {SECOND} So the red square is left of the grey circle."


def test_reading() -> None:
    thought = read_thought(GOOD.upper())
    assert dict(thought.placed) == GOLD
    assert thought.boxes == 2
    assert thought.conclusions == (ASKED,)
    nothing = read_thought("Let me think about <bbox>[1,2]</bbox> for a while")
    assert (nothing.placed, nothing.boxes, nothing.conclusions) == ((), 1, ())


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        ("So the red square is left of the grey circle.", "yes"),
        ("So the red square is right of the grey circle.", "no"),
        ("So the grey circle is right of the red square.", "yes"),
        ("So the grey circle is left of the red square.", "no"),
        ("So the red square is above the grey circle.", None),  # not what is asked
        ("So the red square is left of the grey square.", None),
        ("So the red square is left of the grey circle. So the red square is right of the grey circle.", None),
        ("The red square is left of the grey circle.", None),  # said, not concluded
        ("", None),
    ],
)
def test_implied_answer(end: str, answer: str | None) -> None:
    assert implied_answer(read_thought(f"{FIRST} {SECOND} {end}"), ASKED) == answer


@pytest.mark.parametrize(
    ("text", "answer", "consistent"),
    [
        (GOOD, "yes", True),
        (GOOD, " Yes ", True),
        (GOOD, "no", False),
        (GOOD.replace("left", "right"), "no", False),  # its own boxes say otherwise
        (GOOD.replace("[100,", "[950,").replace("350,", "990,").replace("left", "right"), "no", True),  # wrong, but coherent
        ("So the red square is left of the grey circle.", "yes", True),  # no boxes, no contradiction
        (f"{FIRST} {SECOND}", "yes", False),
        ("", "yes", False),
    ],
)
def test_is_consistent(text: str, answer: str, consistent: bool) -> None:
    assert is_consistent(read_thought(text), ASKED, answer) is consistent


def test_grounded_share() -> None:
    def share(text: str, threshold: float = 0.5) -> float:
        return grounded_share(read_thought(text), GOLD, threshold=threshold)

    assert share(GOOD) == 1
    assert share(FIRST) == 0.5
    assert share("") == 0
    assert share(GOOD.replace("red square is at", "blue square is at")) == 0.5
    assert share(FIRST + SECOND + FIRST + SECOND) == 0.5  # listing everything twice
    assert share(FIRST + SECOND + " <bbox>[1,2]</bbox>") == pytest.approx(2 / 3)  # unreadable boxes count
    # half of the true box is exactly 0.5
    half = "The red square is at <bbox>[100,250,225,500]</bbox>. " + SECOND
    assert share(half) == 1
    assert share(half, 0.51) == 0.5
    with pytest.raises(ValueError, match="no true boxes"):
        grounded_share(read_thought(GOOD), {}, threshold=0.5)


@pytest.mark.parametrize(("relation", "value"), [("left of", True), ("right of", False), ("above", False), ("below", True)])
def test_holds(relation: str, value: bool) -> None:
    assert holds(relation, RED, GREY) is value
    assert not holds(relation, RED, RED)


def test_as_relation() -> None:
    assert as_relation(["Red square", "Left of", "grey circle"]) == ASKED
    for wrong in (["a", "left of"], ["a", "near", "b"], ["a", "left of", 3]):
        with pytest.raises(ValueError, match=r"gt\.relation"):
            as_relation(wrong)  # type: ignore[arg-type]

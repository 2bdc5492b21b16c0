"""metrics.gui: reading actions, and how well their arguments match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.gui import ACTIONS, POINTING, Action, action_of, arguments_score, distance, parse_action, to_norm1000, token_f1


def click(x: float, y: float, kind: str = "click") -> Action:
    return Action(kind=kind, point=(x, y))


def typed(text: str, kind: str = "input_text") -> Action:
    return Action(kind=kind, text=text)


def scroll(direction: str) -> Action:
    return Action(kind="scroll", direction=direction)


GOLD = click(500, 500)


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [("hello there", "hello world", 0.5), ("wi fi settings", "wifi settings", 0.4), ("", "", 1), ("a", "", 0), ('"Hi  You"', "hi you", 1)],
)
def test_token_f1_vectors(a: str, b: str, value: float) -> None:
    assert token_f1(a, b) == pytest.approx(value)


@given(st.text("ab c", max_size=12), st.text("ab c", max_size=12))
def test_token_f1_is_symmetric(a: str, b: str) -> None:
    assert token_f1(a, b) == token_f1(b, a)
    assert 0 <= token_f1(a, b) <= 1
    assert token_f1(a, a) == 1


@pytest.mark.parametrize(
    ("point", "within_14", "within_20"), [((600, 600), 0, 1), ((500, 640), 1, 1), ((500, 700), 0, 1), ((650, 650), 0, 0)]
)
def test_click_radius_vectors(point: tuple[float, float], within_14: float, within_20: float) -> None:
    assert arguments_score(click(*point), GOLD) == within_14
    assert arguments_score(click(*point), GOLD, radius=0.2) == within_20


def test_arguments() -> None:
    boxed = Action(kind="click", point=(150, 200), box=(100, 100, 200, 300))
    for point, inside in (((100, 100), 1), ((200, 300), 1), ((99.9, 150), 0)):
        assert arguments_score(click(*point), boxed) == inside  # inside the box, however far from the point
    assert arguments_score(Action(kind="click"), boxed) == 0
    assert arguments_score(Action(kind="click"), Action(kind="click")) is None
    assert arguments_score(typed("hello there"), typed("hello world")) == 0.5
    assert arguments_score(Action(kind="input_text"), typed("hello")) == 0
    assert arguments_score(typed("Chrome", "open_app"), typed("chrome", "open_app")) == 1
    assert arguments_score(scroll("up"), scroll("down")) == 0
    assert arguments_score(Action(kind="enter"), Action(kind="enter")) == 1
    assert arguments_score(Action(kind="status", status="done"), Action(kind="status", status="failed")) == 0


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"action": "click", "coordinate": [12, 34.5]}', click(12, 34.5)),
        (' {"action": "TAP", "coordinate": [1, 2]}\n', click(1, 2)),
        ('{"action": "type", "text": "Hi"}', typed("Hi")),
        ('{"action": "open_app", "app_name": "Maps"}', typed("Maps", "open_app")),
        ('{"action": "scroll", "direction": " Down "}', scroll("down")),
        ('{"action": "press_back"}', Action(kind="navigate_back")),
        ('{"action": "click", "coordinate": [1]}', None),
        ('{"action": "click", "coordinate": [true, 2]}', None),
        ('{"action": "click", "coordinate": [NaN, 2]}', None),
        ('{"action": "click", "coordinate": [1, 2], "box": [0, 0, 9, 9]}', None),  # not an answer's to say
        ('{"action": "click", "coordinate": [1, 2]} and more', None),
        ('{"action": ["click"]}', None),
        ('{"text": "Hi"}', None),
        ("__import__('os')", None),
        ("{" * 9000, None),
        ("", None),
    ],
)
def test_parse_action(text: str, action: Action | None) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize("kind", POINTING)
def test_all_pointing_actions_are_compared_by_where(kind: str) -> None:
    gold = action_of({"action": kind, "coordinate": [500, 500]})
    assert gold is not None
    assert arguments_score(click(640, 500, kind), gold) == 1
    assert arguments_score(click(641, 500, kind), gold) == 0


def test_canonical_actions_are_no_aliases() -> None:
    assert len(set(ACTIONS)) == len(ACTIONS)
    assert [parsed.kind for kind in ACTIONS if (parsed := parse_action(f'{{"action": "{kind}"}}'))] == list(ACTIONS)


def test_pixels_to_thousandths() -> None:
    action = Action(kind="click", point=(540, 600), box=(0, 0, 1080, 240), text="x")
    assert to_norm1000(action, (1080, 2400)) == Action(kind="click", point=(500, 250), box=(0, 0, 1000, 100), text="x")
    assert to_norm1000(scroll("up"), (1080, 2400)) == scroll("up")
    with pytest.raises(ValueError, match="positive sides"):
        to_norm1000(action, (0, 2400))


@given(st.tuples(st.floats(0, 1080), st.floats(0, 2400)))
def test_mapping_pixels_keeps_distances(point: tuple[float, float]) -> None:
    mapped = to_norm1000(click(*point), (1080, 2400)).point
    assert mapped is not None
    assert distance(mapped, (0, 0)) == pytest.approx(((point[0] / 1080) ** 2 + (point[1] / 2400) ** 2) ** 0.5, abs=1e-8)

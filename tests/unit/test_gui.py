"""metrics.gui: reading actions, and the three published ways to compare a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.gui import Action, arguments_score, distance, match_step, parse_action, token_f1


def click(x: float, y: float, kind: str = "click") -> Action:
    return Action(kind=kind, point=(x, y))


def typed(text: str, kind: str = "input_text") -> Action:
    return Action(kind=kind, text=text)


def scroll(direction: str) -> Action:
    return Action(kind="scroll", direction=direction)


GOLD = click(500, 500)
STEPS = [
    (click(500, 500), GOLD),
    (click(600, 597), GOLD),
    (click(640, 500), GOLD),
    (click(600, 600), GOLD),
    (click(500, 500, "long_press"), GOLD),
    (scroll("up"), scroll("up")),
    (scroll("down"), scroll("up")),
    (typed("hello world"), typed("hello world")),
    (typed("hello there"), typed("hello world")),
    (typed("bye world"), typed("hello world")),
    (typed("google maps", "open_app"), typed("Google Maps", "open_app")),
    (Action(kind="navigate_back"), Action(kind="navigate_back")),
]


def test_os_atlas_on_twelve_steps() -> None:
    matches = [match_step(pred, gold, profile="os_atlas") for pred, gold in STEPS]
    assert [m.step for m in matches] == [True, True, True, False, False, True, False, True, True, False, True, True]
    assert sum(m.type for m in matches) == 11
    assert [m.grounding for m in matches if m.grounding is not None] == [True, True, True, False]


def test_gui_r1_on_twelve_steps() -> None:
    matches = [match_step(pred, gold, profile="gui_r1") for pred, gold in STEPS]
    assert [m.step for m in matches] == [True, True, False, False, False, True, False, True, True, True, True, None]
    assert sum(m.type for m in matches) == 11
    assert [m.grounding for m in matches if m.grounding is not None] == [True, True, False, False, True]


def test_ui_r1_on_five_clicks() -> None:
    matches = [match_step(pred, gold, profile="ui_r1", screen=(1080, 2400)) for pred, gold in STEPS[:5]]
    assert [m.grounding for m in matches] == [True, False, False, False, False]
    assert match_step(scroll("up"), scroll("up"), profile="ui_r1").step is None


@pytest.mark.parametrize(
    ("dx", "dy", "away", "gui_r1", "ui_r1"),
    [
        (151, 0, 0.13981, True, True),
        (0, 335, 0.13958, True, False),
        (0, 336, 0.14, False, False),
        (100, 220, 0.13029, True, False),
        (110, 240, 0.14274, False, False),
    ],
)
def test_pixel_offsets_on_a_tall_screen(dx: int, dy: int, away: float, gui_r1: bool, ui_r1: bool) -> None:
    pred = click(500 + dx / 1.08, 500 + dy / 2.4)
    assert distance((pred.point or (0, 0)), (500, 500)) == pytest.approx(away, abs=5e-6)
    assert match_step(pred, GOLD, profile="gui_r1").grounding is gui_r1
    assert match_step(pred, GOLD, profile="ui_r1", screen=(1080, 2400)).grounding is ui_r1


@pytest.mark.parametrize("profile", ["os_atlas", "gui_r1", "ui_r1"])
def test_what_cannot_be_read_is_wrong(profile: str) -> None:
    match = match_step(None, GOLD, profile=profile)  # type: ignore[arg-type]
    assert not match.type
    assert not match.step
    assert not match.grounding


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

"""metrics.gui_profiles: the published ways to compare a step, on twelve steps with known totals and at their limits."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.gui import Action, distance
from vlmrl.metrics.gui_profiles import (
    Profile,
    StepMatch,
    aitw_tap,
    enlarged,
    gui_r1,
    match_step,
    os_atlas,
    ton,
    ui_r1,
)


def click(x: float, y: float, kind: str = "click") -> Action:
    return Action(kind=kind, point=(x, y))


def typed(text: str, kind: str = "input_text") -> Action:
    return Action(kind=kind, text=text)


def scroll(direction: str) -> Action:
    return Action(kind="scroll", direction=direction)


GOLD = click(500, 500)
BACK = Action(kind="navigate_back")
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
    (BACK, BACK),
]
TYPES = [True] * 4 + [False] + [True] * 7
PROFILES = get_args(Profile)


def counts(matches: list[StepMatch], profile: Profile) -> dict[str, tuple[int, int]]:
    """Right and counted steps of each part."""
    columns = {part: [getattr(match, part) for match in matches] for part in ("type", "grounding", "step")}
    counted = {part: [value for value in values if value is not None] for part, values in columns.items()}
    return {f"{profile}_{part}": (sum(values), len(values)) for part, values in counted.items()}


def test_os_atlas_on_twelve_steps() -> None:
    matches = [os_atlas(pred, gold) for pred, gold in STEPS]
    assert [m.type for m in matches] == TYPES
    assert [m.step for m in matches] == [True, True, True, False, False, True, False, True, True, False, True, True]
    assert [m.grounding for m in matches] == [True, True, True, False] + [None] * 8
    assert counts(matches, "os_atlas") == {"os_atlas_type": (11, 12), "os_atlas_grounding": (3, 4), "os_atlas_step": (8, 12)}


def test_gui_r1_on_twelve_steps() -> None:
    matches = [gui_r1(pred, gold) for pred, gold in STEPS]
    assert [m.type for m in matches] == TYPES
    # the fifth, a long press at the right place, has the wrong type and the right arguments
    assert [m.step for m in matches] == [True, True, False, False, True, True, False, True, True, True, True, None]
    assert [m.grounding for m in matches] == [True, True, False, False, True] + [None] * 7
    assert counts(matches, "gui_r1") == {"gui_r1_type": (11, 12), "gui_r1_grounding": (3, 5), "gui_r1_step": (8, 11)}


def test_ui_r1_on_five_clicks() -> None:
    matches = [ui_r1(pred, gold, screen=(1080, 2400)) for pred, gold in STEPS]
    assert [m.type for m in matches] == TYPES
    assert [m.grounding for m in matches] == [True, False, False, False, False] + [None] * 7
    assert [m.step for m in matches] == [m.grounding for m in matches]
    assert counts(matches[:5], "ui_r1") == {"ui_r1_type": (4, 5), "ui_r1_grounding": (1, 5), "ui_r1_step": (1, 5)}
    away = [math.hypot((pred.point[0] - 500) * 1.08, (pred.point[1] - 500) * 2.4) for pred, _ in STEPS[1:4] if pred.point]
    assert away == pytest.approx([256.6, 151.2, 263.2], abs=0.05)  # pixels; the limit is 151.2


def test_ton_on_twelve_steps() -> None:
    matches = [ton(pred, gold) for pred, gold in STEPS]
    # a scroll in the other direction is of another type
    directions = [gold.kind == "scroll" and pred.direction != gold.direction for pred, gold in STEPS]
    assert sum(directions) == 1
    assert [m.type for m in matches] == [same and not other for same, other in zip(TYPES, directions, strict=True)]
    assert [m.step for m in matches] == [True, True, True, True, False, True, False, True, False, False, True, True]
    assert [m.grounding for m in matches] == [True, True, True, True, False] + [None] * 7
    assert counts(matches, "ton") == {"ton_type": (10, 12), "ton_grounding": (4, 5), "ton_step": (8, 12)}
    strict = [ton(pred, gold, radius=0.14) for pred, gold in STEPS]
    assert counts(strict, "ton") == {"ton_type": (10, 12), "ton_grounding": (3, 5), "ton_step": (7, 12)}


@pytest.mark.parametrize(
    ("dx", "dy", "away", "in_gui_r1", "in_ui_r1"),
    [
        (151, 0, 0.13981, True, True),
        (0, 335, 0.13958, True, False),
        (0, 336, 0.14, False, False),
        (100, 220, 0.13029, True, False),
        (110, 240, 0.14274, False, False),
    ],
)
def test_pixel_offsets_on_a_tall_screen(dx: int, dy: int, away: float, in_gui_r1: bool, in_ui_r1: bool) -> None:
    pred = click(500 + dx / 1.08, 500 + dy / 2.4)
    assert distance(pred.point or (0, 0), (500, 500)) == pytest.approx(away, abs=5e-6)
    assert gui_r1(pred, GOLD).grounding is in_gui_r1
    assert ui_r1(pred, GOLD, screen=(1080, 2400)).grounding is in_ui_r1


def test_ui_r1_measures_by_the_width_of_the_screen() -> None:
    pred = click(500, 600)  # 10% of the height away
    assert not ui_r1(pred, GOLD, screen=(1080, 2400)).step  # 240 of 151.2 pixels
    assert ui_r1(pred, GOLD, screen=(2400, 1080)).step  # 108 of 336 pixels
    assert match_step(pred, GOLD, profile="ui_r1", screen=(2400, 1080)).step


@pytest.mark.parametrize(
    ("point", "within_14", "within_20"),
    [((600, 600), False, True), ((500, 640), True, True), ((500, 700), False, True), ((650, 650), False, False)],
)
def test_ton_radius_vectors(point: tuple[float, float], within_14: bool, within_20: bool) -> None:
    assert ton(click(*point), GOLD, radius=0.14).step is within_14
    assert ton(click(*point), GOLD).step is within_20


def test_boxes() -> None:
    boxed = Action(kind="click", point=(150, 200), box=(100, 100, 200, 300))
    for point, inside in (((100, 100), True), ((200, 300), True), ((99.9, 150), False)):
        assert ton(click(*point), boxed, radius=0.0).step is inside  # the box alone says so
    assert not ton(Action(kind="click"), boxed).step
    only_box = Action(kind="click", box=(400, 400, 600, 600))
    for profile in PROFILES:  # the others measure from the middle of the box
        assert match_step(click(500, 500), only_box, profile=profile).step
        assert match_step(click(500, 500), Action(kind="click"), profile=profile).step is False  # nothing says where
    assert os_atlas(click(400, 400), only_box).step is False
    assert ton(click(400, 400), only_box).step is True


@pytest.mark.parametrize(
    ("pred", "gold", "atlas", "r1", "of_ton"),
    [
        ("wi fi settings", "wifi settings", False, False, False),  # F1 0.4, other first words
        ("wifi", "wifi settings", True, True, True),
        ("settings", "wifi settings", False, True, True),  # F1 2/3
        ("sett", "settings", False, True, True),  # one word inside the other
        ("fi set", "wifi settings", False, False, True),  # inside the other, but two words
        ("Hello  World", '"hello world"', True, True, True),
        ("fi", "wifi settings", False, False, True),  # inside, but only one of them is one word
        ("a a b c", "a d e", True, False, False),  # sets {a, b, c} and {a, d, e}: F1 1/3
        ("b a a", "a c", False, True, False),  # sets {a, b} and {a, c}: F1 1/2
        ("[maps]", "maps", False, True, True),
        ("", "hello", False, False, False),
        ("hello", "", False, False, False),
        ("", "", True, True, True),
    ],
)
def test_typed_text(pred: str, gold: str, atlas: bool, r1: bool, of_ton: bool) -> None:
    for kind in ("input_text", "open_app"):
        a, b = typed(pred, kind), typed(gold, kind)
        assert (os_atlas(a, b).step, gui_r1(a, b).step, ton(a, b).step) == (atlas, r1, of_ton)
    assert ui_r1(typed(pred), typed(gold)) == StepMatch(type=True, grounding=None, step=None)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("gold", [GOLD, scroll("up"), typed("a b"), BACK, Action(kind="status", status="done")])
def test_what_cannot_be_read_is_wrong(profile: Any, gold: Action) -> None:
    match = match_step(None, gold, profile=profile)
    assert not match.type
    assert not match.step
    assert not match.grounding


@pytest.mark.parametrize("profile", ["os_atlas", "gui_r1", "ton"])
def test_other_arguments_are_compared_exactly(profile: Any) -> None:
    done, failed = Action(kind="status", status="done"), Action(kind="status", status="failed")
    assert match_step(done, done, profile=profile).step is True
    assert match_step(failed, done, profile=profile).step is False
    assert match_step(Action(kind="input_text"), typed("a"), profile=profile).step is False


def test_gui_r1_compares_arguments_whatever_the_type() -> None:
    assert gui_r1(typed("maps", "open_app"), typed("maps")) == StepMatch(type=False, grounding=None, step=True)
    assert gui_r1(typed("up"), scroll("up")) == StepMatch(type=False, grounding=None, step=False)
    assert os_atlas(typed("maps", "open_app"), typed("maps")).step is False


def test_aitw_enlarges_boxes() -> None:
    # (y, x, h, w) = (.5, .5, .1, .2) becomes (.43, .36, .24, .48)
    assert enlarged((500, 500, 700, 600)) == pytest.approx((360, 430, 840, 670))
    assert enlarged((500, 500, 700, 600), by=0.2) == pytest.approx((480, 490, 720, 610))
    assert enlarged((500, 500, 700, 600), by=0) == (500, 500, 700, 600)
    # at the edge of the screen: the corner is put on the edge and the size stays; no side is longer than the screen's
    assert enlarged((0, 0, 100, 100)) == pytest.approx((0, 0, 240, 240))
    assert enlarged((100, 0, 900, 100)) == pytest.approx((0, 0, 1000, 240))
    with pytest.raises(ValueError, match="at least 0"):
        enlarged((0, 0, 1, 1), by=-1)


@pytest.mark.parametrize(
    ("point", "within_14", "within_20"),
    [((600, 600), False, True), ((500, 640), True, True), ((500, 700), False, True), ((650, 650), False, False)],
)
def test_aitw_radius_vectors(point: tuple[float, float], within_14: bool, within_20: bool) -> None:
    assert aitw_tap(point, (500, 500)) is within_14
    assert aitw_tap(point, (500, 500), radius=0.2) is within_20


def test_aitw_taps_in_one_element() -> None:
    wide = (100.0, 480.0, 900.0, 520.0)  # enlarged: x 0 to 1000, y 452 to 548
    assert aitw_tap((150, 500), (850, 500), [wide])  # far from each other, on one element
    assert aitw_tap((5, 452), (995, 548), [wide])
    assert not aitw_tap((150, 500), (850, 549), [wide])
    assert not aitw_tap((150, 500), (850, 535), [wide], by=0.2)
    assert not aitw_tap((150, 500), (850, 500), [(100.0, 480.0, 200.0, 520.0), (800.0, 480.0, 900.0, 520.0)])  # on one each


def test_unknown_profile() -> None:
    with pytest.raises(ValueError, match=r"unknown profile 'best'; known: os_atlas, gui_r1, ui_r1, ton"):
        match_step(GOLD, GOLD, profile="best")  # type: ignore[arg-type]


ACTIONS = st.one_of(
    st.builds(click, st.floats(0, 1000), st.floats(0, 1000), st.sampled_from(["click", "long_press"])),
    st.builds(typed, st.text("ab ", max_size=6), st.sampled_from(["input_text", "open_app"])),
    st.builds(scroll, st.sampled_from(["up", "down"])),
    st.just(BACK),
)


@given(ACTIONS, ACTIONS, st.sampled_from(PROFILES))
def test_any_two_actions(pred: Action, gold: Action, profile: Any) -> None:
    match = match_step(pred, gold, profile=profile)
    scrolls = profile == "ton" and gold.kind == "scroll"
    assert match.type is (pred.kind == gold.kind and (not scrolls or pred.direction == gold.direction))
    assert match.type or not match.step or profile == "gui_r1"  # the others know no right step of the wrong type
    assert (match.grounding is None) or gold.kind in ("click", "long_press")
    same = match_step(gold, gold, profile=profile)
    assert same.type
    assert same.step is not False
    assert same.grounding is not False


@given(st.tuples(st.floats(0, 1000), st.floats(0, 1000)))
def test_profiles_from_narrow_to_wide(point: tuple[float, float]) -> None:
    """On a tall screen whatever `ui_r1` accepts, `gui_r1` does, then `os_atlas`, then `ton`."""
    pred = click(*point)
    hits = [ui_r1(pred, GOLD).step, gui_r1(pred, GOLD).step, os_atlas(pred, GOLD).step, ton(pred, GOLD).step]
    assert hits == sorted(hits, key=bool)

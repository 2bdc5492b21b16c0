"""answers.gui_rules: one answer by every published rule, on the twelve steps with known totals, and at the limits of the rules."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest

from tests.support.builders import sample
from vlmrl.answers.gui_rules import PARTS, RULES, profile_scores
from vlmrl.metrics.gui import action_of, parse_action
from vlmrl.metrics.gui_profiles import Profile, match_step
from vlmrl.types import Sample

SCREEN = [1080, 2400]


def row(action: dict[str, Any], meta: dict[str, Any] | None = None, **gt: Any) -> Sample:
    meta = {"size": SCREEN} if meta is None else meta
    return dataclasses.replace(sample("", gt={"action": action, **gt}), answer_type="action", meta=meta)


def click(x: float, y: float, kind: str = "click", **more: Any) -> dict[str, Any]:
    return {"action": kind, "coordinate": [x, y], **more}


GOLD = click(500, 500)
STEPS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (GOLD, GOLD),
    (click(600, 597), GOLD),
    (click(640, 500), GOLD),
    (click(600, 600), GOLD),
    (click(500, 500, "long_press"), GOLD),
    ({"action": "scroll", "direction": "up"}, {"action": "scroll", "direction": "up"}),
    ({"action": "scroll", "direction": "down"}, {"action": "scroll", "direction": "up"}),
    ({"action": "type", "text": "hello world"}, {"action": "input_text", "text": "hello world"}),
    ({"action": "type", "text": "hello there"}, {"action": "input_text", "text": "hello world"}),
    ({"action": "type", "text": "bye world"}, {"action": "input_text", "text": "hello world"}),
    ({"action": "open_app", "app_name": "google maps"}, {"action": "open_app", "app_name": "Google Maps"}),
    ({"action": "press_back"}, {"action": "navigate_back"}),
]


def totals(rows: list[dict[str, float]], name: str) -> tuple[int, int]:
    """Right and counted steps."""
    values = [scores[name] for scores in rows if name in scores]
    return int(sum(values)), len(values)


def test_twelve_steps_have_the_published_totals() -> None:
    rows = [profile_scores(json.dumps(pred), row(gold)) for pred, gold in STEPS]
    found = {f"{part}_{rule}": totals(rows, f"{part}_{rule}") for rule in RULES for part in PARTS}
    of_ton = {"ton", "ton_reward", "aitw"}  # for which a scroll in the other direction is of another type
    assert {found[f"type_{rule}"] for rule in of_ton} == {(10, 12)}
    assert {found[f"type_{rule}"] for rule in RULES if rule not in of_ton} == {(11, 12)}
    assert (found["grounding_os_atlas"], found["step_os_atlas"]) == ((3, 4), (8, 12))
    assert (found["grounding_gui_r1"], found["step_gui_r1"]) == ((3, 5), (8, 11))
    assert (found["grounding_ui_r1"], found["step_ui_r1"]) == ((1, 5), (1, 5))
    assert (found["grounding_ton"], found["step_ton"]) == ((4, 5), (8, 12))
    assert (found["grounding_ton_reward"], found["step_ton_reward"]) == ((3, 5), (7, 12))
    assert (found["grounding_aitw"], found["step_aitw"]) == ((3, 5), (7, 12))


def test_they_are_the_profiles_under_other_names() -> None:
    for pred, gold in STEPS:
        found = profile_scores(json.dumps(pred), row(gold))
        action, true = parse_action(json.dumps(pred)), action_of(gold)
        assert true is not None
        for profile in get_args(Profile):
            match = match_step(action, true, profile=profile)
            assert [found.get(f"{part}_{profile}") for part in PARTS] == [match.type, match.grounding, match.step]


@pytest.mark.parametrize(("x", "y", "evaluator", "reward"), [(600, 600, 1, 0), (500, 640, 1, 1), (500, 700, 1, 0), (650, 650, 0, 0)])
def test_both_radii_of_ton(x: float, y: float, evaluator: int, reward: int) -> None:
    found = profile_scores(json.dumps(click(x, y)), row(GOLD))
    assert (found["step_ton"], found["grounding_ton"]) == (evaluator, evaluator)
    assert (found["step_ton_reward"], found["grounding_ton_reward"]) == (reward, reward)
    assert found["step_aitw"] == reward  # no element: the radius alone


def test_aitw_takes_taps_in_one_enlarged_element() -> None:
    # (y, x, h, w) = (.5, .5, .1, .2) becomes (.43, .36, .24, .48): x from 360 to 840, y from 430 to 670
    element = [500, 500, 700, 600]
    gold = click(380, 500)
    for (x, y), right in (((840, 670), 1), ((841, 600), 0), ((800, 671), 0)):
        assert profile_scores(json.dumps(click(x, y)), row(gold, elements=[element]))["step_aitw"] == right
        assert profile_scores(json.dumps(click(x, y)), row(gold))["step_aitw"] == 0
    outside = click(359, 500)  # the true tap itself is in no element
    assert profile_scores(json.dumps(click(840, 600)), row(outside, elements=[element]))["step_aitw"] == 0
    boxed = click(600, 550, box=element)  # the element of the true action counts without a list
    assert profile_scores(json.dumps(click(365, 435)), row(boxed))["step_aitw"] == 1
    assert profile_scores(json.dumps(click(365, 435)), row(boxed))["step_ton"] == 0
    assert profile_scores(json.dumps(click(365, 435, "long_press")), row(boxed))["step_aitw"] == 0


def test_pixels_are_the_same_steps() -> None:
    def pixel(action: dict[str, Any]) -> dict[str, Any]:
        if "coordinate" not in action:
            return action
        x, y = action["coordinate"]
        return action | {"coordinate": [x * SCREEN[0] / 1000, y * SCREEN[1] / 1000]}

    meta = {"frame": "pixel", "size": SCREEN}
    for pred, gold in STEPS:
        found = profile_scores(json.dumps(pixel(pred)), row(pixel(gold), meta))
        assert found == profile_scores(json.dumps(pred), row(gold))
    element = [540, 1200, 756, 1440]  # 500 to 700, 500 to 600
    found = profile_scores(json.dumps(pixel(click(840, 670))), row(pixel(click(380, 500)), meta, elements=[element]))
    assert found["step_aitw"] == 1


def test_without_the_size_of_the_screen_ui_r1_knows_the_type_only() -> None:
    found = profile_scores(json.dumps(GOLD), row(GOLD, {}))
    assert found["type_ui_r1"] == 1
    assert "step_ui_r1" not in found
    assert "grounding_ui_r1" not in found
    assert set(profile_scores(json.dumps(GOLD), row(GOLD))) == {f"{part}_{rule}" for part in PARTS for rule in RULES}


def test_what_a_rule_does_not_count_is_absent() -> None:
    found = profile_scores(json.dumps({"action": "press_back"}), row({"action": "navigate_back"}))
    assert not any(name.startswith("grounding_") for name in found)
    assert {name for name in found if name.startswith("step_")} == {"step_os_atlas", "step_ton", "step_ton_reward", "step_aitw"}


@pytest.mark.parametrize("answer", [None, "", "click there", "{}", '{"action": 3}'])
@pytest.mark.parametrize("gold", [GOLD, {"action": "navigate_back"}])
def test_what_cannot_be_read_is_wrong(answer: str | None, gold: dict[str, Any]) -> None:
    found = profile_scores(answer, row(gold))
    wrong = {name: value for name, value in found.items() if not name.startswith("grounding_os_atlas")}
    assert wrong
    assert set(wrong.values()) == {0.0}


@pytest.mark.parametrize(
    ("of", "match"),
    [
        (row({"action": 1}), "is not an action"),
        (dataclasses.replace(row(GOLD), gt={}), "is not an action"),
        (row(GOLD, {"frame": "pixel"}), r"need 'meta\.size'"),
        (row(GOLD, {"frame": "percent"}), "known: pixel, norm1, norm1000"),
        (row(GOLD, {"size": [0, 1]}), r"must be \[width, height\]"),
        (row(GOLD, {"size": "big"}), r"must be \[width, height\]"),
        (row(GOLD, elements=[[1, 2]]), "gt.elements"),
        (row(GOLD, elements=[None]), "gt.elements"),
        (row(GOLD, elements="all"), "gt.elements"),
    ],
)
def test_rows_that_cannot_be_scored(of: Sample, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        profile_scores(json.dumps(GOLD), of)

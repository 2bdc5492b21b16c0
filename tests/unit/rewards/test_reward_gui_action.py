"""rewards.gui_action."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.gui_action import gui_action

CTX = RewardContext()
CLICK = {"action": "click", "coordinate": [150, 200], "box": [100, 100, 200, 300]}


def score(gold: dict[str, Any], *texts: str, meta: dict[str, Any] | None = None, **arguments: Any) -> list[float | None]:
    of = sample("-", gt={"action": gold}, meta=meta or {})
    return list(gui_action(group([f"<answer>{text}</answer>" for text in texts], of, answer_format="answer_only"), CTX, **arguments))


def click(x: int, y: int, kind: str = "click") -> str:
    return json.dumps({"action": kind, "coordinate": [x, y]})


def test_reward_gui_action() -> None:
    got = score(CLICK, click(150, 200), click(100, 300), click(99, 300), click(150, 200, "long_press"), '{"action": "click"}', "click", "")
    assert got == pytest.approx([1, 1, 0.4, 0.1, 0.4, 0, 0])


def test_text_and_direction() -> None:
    typed = {"action": "input_text", "text": "hello world"}
    assert score(typed, json.dumps(typed), '{"action": "type", "text": "hello there"}') == pytest.approx([1, 0.7])
    up = {"action": "scroll", "direction": "up"}
    assert score(up, json.dumps(up), '{"action": "scroll", "direction": "down"}') == pytest.approx([1, 0.4])
    assert score({"action": "navigate_back"}, '{"action": "navigate_back"}') == [1]


def test_without_true_arguments_their_weight_is_left_out() -> None:
    assert score({"action": "click"}, click(1, 1), '{"action": "scroll"}') == pytest.approx([1, 0.25])


def test_form_weights_and_radius() -> None:
    of = sample("-", gt={"action": CLICK})
    loose = [f"sure: <answer>{click(150, 200)}</answer>"]
    assert gui_action(group(loose, of, answer_format="answer_only"), CTX) == pytest.approx([0.9])
    assert score(CLICK, click(0, 0), w_format=0.0, w_type=1.0, w_args=1.0) == [0.5]
    point = {"action": "click", "coordinate": [500, 500]}
    assert score(point, click(640, 500), click(650, 500)) == pytest.approx([1, 0.4])
    assert score(point, click(650, 500), radius=0.2) == [1]


def test_faults_and_other_samples() -> None:
    assert gui_action(group(["x"], sample()), CTX) == [None]
    with pytest.raises(ValueError, match="is not an action"):
        score({"action": 3}, "x")
    with pytest.raises(ValueError, match="weights"):
        score(CLICK, "x", w_args=-1.0)
    with pytest.raises(ValueError, match="w_type"):
        score(CLICK, "x", w_type=0.0)


POINT = {"action": "click", "coordinate": [500, 500]}
TALL = {"size": [1080, 2400]}


@pytest.mark.parametrize(
    ("profile", "hits"),
    [
        ("exact", [1, 1, 1, 0]),  # the limit of 0.14 hits
        ("os_atlas", [1, 1, 1, 0]),
        ("gui_r1", [1, 1, 0, 0]),  # it misses
        ("ui_r1", [1, 0, 0, 0]),  # 256.6, 151.2 and 263.2 pixels
        ("ton", [1, 1, 1, 0]),  # the reward's radius is 0.14, not that of the evaluation
    ],
)
def test_profiles_on_clicks(profile: str, hits: list[int]) -> None:
    texts = [click(500, 500), click(600, 597), click(640, 500), click(600, 600)]
    assert score(POINT, *texts, meta=TALL, profile=profile) == pytest.approx([1.0 if hit else 0.4 for hit in hits])
    assert score(POINT, click(500, 500, "long_press"), "{}", meta=TALL, profile=profile) == pytest.approx([0.1, 0.1 * (profile == "ton")])


@pytest.mark.parametrize(
    ("profile", "scores"),
    [
        ("exact", [1, 0.7, 0.7, 0.1]),  # F1 of the words
        ("os_atlas", [1, 1, 0.4, 0.1]),  # the first word
        ("gui_r1", [1, 1, 1, 0.1]),  # F1 of at least 0.5
        ("ui_r1", [1, 1, 1, 0.25]),  # only clicks have arguments
        ("ton", [1, 1, 1, 0.25]),  # typed text earns nothing beyond the type
    ],
)
def test_profiles_on_text(profile: str, scores: list[float]) -> None:
    texts = [json.dumps({"action": "type", "text": text}) for text in ("hello world", "hello there", "bye world")]
    got = score({"action": "input_text", "text": "hello world"}, *texts, '{"action": "enter"}', meta=TALL, profile=profile)
    assert got == pytest.approx(scores)


@pytest.mark.parametrize("profile", ["exact", "os_atlas", "gui_r1", "ui_r1", "ton"])
@pytest.mark.parametrize("gold", [POINT, CLICK, {"action": "click"}, {"action": "navigate_back"}, {"action": "scroll", "direction": "up"}])
def test_the_true_action_scores_full_and_junk_nothing(profile: str, gold: dict[str, Any]) -> None:
    answer = json.dumps({key: value for key, value in gold.items() if key != "box"})
    right, *junk = score(gold, answer, "", "junk", meta=TALL, profile=profile)
    assert right == 1
    # TON pays its tags whatever stands in them: 0.1 of the weights that count
    pointing = gold["action"] == "click" and len(gold) > 1
    assert junk == pytest.approx([(0.1 if pointing else 0.25) * (profile == "ton")] * 2)


def test_ton_reward_is_the_mean_of_its_three_parts() -> None:
    equal = {"profile": "ton", "w_format": 1.0, "w_type": 1.0, "w_args": 1.0}
    assert score(POINT, click(500, 500), click(700, 500), click(500, 500, "long_press"), **equal) == pytest.approx([1, 2 / 3, 1 / 3])
    assert score({"action": "enter"}, '{"action": "press_enter"}', '{"action": "wait"}', **equal) == pytest.approx([1, 1 / 2])
    assert score(CLICK, click(100, 300), click(99, 300), **equal) == pytest.approx([1, 2 / 3])  # inside the box, near it
    assert score(POINT, click(700, 500), radius=0.2, **equal) == [1]
    down, up = (json.dumps({"action": "scroll", "direction": way}) for way in ("down", "up"))
    assert score({"action": "scroll", "direction": "down"}, down, up, **equal) == pytest.approx([1, 1 / 2])  # four types of scroll
    assert score(POINT, "tap it", **equal) == pytest.approx([1 / 3])


def test_rows_in_pixels() -> None:
    gold = {"action": "click", "coordinate": [540, 1200]}
    pixels = TALL | {"frame": "pixel"}
    assert score(gold, click(690, 1200), click(692, 1200), click(540, 1536), meta=pixels) == pytest.approx([1, 0.4, 1])
    assert score(gold, click(690, 1200), click(540, 1536), meta=pixels, profile="ui_r1") == pytest.approx([1, 0.4])
    assert score(CLICK, click(200, 300), click(201, 300), meta=pixels) == pytest.approx([1, 0.4])
    with pytest.raises(ValueError, match=r"'meta.size' as \[width, height\]"):
        score(gold, "x", meta={"frame": "pixel"})
    with pytest.raises(ValueError, match=r"meta.frame is 'percent'; known: pixel, norm1, norm1000"):
        score(gold, "x", meta={"frame": "percent"})
    shares = {"action": "click", "coordinate": [0.15, 0.2], "box": [0.1, 0.1, 0.2, 0.3]}
    assert score(shares, click(0.2, 0.3), click(0.9, 0.3), meta={"frame": "norm1"}) == score(CLICK, click(200, 300), click(900, 300))


def test_faults_of_profiles() -> None:
    with pytest.raises(ValueError, match=r"pixels need 'meta.size'"):
        score(POINT, "x", profile="ui_r1")
    with pytest.raises(ValueError, match=r"got \[1080, 0\]"):
        score(POINT, "x", profile="ui_r1", meta={"size": [1080, 0]})
    with pytest.raises(ValueError, match=r"profile 'os_atlas' has its own radius"):
        score(POINT, "x", profile="os_atlas", radius=0.2)


def test_profile_is_checked_with_the_recipe() -> None:
    assert reward.problems("gui_action", {"profile": "ton"}, "r") == []
    assert "one of 'exact', 'os_atlas', 'gui_r1', 'ui_r1', 'ton'" in reward.problems("gui_action", {"profile": "best"}, "r")[0]

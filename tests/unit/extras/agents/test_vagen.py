"""worlds.vagen: a world written as VAGEN's keeps what environments must keep; what is shown of it, how its episodes end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.extras.agents.test_env_check import look
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.find import default_tasks
from vlmrl.extras.agents.rows import reads_answers
from vlmrl.extras.agents.worlds.vagen import Vagen, shown, vagen
from vlmrl.extras.toy.picture import size_of

CORRIDOR = "tests.support.vagen_style:Corridor"
LEFT, RIGHT = (f"<think></think><answer>{way}</answer>" for way in ("left", "right"))


def corridor(seed: int = 0, *, path: str = CORRIDOR, repeat: bool = False, **config: Any) -> Vagen:
    made = vagen(path=path, config=config, repeat=repeat)
    made.reset({"id": "a", "seed": seed}, 5)
    return made


def test_it_keeps_everything() -> None:
    done = look("vagen", path=CORRIDOR, tries=[LEFT, RIGHT], retries=1)
    assert done.ok, done.lines()
    assert done.found["invalid"].looked
    assert reads_answers("vagen")
    assert not reads_answers("toy_desk")
    assert default_tasks("vagen", {"path": CORRIDOR}) == ({"id": "corridor", "asks": "exact_text"},)


def test_what_is_seen_begins_with_the_system_prompt() -> None:
    world = corridor()
    first = world.reset({"id": "a"}, 0)
    assert first.text == "Go to the right end.\n\nYou see:\nAnswer."
    assert [size_of(screen) for screen in first.screens] == [(56, 56)]
    again = world.step(RIGHT).observation
    assert again is not None
    assert again.text == "Now:\nAnswer."
    repeated = corridor(repeat=True).step(RIGHT).observation
    assert repeated is not None
    assert repeated.text == "Go to the right end.\n\nNow:\nAnswer."
    assert repeated.screens == again.screens != first.screens
    told = corridor(path="tests.support.vagen_style.NoPictures").step(RIGHT).observation
    assert told is not None
    assert (told.text, told.screens) == ("Now: 1", ())


def test_answers_and_ends() -> None:
    world = corridor()
    bad = world.step("right")
    assert (bad.outcome, bad.info["metrics/turn_metrics/action_is_valid"], bad.info["llm_raw_response"]) == ("invalid", 0.0, "right")
    assert "actions" not in bad.info
    came = [world.step(RIGHT) for _ in range(3)]
    assert [(one.outcome, one.reward, one.done) for one in came] == [("", 0.0, False)] * 2 + [("success", 1.0, True)]
    with pytest.raises(RuntimeError, match="after the end"):
        world.step(RIGHT)
    world.reset({"id": "a", "seed": 0}, 5)
    assert world.step(RIGHT).outcome == ""
    world.close()
    assert [corridor(steps=1).step(LEFT).outcome, corridor(2, steps=1).step(RIGHT).outcome] == ["cut", "success"]


def test_its_answers_to_try() -> None:
    assert corridor().propose(3) is None
    made = vagen(path=CORRIDOR, tries=[LEFT, RIGHT])
    assert [made.propose(n) for n in range(3)] == [LEFT, RIGHT, LEFT]


def test_places_and_pictures_agree() -> None:
    with pytest.raises(TypeError, match="1 places for pictures and 2 pictures"):
        corridor(places=2)
    assert shown({"obs_str": " a <image> b\n", "multi_modal_input": {"<image>": [_picture()]}}).text == "a  b"


def _picture() -> Any:
    from PIL import Image

    return Image.new("L", (56, 28))


@pytest.mark.parametrize("path", ["", "Corridor", "no_such_package.worlds:Corridor"])
def test_a_path_that_leads_nowhere_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is no package"):
        default_tasks("vagen", {"path": path})

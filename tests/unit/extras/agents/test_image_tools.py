"""agents.worlds.image_tools: rows as episodes; what a call shows is what the file holds, and a bad call says why."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.media import make_video
from tests.support.tiny import Tiny
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError, MediaError, RowError
from vlmrl.evals.ask.tasks import Task, check_task
from vlmrl.extras.agents.calls import Call
from vlmrl.extras.agents.check import check
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.protocol import Environment, Explorable, Solvable
from vlmrl.extras.agents.rows import PLACE, recorded, row_task, sample_of
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.stripes import BOXES, make_stripes, paint_stripes
from vlmrl.extras.agents.tools import Originals
from vlmrl.extras.agents.worlds.image_tools import ImageTools, image_tools
from vlmrl.extras.toy.picture import png
from vlmrl.media.image import decode_image
from vlmrl.media.resize import resize
from vlmrl.types import MediaRef, Turn


def a_row(folder: Path, media: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The task of a row with media in `folder`."""
    row = {"id": "r", "task": "t", "answer_type": "choice", "prompt": "Which?", "answer": "B", "options": ["A. cat", "B. dog"]}
    sample = parse_row({**row, **media, **changes}, source="r.jsonl:1", media_root=".")
    return row_task(sample, root=folder, answer_format="answer_only")


def a_picture(folder: Path, name: str = "p.png", size: tuple[int, int] = (300, 200)) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    (folder / name).write_bytes(png(pixels))
    return pixels


def call(name: str, **arguments: Any) -> str:
    return Call(name=name, arguments=arguments).text()


def opened(task: dict[str, Any], **arguments: Any) -> ImageTools:
    """An episode with originals of its own."""
    world = image_tools(**arguments)
    world.originals = Originals()
    world.reset(task, 0)
    return world


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_a_crop_is_what_the_store_would_show_of_that_box_of_the_original(tiny: Tiny, tmp_path: Path) -> None:
    """Equal to the bit; the original is decoded once for all calls, and a crop that was seen twice once by the store."""
    whole, screens = a_picture(tmp_path), ScreenFolder(tmp_path / "screens")
    task = a_row(tmp_path, {"image": "p.png"})
    world = opened(task)
    first = world.reset(task, 1)
    assert first.screens == ((tmp_path / "p.png").read_bytes(),)  # the file itself: the prompt of a single turn shows the same
    before = dict(tiny.store.stats)
    for box, (x1, y1, x2, y2) in (([250, 100, 500, 600], (75, 20, 150, 120)), ([0, 0, 1000, 1000], (0, 0, 300, 200))) * 2:
        came = world.step(call("zoom", box=box))
        assert came.observation is not None
        assert came.observation.text == f"The box {box}."
        shown = tiny.store.get(screens.put(came.observation.screens[0]), screens.path)
        part = np.ascontiguousarray(whole[y1:y2, x1:x2])
        assert shown.original_size == part.shape[:2]
        assert (shown.frames == resize(part[None], *tiny.store.sizing.target(*part.shape[:2], frames=1))).all()
    assert world.originals.decoded == {"picture": 1}
    assert tiny.store.stats["decoded"] - before["decoded"] == 2


def test_a_row_with_an_answer_of_any_type_is_scored_as_in_a_single_turn(tmp_path: Path) -> None:
    a_picture(tmp_path)
    task = a_row(tmp_path, {"image": "p.png"})
    for text, reward, outcome in (("<answer>B</answer>", 1.0, "success"), ("<answer>A</answer>", 0.0, "failure")):
        came = opened(task).step(text)
        assert (came.done, came.reward, came.outcome) == (True, reward, outcome)
    box = a_row(tmp_path, {"image": "p.png"}, answer_type="bbox", gt={"boxes": [[0, 0, 500, 500]]}, answer=None, meta={"frame": "norm1000"})
    came = opened(box).step("<answer>[0, 0, 500, 250]</answer>")
    assert came.reward == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (call("zoom", box=[500, 0, 500, 100]), "The box has no area"),
        (call("zoom", box=[600, 0, 500, 100]), "The box has no area"),
        (call("zoom", box=[0, 0, 1001, 100]), "reaches outside"),
        (call("zoom", box=[-1, 0, 10, 100]), "reaches outside"),
        (call("zoom", box=[0, 0, 1000, 50]), "too thin: one side of it may be at most 4 times"),
        (call("zoom", box=[0, 0, 10]), "four numbers"),
        (call("zoom", box="0 0 10 10"), "four numbers"),
        (call("zoom", box=[0, 0, "10", 10]), "'x2' must be a number"),
        (call("zoom", box=[0, 0, True, 10]), "'x2' must be a number"),
        ('<tool_call>{"name": "zoom", "arguments": {"box": [0, 0, NaN, 10]}}</tool_call>', "'x2' must be a number"),
        (call("zoom", box=[0, 0, 500, 500], picture=2), "'picture' must be a whole number from 1 to 1"),
        (call("zoom", bbox=[0, 0, 500, 500]), "The arguments of zoom are box, picture"),
        (call("frames", start=0, end=1), "There is no such tool here; there is zoom"),
        (call("<|im_end|>"), "There is no such tool here"),
        ("<tool_call>zoom</tool_call>", "not JSON"),
        ("what is it", "neither a tool call nor an answer"),
    ],
)
def test_a_bad_call_is_told_why_and_the_episode_goes_on(tmp_path: Path, action: str, said: str) -> None:
    a_picture(tmp_path)
    world = opened(a_row(tmp_path, {"image": "p.png"}))
    before = world.reset(a_row(tmp_path, {"image": "p.png"}), 0).state
    came = world.step(action)
    assert came.observation is not None
    assert (came.outcome, came.reward, came.observation.screens, came.observation.state) == ("invalid", 0.0, (), before)
    assert said in came.observation.text
    assert "<|" not in came.observation.text  # what a policy wrote is not repeated: it may hold control tokens
    assert world.step("<answer>B</answer>").reward == 1.0


def a_video(folder: Path, seconds: int = 4, fps: int = 10) -> None:
    frames = np.stack([np.full((48, 64, 3), 20 + 5 * n, dtype=np.uint8) for n in range(seconds * fps)])
    make_video(folder / "v.mp4", frames, fps=fps)


def test_frames_of_a_span_are_those_on_screen_with_their_times(tmp_path: Path) -> None:
    a_video(tmp_path)
    world = opened(a_row(tmp_path, {"video": "v.mp4"}), overview=4, overview_pixels=12 * 16)
    first = world.reset(a_row(tmp_path, {"video": "v.mp4"}), 0)
    assert first.text.startswith("A video of 4.0 seconds, shown at 0.00, 1.00, 2.00, 3.00 seconds. Which?")
    assert [pixels_of(data).shape for data in first.screens] == [(12, 16, 3)] * 4
    assert [int(pixels_of(data).mean()) for data in first.screens] == pytest.approx([20, 70, 120, 170], abs=3)
    for _ in range(2):
        came = world.step(call("frames", start=1.25, end=1.95, count=8))
        assert came.observation is not None
        assert came.observation.text == "Frames at 1.20, 1.30, 1.40, 1.50, 1.60, 1.70, 1.80, 1.90 seconds."
        assert [pixels_of(data).shape for data in came.observation.screens] == [(48, 64, 3)] * 8
        assert [int(pixels_of(data).mean()) for data in came.observation.screens] == pytest.approx(range(80, 120, 5), abs=3)
    assert world.originals.decoded == {"span": 2}  # the overview and this one
    for bad, said in (
        ({"start": 2, "end": 1}, "start before it ends"),
        ({"start": 1, "end": 9}, "from 0 to 4.0 seconds"),
        ({"start": 0, "end": 1, "count": 99}, "from 1 to 8"),
        ({"start": 0}, "'end' must be a number"),
    ):
        came = world.step(call("frames", **bad))
        assert came.observation is not None
        assert came.outcome == "invalid"
        assert said in came.observation.text
    assert "no such tool" in str(world.step(call("zoom", box=BOXES[0])).observation)


def test_several_media_are_told_by_number_and_a_damaged_one_is_a_fault(tmp_path: Path) -> None:
    a_picture(tmp_path, "a.png")
    other = a_picture(tmp_path, "b.png", (80, 80))[::-1]
    (tmp_path / "b.png").write_bytes(png(np.ascontiguousarray(other)))
    task = a_row(tmp_path, {"images": ["a.png", "b.png"]})
    world = opened(task)
    assert "Pictures are numbered from 1 to 2." in world.reset(task, 0).text
    came = world.step(call("zoom", box=[0, 0, 500, 500], picture=2))
    assert came.observation is not None
    assert came.observation.text == "The box [0, 0, 500, 500] of picture 2."
    assert (pixels_of(came.observation.screens[0]) == other[:40, :40]).all()
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:200])
    world = opened(task)
    with pytest.raises(MediaError):
        world.step(call("zoom", box=[0, 0, 500, 500], picture=2))
    (tmp_path / "b.png").unlink()
    with pytest.raises(MediaError, match=r"missing: b\.png"):
        world.reset(task, 0)


def test_a_task_is_the_row_and_its_record_says_nothing_of_the_place(tmp_path: Path) -> None:
    refs = (
        MediaRef(kind="image", path="a.png", sha256="0" * 64),
        MediaRef(kind="video", path="1.png", frames=(MediaRef(kind="image", path="1.png"),), times=(0.0,)),
    )
    sample = parse_row(
        {"id": "r", "task": "t", "answer_type": "exact_text", "image": "a.png", "prompt": "What?", "answer": "x", "meta": {"a": [1]}},
        source="r:1",
        media_root=".",
    )
    sample = dataclasses.replace(sample, media=refs, source="", media_root="")
    task = row_task(sample, root=tmp_path, answer_format="think")
    assert sample_of(json.loads(json.dumps(task))) == sample
    assert PLACE in task
    assert str(tmp_path) not in json.dumps(recorded(task))
    with pytest.raises(RowError, match="it has earlier turns"):
        row_task(dataclasses.replace(sample, history=(Turn(question="a", answer="b"),)), root=tmp_path, answer_format="think")


def test_originals_are_kept_within_a_budget() -> None:
    small, big = (png(np.zeros((side, side, 3), dtype=np.uint8)) for side in (10, 20))
    kept = Originals(budget=10 * 10 * 3 + 20 * 20 * 3)
    for name, data in (("a", small), ("b", big), ("a", small), ("c", small), ("a", small), ("b", big)):
        assert (kept.picture(name, data) == decode_image(data)).all()
    assert kept.decoded["picture"] == 4  # b went when c came, as the longest unused
    nothing = Originals(budget=1)
    for _ in range(2):
        nothing.picture("a", small)
    assert nothing.decoded["picture"] == 2


def test_stripes_are_seen_in_a_quarter_and_not_in_the_whole() -> None:
    """By the rule that shows them to a model: the two ways differ by next to nothing in the whole, and by much in the quarter."""
    base = make_stripes(3)
    pictures = [
        paint_stripes(dataclasses.replace(base, ways=tuple(way if n == base.quarter else base.ways[n] for n in range(4))))
        for way in ("across", "down")
    ]
    x1, y1, x2, y2 = (value * 448 // 1000 for value in BOXES[base.quarter])
    whole = [resize(pixels[None], 56, 56)[0].astype(int) for pixels in pictures]
    part = [resize(np.ascontiguousarray(pixels[y1:y2, x1:x2])[None], 56, 56)[0].astype(int) for pixels in pictures]
    assert np.abs(whole[0] - whole[1]).max() <= 2  # of 255
    assert np.abs(part[0] - part[1]).mean() > 15


def test_the_drawn_picture_is_answered_in_two_turns_and_keeps_what_an_environment_must() -> None:
    world = image_tools()
    as_environment: Environment = world
    assert isinstance(world, Explorable)
    assert isinstance(world, Solvable)
    for seed in range(6):
        as_environment.reset({"id": "stripes"}, seed)
        assert world.optimum() is not None
        rewards = [world.step(str(world.solve())).reward for _ in range(2)]
        assert rewards == [0.0, 1.0]
    with pytest.raises(RuntimeError, match="outside an episode"):
        world.step("across")
    with open_pool("image_tools", settings=PoolSettings(workers=2, start=120.0)) as pool:
        done = check(pool, ({"id": "stripes"},), episodes=3, turns=4)
    assert done.ok, done.lines()


@pytest.mark.parametrize("arguments", [{"tools": ()}, {"tools": ("zoom", "zoom")}, {"max_ratio": 0.5}, {"overview": 0}])
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="environment 'image_tools'"):
        image_tools(**arguments)


def test_prompts_that_begin_anew_need_the_question_again() -> None:
    def problems(**arguments: Any) -> list[str]:
        task = {
            "id": "t",
            "environment": {"name": "image_tools", **arguments},
            "history": {"screens": 1},
            "answer_format": "answer_only",
            "answer_type": "episode",
            "max_new_tokens": 8,
        }
        return check_task(Task.model_validate(task))

    assert any("a prompt begins anew without it" in problem for problem in problems())
    assert not problems(repeat=True)
    with pytest.raises(ConfigError):
        open_pool("image_tools", {"tools": ["draw"]})

"""`vlmrl new --data`: boxes, clicks, points and spans of time, in the frame or unit in which they lie in their pictures or videos."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.media import make_video
from tests.support.starter import Rows, lines, passes, picture
from vlmrl.errors import ConfigError, DataError


def boxes(count: int, size: tuple[int, int], rng: random.Random, side: int = 60) -> list[list[int]]:
    """Boxes [x1, y1, x2, y2] in pixels, that use all of the picture."""
    corners = [(rng.randint(0, size[0] - side - 1), rng.randint(0, size[1] - side - 1)) for _ in range(count)]
    return [[x, y, x + rng.randint(20, side), y + rng.randint(15, side)] for x, y in corners]


# ---- boxes and clicks ----------------------------------------------------------------------------------------------------------------


def screens(here: Path, frame: str, *, size: tuple[int, int] = (1280, 720), count: int = 14, column: str = "screenshot") -> Path:
    """A JSON list of screenshots with the boxes of what is to be clicked on."""
    rng = random.Random(frame)
    rows: Rows = []
    for i, box in enumerate(boxes(count, size, rng)):
        picture(here / "shots" / f"{i}.png", i, size)
        sides = [*size, *size]
        given = (
            box if frame == "pixel" else [round(v * (1000 if frame == "norm1000" else 1) / s, 3) for v, s in zip(box, sides, strict=True)]
        )
        if frame == "norm1000":
            given = [int(v) for v in given]
        rows.append({"instruction": f"Click the button {i}.", "bbox": given, column: f"shots/{i}.png"})
    (here / "train.json").write_text(json.dumps(rows))
    return here / "train.json"


@pytest.mark.parametrize("frame", ["pixel", "norm1000", "norm1"])
def test_click_boxes_on_screens(frame: str, new: Callable[..., str], here: Path):
    screens(here, frame)
    told = new("--data", "train.json")
    cfg = passes()
    source = cfg.stages[0].source
    assert source.columns == {"prompt": "instruction", "answer": "bbox", "images": "screenshot"}
    assert (source.answer_type, source.frame, source.axis) == ("point", frame, None)
    assert [reward.name for reward in cfg.stages[0].rewards] == ["point_in_box", "format"]
    assert cfg.media.max_pixels == 1048576
    assert "14 of 14 answers are boxes to click on" in told


def test_boxes_as_coco_writes_them(new: Callable[..., str], here: Path):
    rows: Rows = []
    for i, (x1, y1, x2, y2) in enumerate(boxes(30, (400, 300), random.Random(1), side=40)):
        picture(here / "images" / f"{i}.png", i, (400, 300))
        rows.append({"question": f"Where is the dog {i}?", "bbox": [x1, y1, x2 - x1, y2 - y1], "image": f"{i}.png"})
    lines(here / "train.jsonl", rows)
    new("--data", "train.jsonl")
    cfg = passes()
    source = cfg.stages[0].source
    assert (source.answer_type, source.frame, source.axis) == ("bbox", "pixel", "xywh")
    assert cfg.stages[0].rewards[0].name == "box_iou"


def test_a_frame_that_cannot_be_told_is_asked_for(new: Callable[..., str], here: Path):
    screens(here, "pixel", size=(1000, 1000))
    with pytest.raises(ConfigError, match=r"as pixels and as thousandths of the sides alike.*frame=pixel or frame=norm1000"):
        new("--data", "train.json")
    assert not (here / "mine.yaml").exists()
    new("frame=pixel", "--data", "train.json")
    assert passes().stages[0].source.frame == "pixel"


def test_boxes_that_fit_no_frame_are_named(new: Callable[..., str], here: Path):
    path = screens(here, "pixel", size=(300, 200))
    rows = json.loads(path.read_text())
    for row in rows:
        row["bbox"] = [value * 9 for value in row["bbox"]]
    path.write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"(?s)fit no frame.*frame, first: .*train\.json:1"):
        new("--data", "train.json")


def test_a_box_or_a_point_is_asked_for(new: Callable[..., str], here: Path):
    path = screens(here, "pixel")
    path.write_text(path.read_text().replace("Click the button", "Where is the button"))
    with pytest.raises(ConfigError, match=r"is a box to be answered, or a point inside it\?.*--task boxes or --task clicks"):
        new("--data", "train.json")


@pytest.mark.parametrize(("task", "answer_type", "reward"), [("boxes", "bbox", "box_iou"), ("clicks", "point", "point_in_box")])
def test_the_task_decides_it(task: str, answer_type: str, reward: str, new: Callable[..., str], here: Path):
    path = screens(here, "pixel")
    path.write_text(path.read_text().replace("Click the button", "Where is the button"))
    new("--data", "train.json", "--task", task)
    (stage,) = passes().stages
    assert (stage.source.answer_type, stage.rewards[0].name) == (answer_type, reward)


def test_points(new: Callable[..., str], here: Path):
    rng = random.Random(0)
    rows: Rows = []
    for i in range(12):
        picture(here / "p" / f"{i}.png", i, (1920, 1080))
        rows.append({"question": f"Point to the cup {i}.", "point": [rng.randint(0, 1919), rng.randint(1001, 1079)], "image": f"p/{i}.png"})
    lines(here / "rows.jsonl", rows)
    new("--data", "rows.jsonl")
    (stage,) = passes().stages
    assert (stage.source.answer_type, stage.source.frame, stage.rewards[0].name) == ("point", "pixel", "click")


# ---- spans of videos -----------------------------------------------------------------------------------------------------------------


def films(here: Path, factor: float = 1, count: int = 6) -> Path:
    """Videos of 4 s with 8 frames each second, and spans in them."""
    rows: Rows = []
    for i in range(count):
        (here / "videos").mkdir(exist_ok=True)
        frames = np.random.default_rng(i).integers(0, 255, (32, 48, 48, 3), dtype=np.uint8)
        make_video(here / "videos" / f"{i}.mp4", frames, fps=8)
        times = [0.5 + 0.25 * i, 3.9 - 0.1 * i]
        rows.append({"query": f"When does it move, {i}?", "timestamps": [round(t * factor, 2) for t in times], "video": f"{i}.mp4"})
    return lines(here / "train.jsonl", rows)


@pytest.mark.parametrize(("factor", "said"), [(1, {"time_unit": "s"}), (1000, {"time_unit": "ms"})])
def test_spans_of_videos(factor: float, said: dict[str, Any], new: Callable[..., str], here: Path):
    films(here, factor)
    told = new("--data", "train.jsonl")
    cfg = passes()
    source = cfg.stages[0].source
    assert (source.answer_type, source.media_root) == ("time_span", "videos")
    assert {key: getattr(source, key) for key in said} == said
    assert cfg.stages[0].rewards[0].name == "temporal_iou"
    assert cfg.media.fps == 2.0
    assert "videos are up to 4 s long" in told


def test_frames_and_milliseconds_alike_are_asked_for(new: Callable[..., str], here: Path):
    films(here, 8)
    with pytest.raises(ConfigError, match=r"no seconds; say what they count.*time_unit=ms, or time_unit=frames time_fps=8"):
        new("--data", "train.jsonl")

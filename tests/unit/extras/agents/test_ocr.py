"""agents.ocr and the tool `read_text`: what is read is the file's own pixels, each box once, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.unit.extras.agents.test_image_tools import a_picture, a_row, call, opened
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.tasks import Task, check_task
from vlmrl.extras.agents import ocr
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.worlds.image_tools import image_tools
from vlmrl.extras.toy.picture import png

needs_ocr = pytest.mark.skipif(ocr.missing() is not None, reason=f"{ocr.missing()}")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Pictures that were read; each has its size as its text."""
    pictures: list[np.ndarray] = []

    def read(pixels: np.ndarray) -> tuple[str, ...]:
        pictures.append(pixels)
        return () if pixels.shape[1] < 10 else (f"{pixels.shape[1]} wide", f"{pixels.shape[0]} high")

    monkeypatch.setattr(ocr, "reader", lambda: None)
    monkeypatch.setattr(ocr, "read", read)
    return pictures


def told(world: Any, action: str) -> str:
    came = world.step(action)
    assert came.observation is not None
    assert came.observation.screens == ()
    return came.observation.text


def test_text_is_read_in_the_pixels_of_the_file_and_each_box_once(seen: list[np.ndarray], tmp_path: Path) -> None:
    whole = a_picture(tmp_path)
    world = opened(a_row(tmp_path, {"image": "p.png"}), tools=("zoom", "read_text"))
    for _ in range(2):
        text = told(world, call("read_text", box=[250, 100, 500, 150]))
        assert text == "The box [250, 100, 500, 150]. The text in it:\n75 wide\n10 high"
    assert told(world, call("read_text")) == "The box [0, 0, 1000, 1000]. The text in it:\n300 wide\n200 high"
    assert told(world, call("read_text", box=[0, 0, 10, 10])) == "The box [0, 0, 10, 10]. There is no text in it."
    assert (seen[0] == whole[20:30, 75:150]).all()
    assert (seen[1] == whole).all()
    assert world.originals.decoded == {"picture": 1, "text": 3}


def test_calls_that_cannot_be_made_say_why(seen: list[np.ndarray], tmp_path: Path) -> None:
    a_picture(tmp_path)
    world = opened(a_row(tmp_path, {"image": "p.png"}), tools=("read_text",))
    for wrong, said in (
        (call("read_text", box=[500, 0, 500, 100]), "The box has no area"),
        (call("read_text", box=[0, 0, 1001, 100]), "reaches outside"),
        (call("read_text", box=None), "four numbers"),
        (call("read_text", language="en"), "The arguments of read_text are box, picture"),
        (call("zoom", box=[0, 0, 500, 500]), "There is no such tool here; there is read_text"),
    ):
        came = world.step(wrong)
        assert came.outcome == "invalid"
        assert came.observation is not None
        assert said in came.observation.text
    assert seen == []


def test_it_is_offered_where_it_is_asked_for_and_its_text_has_a_limit(
    seen: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_picture(tmp_path)
    a_picture(tmp_path, "q.png")
    task = a_row(tmp_path, {"images": ["p.png", "q.png"]})
    assert "read_text" not in opened(task).reset(task, 0).text
    monkeypatch.setattr(ocr, "version", lambda: "a reader 1")
    world = opened(task, tools=("read_text",))
    assert '"name": "read_text", "arguments": {"box": [250, 250, 750, 300], "picture": 1}' in world.reset(task, 0).text
    assert world.identity["ocr"] == "a reader 1"
    assert "ocr" not in opened(task).identity
    monkeypatch.setattr(ocr, "read", lambda pixels: ("x" * 800, "y" * 800))
    text = told(world, call("read_text", picture=2))
    assert text.startswith("The box [0, 0, 1000, 1000] of picture 2. The text in it:\nxxx")
    assert text.endswith("y\n(the first 1000 of 1601 characters)")


def test_without_a_reader_the_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name)
    ocr.reader.cache_clear()
    with pytest.raises(ConfigError, match=r"the tool read_text needs onnxruntime; pip install 'vlmrl\[ocr\]'"):
        image_tools(tools=("read_text",))

    def problems(*tools: str) -> list[str]:
        environment = {"name": "image_tools", "tools": list(tools)}
        more = {"answer_format": "answer_only", "answer_type": "episode", "max_new_tokens": 8}
        return check_task(Task.model_validate({"id": "t", "environment": environment, **more}))

    assert any("read_text needs onnxruntime" in problem for problem in problems("zoom", "read_text"))
    assert not any("read_text" in problem for problem in problems("zoom"))


# ---- the real one ---------------------------------------------------------------------------------------------------


def a_receipt(folder: Path) -> np.ndarray:
    image = Image.new("RGB", (300, 90), "white")
    drawing, font = ImageDraw.Draw(image), ImageFont.load_default(28)
    drawing.text((10, 8), "Total: 42.50", fill="black", font=font)
    drawing.text((10, 50), "Paid by Ada", fill=(200, 0, 0), font=font)
    (folder / "r.png").write_bytes(png(np.asarray(image)))
    return np.asarray(image)


@needs_ocr
def test_the_real_one_reads_a_receipt_and_equal_pixels_give_equal_text(tmp_path: Path) -> None:
    pixels = a_receipt(tmp_path)
    assert ocr.read(pixels) == ocr.read(pixels.copy()) == ("Total: 42.50", "Paid by Ada")
    assert ocr.read(np.full((40, 100, 3), 255, np.uint8)) == ()
    assert ocr.read(pixels[:1, :1]) == ()
    assert "rapidocr 3." in ocr.version()


@needs_ocr
def test_the_real_one_in_a_worker(tmp_path: Path) -> None:
    a_receipt(tmp_path)
    settings = PoolSettings(workers=1, start=300.0, deadline=120.0, retries=0)
    with open_pool("image_tools", {"tools": ["read_text"]}, settings=settings) as pool:
        episode = pool.episode(a_row(tmp_path, {"image": "r.png"}), 0)
        assert episode.reset().result().fault is None
        read = episode.step(call("read_text", box=[0, 0, 1000, 500])).result()
        assert read.observation is not None, read.detail
        assert read.observation.text == "The box [0, 0, 1000, 500]. The text in it:\nTotal: 42.50"
        episode.close()

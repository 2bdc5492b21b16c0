"""agents.replay_page: screens once, marks where actions point, nothing unescaped, faults without rewards."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from vlmrl.errors import StorageError
from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.process import Browser, find_browser, missing_browser
from vlmrl.extras.agents.protocol import Optimum, Outcome
from vlmrl.extras.agents.replay_page import SHOWN, page, write_replay
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn, trajectory_to_json
from vlmrl.extras.agents.worlds.toy_desk import _element  # pyright: ignore[reportPrivateUsage]
from vlmrl.extras.toy.picture import flat, png
from vlmrl.types import MediaRef

CLICK = '<answer>{"action": "click", "coordinate": [250, 750]}</answer>'


def screen(folder: Path, color: str = "red") -> MediaRef:
    return ScreenFolder(folder).put(png(flat([_element(0, "press", color, "square")])))


def turn(ref: MediaRef, action: str, text: str = "Task", reward: float | None = 0.0, outcome: Outcome = "") -> TrajectoryTurn:
    return TrajectoryTurn(seen=Snapshot(text=text, media=(ref,), state="0"), action=action, reward=reward, outcome=outcome)


def attempt(*turns: TrajectoryTurn, k: int = 0, **more) -> Trajectory:
    return Trajectory(task={"id": "a"}, seed=7, k=k, turns=turns, **more)


def write(folder: Path, *played: Trajectory) -> Path:
    lines = [json.dumps({"id": "desk", "record": None, "trajectory": trajectory_to_json(one)}) + "\n" for one in played]
    (folder / "t.episodes.jsonl").write_text("".join(lines))
    return folder / "t.jsonl"


def test_screens_stand_once_and_clicks_are_drawn_in_their_pixels(tmp_path: Path) -> None:
    red, green = screen(tmp_path / "screens"), screen(tmp_path / "screens", "green")
    twenty = attempt(*[turn(red if n % 2 else green, CLICK) for n in range(20)], optimum=Optimum(reward=1, turns=3))
    out = write_replay(write(tmp_path, twenty))
    text = out.read_text()
    assert out.name == "t.replay.html"
    assert text.count("data:image/png;base64,") == 2
    assert text.count("<use ") == 20
    assert len(text) < 2_000_000
    values = page("t", [("desk", twenty)], tmp_path / "screens")
    drawn = values["episodes"][0]["turns"][0]["screens"][0]
    assert drawn["mark"]["x"] == drawn["width"] / 4
    assert drawn["mark"]["y"] == drawn["height"] * 3 / 4
    assert text.count('class="mark"') == 20
    assert "(fewest 3)" in text
    assert not re.search(r"<script|https?://", text)


def a_long_episode(folder: Path) -> Trajectory:
    """Twenty turns, each with a screen of its own that is as large as a desktop's and hardly compresses better than one."""
    rng, turns = np.random.default_rng(0), []
    screens = ScreenFolder(folder / "screens")
    for n in range(20):
        pixels = np.full((720, 1280, 3), 245, np.uint8)
        for x, y, wide, high in rng.integers(0, 640, (60, 4)).tolist():
            pixels[y : y + high // 4, x * 2 : x * 2 + wide // 4] = rng.integers(0, 256, 3)
        pixels[:64, :200] = rng.integers(0, 256, (64, 200, 3))  # a photograph: noise does not compress
        turns.append(turn(screens.put(png(pixels)), CLICK, text=f"Task: turn {n}. http://127.0.0.1:9/seen", reward=0.1))
    return attempt(*turns)


def test_a_page_of_twenty_screens_is_under_two_megabytes_and_loads_nothing(tmp_path: Path) -> None:
    out = write_replay(write(tmp_path, a_long_episode(tmp_path)))
    text = out.read_text()
    assert text.count("data:image/png;base64,") == text.count("<use ") == 20
    assert 1_000_000 < out.stat().st_size < 2_000_000
    tags = Links()
    tags.feed(text)
    assert tags.loaded
    assert all(value.startswith(("data:", "#")) for value in tags.loaded), "an address that is no text"
    assert not re.search(r"url\(|@import", re.sub(r"data:[^\"]+", "", text))


@pytest.mark.skipif(find_browser() is None, reason=f"needs a browser: {missing_browser()}")
def test_a_page_of_twenty_screens_opens_without_a_network(tmp_path: Path) -> None:
    """Served from memory to a browser that reaches nothing else: all pictures are there, and nothing was asked for."""
    data = write_replay(write(tmp_path, a_long_episode(tmp_path))).read_bytes()
    browser = Browser(seconds=60.0)
    try:
        asked: list[str] = []

        def serve(url: str) -> tuple[bytes, str] | None:
            asked.append(url)
            return (data, "text/html; charset=utf-8") if url == "http://own.invalid/" else None

        page = Page(browser, serve, width=1280, height=900)
        page.open("http://own.invalid/")
        page.screenshot()
        assert {url for url in asked if not url.startswith("data:")} == {"http://own.invalid/"}
        assert [url for url in page.refused if not url.startswith("data:")] == []
        sizes = page.run(
            "Promise.all([...document.querySelectorAll('image')].map(async e => {"
            " const i = new Image(); i.src = e.getAttribute('href'); await i.decode(); return [i.naturalWidth, i.naturalHeight]; }))"
        )
        assert sizes == [[1280, 720]] * 20
        drawn = page.run("[...document.querySelectorAll('use')].map(e => e.getBoundingClientRect()).filter(r => r.width > 100).length")
        assert drawn == 20
        assert page.errors == []
    finally:
        browser.close()


def test_scrolls_words_and_what_cannot_be_read(tmp_path: Path) -> None:
    ref = screen(tmp_path / "screens")
    scroll, typed = '{"action": "scroll", "direction": "down"}', '{"action": "input_text", "text": "cat"}'
    values = page("t", [("desk", attempt(turn(ref, scroll), turn(ref, typed), turn(ref, "click it")))], tmp_path / "screens")
    first, second, third = values["episodes"][0]["turns"]
    mark = first["screens"][0]["mark"]
    assert (mark["dx"], mark["dy"]) == (0, first["screens"][0]["height"] / 4)
    assert (first["caption"], second["caption"], third["caption"]) == ("scroll down", "input_text cat", "")
    assert second["screens"][0]["mark"] is None
    assert "unreadable action" in write_replay(write(tmp_path, attempt(turn(ref, "click it")))).read_text()


def test_a_fault_has_no_reward_on_the_page(tmp_path: Path) -> None:
    ref = screen(tmp_path / "screens")
    text = write_replay(write(tmp_path, attempt(turn(ref, CLICK, reward=None), fault="crashed"))).read_text()
    assert "fault (crashed), 1 turns" in " ".join(text.split())
    assert "reward -" in text
    assert "return" not in re.sub(r"<p class=\"note\">.*?</p>", "", text, flags=re.DOTALL)


class Links(HTMLParser):
    """What elements would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "href", "xlink:href", "srcset", "data", "poster", "action")
        self.loaded += [value or "" for name, value in attrs if name in names and (tag, name) != ("a", "href")]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)


def test_what_worlds_and_models_say_is_escaped(tmp_path: Path) -> None:
    bad = '"><script>alert(1)</script>\x1b[2J'
    ref = screen(tmp_path / "screens")
    one = attempt(turn(ref, bad, bad, outcome="invalid"))
    lines = json.dumps({"id": bad, "record": None, "trajectory": trajectory_to_json(one)}) + "\n"
    (tmp_path / "t.episodes.jsonl").write_text(lines)
    text = write_replay(tmp_path / "t.jsonl").read_text()
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.seen
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text


def test_many_attempts_and_lost_screens_are_said(tmp_path: Path) -> None:
    ref = screen(tmp_path / "screens")
    many = [attempt(turn(ref, CLICK), k=k) for k in range(SHOWN + 2)]
    text = write_replay(write(tmp_path, *many)).read_text()
    assert "2 more attempts are not shown" in text
    (tmp_path / "screens" / ref.path).write_bytes(b"other")
    text = write_replay(write(tmp_path, many[0])).read_text()
    assert "this screen is not there any more" in text
    assert "data:image" not in text
    with pytest.raises(StorageError, match=r"none\.episodes\.jsonl: no episodes"):
        write_replay(tmp_path / "none.jsonl")

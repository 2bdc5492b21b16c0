"""Long videos of which one clip tells the answer: the overview does not, the clip does, and rows say what the environment says."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vlmrl.data.row import parse_row
from vlmrl.extras.agents.rows import row_task
from vlmrl.extras.agents.stripes import WAYS
from vlmrl.extras.agents.toy_clip import LONG, RATE, SCENES, frames_call, items, make_film, turns, video
from vlmrl.extras.agents.worlds.image_tools import image_tools
from vlmrl.media.video import probe_video


def test_the_overview_does_not_depend_on_any_bars() -> None:
    film = make_film(0, "test", 3)
    other = dataclasses.replace(film, ways=tuple(WAYS[1 - WAYS.index(way)] for way in film.ways))
    assert video(film) != video(other)
    (text, shown), _ = turns(film, 0)
    (same_text, same), _ = turns(other, 0)
    assert (text, shown) == (same_text, same)
    assert len(set(shown)) == SCENES
    assert probe_video(video(film)) == (112, 112, pytest.approx(SCENES * LONG), SCENES * LONG * RATE)


def test_three_of_four_frames_of_a_clip_show_which_way_its_bars_run() -> None:
    for index in range(6):
        film = make_film(1, "train", index)
        for scene in (film.scene, (film.scene + 1) % SCENES):
            _, (_, shown) = turns(film, scene)
            seen = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int).max(axis=2) for file in shown]
            assert len(seen) == 4
            for frame in seen[1:]:
                down, across = (np.abs(np.diff(frame, axis=axis)).mean() for axis in (0, 1))
                assert (down > 10 * across) == (film.ways[scene] == "across")


@pytest.mark.parametrize("index", range(4))
def test_rows_of_turns_are_what_the_environment_shows(index: int, tmp_path: Path) -> None:
    """An episode over a row of RL, with the call and the answer that rows of pretraining would have of it."""
    (item,) = items(0, "train", index)
    for name, data in item.files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    film = make_film(0, "train", index)
    world = image_tools(tools=("frames",), repeat=True)
    sample = parse_row(item.row, source="toy", media_root=".")
    seen = world.reset(row_task(sample, root=tmp_path, answer_format="answer_only"), 0)
    told = turns(film, film.scene)
    assert (seen.text, seen.screens) == next(told)
    best = world.optimum()
    assert best is not None
    assert (best.reward, best.turns) == (1.0, 2)
    step = world.step(f"<answer>{frames_call(film.scene).text()}</answer>")
    assert step.observation is not None
    assert (step.observation.text, step.observation.screens) == next(told)
    end = world.step(f"<answer>{film.answer}</answer>")
    assert (end.reward, end.outcome) == (1.0, "success")


def test_every_second_look_of_pretraining_goes_anywhere() -> None:
    right = 0
    for index in range(40):
        first, second = items(0, "pretrain", index)
        film = make_film(0, "pretrain", index)
        right += first.row["answer"] == frames_call(film.scene).text()
        assert second.row["answer"] == film.answer
    assert 15 <= right <= 32

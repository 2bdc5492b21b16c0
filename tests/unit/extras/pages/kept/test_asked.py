"""What an evaluation keeps of its questions: pixels without loss, prompts as text with their placeholders counted, each once."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.kept import group, key_of, pixels
from tests.support.pages import ROWS, good, make_run, media, poor, record, sample
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import prompt_ids_hash
from vlmrl.extras.pages.kept.asked import KEPT, PROMPTS, QUESTIONS, SHOWN, keep, keep_pixels, read_lines, written
from vlmrl.extras.pages.kept.media import Medium, most_frames
from vlmrl.extras.pages.kept.record import content_id, record_of
from vlmrl.extras.pages.view.view import View
from vlmrl.types import Prompt

PAD, NEWLINE = 7, 8


def piece(ids: Sequence[int]) -> str:
    return "".join({PAD: "<pad>", NEWLINE: "|"}.get(token, chr(token)) for token in ids)


def prompt(ids: Sequence[int], *spans: tuple[int, int], name: str = "a", shown: Sequence[Any] = ()) -> Prompt:
    handles = tuple(one.handle for one in shown)
    return Prompt(sample=sample(name, "bbox", {}, question=name), ids=tuple(ids), media=handles, spans=spans, answer_format="think")


def keep_all(folder: Path, prompts: Sequence[Prompt], shown: Sequence[Any] = ()) -> None:
    store: Any = SimpleNamespace(get_key={one.handle.key: one for one in shown}.__getitem__)
    keep(folder / "frames", piece, prompts, store)


def test_placeholders_are_counted_and_texts_stay_whole() -> None:
    ids = [*b"See ", *[PAD] * 64, *b", and ", *[PAD] * 3, NEWLINE, *[PAD] * 3, *b" aa?"]
    made = written(prompt(ids, (4, 68), (74, 81)), piece)
    assert made == [("See ", 1), ("<pad>", 64), (", and ", 1), ("<pad>", 3), ("|", 1), ("<pad>", 3), (" aa?", 1)]
    assert "".join(text * count for text, count in made) == piece(ids)
    assert written(prompt([PAD] * 4), piece) == [("<pad><pad><pad><pad>", 1)], "a token of a question is no placeholder"


def test_prompts_are_kept_once_and_only_the_first(tmp_path: Path) -> None:
    some = [prompt([*b"question ", *str(n).encode()], name=str(n)) for n in range(KEPT + 5)]
    keep_all(tmp_path, some)
    files = [tmp_path / "frames" / name for name in (PROMPTS, QUESTIONS)]
    before = [file.read_bytes() for file in files]
    keep_all(tmp_path, some)
    assert [file.read_bytes() for file in files] == before
    other = prompt(b"another format", name="0")
    keep_all(tmp_path, [other])
    found = read_lines(files[0])
    assert len(found) == KEPT + 1
    assert found[prompt_ids_hash(some[0])]["prompt"] == [["question 0", 1]]
    assert found[prompt_ids_hash(other)]["prompt"] == [["another format", 1]]
    assert len(read_lines(files[1])) == KEPT + 5, "of every question its words"
    assert read_lines(tmp_path / PROMPTS) == {}


def test_pixels_of_the_first_questions_are_kept_as_they_were_seen(tmp_path: Path) -> None:
    shown = [pixels(key_of(n), count=3, colour=100 + n) for n in range(SHOWN + 2)]
    keep_all(tmp_path, [prompt(b"x", name=str(n), shown=[one]) for n, one in enumerate(shown)], shown)
    assert sorted(path.stem for path in (tmp_path / "frames" / "media").iterdir()) == sorted(key_of(n) for n in range(SHOWN))
    for one in shown[:SHOWN:5]:
        kept = Medium(tmp_path / "frames" / "media" / f"{one.handle.key}.zip")
        frames = [np.asarray(Image.open(io.BytesIO(kept.frame(n)[0]))) for n in range(3)]
        np.testing.assert_array_equal(frames, one.frames)
        assert kept.frame(0)[1] == "image/png"
    lines = list(read_lines(tmp_path / "frames" / QUESTIONS).values())
    assert [line.get("media") for line in lines[SHOWN - 1 :]] == [[{"key": key_of(SHOWN - 1), "kind": "video"}], None, None]


def test_less_is_kept_of_a_long_video_at_full_size(tmp_path: Path) -> None:
    frames = np.zeros((40, 300, 300, 3), dtype=np.uint8)
    shown = media(frames, video=True)
    keep_pixels(tmp_path, shown)
    kept = Medium(tmp_path / "media" / f"{shown.handle.key}.zip")
    places = kept.info["indices"]
    assert (most_frames(shown), len(kept.frames), kept.info["total"], kept.info["size"]) == (16, 16, 40, [300, 300])
    assert (places[0], places[-1]) == (0, 39)
    assert {b - a for a, b in itertools.pairwise(places)} <= {2, 3}
    assert most_frames(media(np.zeros((3, 2000, 2000, 3), dtype=np.uint8))) == 2


def test_what_was_asked_has_the_content_of_a_kept_group(tmp_path: Path) -> None:
    prompts = [dataclasses.replace(group(1, sample=name, question=name).scored.group.prompt) for name in ("a", "b")]
    for some in (prompts[:1], prompts, prompts):
        keep_all(tmp_path, some)
    found = list(read_lines(tmp_path / "frames" / QUESTIONS).values())
    assert [one["question"] for one in found] == ["a", "b"]
    assert [one["content"] for one in found] == [content_id(prompt.sample, []) for prompt in prompts]
    assert record_of(group(1, sample="other id", question="a"), lambda ids: [""] * len(ids))["content"] == found[0]["content"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *((PROMPTS, line) for line in ("no JSON", '{"hash": "x"}', "3")),
        *((QUESTIONS, line) for line in ("no JSON", '{"hash": "x"}', "[]")),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, line: str) -> None:
    good_line = {"hash": "y", "prompt": [["a", 1]], "content": "c", "question": "q", "gold": "g"}
    (tmp_path / name).write_text(json.dumps(good_line) + "\n" + line + "\n")
    with pytest.raises(StorageError, match=rf"{name}:2: not a kept prompt or question"):
        read_lines(tmp_path / name)


def test_models_that_were_asked_differently_have_prompts_of_their_own(tmp_path: Path) -> None:
    def shown(name: str, prompts: dict[str, str], **change: str) -> list[tuple[str, list[list[Any]]]]:
        rl = [dataclasses.replace(r, **change) for r in good()]
        run = make_run(tmp_path / name, {"base": poor(), "rl": rl})
        lines = [{"hash": one, "prompt": [[text, 1]]} for one, text in prompts.items()]
        (run / "eval" / "frames" / PROMPTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [(one["who"], one["pieces"]) for one in View([run]).document("question/box-1")["prompts"]]

    assert shown("same", {"p": "Where?"}) == [("", [["Where?", 1]])]
    assert shown("none", {}) == []
    assert shown("two", {"p": "Where?", "q": "Where!"}, prompt_ids_hash="q") == [("base", [["Where?", 1]]), ("rl", [["Where!", 1]])]
    assert shown("one", {"q": "Where!"}, prompt_ids_hash="q") == [("rl", [["Where!", 1]])]


def test_imported_answers_without_counts_or_pixels_are_shown(tmp_path: Path) -> None:
    imported = record("box-1", "x", 0.5, n_in=None, n_out=None, finish=None, format_ok=None)
    run = make_run(tmp_path / "run", {"base": [imported]}, frames=False)
    shown = View([run]).document("question/box-1")
    assert (shown["media"], shown["answers"][0]["tokens"], shown["answers"][0]["marks"]) == ([None], None, None)
    assert ROWS["box-1"][0].id == shown["sample"]

"""Prompts that are kept for a report: as text, placeholders counted, once for all stages that ask the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.pages import good, make_run, poor, sample
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import prompt_ids_hash
from vlmrl.extras.pages.prompts import FILE, KEPT, keep_prompts, read_prompts, written
from vlmrl.extras.pages.view.view import View
from vlmrl.types import Prompt

PAD, NEWLINE = 7, 8


def piece(ids: Sequence[int]) -> str:
    return "".join({PAD: "<pad>", NEWLINE: "|"}.get(token, chr(token)) for token in ids)


def prompt(ids: Sequence[int], *spans: tuple[int, int], name: str = "a") -> Prompt:
    return Prompt(sample=sample(name, "bbox", {}), ids=tuple(ids), media=(), spans=spans, answer_format="think")


def test_placeholders_are_counted_and_texts_stay_whole() -> None:
    ids = [*b"See ", *[PAD] * 64, *b", and ", *[PAD] * 3, NEWLINE, *[PAD] * 3, *b" aa?"]
    spans = ((4, 68), (74, 81))
    made = written(prompt(ids, *spans), piece)
    assert made == (("See ", 1), ("<pad>", 64), (", and ", 1), ("<pad>", 3), ("|", 1), ("<pad>", 3), (" aa?", 1))
    assert "".join(text * count for text, count in made) == piece(ids)
    assert written(prompt([PAD] * 4), piece) == (("<pad><pad><pad><pad>", 1),), "a token of a question is no placeholder"


def test_prompts_are_kept_once_and_only_the_first(tmp_path: Path) -> None:
    some = [prompt([*b"question ", *str(n).encode()], name=str(n)) for n in range(KEPT + 5)]
    keep_prompts(tmp_path / "frames", some, piece)
    before = (tmp_path / "frames" / FILE).read_bytes()
    keep_prompts(tmp_path / "frames", some, piece)
    assert (tmp_path / "frames" / FILE).read_bytes() == before
    other = prompt(b"another format", name="0")
    keep_prompts(tmp_path / "frames", [other], piece)
    found = read_prompts(tmp_path / "frames")
    assert len(found) == KEPT + 1
    assert found[prompt_ids_hash(some[0])] == (("question 0", 1),)
    assert found[prompt_ids_hash(other)] == (("another format", 1),)
    assert read_prompts(tmp_path) == {}


@pytest.mark.parametrize("line", ["no JSON", '{"hash": "x"}', '{"hash": "x", "prompt": [["a"]]}', '{"hash": "x", "prompt": [["a", "b"]]}'])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / FILE).write_text('{"hash": "y", "prompt": [["a", 1]]}\n' + line + "\n")
    with pytest.raises(StorageError, match=rf"{FILE}:2: not a kept prompt"):
        read_prompts(tmp_path)


def test_models_that_were_asked_differently_have_prompts_of_their_own(tmp_path: Path) -> None:
    def shown(name: str, prompts: dict[str, str], **change: str) -> list[tuple[str, list[list[str | int]]]]:
        rl = [dataclasses.replace(r, **change) for r in good()]
        run = make_run(tmp_path / name, {"base": poor(), "rl": rl})
        lines = [{"hash": one, "prompt": [[text, 1]]} for one, text in prompts.items()]
        (run / "eval" / "frames" / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [(one["who"], one["pieces"]) for one in View([run]).document("question/box-1")["prompts"]]

    assert shown("same", {"p": "Where\u202e?"}) == [("", [["Where\\u202e?", 1]])]
    assert shown("none", {}) == []
    assert shown("two", {"p": "Where?", "q": "Where!"}, prompt_ids_hash="q") == [("base", [["Where?", 1]]), ("rl", [["Where!", 1]])]
    assert shown("one", {"q": "Where!"}, prompt_ids_hash="q") == [("rl", [["Where!", 1]])]

"""Prompts that are kept for a report: as text, placeholders counted, once for all stages that ask the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from vlmrl.extras.pages.browser import by_sample, model_colours, question

from tests.support.pages import good, poor, sample
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import prompt_ids_hash
from vlmrl.extras.pages.prompts import FILE, KEPT, keep_prompts, read_prompts, written
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


def test_models_that_were_asked_differently_have_prompts_of_their_own() -> None:
    answered = by_sample({"base": poor(), "rl": good()})["box-1"]
    (base,), (rl,) = answered.values()
    same = {base.prompt_ids_hash: (("Where\u202e?", 1),)}

    def shown(prompts, rows=answered):
        return [(p.models, p.pieces) for p in question(0, "box-1", rows, model_colours(list(rows)), None, prompts=prompts).prompts]

    assert base.prompt_ids_hash == rl.prompt_ids_hash
    assert shown(same) == [("", (("Where\\u202e?", 1),))]
    assert shown({}) == []
    other = {"base": [base], "rl": [dataclasses.replace(rl, prompt_ids_hash="q")]}
    assert shown({**same, "q": (("Where!", 1),)}, other) == [("base", (("Where\\u202e?", 1),)), ("rl", (("Where!", 1),))]
    assert shown({"q": (("Where!", 1),)}, other) == [("rl", (("Where!", 1),))]

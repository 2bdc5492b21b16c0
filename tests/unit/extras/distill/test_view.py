"""What the teacher sees: the same files through other settings, proven by hash, with a hint or without; and whose ids are the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import MEDIA, Tiny
from vlmrl.data.encode import Encoder
from vlmrl.errors import DataError
from vlmrl.extras.distill.section import TeacherMediaSection, TeacherSection
from vlmrl.extras.distill.view import SeenRecord, TeacherView, settings_of, vocabulary_problem
from vlmrl.media.store import MediaStore

LARGER = TeacherSection(media=TeacherMediaSection(min_pixels=112 * 112, max_pixels=112 * 112))


def view(tiny: Tiny, teacher: TeacherSection = LARGER, **more: Any) -> TeacherView:
    store = MediaStore.of(settings_of(tiny.store.settings, teacher), tiny.bundle)
    encoder = Encoder.of(tiny.bundle, store, tiny.encoder.data_root, max_prompt_tokens=sys.maxsize)
    return TeacherView(encoder=encoder, store=store, own=tiny.store, hint=teacher.hint, **more)


def test_settings_are_the_runs_where_the_teacher_says_nothing() -> None:
    assert settings_of(MEDIA, TeacherSection()) == MEDIA
    found = settings_of(MEDIA, TeacherSection(media=TeacherMediaSection(max_frames=8, fps=1.0)))
    assert found == dataclasses.replace(MEDIA, max_frames=8, fps=1.0)


def test_more_pixels_of_the_same_file(tiny: Tiny) -> None:
    (prompt,) = tiny.prompts(1)
    seen: list[Any] = []
    made = view(tiny, seen=lambda *sides: seen.append(sides)).of(prompt)
    assert made.sample == prompt.sample
    assert made.media[0].tokens > 2 * prompt.media[0].tokens
    assert len(made.ids) - made.media[0].tokens == len(prompt.ids) - prompt.media[0].tokens
    assert made.media[0].key != prompt.media[0].key
    assert seen == [(prompt, made)]


def test_with_equal_settings_both_see_one_entry(tiny: Tiny) -> None:
    (prompt,) = tiny.prompts(1)
    made = TeacherView(encoder=tiny.encoder, store=tiny.store, own=tiny.store).of(prompt)
    assert (made.ids, made.media) == (prompt.ids, prompt.media)


@pytest.mark.parametrize(("hint", "text"), [("answer", "{answer}"), ("meta.note", "look left")])
def test_a_hint_stands_behind_the_question_and_in_no_record_of_the_row(hint: str, text: str, tiny: Tiny) -> None:
    sample = dataclasses.replace(tiny.samples[0], meta={"note": "look left"})
    prompt = tiny.encoder.encode(sample, "answer_only")
    made = view(tiny, TeacherSection(hint=hint)).of(prompt)
    asked = f"{sample.question}\nHint: {text.format(answer=sample.answer)}"
    assert asked in tiny.bundle.tokenizer.decode(made.ids)
    assert made.sample == sample
    with pytest.raises(DataError, match=rf"row '{sample.id}'.*meta\.other"):
        view(tiny, TeacherSection(hint="meta.other")).of(prompt)


def test_a_file_that_changes_between_both_ends_with_the_rows_name(tiny: Tiny, tmp_path: Path) -> None:
    sample = tiny.samples[0]
    root = tiny.encoder.root(sample)
    for one, name in ((tiny.samples[0], sample.media[0].path), (tiny.samples[1], "other")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / one.media[0].path, target)
    encoder = dataclasses.replace(tiny.encoder, data_root=tmp_path)
    sample = dataclasses.replace(sample, media_root="")
    prompt = encoder.encode(sample, "answer_only")
    teacher = view(tiny)
    teacher.encoder = dataclasses.replace(teacher.encoder, data_root=tmp_path)
    assert teacher.of(prompt)
    (tmp_path / "other").replace(tmp_path / sample.media[0].path)
    with pytest.raises(DataError, match=f"row '{sample.id}'.*another content of {sample.media[0].path}"):
        teacher.of(prompt)


def test_the_record_has_a_line_for_each_row_and_survives_a_torn_one(tiny: Tiny, tmp_path: Path) -> None:
    path, prompts = tmp_path / "teacher" / "seen.jsonl", tiny.prompts(2)
    record = SeenRecord.of(path)
    teacher = view(tiny, seen=record)
    made = [teacher.of(prompt) for prompt in (prompts[0], prompts[1], prompts[0])]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["row"] for line in lines] == [prompt.sample.id for prompt in prompts]
    for line, prompt, other in zip(lines, prompts, made, strict=False):
        assert line["student"] == {"media": [prompt.media[0].key], "tokens": len(prompt.ids)}
        assert line["teacher"] == {"media": [other.media[0].key], "tokens": len(other.ids)}
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = SeenRecord.of(path)
    assert list(again.known) == [prompts[0].sample.id]
    view(tiny, seen=again).of(prompts[1])
    assert path.read_bytes() == whole


class Words:
    def __init__(self, *texts: str):
        self.texts = texts

    def get_vocab(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.texts)}


def test_tokenizers_are_compared_id_by_id() -> None:
    assert vocabulary_problem(Words("a", "b"), Words("a", "b")) is None
    assert "has 2 ids and that of model.path 2; 2 of them differ, the first is 0: 'b' there, 'a' here" in str(
        vocabulary_problem(Words("a", "b"), Words("b", "a"))
    )
    assert "has 3 ids and that of model.path 2; 1 of them differ, the first is 2: 'c' there, None here" in str(
        vocabulary_problem(Words("a", "b"), Words("a", "b", "c"))
    )

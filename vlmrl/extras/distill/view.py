"""What the teacher sees of a row: the same files through other settings, proven by hash, and the hint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vlmrl import fs
from vlmrl.data.encode import Encoder
from vlmrl.errors import DataError
from vlmrl.extras.distill.crop import Crop
from vlmrl.extras.distill.section import TeacherSection
from vlmrl.media.store import MediaSettings, MediaStore, ProcessedMedia
from vlmrl.types import MediaHandle, MediaRef, Prompt, Sample


class Vocabulary(Protocol):
    """What is compared of a tokenizer."""

    def get_vocab(self) -> dict[str, int]: ...


def vocabulary_problem(student: Vocabulary, teacher: Vocabulary) -> str | None:
    """Say in which id two tokenizers differ; None where each id means the same to both."""
    ours, theirs = ({number: text for text, number in one.get_vocab().items()} for one in (student, teacher))
    differ = sorted(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    if not differ:
        return None
    first = differ[0]
    return (
        f"its tokenizer has {len(theirs)} ids and that of model.path {len(ours)}; {len(differ)} of them differ, the first is {first}: "
        f"{theirs.get(first)!r} there, {ours.get(first)!r} here. It has to score the very ids that the policy has sampled: take a teacher "
        "of the same tokenizer"
    )


def settings_of(own: MediaSettings, teacher: TeacherSection) -> MediaSettings:
    """Give the settings under which the teacher sees media."""
    return dataclasses.replace(own, **teacher.media.model_dump(exclude_none=True, exclude={"crop", "margin", "beside"}))


def hint_of(sample: Sample, hint: str | None) -> str:
    """Give what stands behind the question; nothing where there is no hint.

    Raises:
        DataError: the row has no such value.
    """
    if hint is None:
        return ""
    value: Any = sample.meta.get(hint.removeprefix("meta.")) if hint.startswith("meta.") else getattr(sample, hint)
    if hint == "answer" and "environment" in sample.meta:  # of a task, which has none: a word stands in its place
        value = None
    if value is None or value == "":
        raise DataError(f"row '{sample.id}' ({sample.source}): teacher.hint '{hint}', and the row has none; give it one, or leave it out")
    return f"\nHint: {value}"


def hinted(sample: Sample, hint: str | None) -> Sample:
    """Put the hint behind the question.

    Raises:
        DataError: the row has no such value.
    """
    return dataclasses.replace(sample, question=f"{sample.question}{hint_of(sample, hint)}")


@dataclass(frozen=True)
class BothViews:
    """The student's media. Where a file is decoded for them, it is for the teacher's as well."""

    own: MediaStore
    other: MediaStore

    def get(self, ref: MediaRef, root: Path) -> ProcessedMedia:
        """Give a medium as the student's store does."""
        return self.own.get(ref, root, also=self.other)

    def plan(self, ref: MediaRef, root: Path) -> MediaHandle:
        """Plan a medium as the student's store does."""
        return self.own.plan(ref, root)


@dataclass(kw_only=True)
class TeacherView:
    """Prompts as the teacher sees them. `seen` is called with each row's prompts on both sides, once proven."""

    encoder: Encoder
    store: MediaStore
    """Of the teacher: the student's where both see media alike."""
    own: MediaStore
    """Of the student."""
    hint: str | None = None
    crop: Crop | None = None
    """Which part it sees; None: whole media."""
    seen: Callable[[Prompt, Prompt], None] = lambda student, teacher: None

    def of(self, prompt: Prompt) -> Prompt:
        """Make the teacher's prompt of a row that the student was asked.

        Raises:
            DataError: a medium is not the file that the student saw, or the row has no hint or no box; names the row.
            MediaError: a medium cannot be read or decoded.
        """
        asked = hinted(prompt.sample, self.hint)
        made = self.encoder.encode(asked if self.crop is None else self.crop.shown(asked), prompt.answer_format)
        made = dataclasses.replace(made, sample=prompt.sample)
        self.prove(prompt, made)
        self.seen(prompt, made)
        return made

    def prove(self, student: Prompt, teacher: Prompt) -> None:
        """Check that both saw one content. A key is a hash of the file's hash and of the settings: the hash of what the teacher read must
        give the student's key.

        Raises:
            DataError: it does not; names the student's row.
        """
        sample, root = student.sample, self.encoder.root(student.sample)
        shown = list(enumerate(sample.media)) if self.crop is None else self.crop.views(sample)
        if len(sample.media) != len(student.media) or len(shown) != len(teacher.media):
            raise DataError(
                f"row '{sample.id}' ({sample.source}): {len(sample.media)} media in the row, {len(student.media)} seen by the student, "
                f"{len(teacher.media)} by the teacher"
            )
        for (n, ref), other in zip(shown, teacher.media, strict=True):
            digest = self.store.digest(ref, root)
            if digest is None or self.own.key_of(ref, digest) != student.media[n].key or self.store.key_of(ref, digest) != other.key:
                raise DataError(
                    f"row '{sample.id}' ({sample.source}): the teacher was shown another content of {ref.path} than the student; the file "
                    "has changed within the step: put it back, and start the run again, which resumes"
                )


@dataclass(kw_only=True)
class SeenRecord:
    """The record of what both sides saw of each row: a line of JSON when a row, or what is seen of it, is new."""

    path: Path
    known: dict[str, str] = field(default_factory=dict[str, str])
    """Row -> its last line."""

    @staticmethod
    def of(path: Path) -> SeenRecord:
        """Read what an earlier process has written; the rest of a line that it could not end is cut."""
        fs.mkdir(path.parent)
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            fs.truncate(path, len(whole))
        lines = whole.decode("utf-8").splitlines()
        return SeenRecord(path=path, known={json.loads(line)["row"]: line for line in lines})

    def __call__(self, student: Prompt, teacher: Prompt) -> None:
        """Note the media keys and the lengths of a row's two prompts."""
        sides = {"student": student, "teacher": teacher}
        facts = {name: {"media": [handle.key for handle in one.media], "tokens": len(one.ids)} for name, one in sides.items()}
        self.note(student.sample.id, facts)

    def note(self, name: str, facts: dict[str, Any]) -> None:
        """Note what both sides saw of a row, or of a screen of episodes by the name of its file."""
        line = json.dumps({"row": name, **facts}, ensure_ascii=False)
        if self.known.get(name) != line:
            self.known[name] = line
            fs.append(self.path, f"{line}\n".encode())

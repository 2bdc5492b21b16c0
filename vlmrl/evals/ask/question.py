"""One question about a picture or a video, asked as the model was trained (`evals.ask.asking`)."""

from __future__ import annotations

import base64
import html
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.answers.tags import parse
from vlmrl.data.encode import Encoder
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.models import LocalModel, open_store
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.page import PAGES
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.types import GenerationSettings, MediaKind, MediaRef, Prompt, Sample

SMALL = 280
"""Most pixels of height of a picture in a notebook."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """An answer."""

    sample: Sample = field(repr=False)
    """The question as a row; its gold answer is empty."""
    text: str
    """As generated."""
    thought: str | None
    answer: str | None
    """None: the text has no answer block."""
    finish: str
    """`stop`, or `length`: it was cut at `max_new_tokens`."""
    tokens: int
    shown: tuple[ProcessedMedia, ...] = field(repr=False)
    """The media as the model saw them."""

    def _repr_html_(self) -> str:
        """Show in a notebook the first medium small, as the model saw it and with what the answer marks, and the texts below it."""
        texts = {"Thought": self.thought, "Answer": self.answer} if self.answer is not None else {"Without an answer": self.text}
        told = "".join(f"<p><b>{name}:</b> {html.escape(text)}</p>" for name, text in texts.items() if text)
        if not self.shown:
            return told
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "drawn.png")
            PAGES["answer"](file, self.sample, self.shown[0], self.answer)
            picture = base64.b64encode(file.read_bytes()).decode()
        return f'<img src="data:image/png;base64,{picture}" style="max-width: 100%; max-height: {SMALL}px">{told}'


def sample_of(question: str, media: Sequence[tuple[MediaKind, Path]], asking: Asking) -> tuple[Sample, Path]:
    """Make a row without a gold answer of the question.

    Returns:
        (row, folder that its media paths are relative to).

    Raises:
        ConfigError: a file is not there, or there is no question.
    """
    assert asking.answer_type is not None, "settings that went through `chosen`"
    if not question.strip():
        raise ConfigError("the question is empty")
    for _, path in media:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
    places = [path.absolute() for _, path in media]
    # rows name media below one root, and a person gives files from anywhere: their common folder
    root = Path(os.path.commonpath([place.parent for place in places])) if places else Path.cwd()
    sample = Sample(
        id="asked",
        task="asked",
        answer_type=asking.answer_type,
        question=question,
        media=tuple(MediaRef(kind=kind, path=place.relative_to(root).as_posix()) for (kind, _), place in zip(media, places, strict=True)),
        answer="",
        gt={},
        source="the command line",
        meta={} if asking.frame is None else {"frame": asking.frame},
    )
    return sample, root


def asked_task(asking: Asking) -> Task:
    """Make the settings those of a task, for engines and stores. They went through `chosen`."""
    return Task.model_validate(
        {
            "id": "asked",
            "source": "asked",
            "answer_format": asking.answer_format,
            "answer_type": asking.answer_type,
            "max_new_tokens": asking.max_new_tokens,
            "max_prompt_tokens": asking.max_prompt_tokens,
            "media": asking.media,
        }
    )


class QuestionModel:
    """A model on this machine that answers one question at a time. Close it when done."""

    def __init__(self, model: LocalModel, asking: Asking):
        """`asking` went through `chosen`."""
        assert asking.answer_type is not None
        self.asking, self._model = asking, model
        self._task = asked_task(asking)
        self._store: MediaStore = open_store(self._task, model.bundle)
        self._engine = model.engine(self._task, self._store, Path())

    def ask(
        self, question: str, media: Sequence[tuple[MediaKind, Path]], *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Answered:
        """Ask the model a question.

        Args:
            media: kind and file of each, in the order in which they are shown.
            temperature: 0 is greedy.

        Raises:
            ConfigError: a file is not there, or there is no question.
            MediaError, RowError: a medium cannot be decoded, or the prompt is too long.
        """
        sample, root = sample_of(question, media, self.asking)
        prompt = self.prompt(sample, root)
        settings = GenerationSettings(max_new_tokens=self.asking.max_new_tokens, temperature=temperature, top_p=top_p)
        # one prompt, one answer
        ((said,),) = self._engine.generate([prompt], settings, samples=1, seed=seed)
        parsed = parse(said.text, self.asking.answer_format)
        return Answered(
            sample=sample,
            text=said.text,
            thought=parsed.thought,
            answer=parsed.answer,
            finish=said.finish,
            tokens=said.n_out,
            shown=tuple(self._store.get_key(handle.key) for handle in prompt.media),
        )

    def prompt(self, sample: Sample, root: Path) -> Prompt:
        """Make the same ids and pixels that training and evaluation make of such a row."""
        encoder = Encoder.of(
            self._model.bundle, self._store, root, max_prompt_tokens=self.asking.max_prompt_tokens, prompt=self.asking.prompt
        )
        return encoder.encode(sample, self.asking.answer_format)

    def close(self) -> None:
        self._store.close()

"""One question about a picture or a video, asked as the model was trained: media, prompt and answer format of its run's recipe.

The run's `config.yaml` lies beside the checkpoint (`<run>/final`, `<run>/stages/<name>`, `<run>/best/<name>`). For a model that was copied
elsewhere the recipe has to be given; for one that no recipe trained, the defaults hold, and `Asking.notes` says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.config.load import load
from vlmrl.config.schema import Config, MediaSection, StageBase
from vlmrl.data.encode import ANSWER_FORMATS, Encoder
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.models import LocalModel, model_folder, open_store
from vlmrl.evals.ask.tasks import Task
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.registry import nearest
from vlmrl.types import CoordinateFrame, GenerationSettings, MediaKind, MediaRef, Prompt, Sample

DEFAULT_FORMAT = "think"
RECIPE = "config.yaml"
"""A run's recipe with every value, as the run writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """How questions are asked."""

    media: MediaSection
    answer_format: str
    answer_type: str | None
    """None: neither the recipe nor its rows say."""
    frame: CoordinateFrame | None
    """Coordinates of the answers; None where nothing says."""
    max_prompt_tokens: int
    max_new_tokens: int
    notes: tuple[str, ...] = ()
    """Where these settings come from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """An answer."""

    sample: Sample
    """The question as a row; its gold answer is empty."""
    text: str
    """As generated."""
    thought: str | None
    answer: str | None
    """None: the text has no answer block."""
    finish: str
    """`stop`, or `length`: it was cut at `max_new_tokens`."""
    tokens: int
    shown: tuple[ProcessedMedia, ...]
    """The media as the model saw them."""


def recipe_of(checkpoint: Path) -> Path | None:
    """The recipe of the run that a checkpoint lies in; None outside of a run."""
    folder = model_folder(checkpoint)
    for place in (checkpoint, *folder.absolute().parents[:2], *folder.resolve().parents[:2]):
        if (place / RECIPE).is_file() and (place / "run.json").is_file():
            return place / RECIPE
    return None


def asking_of(checkpoint: Path, recipe: str | Path | None = None) -> Asking:
    """How the stage that made a checkpoint asked. With `recipe`, the last stage of that recipe, unless one has the checkpoint's name.

    Raises:
        ConfigError: the recipe has problems, or the checkpoint is no model.
    """
    found = recipe if recipe is not None else recipe_of(checkpoint)
    if found is None:
        note = f"no recipe beside {checkpoint}: media and prompts are those of the defaults; --recipe names another"
        plain = MediaSection()
        return Asking(
            media=plain,
            answer_format=DEFAULT_FORMAT,
            answer_type=None,
            frame=None,
            max_prompt_tokens=8192,
            max_new_tokens=1024,
            notes=(note,),
        )
    cfg = load(found, []).config
    stage = _stage(cfg, model_folder(checkpoint).resolve().name)
    row = _first_row(cfg, stage)
    source: Any = getattr(stage, "source", None)
    meta: Any = row.get("meta")
    given_frame: Any = meta.get("frame") if isinstance(meta, dict) else None
    rollout: Any = getattr(stage, "rollout", None)
    return Asking(
        media=cfg.media,
        answer_format=str(getattr(stage, "answer_format", DEFAULT_FORMAT)),
        answer_type=getattr(source, "answer_type", None) or row.get("answer_type"),
        frame=given_frame or (source.to_frame if getattr(source, "frame", None) is not None else None),
        max_prompt_tokens=cfg.data.max_prompt_tokens,
        max_new_tokens=cfg.eval.max_new_tokens if rollout is None else rollout.max_new_tokens,
        notes=(f"asked as stage '{stage.name}' of {found}",),
    )


def _stage(cfg: Config, name: str) -> StageBase:
    return next((stage for stage in cfg.stages if stage.name == name), cfg.stages[-1])


def _first_row(cfg: Config, stage: StageBase) -> dict[str, Any]:
    """The first row of a stage's JSONL file, if it is on this machine: its type and frame are those of the others as a rule."""
    source: Any = getattr(stage, "source", None)
    path = Path(cfg.data.root).expanduser() / str(getattr(source, "path", ""))
    if path.suffix != ".jsonl" or not path.is_file():
        return {}
    with path.open(encoding="utf-8") as file:
        try:
            row = json.loads(file.readline())
        except ValueError:
            return {}
    return row if isinstance(row, dict) else {}


def chosen(asking: Asking, *, answer_type: str | None, answer_format: str | None, frame: str | None, max_new_tokens: int | None) -> Asking:
    """The settings with what a person gives in place of them.

    Raises:
        ConfigError: a name is unknown, or nothing says of which type the answers are.
    """
    kind = answer_type or asking.answer_type
    if kind is None:
        raise ConfigError(f"--answer-type: nothing says what is asked for; give one of {', '.join(sorted(ANSWER_TYPES))}")
    if kind not in ANSWER_TYPES:
        raise ConfigError(f"--answer-type: unknown '{kind}'{nearest(kind, list(ANSWER_TYPES))} (known: {', '.join(sorted(ANSWER_TYPES))})")
    form = answer_format or asking.answer_format
    if form not in ANSWER_FORMATS:
        raise ConfigError(f"--answer-format: expected one of {', '.join(ANSWER_FORMATS)}, got '{form}'")
    if frame not in (None, "pixel", "norm1", "norm1000"):
        raise ConfigError(f"--frame: expected one of pixel, norm1, norm1000, got '{frame}'")
    return replace(
        asking,
        answer_type=kind,
        answer_format=form,
        frame=frame or asking.frame,
        max_new_tokens=max_new_tokens or asking.max_new_tokens,
    )


def sample_of(question: str, media: Sequence[tuple[MediaKind, Path]], asking: Asking) -> tuple[Sample, Path]:
    """The question as a row without a gold answer, and the folder that its media paths are relative to.

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


class Asker:
    """A model on this machine that answers one question at a time. Close it when done."""

    def __init__(self, model: LocalModel, asking: Asking):
        """`asking` went through `chosen`."""
        assert asking.answer_type is not None
        self.asking, self._model = asking, model
        self._task = Task.model_validate(
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
        self._store: MediaStore = open_store(self._task, model.bundle)
        self._engine = model.engine(self._task, self._store, Path())

    def ask(
        self, question: str, media: Sequence[tuple[MediaKind, Path]], *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Answered:
        """The model's answer.

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
        """The same ids and pixels that training and evaluation make of such a row."""
        encoder = Encoder.of(self._model.bundle, self._store, root, max_prompt_tokens=self.asking.max_prompt_tokens)
        return encoder.encode(sample, self.asking.answer_format)

    def close(self) -> None:
        self._store.close()

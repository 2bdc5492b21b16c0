"""How a checkpoint is asked: media, prompt, answer type and lengths of the stage that made it.

An exported folder says so itself, in its `vlmrl.json`, and keeps saying so when it is copied. For a folder of an earlier version the run's
`config.yaml` beside it is read (`<run>/final`, `<run>/stages/<name>`, `<run>/best/<name>`); for a copy of one the recipe has to be given.
For a model that no recipe trained the defaults hold, and `Asking.notes` says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.config.load import load
from vlmrl.config.schema import OF_THE_MACHINE, Config, MediaSection, StageBase
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.data.wording import prompt_problem
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.evals.ask.models import model_folder
from vlmrl.policy.load import SETTINGS
from vlmrl.registry import nearest
from vlmrl.types import CoordinateFrame, Sample

DEFAULT_FORMAT = "think"
RECIPE = "config.yaml"
"""A run's recipe with every value, as the run writes it."""
FRAMES = ("pixel", "norm1", "norm1000")
ASKED, ORIGIN = "asked", "origin"
"""Keys of an exported folder's `vlmrl.json`: how the model is asked, and which run made it."""


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
    prompt: str | None = None
    """The recipe's wording of the prompt (`data.wording`); None: the question and our sentence."""
    notes: tuple[str, ...] = ()
    """Where these settings come from."""
    answer_types: tuple[str, ...] = ()
    """All types of the rows, most rows first, where they are known."""


def recipe_of(checkpoint: Path) -> Path | None:
    """Find the recipe of the run that a checkpoint lies in; None outside of a run."""
    folder = model_folder(checkpoint)
    # a run's models are one or two folders below it (final, stages/<name>); a link may stand in the run or lead into one
    for place in (checkpoint, *folder.absolute().parents[:2], *folder.resolve().parents[:2]):
        if (place / RECIPE).is_file() and (place / "run.json").is_file():
            return place / RECIPE
    return None


def asked_by(cfg: Config, stage: StageBase, samples: Iterable[Sample]) -> dict[str, Any]:
    """Describe, as JSON, how the model of a folder that a stage exports is asked.

    Args:
        samples: the rows that the stage trained on: their types, most rows first, and the coordinates that they say.

    Returns:
        The value of `asked` in the folder's `vlmrl.json`, which `asking_of` reads.
    """
    types: Counter[str] = Counter()
    frames: Counter[str] = Counter()
    for sample in samples:
        types[sample.answer_type] += 1
        frames[str(sample.meta.get("frame") or "")] += 1
    asking = _of_stage(cfg, stage, answer_type=None, frame=None)
    # what most rows say; '' where most say nothing
    common = frames.most_common(1)[0][0] if frames else ""
    names = [name for name, _ in types.most_common()]
    own = {} if asking.prompt is None else {"prompt": asking.prompt}
    return own | {
        "media": asking.media.model_dump(mode="json", exclude=set(OF_THE_MACHINE)),
        "answer_format": asking.answer_format,
        "answer_types": names,
        "instructions": {name: instruction(asking.answer_format, name) for name in names},
        "frame": common or asking.frame,
        "max_prompt_tokens": asking.max_prompt_tokens,
        "max_new_tokens": asking.max_new_tokens,
    }


def saved_settings(folder: Path) -> Mapping[str, Any]:
    """Read the content of a model folder's `vlmrl.json`; empty where it has none.

    Raises:
        CheckpointError: it is damaged.
    """
    file = folder / SETTINGS
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file}: not JSON: {error}; restore it from the run, or remove it and give --recipe") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected an object, got {type(value).__name__}; restore it from the run")
    return value


def asking_of(checkpoint: Path, recipe: str | Path | None = None) -> Asking:
    """Find how the stage that made a checkpoint asked: as its folder says, else the recipe of its run. With `recipe`, the last stage of
    that recipe, unless one has the checkpoint's name.

    Raises:
        ConfigError: the recipe has problems, or the checkpoint is no model.
        CheckpointError: the folder's `vlmrl.json` is damaged.
    """
    folder = model_folder(checkpoint)
    saved = saved_settings(folder)
    # the folder's own word stays true when the folder is copied; a recipe that is named goes before it
    if recipe is None and saved.get(ASKED) is not None:
        return _saved(folder / SETTINGS, saved)
    found = recipe if recipe is not None else recipe_of(checkpoint)
    if found is None:
        note = f"no recipe beside {checkpoint}: media and prompts are those of the defaults; --recipe names another"
        return Asking(
            media=MediaSection(),
            answer_format=DEFAULT_FORMAT,
            answer_type=None,
            frame=None,
            max_prompt_tokens=8192,
            max_new_tokens=1024,
            notes=(note,),
        )
    cfg = load(found, []).config
    stage = _stage(cfg, folder.resolve().name)
    row = _first_row(cfg, stage)
    meta: Any = row.get("meta")
    asking = _of_stage(cfg, stage, answer_type=row.get("answer_type"), frame=meta.get("frame") if isinstance(meta, dict) else None)
    return replace(asking, notes=(f"asked as stage '{stage.name}' of {found}",))


def _of_stage(cfg: Config, stage: StageBase, *, answer_type: str | None, frame: Any) -> Asking:
    """`answer_type` and `frame` are those of the stage's rows, where one was read."""
    source, rollout = stage.source, getattr(stage, "rollout", None)
    return Asking(
        media=cfg.media.of_task(),
        answer_format=stage.answer_format,
        answer_type=source.answer_type or answer_type,
        frame=frame or (source.to_frame if source.frame is not None else None),
        max_prompt_tokens=cfg.data.max_prompt_tokens,
        max_new_tokens=cfg.eval.max_new_tokens if rollout is None else rollout.max_new_tokens,
        prompt=cfg.data.prompt,
    )


def _saved(file: Path, saved: Mapping[str, Any]) -> Asking:
    """What `asked_by` wrote.

    Raises:
        CheckpointError: it is not what this version writes.
    """
    try:
        asked, types = saved[ASKED], tuple(saved[ASKED]["answer_types"])
        # folders of stages without a wording of their own have no such key
        prompt = asked.get("prompt")
        if prompt is not None and (problem := prompt_problem(prompt)) is not None:
            raise ValueError(f"prompt: {problem}")
        origin = saved.get(ORIGIN, {})
        notes = [f"asked as stage '{origin.get('stage')}' of run '{origin.get('run')}'"]
        if len(types) > 1:
            notes.append(f"its rows have answers of the types {', '.join(types)}: '{types[0]}' is asked for; --answer-type takes another")
        return Asking(
            media=MediaSection.model_validate(asked["media"]),
            answer_format=asked["answer_format"],
            answer_type=types[0] if types else None,
            frame=asked["frame"],
            max_prompt_tokens=asked["max_prompt_tokens"],
            max_new_tokens=asked["max_new_tokens"],
            prompt=prompt,
            notes=tuple(notes),
            answer_types=types,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: '{ASKED}' is not as this version writes it ({type(error).__name__}: {error}); restore it from the "
            "run, or give --recipe"
        ) from error


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
    """Put what a person gives in place of the settings.

    Raises:
        ConfigError: a name is unknown, or nothing says of which type the answers are.
    """
    kind = answer_type or asking.answer_type
    if kind is None:
        raise ConfigError(f"answer_type (--answer-type): nothing says what is asked for; give one of {', '.join(sorted(ANSWER_TYPES))}")
    if kind not in ANSWER_TYPES:
        like = nearest(kind, list(ANSWER_TYPES))
        raise ConfigError(f"answer_type (--answer-type): unknown '{kind}'{like} (known: {', '.join(sorted(ANSWER_TYPES))})")
    form = answer_format or asking.answer_format
    if form not in ANSWER_FORMATS:
        raise ConfigError(f"answer_format (--answer-format): expected one of {', '.join(ANSWER_FORMATS)}, got '{form}'")
    if frame is not None and frame not in FRAMES:
        raise ConfigError(f"frame (--frame): expected one of {', '.join(FRAMES)}, got '{frame}'")
    return replace(
        asking,
        answer_type=kind,
        answer_format=form,
        frame=frame or asking.frame,
        max_new_tokens=max_new_tokens or asking.max_new_tokens,
    )


def name_of(checkpoint: Path) -> str:
    """Name a checkpoint: by its run, else by its folder.

    Raises:
        ConfigError: it is no model.
        CheckpointError: its `vlmrl.json` is damaged.
    """
    folder = model_folder(checkpoint)
    run = saved_settings(folder).get(ORIGIN, {}).get("run")
    return str(run) if run else folder.resolve().name

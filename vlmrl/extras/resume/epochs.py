"""Stages that end after so many epochs (`epochs`), as steps.

A run knows steps alone: schedules, checkpoints and what may change at a resume go by them. So epochs are counted once per start, before
the run is opened. The resolved recipe has the steps, and a start that counts others is one with other steps (`extras.resume.steps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmrl.config.load import ResolvedRecipe
from vlmrl.config.load import loaded as loaded_of
from vlmrl.config.schema import Config, RolloutStage, SourceSection, StageBase
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.raw import count_rows
from vlmrl.data.source import read_source
from vlmrl.errors import ConfigError
from vlmrl.run.rows import LARGE


def as_steps(loaded: ResolvedRecipe, root: Path, say: Callable[[str], None]) -> ResolvedRecipe:
    """The recipe with steps in place of epochs, each said.

    Args:
        root: folder of the data, after `toy` has been replaced by what it generated.

    Raises:
        ConfigError: a stage of a plug-in does not say how many rows a step takes.
        DataError: the rows of a stage cannot be read.
    """
    stages: list[StageBase] = []
    for stage in loaded.config.stages:
        if stage.epochs is not None:
            rows, taken = rows_of(loaded.config, stage.source, root), rows_per_step(stage)
            steps = math.ceil(stage.epochs * rows / taken)
            say(f"stage '{stage.name}': {stage.epochs:g} epochs of {rows} rows, {taken} a step: {steps} steps")
            stage = stage.model_copy(update={"steps": steps, "epochs": None})
        stages.append(stage)
    made = loaded_of(loaded.config.model_copy(update={"stages": tuple(stages)}))
    return replace(loaded, config=made.config, text=made.text, hash=made.hash)


def rows_per_step(stage: StageBase) -> int:
    """Rows that a step takes: prompts where it generates, else its batch.

    Raises:
        ConfigError: the stage has neither.
    """
    if isinstance(stage, RolloutStage):
        return stage.rollout.prompts_per_step
    batch: Any = getattr(stage, "batch", None)
    if not isinstance(batch, int):
        raise ConfigError(
            f"stages.{stage.name}.epochs: a stage of kind '{stage.kind}' has no `batch` that says its rows per step; give steps"
        )
    return batch


def rows_of(cfg: Config, source: SourceSection, root: Path) -> int:
    """Rows of a source as they are read: without bad and repeated ones, and with a row for each turn where turns are split. What the audit
    of media leaves out later counts. Sources of more than `LARGE` rows are counted without reading them, unless turns are split.

    Raises:
        DataError: it cannot be read.
    """
    path = root / source.path
    count = count_rows(path)
    if count > LARGE and source.turns != "split":
        return count
    options = ImportOptions.of(source, root)
    return len(read_source(path, media_root=source.media_root, dedupe=cfg.data.dedupe, options=options).samples)

"""How a recipe says that rows of other trainers are read."""

from __future__ import annotations

from pathlib import Path

from vlmrl.config.schema import SourceSection
from vlmrl.data.adapters import ImportOptions


def import_options(source: SourceSection, root: Path) -> ImportOptions:
    """How rows of other trainers in this source become ours. `root` is the folder that `media_root` is relative to."""
    return ImportOptions(
        adapter=source.adapter,
        answer_type=source.answer_type,
        task=source.task,
        frame=source.frame,
        axis=source.axis,
        to_frame=source.to_frame,
        time_unit=source.time_unit,
        time_fps=source.time_fps,
        instructions=source.instructions,
        turns=source.turns,
        columns=source.columns,
        media_dir=root / source.media_root,
        media_folder=source.media_folder,
        frames_fps=source.frames_fps,
    )

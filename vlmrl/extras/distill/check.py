"""What `vlmrl check` says of a stage with a teacher: the tokens that each side will see, and what the teacher costs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from vlmrl.config.schema import Config
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.encode import Encoder
from vlmrl.data.source import read_source
from vlmrl.errors import ConfigError, DataError, MediaError, RowError
from vlmrl.extras.distill.crop import Crop, store_of
from vlmrl.extras.distill.section import OFF, START, DistillSection, Taught
from vlmrl.extras.distill.stage import encoder_of, refused, teacher_bundle
from vlmrl.extras.distill.view import hint_of, hinted, settings_of
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_processor
from vlmrl.run.audit_report import AuditReport
from vlmrl.run.media import media_settings, open_media
from vlmrl.types import Sample

ROWS = 200
"""Rows whose prompts are planned, from headers of their media."""


def check_sides(report: AuditReport, cfg: Config, model: str, data: Path) -> None:
    """Add to a report what is wrong with the stages that distill, and what both sides will see.

    Args:
        model: folder or hub id of the student.
        data: folder that sources are relative to.
    """
    for stage in cfg.stages:
        if not isinstance(stage, Taught):
            continue
        report.problems += refused(cfg, stage)
        bundle = load_processor(model, revision=cfg.model.revision, family=cfg.model.family, max_tiles=cfg.media.max_tiles)
        store, student = open_media(cfg, bundle, data)
        try:
            if not stage.teacher.at_hand and not stage.teacher.served:
                bundle = teacher_bundle(stage.teacher, bundle)
            other = store_of(settings_of(media_settings(cfg), stage.teacher), bundle, Crop.of(stage.teacher.media))
            teacher = encoder_of(bundle, other, data, cfg)
            said = _told(cfg, stage, student, teacher, data) if stage.environment is None else _screens(cfg, stage, store, other, data)
            report.notes.append(f"stage '{stage.name}': {said}")
            store.close()
            other.close()
        except (ConfigError, DataError) as error:
            report.problems.append(f"stage '{stage.name}': {error}")


def _told(cfg: Config, stage: Taught, student: Encoder, teacher: Encoder, data: Path) -> str:
    """Write the line of a stage.

    Raises:
        DataError: a row has no hint, or rows cannot be shown as a crop.
    """
    crop = Crop.of(stage.teacher.media)
    if crop is not None:
        crop.check(_rows(cfg, stage, data, None))
    shown = [(sample, pair) for sample in _rows(cfg, stage, data) if (pair := _lengths(sample, stage, student, teacher)) is not None]
    if not shown:
        return "no row can be shown to both sides; the table says why"
    own, seen = ([pair[side] for _, pair in shown] for side in (0, 1))
    means = [sum(lengths) / len(shown) for lengths in (own, seen)]
    rollout = stage.rollout
    answers = rollout.prompts_per_step * rollout.num_generations * rollout.max_new_tokens
    once = [round(rollout.prompts_per_step * mean) + answers for mean in means]
    does = "reads" if isinstance(stage, DistillSection) else "reads and writes"
    said = (
        f"a prompt has {means[0]:.0f} tokens for the policy (at most {max(own)}) and {means[1]:.0f} for the teacher (at most {max(seen)}), "
        f"by the first {len(shown)} rows; the teacher {does} up to {once[1]} tokens in a step, forward alone, and the policy trains on "
        f"up to {once[0]}"
    )
    if stage.teacher.served:
        said += f"; a server of the teacher needs room for {max(seen) + rollout.max_new_tokens} tokens (--max-model-len)"
    if not stage.teacher.sees_more and stage.teacher.weights in (START, OFF):
        return f"{said}; it sees nothing else than the policy, which it is"
    pixels = sum(sample.meta.get("frame") == "pixel" for sample, _ in shown)
    if pixels and stage.teacher.media.resizes:
        said += (
            f"; {pixels} of them have coordinates in pixels, and a model that writes pixels of what it sees means another place with other "
            "sizes: give them as shares (to_frame: norm1000)"
        )
    return said


def _screens(cfg: Config, stage: Taught, student: MediaStore, teacher: MediaStore, data: Path) -> str:
    """Write the line of a stage whose rows are tasks: their screens are not there yet.

    Raises:
        DataError: a task has no hint.
    """
    for sample in _rows(cfg, stage, data):
        hint_of(sample, stage.teacher.hint)
    said = "the teacher reads every turn of an episode once more, forward alone"
    if student.argue is None and teacher.argue is None:
        most = [store.settings.max_pixels // store.factor**2 for store in (student, teacher)]
        said += f"; a screen has at most {most[0]} tokens for the policy and {most[1]} for the teacher"
    return said


def _rows(cfg: Config, stage: Taught, data: Path, most: int | None = ROWS) -> list[Sample]:
    """Read the first rows of a stage; None: all."""
    source, options = stage.source, ImportOptions.of(stage.source, data)
    read = read_source(data / source.path, media_root=source.media_root, dedupe=cfg.data.dedupe, options=options)
    return list(islice(read.samples, most))


def _lengths(sample: Sample, stage: Taught, student: Encoder, teacher: Encoder) -> tuple[int, int] | None:
    """Plan both prompts of a row; None for one that the audit leaves out."""
    try:
        own = len(student.plan(sample, stage.answer_format).ids)
        asked, crop = hinted(sample, stage.teacher.hint), Crop.of(stage.teacher.media)
        return own, len(teacher.plan(asked if crop is None else crop.shown(asked), stage.answer_format).ids)
    except (MediaError, RowError):
        return None

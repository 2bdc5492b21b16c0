"""Makes a recipe from rows: what is found in them, the model, held-out rows, and the check of all that before it is kept."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, DataError, VlmrlError
from vlmrl.extras.starter.found import Found, find
from vlmrl.extras.starter.look import opened
from vlmrl.extras.starter.models import find_model
from vlmrl.extras.starter.recipe import Filled, new_file, task_of, write
from vlmrl.extras.starter.split import HELD_OUT, PICTURES, TRAIN, Split, split, wanted

CHECKED = 200
"""Rows of each source that are checked here; `vlmrl check` reads all."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says."""

    name: str
    data: str
    """Path of a source; `~` is the home folder."""
    model: str | None = None
    media_root: Path | None = None
    settings: Sequence[str] = ()
    """`KEY=VALUE` of the source."""
    task: str | None = None
    eval_data: str | None = None
    held_out: int | None = None


@dataclass(kw_only=True)
class _Parts:
    """The sources of a recipe."""

    train: Found
    source: list[str]
    """Lines of the stage's source."""
    held_out: list[str]
    """Lines of the section `eval`."""
    rows: dict[str, int]
    """Path of each source -> its rows."""
    told: list[str]
    """Lines for the terminal."""


def recipe_of_rows(asked: Asked) -> Iterator[str]:
    """Write NAME.yaml, and NAME-rows where rows are split or hold their media; both are taken away again if the check finds a problem.

    Yields:
        What was found, in lines for the terminal.

    Raises:
        ConfigError: the rows leave a choice, the model is not here, or a file is there already.
        DataError: rows cannot be used.
    """
    file, folder = Path(f"{asked.name}.yaml"), Path(f"{asked.name}-rows")
    new_file(file, asked.name)
    if asked.task is not None:
        task_of(asked.task)
    if folder.exists():
        raise ConfigError(f"{folder} is there already and is not overwritten; give another name, or move it away")
    model, how = find_model(asked.model)  # at once: reading rows may take minutes
    kept = False
    try:
        parts = _parts(asked, folder)
        found = parts.train
        shown = [f"Written by vlmrl new from {asked.data}: {found.total:,} rows. What was seen stands above each setting of the source."]
        filled = Filled(
            kind=found.kind,
            shown=shown,
            model=model,
            found=how,
            root=".",
            media=found.media,
            source=parts.source,
            held_out=parts.held_out,
        )
        write(file, asked.name, filled)
        yield from parts.told
        yield from _checked(file, parts.rows)
        kept = True
    finally:
        if not kept:
            file.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
    yield f"{file}: written; next: vlmrl check {file} --html rows.html, which reads all rows and draws them; then vlmrl train {file}"


def _parts(asked: Asked, folder: Path) -> _Parts:
    """Look at the rows, and at those that are held out or hold some out."""
    given, data = _given(asked), Path(asked.data)
    with opened(data) as look:
        found = find(look, given, media_root=asked.media_root, task=asked.task)
    media = _media(found, folder)
    source, told = found.lines(asked.data, media), [f"{asked.data}:", *found.told(asked.data, media)]
    rows = {asked.data: found.total}
    if asked.eval_data is not None:
        if asked.held_out:
            raise ConfigError("--held-out: rows are held out of --data where there is no --eval; give one of them")
        with opened(Path(asked.eval_data)) as other:
            held = _like(found, other, given, asked)
        paths = (asked.eval_data, _media(held, folder))
        return _Parts(
            train=found,
            source=source,
            held_out=_eval(found, held.lines(*paths)),
            rows={**rows, asked.eval_data: held.total},
            told=[*told, f"{asked.eval_data}, held out:", *held.told(*paths)],
        )
    count = wanted(found.total, asked.held_out)
    done = split(data, count, folder, found.settings, found.media_dir) if count else None
    if done is None:
        why = "no rows are held out, as asked for" if asked.held_out == 0 else _none(found, count)
        note = [f"# {why}; without any the report has no table: --eval FILE, or here", "# eval: {source: {path: ...}}"]
        return _Parts(train=found, source=source, held_out=note, rows=rows, told=[*told, f"{why}; --eval FILE gives them"])
    media.pop("media_folder", None)  # what stood in the rows has been written
    found.notes.pop("media_folder", None)
    train, held_out = f"{folder}/{TRAIN}", f"{folder}/{HELD_OUT}"
    note = _told(done, asked.data)
    found.notes["path"] += f"; {note}"
    lines = [line for line in found.lines(held_out, media) if not line.startswith("#")]
    return _Parts(
        train=found,
        source=found.lines(train, media),
        held_out=[f"# {done.held_out} rows, asked before training and after each stage", *_eval(found, lines)],
        rows={train: done.train, held_out: done.held_out},
        told=[*told, note],
    )


def _given(asked: Asked) -> dict[str, Any]:
    """Settings of the source, checked as those of a recipe."""
    if not asked.settings:
        return {}
    from vlmrl.run.check_rows import rows_config

    source = rows_config(Path(asked.data), asked.settings, media_root=None, model=None).stages[0].source
    fixed = {"path", "media_root", "media_folder"} & {setting.partition("=")[0] for setting in asked.settings}
    if fixed:
        raise ConfigError(f"{min(fixed)}: give --data and --media-root; pictures that stand in rows are written to NAME-rows/{PICTURES}")
    return {key: getattr(source, key) for key in source.model_fields_set if key != "path"}


def _like(found: Found, other: Any, given: dict[str, Any], asked: Asked) -> Found:
    """Held-out rows of their own: read as those of training are, else as they are themselves."""
    try:
        return find(other, found.settings, media_root=asked.media_root)
    except VlmrlError:
        return find(other, given, media_root=None, task=asked.task)


def _media(found: Found, folder: Path) -> dict[str, str]:
    """`media_root` and `media_folder` of the source."""
    if found.held:
        return {"media_root": ".", "media_folder": f"{folder}/{PICTURES}"}
    if found.media_dir is None:
        return {}
    below = os.path.relpath(found.media_dir.absolute(), Path(".").absolute())
    return {"media_root": found.media_dir.absolute().as_posix() if below.startswith("..") else Path(below).as_posix()}


def _eval(found: Found, source: Sequence[str]) -> list[str]:
    """The section `eval`."""
    return ["eval:", "  source:", *(f"    {line}" for line in source), f"  max_new_tokens: {found.kind.new_tokens}"]


def _none(found: Found, count: int) -> str:
    if not count:
        return f"no rows are held out, since {found.total} are few (--held-out N takes some)"
    return f"no rows are held out, since too many share their media and questions to take {count} apart"


def _told(done: Split, data: str) -> str:
    left = f", {done.left_out} that cannot be read are left out" if done.left_out else ""
    return f"split of {data}: {done.train} to train on, {done.held_out} held out, {done.by}{left}"


def _checked(file: Path, rows: dict[str, int]) -> Iterator[str]:
    """The data part of `vlmrl check`, on some rows.

    Raises:
        DataError: with its problems.
    """
    from vlmrl.config.load import load
    from vlmrl.methods import method_problems
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.audit import audit
    from vlmrl.run.ui import Ui

    cfg = load(str(file), [], also=method_problems).config

    def some(source: Any) -> Any:
        return source.model_copy(update={"path": f"{source.path}#{CHECKED}"}) if rows[source.path] > CHECKED else source

    stages = tuple(stage.model_copy(update={"source": some(stage.source)}) for stage in cfg.stages)
    held = cfg.eval if cfg.eval.source is None else cfg.eval.model_copy(update={"source": some(cfg.eval.source)})
    quiet_transformers()
    ui = Ui()
    report = audit(cfg.model_copy(update={"stages": stages, "eval": held}), model=cfg.model.path, data=Path(cfg.data.root), ui=ui)
    ui.show(report.table())
    if report.problems:
        raise DataError("\n".join(report.problems))
    good, left = sum(source.good for source in report.sources), Counter[str]()
    for source in report.sources:
        left.update(source.reasons)
    out = "all can be used" if not left else f"{good} can be used, left out: " + ", ".join(f"{count} {why}" for why, count in left.items())
    yield f"checked: {report.rows} of {sum(rows.values())} rows, with their media, prompts and gold answers; {out}"

"""Writes a recipe: one form (`recipe.yaml`) and what a task or rows fill in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import ConfigError
from vlmrl.extras.starter.tasks import KINDS, MEDIA, TASKS, Kind, Medium, Task

FORM = Path(__file__).parent / "recipe.yaml"
COLUMN = 33
"""Where values end, before the comments behind them."""
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"
"""Model of a starter, where none is given."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What stands in the form. Texts of several lines are lists; each line is YAML or a comment."""

    kind: Kind
    shown: Sequence[str]
    """Comments below the head: an example of a row, or what was found in the rows."""
    model: str
    found: str
    """Comment of the model."""
    root: str
    media: Sequence[Medium]
    source: Sequence[str]
    held_out: Sequence[str]
    """Lines of the section `eval`, or a comment in its place."""
    prompt_tokens: int = 8192
    form: Path = FORM


def write(file: Path, name: str, filled: Filled) -> None:
    """Fill the form in and write it."""
    lines: dict[str, Sequence[str]] = {
        "SHOWN": [f"# {line}".rstrip() for line in filled.shown],
        "MEDIA": [line for medium in filled.media for line in MEDIA[medium]] or ["{}"],
        "SOURCE": filled.source,
        "REWARDS": [f"- {reward}" for reward in filled.kind.rewards],
        "EVAL": filled.held_out,
    }
    words = {
        "ABOUT": filled.kind.about,
        "FILE": file.as_posix(),
        "NAME": name,
        "MODEL": scalar(filled.model),
        "FOUND": filled.found,
        "ROOT": scalar(filled.root),
        "PROMPT": str(filled.prompt_tokens),
        "ANSWER": str(filled.kind.new_tokens),
    }
    # Words first: what a line says may look like a mark.
    form = re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], filled.form.read_text(encoding="utf-8"))
    text = re.sub(r"^( *)<([A-Z]+)>$", lambda found: "\n".join(f"{found[1]}{line}" for line in lines[found[2]]), form, flags=re.M)
    fs.write_text(file, re.sub(r"^( *[^#\s][^#\n]*?) +(# .*)$", _aligned, text, flags=re.M))


def _aligned(line: re.Match[str]) -> str:
    """A comment behind a value in the column of the others."""
    return line[0] if line[1].count('"') % 2 else f"{line[1]:{COLUMN}}  {line[2]}"


def write_starter(
    file: Path, name: str, *, task: str, model: str = MODEL, found: str = "a folder, or a hub id", media_root: Path | None = None
) -> None:
    """Write the starter of a task, for rows that are still to be written: `train.jsonl` in the working folder.

    Args:
        found: comment of the model.
        media_root: folder of the media. None: that of the rows.

    Raises:
        ConfigError: the name cannot be that of a run, the task has no starter, the folder is not there, or `file` is.
    """
    new_file(file, name)
    chosen = task_of(task)
    if media_root is not None and not media_root.is_dir():
        raise ConfigError(f"--media-root: no folder {media_root}")
    media = scalar("." if media_root is None else media_root.absolute().as_posix())
    one, *more = chosen.row
    shown = [
        "A row of the data, one JSON object per line. Rows of TRL, verl, EasyR1, ms-swift and others are recognised by their keys",
        f"(docs/data.md), and vlmrl new {name} --data FILE writes this recipe from rows that are there.",
        f"  {one}",
        *(f"  {line}" for line in more),
    ]
    source = [
        "path: train.jsonl            # below data.root",
        f"media_root: {media}                # folder that the paths of the media are relative to",
        f"# answer_type: {KINDS[chosen.kind].answer_type}        # for rows of other trainers that do not say it",
    ]
    held_out = [
        "# Held-out rows, asked before and after; without them the report has no table.",
        f"# eval: {{source: {{path: test.jsonl, media_root: {media}}}, max_new_tokens: {KINDS[chosen.kind].new_tokens}}}",
    ]
    filled = Filled(
        kind=KINDS[chosen.kind],
        shown=shown,
        model=model,
        found=found,
        root=".",
        media=[chosen.medium],
        source=source,
        held_out=held_out,
        prompt_tokens=chosen.prompt_tokens,
        form=FORM.with_name(chosen.form),
    )
    write(file, name, filled)


def new_file(file: Path, name: str) -> None:
    """
    Raises:
        ConfigError: the name cannot be that of a run, or the file is there.
    """
    from vlmrl.config.names import stage_problem

    problem = stage_problem(name)
    if problem is not None:
        raise ConfigError(f"NAME: {problem}")
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already and is not overwritten; give another name, or move it away")


def task_of(name: str) -> Task:
    """The starter of that name.

    Raises:
        ConfigError: there is none.
    """
    from vlmrl.registry import nearest

    if name not in TASKS:
        raise ConfigError(f"--task: no starter for '{name}'{nearest(name, list(TASKS))} (there are: {', '.join(TASKS)})")
    return TASKS[name]


def scalar(text: str) -> str:
    """A text as YAML: plain where that is safe in the middle of a line, else quoted as JSON, which YAML reads alike."""
    return text if re.fullmatch(r"[A-Za-z_./][\w./-]*", text) and text not in ("true", "false", "null") else json.dumps(text)

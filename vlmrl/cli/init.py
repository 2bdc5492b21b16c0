"""The command `init`: a recipe of one's own, with comments, from one of the package's starters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from vlmrl import fs
from vlmrl.errors import ConfigError

STARTERS = Path(__file__).parents[1] / "config" / "starters"
"""A recipe per task, with `@NAME@`, `@FILE@`, `@MODEL@`, `@ROOT@`, `@ROWS@` and `@MEDIA@` for what the command fills in."""
MODEL = "Qwen/Qwen2.5-VL-3B-Instruct"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    name: Annotated[str, typer.Argument(help="Name of the run; the recipe is NAME.yaml here", show_default=False)],
    task: Annotated[str, typer.Option(help="grounding, video_qa, gui or maths")] = "grounding",
    model: Annotated[str, typer.Option(help="Folder or hub id of the model")] = MODEL,
    data: Annotated[Path | None, typer.Option(help="File of rows; train.jsonl here, if not given", show_default=False)] = None,
    media_root: Annotated[Path | None, typer.Option(help="Folder of the media, if not that of the rows", show_default=False)] = None,
) -> None:
    """Write a recipe of your own, with comments. A file that is there is never overwritten.

    Example: vlmrl init mine --task video_qa --data rows/train.jsonl --media-root videos
    """
    file = Path(f"{name}.yaml")
    write_starter(file, name, task=task, model=model, data=data, media_root=media_root)
    typer.echo(f"{file}: written; next: vlmrl check {file}")


def starters() -> list[str]:
    """Tasks that there is a starter for."""
    return sorted(path.stem for path in STARTERS.glob("*.yaml"))


def write_starter(
    file: Path, name: str, *, task: str, model: str = MODEL, data: Path | None = None, media_root: Path | None = None
) -> None:
    """Fill in a starter and write it.

    Args:
        data: file of rows; its folder becomes `data.root`. None: `train.jsonl` in the working folder.
        media_root: folder of the media. None: that of the rows.

    Raises:
        ConfigError: the name cannot be that of a run, the task has no starter, a folder or file is not there, or `file` is.
    """
    from vlmrl.config.names import stage_problem
    from vlmrl.registry import nearest

    problem = stage_problem(name)
    if problem is not None:
        raise ConfigError(f"NAME: {problem}")
    if task not in starters():
        raise ConfigError(f"--task: no starter for '{task}'{nearest(task, starters())} (there are: {', '.join(starters())})")
    if data is not None and not data.exists():
        raise ConfigError(f"--data: no file {data}")
    if media_root is not None and not media_root.is_dir():
        raise ConfigError(f"--media-root: no folder {media_root}")
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already and is not overwritten; give another name, or move it away")
    values = {
        "NAME": name,
        "FILE": file.as_posix(),
        "MODEL": _scalar(model),
        "ROOT": _scalar("." if data is None else data.parent.as_posix()),
        "ROWS": _scalar("train.jsonl" if data is None else data.name),
        "MEDIA": _scalar("." if media_root is None else media_root.absolute().as_posix()),
    }
    text = (STARTERS / f"{task}.yaml").read_text(encoding="utf-8")
    fs.write_text(file, re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text))


def _scalar(text: str) -> str:
    """A text as YAML: plain where that is safe in the middle of a line, else quoted as JSON, which YAML reads alike."""
    return text if re.fullmatch(r"[A-Za-z_./][\w./-]*", text) and text not in ("true", "false", "null") else json.dumps(text)

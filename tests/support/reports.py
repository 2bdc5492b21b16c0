"""Reports of `vlmrl check` as the kit writes them, with what a test wants them to say."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.extras.families import verdict
from vlmrl.extras.families.conform.run import NOT_RUN, Report, tried_with

HERE = {name: verdict.installed(name) for name in ("transformers", "torch")}


def written(
    folder: Path,
    *,
    red: Collection[str] = (),
    without: Collection[str] = (),
    layouts: Sequence[str] = ("repeat",),
    versions: dict[str, str] | None = None,
    model_type: str = "internvl",
    keys: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> Path:
    """The folder, with a report in which the promises `red` are not kept, and `without` some. `keys`: values of keys as they are to stand
    in the file. `engine`: its promises were tried too."""
    plain = Report(name="m", facts={"model_type": model_type}, versions=versions or HERE, float64=True, checks=(), seconds={})
    body: dict[str, Any] = plain.json() | {"layouts": list(layouts)}
    tried = tried_with(engine)
    body["promises"] = {key: {"kept": key not in red, "about": about} for key, (about, _, _) in tried.items() if key not in without}
    body["promises"] |= {key: {"kept": None, "about": why} for key, why in NOT_RUN.items() if key not in tried}
    if engine is not None and versions is None:
        body["versions"] = HERE | {engine: verdict.installed(engine)}
    folder.mkdir(exist_ok=True)
    (folder / verdict.REPORT).write_text(json.dumps(body | dict(keys or {})))
    return folder

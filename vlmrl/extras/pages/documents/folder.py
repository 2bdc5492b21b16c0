"""What a folder holds to look at: runs, evaluations, comparisons and data checks, and which runs are seeds of one recipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.evals.score.recipes import method_of
from vlmrl.extras.pages.documents.run import primary_of, where
from vlmrl.extras.pages.documents.shapes import Doc, cell, table
from vlmrl.extras.pages.documents.source import Kind, Source, unique
from vlmrl.extras.pages.documents.study import over_seeds, study_of
from vlmrl.run.listing import is_run

DEPTH = 4
"""Folders within folders that are looked into."""
MOST = 2000
"""Items of a view."""
CHECK = b'data-page="check"'
"""Stands in the first line of the page of a data check."""


def kind_of(path: Path) -> Kind | None:
    """What a path is; None for what holds others, or nothing."""
    if path.is_file():
        with path.open("rb") as file:
            return "check" if path.suffix == ".html" and CHECK in file.read(256) else None
    if not path.is_dir():
        return None
    if is_run(path) or ((path / "config.yaml").is_file() and any((path / name).exists() for name in ("metrics.jsonl", "eval"))):
        return "run"
    if (path / "comparison.json").is_file():
        return "comparison"
    return "evaluation" if (path / "summary.json").is_file() else None


def items_of(paths: Sequence[Path], *, strict: bool = False) -> list[Source]:
    """Everything to look at in some folders, each once; a run is not looked into.

    Raises:
        ConfigError: there is no such path, or nothing to look at.
    """
    found: dict[Path, tuple[Kind, Path]] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder; runs are in the recipe's run.root, which is 'runs' where it says nothing")
        for kind, one in (*_walk(path, 0), *_of_study(path)):
            found.setdefault(one.resolve(), (kind, one))
    if not found:
        names = ", ".join(str(path) for path in paths)
        what = "give a run, an evaluation, a comparison, the page of a data check, or a folder of them"
        raise ConfigError(f"{names}: nothing to look at; {what}. A run is a folder <run.root>/<run.name> with run.json and config.yaml")
    chosen = list(found.values())[:MOST]
    names = unique([path.resolve().stem if kind == "check" else path.resolve().name for kind, path in chosen])
    return [Source(path, name, kind, strict=strict) for name, (kind, path) in zip(names, chosen, strict=True)]


def _walk(path: Path, depth: int) -> Iterable[tuple[Kind, Path]]:
    kind = kind_of(path)
    if kind is not None:
        yield kind, path
    elif path.is_dir() and depth < DEPTH:
        for inner in sorted(path.iterdir()):
            if not inner.name.startswith(".") and (not inner.is_symlink() or depth == 0):
                yield from _walk(inner, depth + 1)


def _of_study(path: Path) -> Iterable[tuple[Kind, Path]]:
    """The runs of a study that lie elsewhere."""
    for folders in (study_of(path) or {}).values():
        for folder in folders:
            if (kind := kind_of(folder) if folder.exists() else None) is not None:
                yield kind, folder


def arms_of(sources: Sequence[Source], study: Mapping[str, Sequence[Path]] | None) -> dict[str, list[Source]]:
    """Runs that belong together: those of an arm, where a study says so, else those whose recipes differ in nothing but the seed."""
    left = list(sources)
    out: dict[str, list[Source]] = {}
    for name, folders in (study or {}).items():
        wanted = {folder.resolve() for folder in folders}
        out[name] = [source for source in left if source.path in wanted]
        left = [source for source in left if source not in out[name]]
    alike: dict[str, list[Source]] = {}
    for source in left:
        alike.setdefault(_text_of(source), []).append(source)
    for group in alike.values():
        group.sort(key=lambda source: source.seed)
        out[_shared_name([source.path.name for source in group], out)] = group
    return {name: group for name, group in out.items() if group}


def _text_of(source: Source) -> str:
    """What of a recipe makes a method, as text that is equal for equal ones."""
    return json.dumps(method_of(source.config), sort_keys=True, default=str)


def _shared_name(names: Sequence[str], taken: Iterable[str]) -> str:
    """What names of runs begin with, as `dots` of dots-s0 and dots-s1; the first with a number where that is taken."""
    first, last = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    name = names[0] if len(names) == 1 else first[:length].removesuffix("-s").rstrip("-_. 0123456789") or names[0]
    number, chosen = 2, name
    while chosen in taken:
        chosen, number = f"{name} {number}", number + 1
    return chosen


def arms_table(arms: Mapping[str, Sequence[Source]]) -> Doc:
    """A row for each arm: its seeds, its primary number over them, and what tells it from the others."""
    unlike, rows = differs(arms) if len(arms) > 1 else {}, list[list[str | Doc]]()
    for name, sources in arms.items():
        one = primary_over(sources)
        words = "" if one is None else ", ".join(filter(None, (one["interval"], one["note"])))
        held = "-" if one is None else cell(f"{one['text']} {one['label']}", words)
        rows.append([name, ", ".join(str(source.seed) for source in sources), held, "; ".join(unlike.get(name, [])) or "-"])
    return table(
        "Over seeds", ["arm", "seeds", "held-out", "differs in"], rows, "Runs whose recipes differ in nothing but the seed are one arm."
    )


def primary_over(sources: Sequence[Source]) -> Doc | None:
    """The primary number over runs; None where they have none, or not the same one."""
    found = [one for source in sources if (one := primary_of(source)) is not None]
    if not found or len({one["metric"] for one in found}) > 1:
        return None
    metric = found[0]["metric"]
    return {"metric": metric, "label": found[0]["label"], **over_seeds(metric, [one["mean"] for one in found])}


def differs(arms: Mapping[str, Sequence[Source]]) -> dict[str, list[str]]:
    """Arm -> the keys of its recipe that are not the same in all arms, with their values."""
    flat = {name: dict(_flat("", json.loads(_text_of(group[0])))) for name, group in arms.items()}
    keys = sorted({key for values in flat.values() for key in values})
    unlike = [key for key in keys if len({values.get(key) for values in flat.values()}) > 1]
    # what only one arm has is said by its name in the list above it
    lacking = {key for key in unlike if any(key not in values for values in flat.values())}
    unlike = [key for key in unlike if key not in lacking or not any(key.startswith(f"{other}.") for other in unlike)]
    return {name: [f"{key}: {values.get(key, 'not set')}" for key in unlike[:12]] for name, values in flat.items()}


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), one)
    elif isinstance(value, list) and all(isinstance(one, dict) and "name" in one for one in value) and value:
        names = ", ".join(str(one["name"]) for one in value)
        yield prefix, names
        for one in value:
            yield from _flat(f"{prefix}.{one['name']}", {key: inner for key, inner in one.items() if key != "name"})
    else:
        yield prefix, json.dumps(value)[:80]


def run_line(source: Source) -> Doc:
    """What the list says of a run."""
    line = source.line
    said = {"status": line.status, "where": where(line), "problem": line.problem, "model": line.model, "seed": source.seed}
    return {**said, "wall": line.wall, "primary": primary_of(source)}

"""What a model card says: read from the checkpoint, its run's recipe and the evaluations of its weights. Nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import ASKED, ORIGIN, recipe_of, saved_settings
from vlmrl.evals.score.levels import whole_stages
from vlmrl.evals.score.paired import comparisons_of
from vlmrl.evals.score.recipes import NOT_MEASURED
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.runfiles import read_eval, read_run, seed_of
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import Cells, comparison_cells, summary_cells
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.publish.files import ADAPTER, without_paths
from vlmrl.paths import shipped

UNKNOWN = "not stated"
_LICENCE = re.compile(r"^## Licence\n+(.+?)$", re.MULTILINE)
_FRONT = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows that a stage trained on."""

    path: str
    """As the recipe names them."""
    stage: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An evaluation."""

    title: str
    cells: Cells
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the card says."""

    name: str
    family: str
    """Architecture, of the model's config."""
    run: str | None
    stage: str | None
    base_model: str | None
    base_licence: str
    versions: Mapping[str, str]
    asked: Mapping[str, Any]
    """As `asking.asked_by` writes it; empty where the folder does not say."""
    recipe: Mapping[str, Any] | None
    """With every value, without paths of this machine."""
    data: tuple[Data, ...] = ()
    measured: tuple[Measured, ...] = ()
    said: tuple[str, ...] = ()
    """Sentences about what the last stage changed."""
    has_base: bool = False
    """Whether the model before training was asked the same questions."""
    adapter: bool = False
    gaps: tuple[str, ...] = field(default=())
    """What was not measured."""


def gather(checkpoint: Path, folder: Path, *, results: Sequence[Path], licences: Mapping[str, str]) -> Facts:
    """Read what there is of a checkpoint.

    Args:
        folder: the model folder that `checkpoint` means.
        results: folders of evaluations beside those that lie with the checkpoint.
        licences: of data, by the path in the recipe or its first folder; they go before those of the data cards.

    Raises:
        ConfigError: a folder of results holds none.
        StorageError: a file is damaged.
    """
    saved = saved_settings(folder)
    origin: Mapping[str, Any] = saved.get(ORIGIN, {})
    file = recipe_of(checkpoint)
    recipe = None if file is None else yaml.safe_load(file.read_text(encoding="utf-8"))
    base = origin.get("base_model") or _base(recipe)
    measured, said, has_base = _of_run(None if file is None else file.parent, str(origin.get("stage") or folder.resolve().name))
    measured += [_of_folder(path) for path in [*found_results(checkpoint, folder), *results]]
    config = yaml.safe_load((folder / "config.json").read_text(encoding="utf-8"))
    return Facts(
        name=str(origin.get("run") or folder.resolve().name),
        family=", ".join(config.get("architectures") or [str(config.get("model_type"))]),
        run=origin.get("run"),
        stage=origin.get("stage"),
        base_model=base,
        base_licence=base_licence(recipe),
        versions=saved.get("versions", {}),
        asked=saved.get(ASKED, {}),
        recipe=None if recipe is None else without_paths(recipe),
        data=tuple(_data(recipe or {}, licences)),
        measured=tuple(measured),
        said=tuple(said),
        has_base=has_base,
        adapter=(folder / ADAPTER).is_dir(),
        gaps=tuple(_gaps(measured, has_base, recipe)),
    )


def found_results(checkpoint: Path, folder: Path) -> list[Path]:
    """Evaluations that `vlmrl eval` wrote beside a checkpoint."""
    places = {place.absolute() for place in (checkpoint, folder)}
    found = {file.parent.resolve() for place in places for file in place.parent.glob(f"suites/{place.name}-*/summary.json")}
    return sorted(found)


def licence_of(path: str, given: Mapping[str, str]) -> str:
    """The licence of rows: as given, else of the data card of their first folder."""
    top = Path(path).parts[0] if Path(path).parts else path
    for name in (path, top):
        if name in given:
            return given[name]
    card = shipped("data", top, "card.md")
    match = _LICENCE.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    return match.group(1).strip() if match else UNKNOWN


def base_licence(recipe: Mapping[str, Any] | None) -> str:
    """What the base model's own card says, if its folder is on this machine."""
    path = Path(str((recipe or {}).get("model", {}).get("path", ""))).expanduser() / "README.md"
    front = _FRONT.match(path.read_text(encoding="utf-8")) if path.is_file() else None
    values = yaml.safe_load(front.group(1)) if front else None
    return str(values.get("license_name") or values.get("license") or UNKNOWN) if isinstance(values, dict) else UNKNOWN


def _base(recipe: Mapping[str, Any] | None) -> str | None:
    path = (recipe or {}).get("model", {}).get("path")
    return None if path is None else str(without_paths(path))


def _data(recipe: Mapping[str, Any], licences: Mapping[str, str]) -> Iterable[Data]:
    made = recipe.get("toy") is not None and recipe.get("data", {}).get("root") == "toy"
    for stage in recipe.get("stages") or []:
        path = str((stage.get("source") or {}).get("path", ""))
        if path:
            licence = "generated by vlmrl; no third party's data" if made and path not in licences else licence_of(path, licences)
            yield Data(path=path, stage=str(stage.get("name")), licence=licence)


def _of_run(run: Path | None, stage: str) -> tuple[list[Measured], list[str], bool]:
    """The evaluations between the stages of a run, up to the one that made the checkpoint."""
    if run is None:
        return [], [], False
    files = read_run(run)
    names = whole_stages(name for name, rows in files.records.items() if rows)
    if stage not in names:
        return [], [], False
    records: dict[str, list[Record]] = {name: files.records[name] for name in names[: names.index(stage) + 1]}
    seed = seed_of(files)
    summaries = {name: summarize(rows, seed) for name, rows in records.items()}
    out = [Measured(title="Held-out rows of the run, after each stage", cells=summary_cells(summaries))]
    comparisons, refused = comparisons_of(records, seed)
    if comparisons:
        out.append(Measured(title="The same questions, paired differences", cells=comparison_cells(comparisons), notes=tuple(refused)))
    return out, verdict(records, seed, comparisons), "base" in records


def _of_folder(path: Path) -> Measured:
    found = read_eval(path)
    if not any(found.records.values()):
        raise ConfigError(f"{path}: an evaluation without answers; run it again")
    summaries = {task: summarize(rows, 0) for task, rows in found.records.items() if rows}
    cells = summary_cells(summaries)
    cells[0][0] = "task"
    note = f"`vlmrl eval --suite {found.suite.split(' v')[0]}`, weights {found.fingerprint}"
    return Measured(title=f"Suite {found.suite}", cells=cells, notes=(note,))


def _gaps(measured: Sequence[Measured], has_base: bool, recipe: Mapping[str, Any] | None) -> Iterable[str]:
    if not measured:
        yield "Nothing was measured of these weights."
    if measured and not has_base:
        yield "The base model was not asked the same questions in this run, so what training added is not measured."
    if measured and all(not one.title.startswith("Suite") for one in measured):
        yield "Only rows like those of training were held out; no public benchmark was run."
    if recipe is not None:
        yield f"One run with seed {recipe.get('run', {}).get('seed', 0)}: {NOT_MEASURED}."
    else:
        yield "The recipe is not at hand, so neither data nor settings are stated here."
    yield "Safety, bias, languages and abilities outside of the tables were not measured."

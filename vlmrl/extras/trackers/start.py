"""How accelerate's trackers are started: project and name of the run, the recipe as its config, and the id by which a resumed run goes on.

`trackers.json` in the run directory holds, for each tracker, the project and the id of its run. A tracker without an entry there, or with
one of another project, begins a new run.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.config.load import flat, flow
from vlmrl.config.schema import Config
from vlmrl.config.train import TrackerSection
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.registry import nearest

FILE = "trackers.json"
PROJECT = "vlmrl"
ENVIRONMENT: Mapping[str, tuple[str, str, str]] = {
    "wandb": ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID"),
    "trackio": ("TRACKIO_PROJECT", "", ""),
    "swanlab": ("SWANLAB_PROJ_NAME", "SWANLAB_EXP_NAME", "SWANLAB_RUN_ID"),
    "mlflow": ("MLFLOW_EXPERIMENT_NAME", "", "MLFLOW_RUN_ID"),
}
"""Tracker -> variables of project, name and id of the run, for what the recipe does not say."""
TAKES: Mapping[str, tuple[str, ...]] = {
    "tensorboard": (),
    "wandb": ("project", "run", "group", "tags"),
    "trackio": ("project", "run", "group"),
    "swanlab": ("project", "run", "group", "tags"),
    "mlflow": ("project", "run", "group", "tags"),
}
"""Tracker -> what it can be told. Others of accelerate take a project alone."""
_INSTALL = {"comet_ml": "comet-ml"}
_PARAMETER = re.compile(r"[\w\-. /]+", re.ASCII)
"""Names of parameters that every store of mlflow takes."""


@dataclass(frozen=True, kw_only=True)
class TrackerStart:
    """What a tracker is started with."""

    told: TrackerSection
    kind: Any
    """accelerate's class."""
    folder: Path
    """The run's directory."""
    recipe: Config | None
    global_step: int
    """The first that will be logged."""
    project: str
    run: str
    id: str | None
    """Of the tracker's run that goes on; None begins one."""

    @property
    def values(self) -> dict[str, Any]:
        """The recipe as nested plain values."""
        return {} if self.recipe is None else self.recipe.model_dump(mode="json")

    @property
    def leaves(self) -> dict[str, Any]:
        """The recipe by dotted keys."""
        return {} if self.recipe is None else {leaf.path: leaf.value for leaf in flat(self.recipe)}


def checked(entries: Sequence[str | TrackerSection]) -> list[Callable[[Path, Config | None, int], Any]]:
    """What starts each tracker (`begin`), called with the run's directory, the recipe and the first global step that will be logged.

    Raises:
        ConfigError: trackers that nobody knows, that are not installed (with the command that installs them), that stand twice, or that are
            told what they do not take.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    missing = {str(kind) for kind in LoggerType.list()} - {str(kind) for kind in get_available_trackers()}
    known = sorted(LOGGER_TYPE_TO_CLASS)
    told = list(dict.fromkeys(TrackerSection(name=entry) if isinstance(entry, str) else entry for entry in entries))
    names = [one.name for one in told]
    problems: list[str] = []
    for one in told:
        takes = TAKES.get(one.name, ("project",))
        surplus = [key for key in ("project", "run", "group", "tags") if getattr(one, key) and key not in takes]
        if one.name not in LOGGER_TYPE_TO_CLASS:
            problems.append(f"run.trackers: unknown tracker '{one.name}'{nearest(one.name, known)} (known: {', '.join(known)})")
        elif one.name in missing:
            problems.append(f"run.trackers: '{one.name}' is not installed: pip install {_INSTALL.get(one.name, one.name)}")
        elif surplus:
            problems.append(f"run.trackers: '{one.name}' has no {', '.join(surplus)}; leave it out (it takes {', '.join(takes) or 'none'})")
    problems += [f"run.trackers: '{name}' stands twice; give it once" for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems:
        raise ConfigError(problems)
    return [partial(begin, one, LOGGER_TYPE_TO_CLASS[one.name]) for one in told]


def begin(told: TrackerSection, kind: Any, folder: Path, recipe: Config | None, global_step: int) -> Any:
    """Start a tracker, in its run of an earlier start where there was one, and keep the id.

    Raises:
        ConfigError: it did not start, such as without a login.
        CheckpointError: `trackers.json` is damaged.
    """
    from accelerate import PartialState

    PartialState()  # accelerate's trackers write to a logger that wants it, and in a run of one process nobody has made it
    project, run, asked = named(told, folder.name)
    kept = _kept(folder)
    start = TrackerStart(
        told=told,
        kind=kind,
        folder=folder,
        recipe=recipe,
        global_step=global_step,
        project=project,
        run=run,
        id=asked or earlier(kept, told.name, project),
    )
    try:
        tracker, ident = STARTS.get(told.name, _other)(start)
    except Exception as error:  # each has errors of its own
        cure = "pip install 'vlmrl[trackers]'" if isinstance(error, ImportError) else "log in to it, set its environment variables"
        raise ConfigError(
            f"run.trackers: '{told.name}' did not start: {type(error).__name__}: {error}; {cure}, or leave it out"
            + (f"; without {folder / FILE} it begins a new run" if start.id else "")
        ) from error
    now = kept | ({} if ident is None else {told.name: {"project": project, "id": ident}})
    if now != kept:
        fs.write_text(folder / FILE, json.dumps(now, indent=1, sort_keys=True) + "\n")
    return tracker


def named(told: TrackerSection, run: str) -> tuple[str, str, str | None]:
    """(Project, name of the run, id that the environment asks for): what the recipe says wins over the environment, that over ours."""
    project_of, run_of, id_of = (os.environ.get(name) for name in ENVIRONMENT.get(told.name, ("", "", "")))
    return told.project or project_of or PROJECT, told.run or run_of or run, id_of or None


def earlier(kept: Mapping[str, Mapping[str, str]], name: str, project: str) -> str | None:
    """The id of the run that a tracker had in this project."""
    before = kept.get(name, {})
    return before.get("id") if before.get("project") == project else None


def _kept(folder: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads((folder / FILE).read_bytes())
        if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
            return found
        problem = "not a mapping of trackers"
    except FileNotFoundError:
        return {}
    except ValueError as error:
        problem = f"not JSON ({error})"
    raise CheckpointError(f"{folder / FILE}: {problem}; delete it, and the trackers begin new runs")


# ---- each tracker: started, and the id of its run; None where it has none -----------------------------------------------


def _other(start: TrackerStart) -> tuple[Any, str | None]:
    """Those of accelerate that nothing else is known of, and those that plug-ins add."""
    folder = (str(start.folder / "trackers"),) if start.kind.requires_logging_directory else ()
    tracker = start.kind(start.told.project or start.folder.name, *folder)
    tracker.start()
    return tracker, None


def _tensorboard(start: TrackerStart) -> tuple[Any, str | None]:
    tracker = start.kind(start.folder.name, str(start.folder / "trackers"), purge_step=start.global_step)
    tracker.start()
    lines = [f"    {key}={flow(value)}" for key, value in start.leaves.items()]  # indented: none of it is markup
    if lines:
        tracker.writer.add_text("recipe", "\n".join(lines), global_step=start.global_step)
    return tracker, None


def _wandb(start: TrackerStart) -> tuple[Any, str | None]:
    ident, told = start.id or _new_id(), start.told
    tracker = start.kind(start.project, name=start.run, id=ident, resume="allow", group=told.group, tags=told.tags or None)
    tracker.start()
    tracker.run.config.update(start.values, allow_val_change=True)  # after the start: a run that goes on brings its earlier config
    return tracker, ident


def _trackio(start: TrackerStart) -> tuple[Any, str | None]:
    def started(resume: str) -> Any:
        tracker = start.kind(start.project, name=start.run, group=start.told.group, config=start.values, resume=resume)
        tracker.start()
        return tracker

    tracker = started("never" if start.id is None else "allow")
    if start.id is not None and tracker.run.id != start.id:  # it goes by the name, and another run has taken it since
        tracker = started("never")
    return tracker, tracker.run.id


def _swanlab(start: TrackerStart) -> tuple[Any, str | None]:
    ident, told = start.id or _new_id(), start.told
    given: dict[str, Any] = {name: value for name, value in (("group", told.group), ("tags", list(told.tags))) if value}
    tracker = start.kind(start.project, experiment_name=start.run, id=ident, resume="allow", config=start.values, **given)
    tracker.start()
    tracker.run.config["FRAMEWORK"] = "vlmrl"  # accelerate has put its own name there
    log = tracker.log

    def numbers(values: Mapping[str, Any], step: int) -> None:
        log({name: value for name, value in values.items() if not isinstance(value, str)}, step=step)

    tracker.log = numbers  # it takes a text for an error, and prints it
    return tracker, ident


def _mlflow(start: TrackerStart) -> tuple[Any, str | None]:
    import mlflow  # pyright: ignore[reportMissingImports]

    if mlflow.get_experiment_by_name(start.project) is None:
        mlflow.create_experiment(start.project)
    tracker = start.kind(start.project, run_id=start.id, run_name=start.run)
    # afterwards: the class lets environment variables win over what it is given
    tracker.experiment_name = start.project
    group = {} if start.told.group is None else {"group": start.told.group}
    tracker.tags = {**(tracker.tags or {}), **dict.fromkeys(start.told.tags, "true"), **group}
    tracker.start()
    known = mlflow.get_run(tracker.active_run.info.run_id).data.params  # a parameter has one value for ever
    tracker.store_init_configuration({k: v for k, v in start.leaves.items() if k not in known and _PARAMETER.fullmatch(k)})
    return tracker, tracker.active_run.info.run_id


def _new_id() -> str:
    return uuid.uuid4().hex[:21]  # the length that swanlab's servers have asked for


STARTS: Mapping[str, Callable[[TrackerStart], tuple[Any, str | None]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "swanlab": _swanlab,
    "mlflow": _mlflow,
}

"""Each tracker of `run.trackers` in a real run of one process, stopped and started again: it goes on in its run, and has the recipe.

Nothing leaves the machine: each tracker has a mode that writes files, which are read back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import runs

GIVEN = {"project": "dots", "run": "first", "group": "seeds", "tags": ["tiny", "cpu"]}
STEPS = {1, 2, 3}


class Read(NamedTuple):
    """What a tracker has kept."""

    ids: set[str]
    steps: set[int] | None
    """Of the loss; None where its files say it in a format of their own."""
    said: str
    """Where project, name and recipe stand, as text."""


def of_tensorboard(home: Path, run: Path) -> Read:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "trackers" / "small"))
    events.Reload()
    recipe = b"".join(part for event in events.Tensors("recipe/text_summary") for part in event.tensor_proto.string_val)
    return Read(set(), {event.step for event in events.Scalars("loss")}, recipe.decode())


def of_wandb(home: Path, run: Path) -> Read:
    files = list((home / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2, "each start writes files of its own"
    return Read({file.stem.removeprefix("run-") for file in files}, None, " ".join(file.read_bytes().decode("latin-1") for file in files))


def of_trackio(home: Path, run: Path) -> Read:
    (file,) = home.glob("trackio/*.db")
    with sqlite3.connect(file) as data:
        lines = [(ident, step) for ident, step, values in data.execute("select run_id, step, metrics from metrics") if b'"loss"' in values]
        configs = data.execute("select run_name, config from configs").fetchall()
    return Read({ident for ident, _ in lines}, {step for _, step in lines}, f"{file.stem} {configs}")


def of_swanlab(home: Path, run: Path) -> Read:
    folders = list((home / "swanlog").glob("run-*"))
    assert len(folders) == 2, "each start writes files of its own"
    texts = [
        file.read_bytes().decode("latin-1") for folder in folders for file in (*folder.glob("*.swanlab"), *folder.glob("files/config*"))
    ]
    return Read({folder.name.rpartition("-")[2] for folder in folders}, None, " ".join(texts))


def of_mlflow(home: Path, run: Path) -> Read:
    with sqlite3.connect(home / "mlflow.db") as data:
        ids = {ident for (ident,) in data.execute("select run_uuid from runs")}
        steps = {step for (step,) in data.execute("select step from metrics where key = 'loss'")}
        told = [data.execute(f"select * from {table}").fetchall() for table in ("experiments", "runs", "params", "tags")]
    return Read(ids, steps, str(told))


READERS: dict[str, Callable[[Path, Path], Read]] = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "trackio": of_trackio,
    "swanlab": of_swanlab,
    "mlflow": of_mlflow,
}
TAKES = {"tensorboard": (), "trackio": ("project", "run", "group")}
SHOWN = {"tensorboard": (), "trackio": ("dots", "first"), "swanlab": ("dots", "first", "seeds", "tiny")}


@pytest.mark.parametrize("name", READERS)
def test_a_stopped_run_goes_on_in_its_tracker(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"pip install {name}")
    config = runs.small_config(*tiny_files, tmp_path / "runs")
    told = {"name": name, **{key: GIVEN[key] for key in TAKES.get(name, tuple(GIVEN))}}
    config["run"]["trackers"] = [told if len(told) > 1 else name]
    config["stages"], config["keep"] = config["stages"][:1], {"groups_per_step": 0}
    del config["eval"]
    variables = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
        "SWANLAB_MODE": "offline",
        "SWANLAB_LOGDIR": str(tmp_path / "swanlog"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }
    assert runs.run(config, "step.after_log@2:term", variables=variables) == 75
    assert not (runs.run_dir(config) / "FINISHED").exists()
    assert runs.run(config, variables=variables) == 0

    kept = runs.run_dir(config) / "trackers.json"
    found = READERS[name](tmp_path, runs.run_dir(config))
    ids = {one["id"] for one in json.loads(kept.read_text()).values()} if kept.exists() else set()
    assert found.ids == ids
    assert len(ids) == (0 if name == "tensorboard" else 1)
    assert found.steps is None or found.steps >= STEPS
    assert "thought_dropout" in found.said
    for word in SHOWN.get(name, ("dots", "first", "seeds", "tiny", "cpu")):
        assert word in found.said, word

"""What a tracker is told, which of its runs goes on, and a tracker that does not start. Whole runs: faults/test_resume_trackers.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from vlmrl.config.train import TrackerSection
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.extras.trackers.start import ENVIRONMENT, FILE, STARTS, TAKES, checked, earlier, named
from vlmrl.run.tracking import Tracker


class Plain(GeneralTracker):
    """A tracker of the user's own, registered with accelerate."""

    name = "plain"
    requires_logging_directory = False
    calls: list[Any] = []  # noqa: RUF012 (shared on purpose: the tracker is made by name)

    def __init__(self, run_name: str):
        super().__init__()
        self.run_name = run_name

    @property
    def tracker(self) -> None:
        return None

    def start(self) -> None:
        if self.run_name == "nowhere":
            raise ConnectionError("no such host")
        self.calls.append(("start", self.run_name))

    def finish(self) -> None:
        self.calls.append("finish")


class Second(Plain):
    name = "second"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    for kind in (Plain, Second):
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, kind.name, kind)
    Plain.calls.clear()
    return Plain.calls


def test_the_recipe_wins_over_the_environment_and_that_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in ENVIRONMENT.values():
        for name in filter(None, names):
            monkeypatch.delenv(name, raising=False)
    assert named(TrackerSection(name="wandb"), "mine") == ("vlmrl", "mine", None)
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID"):
        monkeypatch.setenv(name, name.lower())
    assert named(TrackerSection(name="wandb"), "mine") == ("wandb_project", "wandb_name", "wandb_run_id")
    assert named(TrackerSection(name="wandb", project="p", run="r"), "mine") == ("p", "r", "wandb_run_id")
    assert named(TrackerSection(name="mlflow"), "mine") == ("vlmrl", "mine", None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "set")
    assert named(TrackerSection(name="mlflow"), "mine") == ("set", "mine", None)


def test_a_run_goes_on_in_its_project_only() -> None:
    kept = {"wandb": {"project": "p", "id": "abc"}}
    assert [earlier(kept, "wandb", "p"), earlier(kept, "wandb", "q"), earlier(kept, "mlflow", "p")] == ["abc", None, None]


@pytest.mark.usefixtures("calls")
def test_what_a_tracker_does_not_take_is_refused() -> None:
    tensorboard, twice = TrackerSection(name="tensorboard", project="p", tags=("a",)), TrackerSection(name="plain", project="q")
    with pytest.raises(ConfigError) as caught:
        checked([tensorboard, "plain", "plain", twice, TrackerSection(name="second", group="g")])
    assert caught.value.problems == [
        "run.trackers: 'tensorboard' has no project, tags; leave it out (it takes none)",
        "run.trackers: 'second' has no group; leave it out (it takes project)",
        "run.trackers: 'plain' stands twice; give it once",
    ]
    assert set(TAKES) == set(STARTS)


def test_another_tracker_gets_the_name_of_the_run_or_its_project(tmp_path: Path, calls: list[Any]) -> None:
    for entry in ("plain", TrackerSection(name="plain", project="mine")):
        tracker = Tracker(tmp_path, [entry])
        tracker.start(1)
        tracker.close()
    assert calls == [("start", tmp_path.name), "finish", ("start", "mine"), "finish"]
    assert not (tmp_path / FILE).exists()


def test_a_tracker_that_does_not_start_says_which_and_the_others_end(tmp_path: Path, calls: list[Any]) -> None:
    tracker = Tracker(tmp_path, ["second", TrackerSection(name="plain", project="nowhere")])
    with pytest.raises(ConfigError, match="'plain' did not start: ConnectionError: no such host; log in to it") as caught:
        tracker.start(1)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert calls == [("start", tmp_path.name), "finish"]


def test_a_tracker_whose_package_is_missing_says_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")

    monkeypatch.setitem(STARTS, "wandb", missing)
    with pytest.raises(ConfigError, match=r"No module named 'wandb'; pip install 'vlmrl\[trackers\]', or leave it out"):
        Tracker(tmp_path, ["wandb"]).start(1)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("damaged", ["{", "[]", '{"wandb": 3}'])
def test_a_damaged_file_of_ids_is_named(tmp_path: Path, damaged: str) -> None:
    (tmp_path / FILE).write_text(damaged)
    with pytest.raises(CheckpointError, match=r"trackers\.json: .*; delete it, and the trackers begin new runs"):
        Tracker(tmp_path, ["plain"]).start(1)

"""Checkpoints written beside training (`checkpoint.asynchronous`): the same tensors, the same bits after a kill, no failure lost."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import cases, runs
from vlmrl.extras.scale.background import Background
from vlmrl.extras.scale.copies import Copies
from vlmrl.run import checkpoint

Whole = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def synchronous(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    config = runs.small_config(*tiny_files, tmp_path_factory.mktemp("whole"))
    config["checkpoint"] = {"every": 1, "keep": 20}
    assert runs.run(config) == 0
    return config, runs.outcome(config)


def beside(config: dict[str, Any], root: Path, **more: Any) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    out["checkpoint"] |= {"asynchronous": True, **more}
    return out


def saved(config: dict[str, Any]) -> dict[str, Any]:
    """Everything in all checkpoints: tensors by file and name, and state."""
    out: dict[str, Any] = {}
    for path in checkpoint.steps(runs.run_dir(config) / "checkpoints"):
        assert checkpoint.verify(path) == []
        for file in sorted(path.rglob("*.safetensors")):
            out |= {f"{path.name}/{file.name}/{name}": tensor for name, tensor in load_file(file).items()}
        out[path.name] = checkpoint.load_state(path)["run"]
    return out


def test_the_same_checkpoints_as_in_the_foreground(synchronous: Whole, tmp_path: Path) -> None:
    config, expected = synchronous
    mine = beside(config, tmp_path)
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    one, other = saved(config), saved(mine)
    assert set(one) == set(other)
    assert sum(isinstance(value, dict) for value in one.values()) == 7
    for name, value in one.items():
        assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name], name


@pytest.mark.parametrize(
    "point",
    cases.some(
        ["start@3", "after_tensors@3", "after_manifest@5", "after_rename@4", "after_retention@6"], {"after_tensors@3", "after_rename@4"}
    ),
)
def test_killed_while_one_is_written(point: str, synchronous: Whole, tmp_path: Path) -> None:
    config, expected = synchronous
    mine = beside(config, tmp_path, keep=2)
    assert runs.run(mine, f"ckpt.{point}:kill") == -9
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    assert len(checkpoint.steps(runs.run_dir(mine) / "checkpoints")) == 2


def test_sigterm_waits_for_it(synchronous: Whole, tmp_path: Path) -> None:
    config, expected = synchronous
    mine = beside(config, tmp_path)
    assert runs.run(mine, "step.after_update@5:term") == 75
    assert checkpoint.steps(runs.run_dir(mine) / "checkpoints")[-1].name == "step-00000005"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected


def test_a_full_disk_is_said_once_and_ends_the_run_when_it_stays_full(synchronous: Whole, tmp_path: Path) -> None:
    config, expected = synchronous
    once, always = (beside(config, tmp_path / name) for name in ("once", "always"))
    for one in (once, always):
        Path(one["run"]["root"]).mkdir()
    assert runs.run(once, "ckpt.after_tensors@2:enospc") == 0
    assert runs.outcome(once)["weights"] == expected["weights"]
    assert (tmp_path / "once" / "said.txt").read_text().count("checkpoint not saved (1 of 3") == 1
    names = [path.name for path in checkpoint.steps(runs.run_dir(once) / "checkpoints")]
    assert "step-00000002" not in names
    assert len(names) == 6

    faults = ",".join(f"ckpt.after_tensors@{n}:enospc" for n in range(3, 9))
    assert runs.run(always, faults) == 74
    assert (
        "No space left" in (tmp_path / "always" / "error.txt").read_text() or "injected" in (tmp_path / "always" / "error.txt").read_text()
    )
    assert [path.name for path in checkpoint.steps(runs.run_dir(always) / "checkpoints")] == ["step-00000001", "step-00000002"]
    assert not list((runs.run_dir(always) / "checkpoints").glob("tmp-*"))
    assert runs.run(always) == 0
    assert runs.outcome(always) == expected


def test_training_goes_on_meanwhile_and_what_fails_is_raised() -> None:
    go, done = threading.Event(), []
    background = Background()
    background.start(lambda: done.append(go.wait(60)))
    assert background.busy
    assert not background.ended()
    with pytest.raises(RuntimeError, match="under way"):
        background.start(lambda: None)
    go.set()
    background.wait()
    assert done == [True]
    assert not background.busy

    def fails() -> None:
        raise OSError("no space")

    background.start(fails)
    with pytest.raises(OSError, match="no space"):
        background.wait()
    background.wait()  # once


def test_copies_stay_when_weights_move_on() -> None:
    copies, weight = Copies(), torch.nn.Parameter(torch.arange(4.0))
    taken = copies.take({"a": weight, "step": torch.tensor(3.0)})
    with torch.no_grad():
        weight += 1
    assert taken["a"].tolist() == [0, 1, 2, 3]
    assert not taken["a"].requires_grad
    place = taken["a"].data_ptr()
    again = copies.take({"a": weight, "step": torch.tensor(4.0)})
    assert again["a"].tolist() == [1, 2, 3, 4]
    assert again["a"].data_ptr() == place, "the same memory at every checkpoint"

"""Runs in worlds of others, killed in the middle of an episode and started again, end with the same bits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_resume_desk import elsewhere, metrics
from tests.support import runs
from tests.support.episodes import small_episodes
from tests.support.openenv_stand_in import serving

needs_gymnasium = pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs gymnasium, which the extra dev has")
WORLDS: dict[str, dict[str, Any]] = {
    "gymnasium": {"env_id": "rooms/Corridor-v0", "module": "tests.support.gym_rooms"},
    "vagen": {"path": "tests.support.vagen_style:Corridor", "repeat": True},
    "openenv": {"action": "move", "screens": ["picture"]},
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gymnasium if name == "gymnasium" else ()) for name in WORLDS])
def test_killed_and_started_again(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    with serving() as url:
        killed_and_started_again({"name": name, **WORLDS[name], **({"url": url} if name == "openenv" else {})}, tiny_files, tmp_path)


def killed_and_started_again(world: dict[str, Any], tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
    world |= {"max_turns": 3, "workers": 1}
    config = small_episodes(*tiny_files, tmp_path / "whole", environment=world)
    assert runs.run(config) == 0, (tmp_path / "whole" / "error.txt").read_text()
    mine = elsewhere(config, tmp_path / "cut")
    assert runs.run(mine, "rollout.turn@5:kill") == -9
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == runs.outcome(config)
    assert all(line["environment/faults"] == 0 for line in metrics(mine))

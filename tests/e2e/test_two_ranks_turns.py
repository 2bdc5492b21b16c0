"""Two data-parallel ranks play the episodes that one plays: the same turns, the same faults, the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.test_two_ranks import assert_same_updates, launch
from tests.support import runs
from tests.support.episodes import small_episodes
from vlmrl.run.tracking import read_metrics


def played(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What each step says of its episodes, over all ranks; how many workers started differs."""
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]
    names = [name for name in lines[0] if name.startswith("environment/") and "retried" not in name]
    return [{name: line[name] for name in names} for line in lines]


def test_two_ranks_play_the_episodes_of_one(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Each rank has worlds of its own, which crash in some episodes; seeds say nothing of the rank."""
    configs: list[dict[str, Any]] = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = small_episodes(*tiny_files, folder, history={}, steps=2)
        config["stages"][0]["environment"] |= {"crash_share": 0.3, "max_turns": 2}
        launch(config, ranks, folder)
        configs.append(config)
    one, two = (played(config) for config in configs)
    assert one == two
    assert [line["environment/attempts"] for line in one] == [12.0, 12.0]
    screens = [{path.name for path in (runs.run_dir(config) / "screens").iterdir()} for config in configs]
    assert screens[0] == screens[1]
    assert_same_updates(configs, steps=2)

"""Episodes in a real browser: killed anywhere and started again, a run ends with the same bits; with other fonts it does not go on."""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.browsers import needs_miniwob
from tests.support.episodes import small_episodes
from vlmrl import faults
from vlmrl.run.tracking import read_metrics

pytestmark = [needs_miniwob, pytest.mark.slow]

Whole = tuple[dict[str, Any], dict[str, Any], float]
POINTS = [
    *(f"{name}@1" for name in faults.POINTS if name != "rollout.ahead"),
    "rollout.turn@2",
    "rollout.turn@3",
    "step.before_update@2",
]
"""Steps that are sampled ahead are refused with an environment."""


def small(model: Path, world: Path, root: Path, **stage: Any) -> dict[str, Any]:
    """Two steps on single-click pages, whole conversations with kept caches, with a reward that differs between answers also where nobody
    solves anything."""
    environment = {"name": "miniwob", "pages": "click", "explain": False, "max_turns": 2, "workers": 1, "deadline": 120.0, "patience": 60.0}
    layout = {"history": {}, "forward": "chains"}
    config = small_episodes(model, world, root, environment=environment, steps=2, **layout | stage)
    rows = [{"id": page, "environment": {"page": page}} for page in ("click-test", "click-color", "focus-text")]
    (root / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config["eval"] = {"source": config["stages"][0]["source"], "limit": 2, "max_new_tokens": 4}
    return config


def elsewhere(config: dict[str, Any], root: Path) -> dict[str, Any]:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    return out


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run, what it comes to, and how many seconds it took here."""
    root = tmp_path_factory.mktemp("whole")
    config = small(*tiny_files, root)
    began = time.monotonic()
    assert runs.run(config, timeout=900) == 0, Path(config["run"]["root"], "error.txt").read_text()
    took = time.monotonic() - began
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]
    assert [line["environment/attempts"] for line in lines] == [12.0] * 2
    assert all(line["environment/faults"] == 0.0 and line["grad_norm"] > 0 for line in lines)
    assert all(line["sampling/logp_gap"] < 1e-5 and line["work/kept_tokens"] > 0 for line in lines)
    return config, runs.outcome(config), took


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected, _ = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"{point}:kill", timeout=900) == -9, f"{point} is never passed"
    assert runs.run(mine, timeout=900) == 0
    assert runs.outcome(mine) == expected


@pytest.mark.parametrize("seed", range(25))
def test_killed_at_random(seed: int, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected, took = uninterrupted
    mine = elsewhere(config, tmp_path)
    runs.kill_at_random(mine, seed, longest=took)
    assert runs.run(mine, timeout=900) == 0
    assert runs.outcome(mine) == expected


def test_other_fonts_are_refused(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    font = next(Path("/usr/share/fonts").rglob("*Mono*.ttf"), None)
    if font is None:
        pytest.skip("needs a font below /usr/share/fonts")
    config = small(*tiny_files, tmp_path)
    config["eval"] = {}
    assert runs.run(config, "step.before_update@1:kill", timeout=900) == -9, "the second step is yet to be played"
    (tmp_path / "fonts").mkdir()
    shutil.copy(font, tmp_path / "fonts")
    told = tmp_path / "fonts.conf"
    told.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">'
        f"<fontconfig><dir>{tmp_path / 'fonts'}</dir><cachedir>{tmp_path / 'cache'}</cachedir></fontconfig>"
    )
    assert runs.run(config, timeout=900, variables={"FONTCONFIG_FILE": str(told)}) == 76
    said = Path(config["run"]["root"], "error.txt").read_text()
    assert "'fonts': " in said
    assert "put it back" in said
    assert runs.run(config, timeout=900) == 0, "with the first fonts it goes on"

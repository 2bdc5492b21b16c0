"""The shell game: killed and resumed to the same bits, its benchmark from the command to the page, and what a run shows of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import toy_video
from tests.support import runs
from vlmrl.config.load import load
from vlmrl.config.schema import ToyWorldSection
from vlmrl.extras.pages.view.save import write_page
from vlmrl.extras.toy.kinds import make_world

REWARDS = [{"name": "exact"}, {"name": "right_without_thought", "weight": 0.5}, {"name": "format", "weight": 0.1}]
POINTS = ("rollout.chunk@3", "step.before_update@5", "ckpt.after_rename@3")


@pytest.fixture(scope="module")
def shell_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shell") / "world"
    make_world(out, ToyWorldSection.model_validate({"kind": "shell", "pretrain": 1, "sft": 24, "train": 50, "validation": 1, "test": 12}))
    return out


def metrics(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs.run_dir(config) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_killed_and_resumed_with_the_same_bits(tiny_files: tuple[Path, Path], shell_world: Path, tmp_path: Path) -> None:
    def config(name: str) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        return runs.small_config(tiny_files[0], shell_world, tmp_path / name, rewards=REWARDS, advantage={"name": "grpo"})

    whole = config("whole")
    assert runs.run(whole) == 0
    for point in POINTS:
        mine = config(point)
        assert runs.run(mine, f"{point}:kill") == -9
        assert runs.run(mine) == 0
        assert runs.outcome(mine) == runs.outcome(whole)
    prefix = "completions/think_rate/"
    seen = {key.removeprefix(prefix) for line in metrics(whole) for key in line if key.startswith(prefix)}
    assert seen == {"easy", "medium", "hard"}
    text = write_page(runs.run_dir(whole)).read_text(encoding="utf-8")
    assert "By how hard questions are" in text
    assert "On hard questions accuracy" in text


@pytest.mark.slow
def test_thoughts_dropped_by_category_and_a_category_that_no_row_has(
    tiny_files: tuple[Path, Path], shell_world: Path, tmp_path: Path
) -> None:
    def config(name: str, chances: dict[str, float]) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        out = runs.small_config(tiny_files[0], shell_world, tmp_path / name)
        sft = out["stages"][0] | {"thought_dropout": chances}
        return out | {"stages": [sft], "eval": {"at_start": False}, "plugins": []}

    known = {"easy": 0.8, "medium": 0.2, "hard": 0.2}
    assert runs.run(config("known", known)) == 0
    unknown = config("unknown", known | {"esay": 1.0})
    assert runs.run(unknown) == 64
    said = Path(unknown["run"]["root"], "error.txt").read_text()
    assert said == "stages.sft.thought_dropout has a chance for ['esay'], and no row is of that category; remove it, or correct the name"
    assert not (runs.run_dir(unknown) / "metrics.jsonl").exists()


@pytest.mark.slow
def test_the_benchmark_from_the_command_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of two steps: nothing is learnt, everything is exercised."""
    sizes = {"pretrain": 12, "sft": 8, "train": 24, "validation": 2, "test": 24}
    settings = [f"toy.world.{split}={count}" for split, count in sizes.items()]
    settings += ["run.threads=1", "toy.base.steps=2", "toy.base.batch=4", "eval.max_new_tokens=6"]
    page, controls = tmp_path / "page.md", ("without", "answers")
    small = {
        "sft": {"steps": 2, "batch": 4},
        "rl": {"steps": 2, "rollout": {"num_generations": 4, "prompts_per_step": 4, "max_new_tokens": 6}},
    }
    settings += [f"stages.{name}.{key}={json.dumps(value)}" for name, of in small.items() for key, value in of.items()]
    places = ["--out", str(tmp_path / "out"), "--write", str(page)]
    monkeypatch.setattr(sys, "argv", ["toy_video.py", *places, "--seeds", "3", "--controls", *controls, "--set", *settings])
    toy_video.main()
    text = page.read_text()
    for name in controls:
        assert f"| 3 | {toy_video.CONTROLS[name][0]} |" in text
    assert text.count("| 3 |") == 1 + len(controls)


def test_controls_change_one_thing_each() -> None:
    stages = load(toy_video.RECIPES["toy_video"], []).config.model_dump(mode="json")["stages"]
    changed = {name: change(stages) for name, (_, change) in toy_video.CONTROLS.items()}
    rewards = {name: [r["name"] for r in of[-1]["rewards"]] for name, of in changed.items() if name != "supervised"}
    assert rewards == {
        "without": ["exact", "format"],
        "length": ["exact", "length", "format"],
        "ranks": ["exact", "length", "format"],
        "deviation": ["exact", "right_without_thought", "format"],
        "answers": ["exact", "format"],
    }
    assert changed["supervised"][0] == stages[0] | {"name": "rl", "steps": 3 * stages[1]["steps"]}
    others = {"ranks": {"rewards", "advantage"}, "deviation": {"advantage"}, "answers": {"rewards", "answer_format"}}
    for name in rewards:
        (rl,) = changed[name][-1:]
        assert {key for key, value in rl.items() if value != stages[1][key]} == others.get(name, {"rewards"})

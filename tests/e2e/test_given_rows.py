"""Runs of TempSamp-R1 from a model whose answers are never well-formed: does a ground-truth row reach the gradient, and is it said?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support import runs
from vlmrl.extras.pages.documents.run import run_doc
from vlmrl.extras.pages.documents.source import Source
from vlmrl.run.silent import AFTER
from vlmrl.run.tracking import read_metrics, without_clock
from vlmrl.train.meter import EARLY

SHARED = {"num_generations": 4, "prompts_per_step": 2, "generation_batch_size": 2, "max_new_tokens": 6}
REPAIRS: dict[str, dict[str, Any]] = {
    "plain": {"advantage": {"name": "grpo"}},
    "shaped": {"advantage": {"name": "grpo"}, "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "temporal_iou"}]},
    "anchored": {"advantage": {"name": "tempsamp_anchor"}},
}
ROW = "touched/strategy.offpolicy_gt/rows"


def recipe(files: tuple[Path, Path], root: Path, repair: str, steps: int, **strategy: Any) -> dict[str, Any]:
    """A stage that begins with a random model."""
    config = runs.small_config(*files, root, **REPAIRS[repair], beta=0.0, answer_format="think", rewards=[{"name": "temporal_iou"}])
    config |= {"eval": {}, "checkpoint": {"every": 4}, "stages": config["stages"][1:]}
    config["stages"][0] |= {"steps": steps, "rollout": SHARED | {"strategy": {"name": "offpolicy_gt", **strategy}}}
    return config


def trained(config: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The logged steps, and what was said."""
    root = Path(config["run"]["root"])
    assert runs.run(config) == 0, (root / "error.txt").read_text() if (root / "error.txt").exists() else ""
    steps = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert len(steps) == config["stages"][0]["steps"]
    assert {step["completions/format_rate"] for step in steps} == {0.0}, "the case that is tested"
    return steps, (root / "said.txt").read_text()


def test_without_a_fallback_nothing_is_added_and_the_run_says_so(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Before it begins, after three steps, after ten, and on its page; and a run that is killed says and logs what one that is not does."""
    config = recipe(tiny_files, tmp_path / "whole", "shaped", AFTER + 2)
    steps, said = trained(config)
    assert {step["rollout/given_rows"] for step in steps} == {step[ROW] for step in steps} == {0.0}
    assert said.count("fallback 'skip'") == 1
    assert f"step {EARLY}: no group of the last {EARLY} steps got the row that rollout.strategy adds, with 0% of the answers" in said
    text = f"strategy 'offpolicy_gt' changed nothing in {AFTER} steps in a row"
    assert [line.split(": ")[1] for line in said.splitlines() if text in line] == [f"rl step {AFTER}"]
    source = Source(runs.run_dir(config), "run", "run")
    source.follow()
    warnings = run_doc(source)["warnings"]
    assert [w for w in warnings if w.startswith(f"strategy 'offpolicy_gt' changed nothing in steps 1 to {AFTER + 2} of the run")]

    killed = recipe(tiny_files, tmp_path / "killed", "shaped", AFTER + 2)
    assert runs.run(killed, fault="step.before_update@7") != 0
    again, told = trained(killed)
    assert without_clock(again) == without_clock(steps)
    assert [line.split(": ")[1] for line in told.splitlines() if text in line] == [f"rl step {AFTER}"]
    assert runs.outcome(killed)["state"]["memories"] == runs.outcome(config)["state"]["memories"]
    shutil.rmtree(tmp_path)


def test_with_one_every_group_has_its_row_and_the_repairs_differ(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    norms: dict[str, float] = {}
    for repair in REPAIRS:
        steps, said = trained(recipe(tiny_files, tmp_path / repair, repair, EARLY, fallback="bare"))
        assert {step["rollout/given_rows"] for step in steps} == {1.0}
        assert {step[ROW] for step in steps} == {0.25}
        assert "rollout.strategy adds" not in said
        norms[repair] = steps[0]["grad_norm"]
    assert norms["plain"] > 0
    assert len(set(norms.values())) == len(REPAIRS), norms

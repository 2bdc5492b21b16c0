"""Runs of TempSamp-R1 from a model whose answers are never well-formed: does a ground-truth row reach the gradient, and is it said?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import runs
from vlmrl.run.tracking import read_metrics
from vlmrl.train.meter import EARLY

SHARED = {"num_generations": 4, "prompts_per_step": 2, "generation_batch_size": 2, "max_new_tokens": 6}
REPAIRS: dict[str, dict[str, Any]] = {
    "plain": {"advantage": {"name": "grpo"}},
    "shaped": {"advantage": {"name": "grpo"}, "reward_shaping": [{"name": "tempsamp_nonlinear", "reward": "temporal_iou"}]},
    "anchored": {"advantage": {"name": "tempsamp_anchor"}},
}


def trained(files: tuple[Path, Path], root: Path, repair: str, **strategy: Any) -> tuple[list[dict[str, Any]], str]:
    """The logged steps of a run that begins with a random model, and what it said."""
    config = runs.small_config(*files, root, **REPAIRS[repair], beta=0.0, answer_format="think", rewards=[{"name": "temporal_iou"}])
    config |= {"eval": {}, "checkpoint": {"every": 100}, "stages": config["stages"][1:]}
    config["stages"][0] |= {"steps": EARLY, "rollout": SHARED | {"strategy": {"name": "offpolicy_gt", **strategy}}}
    assert runs.run(config) == 0, (root / "error.txt").read_text() if (root / "error.txt").exists() else ""
    steps = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert len(steps) == EARLY
    assert {step["completions/format_rate"] for step in steps} == {0.0}, "the case that is tested"
    return steps, (root / "said.txt").read_text()


def test_without_a_fallback_nothing_is_added_and_the_run_says_so(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    steps, said = trained(tiny_files, tmp_path, "shaped")
    assert {step["rollout/given_rows"] for step in steps} == {0.0}
    assert f"step {EARLY}: no group of the last {EARLY} steps got the row that rollout.strategy adds, with 0% of the answers" in said


def test_with_one_every_group_has_its_row_and_the_repairs_differ(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    norms: dict[str, float] = {}
    for repair in REPAIRS:
        steps, said = trained(tiny_files, tmp_path / repair, repair, fallback="bare")
        assert {step["rollout/given_rows"] for step in steps} == {1.0}
        assert "rollout.strategy adds" not in said
        norms[repair] = steps[0]["grad_norm"]
    assert norms["plain"] > 0
    assert len(set(norms.values())) == len(REPAIRS), norms

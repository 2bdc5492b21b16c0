"""Accuracy over visual tokens: which runs of a study count, and what is counted of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common import BenchmarkError
from benchmarks.learning import distill_tokens as tokens
from vlmrl.paths import names


def write_study(folder: Path, seeds: int) -> None:
    """Runs of a study, each with 24 questions that count and one that does not; the last seed has no arm `grpo`."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"study": {"measure": "end exact in shell_end"}}))
    for seed in range(1, 1 + seeds):
        for name, (arm, which) in tokens.SHOWN.items():
            run = folder / "runs" / f"{arm}-s{seed}"
            (run / "eval").mkdir(parents=True, exist_ok=True)
            long = 69 if name == tokens.FULL else 51
            rows = [("shell_end", float(n % 4 < seed), long) for n in range(24)] + [("shell_start", 1.0, 500)]
            lines = [json.dumps({"task": task, "scores": {"exact": score, "consistency": 1.0}, "n_in": n}) for task, score, n in rows]
            (run / "eval" / f"{which}.jsonl").write_text("\n".join(lines) + "\n")
            if (arm, seed) != ("grpo", seeds):
                (run / "FINISHED").touch()


def test_seeds_with_all_arms_count_and_questions_of_the_measure(tmp_path: Path) -> None:
    write_study(tmp_path / "distill_shell", 4)
    found = tokens.held(tmp_path / "distill_shell")
    assert found["seeds"] == [1, 2, 3]
    of = found["models"]["distill"]
    assert [(one["score"], one["tokens"], one["questions"]) for one in of] == [(0.25, 51, 24), (0.5, 51, 24), (0.75, 51, 24)]
    assert all(one["low"] < one["score"] < one["high"] for one in of)
    assert tokens.visual(found["models"], 0.25) == (24, 6), "18 fewer are three quarters"
    (tmp_path / "distill_shell" / "runs" / "grpo-s1" / "FINISHED").rename(tmp_path / "moved")
    assert tokens.complete(tmp_path / "distill_shell") == [2, 3]


def test_a_study_without_a_whole_seed_is_named(tmp_path: Path) -> None:
    write_study(tmp_path / "distill_shell", 1)
    with pytest.raises(BenchmarkError, match="no seed has all of distill, full, grpo"):
        tokens.complete(tmp_path / "distill_shell")
    assert tokens.AXES.keys() <= set(names("study"))

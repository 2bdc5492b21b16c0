"""The two notebooks run from their first cell to their last in an empty folder, with few steps and a small world."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import script

ROOT = Path(__file__).parents[2]


def run(name: str, folder: Path) -> str:
    """What a notebook prints."""
    book = ROOT / "examples" / f"{name}.ipynb"
    done = script(ROOT / "tests" / "support" / "notebooks.py", str(book), cwd=folder, timeout=900, variables={"VLMRL_QUICK": "1"})
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_your_data_finds_and_repairs_both_rows(tmp_path: Path):
    out = run("your_data", tmp_path)
    assert "10 of 12 rows can be used; left out: {'missing': 1, 'answer': 1}" in out
    assert "train.jsonl:4: missing: lost.png" in out
    assert "'somewhere on the left' scores 0 of 1" in out
    assert "12 of 12 rows can be used; no problems" in out
    assert "Where is the red box?" in (tmp_path / "rows.html").read_text(encoding="utf-8")


def test_first_steps_trains_evaluates_compares_and_asks(tmp_path: Path):
    out = run("first_steps", tmp_path)
    assert "[('sft', 'sft', 2), ('rl', 'grpo', 2)]" in out
    assert out.count("steps ") >= 2, "a line of rewards for each of the two steps"
    assert "| final | 8 |" in out
    assert "toy_grounding miou: " in out
    assert "answer: " in out
    assert (tmp_path / "answer.png").stat().st_size > 1000
    assert (tmp_path / "runs" / "first_steps" / "FINISHED").exists()

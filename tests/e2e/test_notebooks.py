"""The notebooks run from their first cell to their last in an empty folder, with few steps and a small world; one under a real kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_grpo_in_one_cell_under_a_kernel(tmp_path: Path):
    """What stands under its cells is what a notebook shows: drawn rows, the run as text, its report."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(ROOT / "examples" / "grpo_in_one_cell.ipynb", as_version=4)
    own = {"VLMRL_QUICK": "1", "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=os.environ | own)
    shown = [[output.get("data", {}) for output in cell["outputs"]] for cell in book["cells"] if cell["cell_type"] == "code"]
    (rows,), (run,), (*_, report) = ([one for one in outputs if one] for outputs in shown)
    assert rows["text/plain"].startswith("60 rows, of the shape 'trl'\ngood: 60, ")
    assert "How many dots?" in rows["text/html"]
    assert rows["text/html"].startswith("<iframe srcdoc=")
    assert run["text/plain"].startswith("Run runs/dots: finished, stage rl, step 2 of 2")
    assert report["text/html"].startswith("<iframe srcdoc=")
    printed = "".join(output["text"] for cell in book["cells"] for output in cell.get("outputs", []) if output.get("name") == "stdout")
    assert "How many dots? " in printed
    assert "Answered(text=" in printed
    assert "array(" not in printed
    assert len(printed) < 4000

"""vlmrl.grpo, vlmrl.sft and vlmrl.evaluate with Python's own things, on a tiny model: whole runs, and the bits of one that was killed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image, ImageDraw

import vlmrl
from tests.support import runs
from tests.support.command import script
from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.python.result import Run

SMALL: dict[str, Any] = {
    "answer_type": "number",
    "answer_format": "answer_only",
    "freeze": ["vision"],
    "media": {"max_pixels": 4704},
    "run": {"trackers": [], "threads": 1},
    "checkpoint": {"every": 1},
}
ROLLOUT = {"num_generations": 4, "prompts_per_step": 2, "max_new_tokens": 6}
SCRIPT = """
import json, sys
import numpy as np
import vlmrl

SMALL, ROLLOUT = json.loads(sys.argv[2])
rows = [
    {"id": f"q{n}", "prompt": "How many?", "answer": str(n), "image": np.full((56, 56, 3), 40 * n, dtype=np.uint8)} for n in range(6)
]


def close_to(length):
    def near(completions, answer, **columns):
        return [(gold in one[0]["content"]) + 0.5 ** abs(len(one[0]["content"]) - length) for one, gold in zip(completions, answer)]
    return near


run = vlmrl.grpo(sys.argv[1], rows, [close_to(27), ("format", 0.1)], lora=4, steps=3, out="runs/x", rollout=ROLLOUT, **SMALL)
print(run.model)
"""


def dots(count: int) -> Image.Image:
    out = Image.new("RGB", (56, 56), "white")
    for n in range(count):
        ImageDraw.Draw(out).ellipse((4 + 12 * n, 20, 12 + 12 * n, 28), fill="black")
    return out


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [{"id": f"q{n}", "prompt": "How many dots?", "answer": str(n), "image": dots(n)} for n in range(5)]


@pytest.fixture(scope="module")
def trained(tiny_files: tuple[Path, Path], rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps with a closure."""
    length = 20

    def brief(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
        said = [one[0]["content"] for one in completions]
        return [float(gold in text) + 0.1 * (len(text) < length) for text, gold in zip(said, answer, strict=True)]

    out = tmp_path_factory.mktemp("python") / "runs" / "dots"
    options = SMALL | {"rollout": ROLLOUT, "eval": {"max_new_tokens": 4}}
    return vlmrl.grpo(tiny_files[0], rows, brief, lora=4, steps=2, out=out, eval_rows=rows[:2], quiet=True, **options)


def test_a_closure_trains_for_two_steps(trained: Run, rows: list[dict[str, Any]]):
    """The recipe is in the run's folder, with the digest of the function's source."""
    recipe = yaml.safe_load((trained.path / "config.yaml").read_text())
    (stage,) = recipe["stages"]
    (reward,) = stage["rewards"]
    assert reward["function"].startswith("vlmrl.extras.python.given:brief@")
    assert (reward["form"], reward["isolate"], stage["steps"]) == ("trl", False, 2)
    assert (recipe["model"]["lora"]["rank"], recipe["model"]["lora"]["alpha"], stage["optim"]["lr"]) == (4, 8.0, 1e-5)
    assert stage["source"]["path"] != recipe["eval"]["source"]["path"]
    assert len(Path(stage["source"]["path"]).read_text().splitlines()) == len(rows)


def test_the_run_tells_what_it_knows(trained: Run, rows: list[dict[str, Any]], tmp_path: Path):
    """Its text fits on a screen; its groups have texts and rewards; its report stands in a notebook."""
    pytest.importorskip("pandas")
    text = repr(trained)
    assert text.startswith(f"Run {trained.path}: finished, stage rl, step 2 of 2\n  reward: ")
    assert len(text.splitlines()) <= 5
    assert (trained.model / "config.json").is_file()
    steps = trained.curves.dropna(subset=["reward"])
    assert list(steps["step"]) == [1, 2]
    assert list(steps["rewards/brief/judged"]) == [1.0, 1.0]
    groups = trained.groups()
    assert [group["step"] for group in groups] == [1, 1, 2, 2]
    assert {group["gold"] for group in groups} <= {row["answer"] for row in rows}
    assert all(len(answer["rewards"]) == 1 and isinstance(answer["text"], str) for group in groups for answer in group["answers"])
    shown = trained.show()
    assert shown.path == trained.path / "report.html"
    assert shown._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    result = trained.evaluate(rows[:3], tmp_path / "out", answer_type="number", max_new_tokens=4, device="cpu")
    (summary,) = result.summaries.values()
    assert summary.n == 3


def test_the_same_call_returns_the_run_and_another_function_is_refused(
    trained: Run, tiny_files: tuple[Path, Path], rows: list[dict[str, Any]]
):
    options = SMALL | {"rollout": ROLLOUT, "eval": {"max_new_tokens": 4}, "lora": 4, "steps": 2, "out": trained.path, "quiet": True}
    length = 21

    def brief(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
        said = [one[0]["content"] for one in completions]
        return [float(gold in text) + 0.1 * (len(text) < length) for text, gold in zip(said, answer, strict=True)]

    with pytest.raises(ConfigError, match=r"rewards\.0\.function: .*brief@\w+\" in the run, .*brief@\w+\" now"):
        vlmrl.grpo(tiny_files[0], rows, brief, eval_rows=rows[:2], **options)
    with pytest.raises(ConfigError, match=r"stages\.0\.source\.path"):
        vlmrl.grpo(tiny_files[0], rows[::-1], brief, eval_rows=rows[:2], **options)
    length = 20
    before = {path: path.stat().st_mtime_ns for path in trained.path.parent.rglob("*.jsonl")}
    assert vlmrl.grpo(tiny_files[0], rows, brief, eval_rows=rows[:2], **options) == trained
    assert {path: path.stat().st_mtime_ns for path in trained.path.parent.rglob("*.jsonl")} == before


def test_a_killed_call_resumes_to_the_bit(tiny_files: tuple[Path, Path], tmp_path: Path):
    """A script of its own process, with a closure. The recipe is said once a call."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    given = (str(tiny_files[0]), json.dumps([SMALL, ROLLOUT]))
    outcomes = []
    for name, faults in (("whole", [None]), ("killed", ["step.after_update@2:kill", "rollout.scored@1:kill", None])):
        (folder := tmp_path / name).mkdir()
        for fault in faults:
            variables = {} if fault is None else {"VLMRL_FAULT": fault}
            done = script(tmp_path / "mine.py", *given, cwd=folder, variables=variables)
            assert (done.returncode == 0) == (fault is None), done.stdout + done.stderr
        assert done.stdout.count("# the recipe of this call") == 1
        assert "note: reward 'near' runs in this process" in done.stdout
        assert done.stdout.endswith("runs/x/final\n")
        outcomes.append(runs.outcome({"run": {"root": str(folder / "runs"), "name": "x"}, "stages": [{"name": "rl"}]}))
    assert "step 1" in done.stdout
    assert outcomes[0] == outcomes[1]


def test_sft_and_evaluation_on_rows(tiny_files: tuple[Path, Path], rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: Any):
    """Without a folder the run's name is the digest of the recipe: the same call is the same run, another call another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlmrl.extras.python.checked.CACHE", tmp_path / "cache")
    run = vlmrl.sft(tiny_files[0], rows, lora=None, steps=2, quiet=True, batch=2, **SMALL)
    assert run.path.parent == Path("runs")
    assert run.path.name.startswith("sft-")
    assert "model.lora" not in (run.path / "config.yaml").read_text()
    assert vlmrl.sft(tiny_files[0], rows, lora=None, steps=2, quiet=True, batch=2, **SMALL) == run
    assert list(run.curves.dropna(subset=["loss"])["step"]) == [1, 2]
    result = vlmrl.evaluate(run.model, rows=rows, answer_type="number", max_new_tokens=4, device="cpu")
    (summary,) = result.summaries.values()
    assert summary.n == len(rows)
    assert result.out.parent.name == "suites"
    again = vlmrl.evaluate(run.model, rows=rows, answer_type="number", max_new_tokens=4, device="cpu")
    assert again.summaries == result.summaries
    for arguments in ({"suite": "toy_grounding", "rows": rows}, {}, {"suite": "toy_grounding", "answer_type": "number"}):
        with pytest.raises(ConfigError, match="evaluate: give either a suite, or rows="):
            vlmrl.evaluate(run.model, **arguments)
    with pytest.raises(DataError, match="row 1: answer: "):
        vlmrl.evaluate(run.model, rows=[rows[0], rows[1] | {"answer": "many"}], answer_type="number")


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        ({"stepz": 3}, ConfigError, r"stages\.rl\.stepz: unknown key.*did you mean 'steps'"),
        ({"learning_rate": 1e-6}, ConfigError, "optim.lr"),
        ({"rollout": {"num_generation": 3}}, ConfigError, "did you mean 'num_generations'"),
        ({"overrides": ["stages.rl.optim.lrr=1"]}, ConfigError, "'lrr'.*did you mean 'lr'|lrr"),
        ({"data": {"root": "/data"}}, ConfigError, r"data\.root: rows and eval_rows say themselves"),
        ({"eval_rows": [{"image": object()}]}, DataError, "row 0, column 'image': a object is not taken"),
    ],
)
def test_what_is_wrong_is_said_by_the_recipe(
    keys: dict[str, Any], error: type[Exception], says: str, rows: list[dict[str, Any]], tmp_path: Path
):
    with pytest.raises(error, match=says):
        vlmrl.grpo("model", rows, "exact", out=tmp_path / "runs" / "x", quiet=True, **keys)
    assert not (tmp_path / "runs" / "x").exists()


def test_a_function_of_a_module_trains_in_a_worker(
    tiny_files: tuple[Path, Path], rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And rows that cannot be used end the call by their number."""
    (tmp_path / "of_mine.py").write_text(
        "def right(completions, answer):\n    return [float(a in one[0]['content']) for one, a in zip(completions, answer)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    right = importlib.import_module("of_mine").right
    options = SMALL | {"rollout": ROLLOUT, "lora": 4, "steps": 1, "quiet": True}
    run = vlmrl.grpo(tiny_files[0], rows, [right, "format"], out=tmp_path / "a", **options)
    assert list(run.curves.dropna(subset=["reward"])["rewards/right/judged"]) == [1.0]
    assert "function: of_mine:right" in (run.path / "config.yaml").read_text()
    with pytest.raises(DataError, match=r"row 1: "):
        vlmrl.grpo(tiny_files[0], [rows[0], rows[1] | {"answer": "many"}], right, out=tmp_path / "b", **options)

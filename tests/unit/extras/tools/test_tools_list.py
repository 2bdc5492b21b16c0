"""`vlmrl list`: each of its lists, one method in full, wrong names, and that 80 columns are enough."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmrl import cli
from vlmrl.extras.tools.files import head
from vlmrl.methods import registries
from vlmrl.paths import names

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")

    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "list", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def fits(out: str) -> bool:
    return all(len(line) <= 80 for line in out.splitlines())


def test_methods_have_a_line_each_and_no_name_is_cut(run: Run):
    code, out, _ = run()
    assert code == 0
    assert fits(out)
    assert "…" not in out
    shown = {line.split()[0] for line in out.splitlines() if line.startswith("  ") and not line.startswith("   ")}
    known = {name for registry in registries().values() for name in registry.names() if registry.get(name).ours}
    assert known <= shown
    assert "vlmrl list NAME" in out
    assert len(run("reward")[1].splitlines()) < 200


def test_one_method_in_full(run: Run):
    code, out, _ = run("temporal_iou")
    assert code == 0
    assert fits(out)
    assert out.startswith("reward temporal_iou\n")
    assert "  arguments:    sort_times: bool = false" in out
    assert "  source:       arXiv:2509.18056" in out
    assert run("reward", "temporal_iou")[1] == out
    both = run("gigpo")[1]
    assert "algorithm gigpo\n" in both.replace(" \n", "\n")
    assert "advantage gigpo" in both
    assert "algorithm" not in run("advantage", "gigpo")[1]
    found = json.loads(run("advantage", "gigpo", "--json")[1])
    assert found["advantage"][0]["name"] == "gigpo"


def test_a_preset_in_full(run: Run):
    code, out, _ = run("algorithm", "grpo")
    assert code == 0
    assert "  sets:         advantage: {name: grpo}" in out
    assert "DeepSeekMath" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reward", "temporal_uio"], "unknown reward 'temporal_uio'; did you mean 'temporal_iou'?"),
        (["algorithm", "grop"], "unknown algorithm 'grop'; did you mean 'grpo'?"),
        (["rewards", "format"], "unknown slot 'rewards'; did you mean 'reward'?"),
        (["recipies"], "nothing to list is called 'recipies'; did you mean 'recipes'?"),
        (["recipes", "toy_vidoe"], "no such recipe; did you mean 'toy_video'?"),
        (["suites", "toy_vidoe"], "no such suite; did you mean 'toy_video'?"),
        (["environments", "toy_dsek"], "unknown environment 'toy_dsek'; did you mean 'toy_desk'?"),
        (["runs", "nowhere"], "nowhere: no such folder"),
        (["recipes", "--papers"], "vlmrl list recipes takes neither --papers nor --recipe"),
        (["recipes", "--data-root", "."], "--data-root belongs to: vlmrl list suites"),
        (["runs", "--cache", "."], "--cache belongs to: vlmrl list caches"),
    ],
)
def test_wrong_names(run: Run, words: list[str], said: str):
    code, _, err = run(*words)
    assert code == 64
    assert said in " ".join(err.split())


def test_recipes(run: Run):
    code, out, _ = run("recipes")
    assert code == 0
    assert fits(out)
    shown = [line.split()[0] for line in out.splitlines() if line[:1].isalpha()]
    assert [name for name in shown if name in names("recipe")] == names("recipe")
    assert [one["name"] for one in json.loads(run("recipes", "--json")[1])] == names("recipe")
    code, out, _ = run("recipes", "laptop_smolvlm")
    assert code == 0
    assert out.startswith("file: ")
    assert "\n  vlmrl train configs/recipes/laptop_smolvlm.yaml data.root=my_rows\n" in out
    assert json.loads(run("recipes", "dpo", "--json")[1])["about"].startswith("DPO (arXiv:2305.18290)")


def test_the_head_of_a_recipe_joins_lines_of_text_only(tmp_path: Path):
    path = tmp_path / "r.yaml"
    path.write_text("# One\n# two.\n#\n#   vlmrl train x\n#   vlmrl view y\n# Three\n# four.\nrun: {name: x}  # no\n")
    assert head(path) == "One two.\n\n  vlmrl train x\n  vlmrl view y\nThree four."
    path.write_text("run: {name: x}\n")
    assert head(path) == ""


def test_suites(run: Run, tmp_path: Path):
    code, out, _ = run("suites")
    assert code == 0
    assert fits(out)
    assert "gui" in out
    code, out, _ = run("suites", "toy_video")
    assert code == 0
    assert "  rows: " in out
    code, out, err = run("suites", "toy_video", "--data-root", str(tmp_path))
    assert code == 70
    assert "(missing)" in out
    assert "are not below" in err
    assert [one["name"] for one in json.loads(run("suites", "--json")[1])] == names("suite")
    assert json.loads(run("suites", "gui", "--json")[1])[0]["primary"]


def test_environments(run: Run):
    code, out, _ = run("environments", "toy_desk")
    assert code == 0
    assert out.splitlines()[0].startswith("toy_desk: ")
    assert "  crash_share: float = 0.0" in out
    listed = json.loads(run("environments", "--json")[1])
    assert {"toy_desk", "miniwob"} <= {one["name"] for one in listed}
    assert all(one["state"] for one in listed)


def test_runs_fit_eighty_columns(run: Run, tmp_path: Path):
    assert run("runs")[0] == 64
    long = tmp_path / "runs" / "a_run_with_a_name_that_is_rather_long_for_a_table"
    long.mkdir(parents=True)
    assert run("runs")[1] == "runs: no runs\n"
    (long / "run.json").write_text(json.dumps({"history": [{}]}))
    (long / "config.yaml").write_text(
        json.dumps({"model": {"path": "Qwen/Qwen2.5-VL-3B-Instruct"}, "stages": [{"name": "rl", "steps": 9}]})
    )
    (long / "metrics.jsonl").write_text(json.dumps({"stage": "rl", "step": 4, "wall": 1.0}) + "\n")
    code, out, _ = run("runs")
    assert code == 0
    table, _, last = out.strip().rpartition("\n")
    assert fits(table)
    assert "…" not in table
    assert "4/9" in table
    assert last == f"look at one: vlmrl view runs/{long.name}"
    assert json.loads(run("runs", "runs", "--json")[1])[0]["status"] == "stopped"


def test_caches_are_listed_empty(run: Run, tmp_path: Path):
    assert run("caches") == (0, "     0 B  in ~/.cache/vlmrl\n", "")
    assert json.loads(run("caches", "--json", "--cache", str(tmp_path))[1]) == []

"""A study from its plan to its report, on stand-in runs: what is run, killed, refused, decided and written."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.extras.study.conftest import PROGRAM, Place
from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.extras.pages.documents.study import study_doc
from vlmrl.extras.study import conduct
from vlmrl.extras.study.conduct import array_task
from vlmrl.extras.study.report import Report
from vlmrl.extras.study.runs import share, units_of
from vlmrl.extras.study.stats import HOLDS, OPEN

ROOT = Path(__file__).parents[4]


def quiet(text: str) -> None:
    """Say nothing."""


def test_from_the_file_to_the_verdict(place: Place) -> None:
    said: list[str] = []
    conductor = place.conductor(premises=[{"arm": "slow", "measure": "end exact", "high": 0.9}])
    conductor.fix()
    assert conductor.work(said.append, jobs=2) == []
    assert said[0].startswith("power: fast-slow: with 3 seeds and a deviation of 0.05 (assumed)")
    report = Report(conductor)
    report.write()
    shown = study_doc(place.folder / "out")
    assert shown is not None
    assert shown["said"] == [f"fast-slow: {HOLDS}."]
    assert shown["tables"][0]["rows"][0][3]["text"].startswith("+0.1")
    assert [row["name"] for row in shown["cards"][0]["rows"]] == ["slow (3)", "fast (3)"]
    assert [len(table["rows"]) for table in shown["tables"]] == [1, 1]
    stored = json.loads((place.folder / "out/study.json").read_text())
    assert stored["arms"] == {arm: [f"runs/{arm}-s{seed}" for seed in range(3)] for arm in ("slow", "fast")}
    assert stored["differs"] == {"stages.rl.optim.lr": {"slow": 1e-6, "fast": 1e-5}}
    found = stored["comparisons"]["fast-slow"]
    assert found["verdict"] == HOLDS
    assert list(found["primary"]["by_seed"]) == ["0", "1", "2"]
    assert found["premises"][0]["met"] is True
    # 40 questions: right answers of the same seed differ by 0.02 * 9 * 40 = 7 or 8
    assert found["primary"]["effect"] == pytest.approx(0.18, abs=0.02)
    curve = stored["curves"]["eval/exact"]["fast"]
    assert curve["x"] == [0, 2, 4]
    assert curve["low"][2] <= curve["mean"][2] <= curve["high"][2]
    assert stored["curves"]["reward"]["slow"]["mean"] == pytest.approx([0.1, 1.1, 2.1, 3.1])
    assert stored["decided"] is True
    page = (place.folder / "out/report.md").read_text()
    assert "| stages.rl.optim.lr | 1e-06 | 1e-05 |" in page
    assert "All runs are done" in page
    assert len(place.started()) == 6
    # once more: nothing is run, the same is said
    again = place.conductor(premises=[{"arm": "slow", "measure": "end exact", "high": 0.9}])
    again.fix()
    again.work(quiet)
    assert len(place.started()) == 6
    assert Report(again).lines() == report.lines()


def test_killed_anywhere_it_goes_on(place: Place) -> None:
    """The whole process group is killed three times at random; the steps of each run are done once, and done runs are not begun again."""
    code = (
        "import json, sys; from pathlib import Path\n"
        "from vlmrl.extras.study.conduct import Conductor; from vlmrl.extras.study.spec import Study\n"
        "asked, out, program = json.loads(sys.argv[1])\n"
        "conductor = Conductor(Study.model_validate(asked), Path(out), program=program); conductor.fix(); conductor.work(print, jobs=2)\n"
    )
    words = [sys.executable, "-c", code, json.dumps([place.asked(seeds=5), str(place.folder / "out"), PROGRAM])]
    chance, marks = random.Random(7), place.folder / "out" / "runs"

    def done() -> set[str]:
        return {f"runs/{path.parent.name}" for path in marks.glob("*/FINISHED")}

    for kill in range(3):
        child = subprocess.Popen(words, start_new_session=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        before, wanted = len(place.started()), chance.randint(1, 3)
        while child.poll() is None and len(place.started()) < before + wanted:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.15)
        finished = done()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        place.folder.joinpath(f"killed-{kill}").write_text(json.dumps([sorted(finished), len(place.started())]))
    assert subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120).returncode == 0
    assert len(done()) == 10
    for kill in range(3):
        finished, starts = json.loads(place.folder.joinpath(f"killed-{kill}").read_text())
        assert not set(finished) & set(place.started()[starts:])
    for path in marks.glob("*/metrics.jsonl"):
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_one_failed_run_stops_no_other_and_the_verdict_waits(place: Place) -> None:
    (place.folder / "fail-fast-s1").touch()
    said: list[str] = []
    conductor = place.conductor()
    (failure,) = conductor.work(said.append)
    assert failure.code == 65
    assert "failed: fast-s1 ended with exit code 65; all that it said is in" in " ".join(said)
    assert "  the model is not there" in said
    assert sum(path.name == "FINISHED" for path in (place.folder / "out/runs").glob("*/*")) == 5
    report = Report(conductor, [failure])
    assert report.state() == "the verdict waits for 1 runs: fast-s1"
    assert report.json()["comparisons"] == {}
    assert report.json()["measured"]["fast"].keys() == {"0", "2"}
    (place.folder / "fail-fast-s1").unlink()
    assert conductor.work(quiet) == []
    assert Report(conductor).json()["comparisons"]["fast-slow"]["primary"]["seeds"] == 3


def test_the_plan_holds_from_the_first_run_on(place: Place) -> None:
    first = place.conductor()
    first.fix()
    place.conductor(delta=0.2).fix()  # no run yet: it may still change
    second = place.conductor()
    second.fix()
    second.work(quiet)
    with pytest.raises(ConfigError) as error:
        place.conductor(delta=0.2, seeds=4).fix()
    assert "the plan was fixed" in error.value.problems[0]
    assert "changed: seeds: [0, 1, 2] -> [0, 1, 2, 3]" in error.value.problems
    assert "changed: delta: 0.1 -> 0.2" in error.value.problems
    place.conductor(machine=["run.threads=2"]).fix()
    # the recipe itself is part of it
    place.recipe.write_text(place.recipe.read_text().replace("steps: 4", "steps: 9"))
    with pytest.raises(ConfigError, match=r"changed: recipes.slow.stages.rl.steps: 4 -> 9"):
        place.conductor().fix()


def test_what_nothing_measures_is_told_before_the_first_run(place: Place) -> None:
    place.conductor().check()
    with pytest.raises(ConfigError, match=r"measure 'end exat': no metric 'exat'; did you mean 'exact'"):
        place.conductor(measure="end exat").check()
    with pytest.raises(ConfigError, match="measure 'final exact': expected one of start, end, auc, mean, first, last"):
        place.conductor(measure="final exact").check()
    place.recipe.write_text(place.recipe.read_text().partition("eval:")[0])
    with pytest.raises(ConfigError, match=r"arms.slow: the recipe has no held-out rows \(eval.source\)"):
        place.conductor().check()


def test_pilots_say_the_power_and_are_in_no_verdict(place: Place) -> None:
    said: list[str] = []
    conductor = place.conductor(spread=None, pilot={"seeds": [100, 101, 102]})
    assert conductor.forecasts() == []
    conductor.work(said.append)
    assert place.started()[0] == "pilot/slow-s100"
    told = next(text for text in said if text.startswith("power"))
    assert "pilot: " in told
    assert "of 3 seeds, at its upper 80% limit" in told
    assert said.index(told) > next(i for i, text in enumerate(said) if "fast-s102" in text)
    stored = Report(conductor).json()
    assert stored["comparisons"]["fast-slow"]["primary"]["by_seed"].keys() == {"0", "1", "2"}
    assert "pilot" not in json.dumps(stored["arms"])


def test_an_arm_takes_the_model_of_a_start(place: Place) -> None:
    """The start runs first, once per seed, and its folder is the value of the key; the arm trains all of its stages."""
    arms = {"slow": [], "fast": {"set": {"stages.rl.optim.lr": 1e-5}, "takes": {"stages.rl.judges": "large"}}}
    with pytest.raises(ConfigError, match=r"arms.fast: command line: stages.rl.judges: unknown key"):
        place.conductor(starts={"large": []}, arms=arms).check()
    arms["fast"]["takes"] = {"run.trackers.0": "large"}
    with pytest.raises(ValueError, match=r"arms.fast.takes.run.trackers.0: no 'large' in starts; did you mean 'larger'"):
        place.conductor(starts={"larger": []}, arms=arms)
    arms["fast"]["takes"] = {"model.path": "large"}
    conductor = place.conductor(starts={"large": {"stages.rl.steps": 9}}, arms=arms)
    conductor.fix()
    conductor.work(quiet)
    assert place.started()[:3] == ["runs/slow-s0", "starts/large-s0", "runs/fast-s0"]
    assert len(place.started()) == 9
    run = next(run for run in conductor.looks[-1].runs if run.name == "fast-s1")
    assert f"model.path={(conductor.out / 'starts' / 'large-s1' / 'final').absolute()}" in run.words
    assert not any(word.startswith("stages=") for word in run.words)
    # a plan that was fixed before this key was known has none
    assert "takes" not in json.loads((conductor.out / "plan.json").read_text())["study"]["arms"]["slow"]


def test_looks_end_when_it_is_decided(place: Place) -> None:
    looks = {"at": [3, 6], "spending": "pocock"}
    conductor = place.conductor(seeds=6, looks=looks)
    conductor.work(quiet)
    assert len(place.started()) == 6, "the first look decides"
    stored = Report(conductor).json()
    assert (stored["decided"], stored["look"]["seeds"]) == (True, 3)
    assert stored["look"]["interval"] < 0.05
    # without an effect the first look leaves it open
    none = Place(place.folder)
    (none.folder / "out").rename(none.folder / "before")
    open_ = none.conductor(seeds=6, looks=looks, delta=0.011, arms={"slow": [], "fast": {"stages.rl.optim.lr": 1.1e-6}})
    open_.work(quiet)
    assert len(none.started()) == 6 + 12
    stored = Report(open_).json()
    assert stored["earlier"] == [{"seeds": 3, "verdicts": {"fast-slow": OPEN}}]
    assert stored["look"]["seeds"] == 6


def test_tasks_of_an_array_share_the_runs(place: Place) -> None:
    runs = list(place.conductor(seeds=5).looks[-1].runs)
    parts = [share(runs, index, 3) for index in range(3)]
    assert sorted(run.name for part in parts for run in part) == sorted(run.name for run in runs)
    assert [len(part) for part in parts] == [4, 3, 3]
    started = place.conductor(seeds=5, starts={"warm": []}, arms={"slow": {"start": "warm"}, "fast": {"start": "warm"}})
    assert [run.name for run in units_of(started.looks[-1].runs)[0]] == ["slow-s0", "fast-s0"]
    conductor = place.conductor()
    for index in range(2):
        assert conductor.next_look() is not None
        conductor.work(quiet, task=(index, 2))
    assert conductor.next_look() is None
    assert array_task(None, {}) is None
    assert array_task(None, {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}) == (3, 4)
    with pytest.raises(ConfigError, match="expected I/N"):
        array_task("4/4", {})


def test_the_command(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "PROGRAM", PROGRAM)
    monkeypatch.setattr(conduct.Conductor.__init__, "__kwdefaults__", {"program": PROGRAM})
    file, out = place.folder / "study.yaml", place.folder / "out"
    file.write_text(yaml.safe_dump(place.asked(name=None, recipe="mine.yaml")))
    lines = CliRunner().invoke(app, ["study", str(file), "--out", str(out), "--list"])
    assert lines.exit_code == 0, lines.output
    assert lines.stdout.count("vlmrl train ") == 6
    assert "sbatch --array=0-5" in lines.stderr
    plan = CliRunner().invoke(app, ["study", str(file), "--out", str(out), "--plan"])
    assert "6 runs in all, 6 to do" in plan.stdout
    assert not out.exists()
    done = CliRunner().invoke(app, ["study", str(file), "--out", str(out), "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert "fast-slow: holds" in done.stdout
    assert "by seed: 0: +0." in done.stdout
    (place.folder / "fail-slow-s0").touch()
    again = CliRunner().invoke(app, ["study", str(file), "--out", str(place.folder / "other")])
    assert again.exit_code == 70
    assert "the verdict waits for 1 runs: slow-s0" in again.stdout

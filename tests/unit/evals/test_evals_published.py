"""A model beside printed figures: which of ours stands beside which, what is said of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.evals.test_evals_compare import choice, save
from tests.unit.evals.test_evals_records import make_record
from vlmrl.cli import app
from vlmrl.errors import ConfigError, StorageError
from vlmrl.extras.seeds.published import SAME, beside_published
from vlmrl.paths import shipped

ACCURACY = {"model": "TON-3B", "metric": "accuracy", "value": 98.5, "source": "arXiv:2505.16854", "harness": "the authors' own"}
STEP = {"model": "TON-3B", "metric": "exact match, mean of domains", "value": 0.59, "source": "arXiv:2505.16854", "harness": "not stated"}


def test_a_measure_of_the_same_name_is_ours_and_any_other_is_marked(tmp_path: Path) -> None:
    folder = save(tmp_path / "e", {"quiz": choice([1, 1, 0, 1])}, model="mine", published=[ACCURACY, STEP], official_count=200)
    found = beside_published(folder)
    first, second = found.rows
    assert (first.metric, first.ours.mean, first.same, first.value, first.n, first.official) == ("exact", 0.75, True, 98.5, 4, 200)
    assert first.ours.low < 0.75 < first.ours.high
    assert (second.metric, second.same, second.value, second.harness) == ("exact", False, 0.59, "not stated")
    text = "\n".join(found.lines())
    assert "* the task's primary metric" in text
    assert "a part of a task's questions" in text
    assert "arXiv:2505.16854: harness: the authors' own" in text


def test_measures_of_time_spans_find_ours(tmp_path: Path) -> None:
    rows = [
        make_record(f"q{i}", model="mine", task="charades", answer_type="time_span", scores={"tiou": iou, "r1@0.5": float(iou >= 0.5)})
        for i, iou in enumerate((0.2, 0.6, 0.7))
    ]
    quoted = [ACCURACY | {"metric": name, "value": 1.0} for name in ("mIoU", "R1@0.5")]
    found = beside_published(save(tmp_path / "e", {"charades": rows}, primary="r1@0.5", published=quoted))
    assert [(row.metric, row.same) for row in found.rows] == [("miou", True), ("r1@0.5", True)]
    assert [row.ours.mean for row in found.rows] == [pytest.approx(0.5), pytest.approx(2 / 3)]


def test_tasks_without_a_figure_are_named_and_an_evaluation_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none of its tasks \(quiz\) quotes a printed figure"):
        beside_published(save(tmp_path / "a", {"quiz": choice([1, 0])}))
    folder = save(tmp_path / "b", {"quiz": choice([1, 0]), "own": choice([1, 1], task="own")}, published=[ACCURACY])
    summary = json.loads((folder / "summary.json").read_text())
    summary["suite"]["tasks"][1].pop("published")
    (folder / "summary.json").write_text(json.dumps(summary))
    assert beside_published(folder).without == ("own",)


def test_a_task_that_was_not_scored_by_its_metric_is_not_one_without_a_figure(tmp_path: Path) -> None:
    tasks = {"quiz": choice([1, 0]), "other": [make_record("q", model="m", task="other", scores={"format": 1.0})]}
    found = beside_published(save(tmp_path / "e", tasks, published=[ACCURACY]))
    assert (found.without, found.unmeasured) == ((), ("other",))
    assert "figures are printed, but no answer was scored by the task's metric, for other" in found.lines()
    with pytest.raises(StorageError, match=r"no answer of other was scored by the task's metric; compare it with another"):
        beside_published(save(tmp_path / "f", {"other": tasks["other"]}, published=[ACCURACY]))


def test_the_command_prints_and_writes_the_table(tmp_path: Path) -> None:
    folder = save(tmp_path / "e", {"quiz": choice([1, 1, 0, 1])}, model="mine", published=[ACCURACY])
    done = CliRunner().invoke(app, ["compare", str(folder), "--published", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "98.5" in done.output
    assert "| 0.750 [" in (tmp_path / "out/published.md").read_text()
    assert json.loads((tmp_path / "out/published.json").read_text())["rows"][0]["value"] == 98.5
    for words, said in (([str(folder)], "--published in its place"), ([str(folder)] * 2 + ["--published"], "stands in place of B")):
        refused = CliRunner().invoke(app, ["compare", *words])
        assert isinstance(refused.exception, ConfigError)
        assert said in str(refused.exception)


def test_every_measure_that_is_the_same_is_quoted_by_a_task() -> None:
    quoted = {
        str(one["metric"]).lower()
        for path in (shipped("evals") / "tasks").glob("*.yaml")
        for one in yaml.safe_load(path.read_text(encoding="utf-8")).get("published") or ()
    }
    assert set(SAME) <= quoted

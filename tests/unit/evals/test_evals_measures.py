"""Which metrics apply to which records, parts of a set by task and difficulty, and tables of mixed answer types, by hand."""

from __future__ import annotations

import dataclasses
import json

from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.measures import COMMON, LABELS, METRICS, main_score, metrics_of, parts_of, present
from vlmrl.evals.score.paired import compare
from vlmrl.evals.score.records import Record, Think, from_json
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import comparison_cells, part_cells, summary_cells

VIDEO = ("miou", "r1@0.3", "r1@0.5", "r1@0.7", "parse_rate", "format_rate", "think_rate", "tokens", "truncation_rate")


def record(name: str, answer_type: str, scores: dict[str, float], **changes: object) -> Record:
    return make_record(name, answer_type=answer_type, scores=scores, cluster=name, sample_hash=name, task=f"toy_{answer_type}", **changes)


def mixed(gain: float = 0.0) -> list[Record]:
    return [
        record("a", "bbox", {"iou": 0.4 + gain}, difficulty="easy"),
        record("b", "bbox", {"iou": 0.6 + gain}, difficulty="hard"),
        record("c", "number", {"exact": 0.0, "relative_accuracy": 0.5 + gain}, difficulty="hard"),
    ]


def test_metrics_of_time_spans_are_what_they_were() -> None:
    assert metrics_of("time_span") == VIDEO
    assert present([]) == COMMON == VIDEO[4:]
    summary = summarize([make_record("a"), make_record("b", scores={"tiou": 1.0})], 0)
    assert tuple(summary.metrics) == ("score", *VIDEO)
    assert present([summary.metrics]) == VIDEO
    assert summary.parts == {}
    assert [len(row) for row in summary_cells({"base": summary})] == [11, 11]
    assert set(LABELS) >= set(METRICS) >= set(COMMON)


def test_a_metric_is_the_mean_over_the_records_that_it_applies_to() -> None:
    summary = summarize(mixed(), 0)
    means = summary.means()
    assert means["box_iou"] == 0.5
    assert means["box_r@0.5"] == 0.5
    assert means["exact"] == 0
    assert means["relative_accuracy"] == 0.5
    assert means["tokens"] == 5
    assert "miou" not in means
    assert means["miou_given_think"] is None
    assert summary.metrics["tokens"].mean == 5


def test_parts_by_task_and_difficulty() -> None:
    parts = parts_of(mixed())
    names = {key: [r.sample_id for r in rows] for key, rows in parts.items()}
    assert names == {"task=toy_bbox": ["a", "b"], "task=toy_number": ["c"], "difficulty=easy": ["a"], "difficulty=hard": ["b", "c"]}
    assert parts_of([r for r in mixed() if r.task == "toy_number"]) == {}
    summary = summarize(mixed(), 0)
    assert summary.parts["difficulty=hard"].metrics["box_iou"].mean == 0.6
    assert summary.parts["difficulty=hard"].n == 2
    assert "box_iou" not in summary.parts["task=toy_number"].metrics
    assert summary.means()["relative_accuracy/task=toy_number"] == 0.5


def test_consistency_leaves_wrong_answers_out() -> None:
    right = record("a", "exact_text", {"exact": 1.0, "consistency": 0.0, "grounding": 0.5})
    wrong = record("b", "exact_text", {"exact": 0.0, "grounding": 1.0})
    means = summarize([right, wrong], 0).means()
    assert (means["consistency"], means["grounding"], means["exact"]) == (0.0, 0.75, 0.5)
    # paired only where both sides have it
    better = dataclasses.replace(wrong, scores={"exact": 1.0, "consistency": 1.0, "grounding": 1.0})
    found = compare([right, wrong], [right, better], 0)
    assert found.gaps["consistency"].difference == 0
    assert found.gaps["exact"].difference == 0.5
    assert (found.better, found.worse) == (1, 0)


def test_tables_of_mixed_types() -> None:
    before, after = mixed(), mixed(0.25)
    cells = summary_cells({"base": summarize(before, 0)})
    assert cells[0][:6] == ["model", "n", "box IoU", "box R@0.5", "exact", "relative accuracy"]
    parts = part_cells({"base": summarize(before, 0), "rl": summarize(after, 0)})
    assert [row[:3] for row in parts[1:3]] == [["task=toy_bbox", "base", "2"], ["task=toy_bbox", "rl", "2"]]
    assert len(parts) == 1 + 4 * 2
    assert part_cells({"video": summarize([make_record("a")], 0)})[1:] == []
    pairs = {("base", "rl"): compare(before, after, 0)}
    rows = comparison_cells(pairs, ("box_iou", "exact"), parts=True)
    labels = [(row[0], row[2], row[3].split()[0]) for row in rows[1:]]
    assert ("base -> rl", "box IoU", "+0.250") in labels
    assert ("base -> rl (task=toy_number)", "exact", "+0.000") in labels
    assert ("base -> rl (task=toy_number)", "box IoU", "+0.250") not in labels
    assert all("(" not in row[0] for row in comparison_cells(pairs, ("box_iou",)))


def test_main_scores() -> None:
    assert [main_score(r) for r in mixed()] == [0.4, 0.6, 0.0]
    assert main_score(record("x", "action", {"action_type": 1.0, "step": 0.0})) == 0.0
    assert main_score(make_record("y", scores={"tiou": 0.3})) == 0.3


def test_think_rate_by_difficulty() -> None:
    rows = [
        record(str(n), "exact_text", {"exact": 1.0}, difficulty=d, think=Think(has=has, tokens=3))
        for n, (d, has) in enumerate([("easy", False), ("easy", True), ("hard", True), ("hard", True)])
    ]
    parts = summarize(rows, 0).parts
    assert (parts["difficulty=easy"].metrics["think_rate"].mean, parts["difficulty=hard"].metrics["think_rate"].mean) == (0.5, 1.0)


def test_records_from_before_difficulties_can_be_read() -> None:
    line = json.loads(make_record("a").line())
    assert line.pop("difficulty") is None
    assert from_json(line) == make_record("a")
    assert from_json(json.loads(record("b", "bbox", {"iou": 1.0}, difficulty="easy").line())).difficulty == "easy"

"""One statistics: the pages print what `vlmrl compare` prints, and asking the same question more often makes nothing look surer."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pages import make_eval, make_run
from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.compare import FolderComparison, compare_folders
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.paired import Gap, Incomparable, compare, mismatches
from vlmrl.evals.score.recipes import ONE_RUN
from vlmrl.evals.score.records import Record, by_sample, read_records
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import difference_text, figure, p_text
from vlmrl.extras.pages.view.save import write_comparison
from vlmrl.extras.pages.view.view import View, kept_documents

OF_DRAWS = ("pass@", "pass^", "maj@", "oracle")
"""Metrics of how often a question was asked: copies of an answer are other draws."""


def asked(numbers: list[list[float]], model: str, *, shared: int = 1, choice: bool = False) -> list[Record]:
    """A record per answer to each question; `shared` questions in a row are about one video. Categories and groups of two questions."""
    kind = {"answer_type": "choice", "pred": (), "gold": ()} if choice else {}
    return [
        make_record(
            f"q{n:03d}",
            **kind,
            model=model,
            fingerprint=f"weights-{model}",
            scores={"exact" if choice else "tiou": v},
            cluster=f"v{n // shared}",
            category=f"c{n % 3}",
            difficulty=("easy", "hard")[n % 2],
            group=f"g{n // 2}",
            n_out=10 + int(10 * v) + n,
            k=k,
        )
        for n, answers in enumerate(numbers)
        for k, v in enumerate(answers)
    ]


def copied(records: list[Record], times: int) -> list[Record]:
    return [dataclasses.replace(r, k=times * r.k + copy) for r in records for copy in range(times)]


scores = st.sampled_from([0.0, 0.1, 0.3, 1 / 3, 0.7, 1.0])
answers = st.integers(1, 3).flatmap(
    lambda n: st.lists(
        st.tuples(st.lists(scores, min_size=n, max_size=n), st.lists(scores, min_size=n, max_size=n)), min_size=2, max_size=9
    )
)


@settings(max_examples=40, deadline=None)
@given(answers, st.integers(2, 9), st.integers(1, 3), st.booleans())
def test_copies_of_answers_change_no_p_and_no_interval(pairs, times, shared, choice):
    sides = [asked([pair[i] for pair in pairs], "m", shared=shared, choice=choice) for i in (0, 1)]
    before, after = compare(*sides, seed=0), compare(*(copied(side, times) for side in sides), seed=0)
    for once, often in ((before, after), *((before.parts[part], after.parts[part]) for part in before.parts)):
        assert (once.n, once.better, once.worse) == (often.n, often.better, often.worse)
        for name, x in once.gaps.items():
            if not name.startswith(OF_DRAWS):
                y = often.gaps[name]
                assert (x.n, x.clusters, x.test, x.p) == (y.n, y.clusters, y.test, y.p), name
                assert (x.difference, x.low, x.high) == pytest.approx((y.difference, y.low, y.high), abs=1e-12), name
    once, often = summarize(sides[0], 0), summarize(copied(sides[0], times), 0)
    for summary, again in ((once, often), *((once.parts[part], often.parts[part]) for part in once.parts)):
        for name, x in summary.metrics.items():
            if not name.startswith(OF_DRAWS):
                y = again.metrics[name]
                assert (x.mean, x.low, x.high) == pytest.approx((y.mean, y.low, y.high), abs=1e-12), name


def test_a_question_counts_once_however_often_it_was_asked():
    """An imported or unfinished evaluation may have more answers to one question than to another."""
    rows = asked([[1.0] * 8, [0.0]], "m")
    assert summarize(rows, 0).metrics["miou"].mean == 0.5
    assert compare(rows, rows, 0).gaps["miou"].a == 0.5


def four_samples(tmp_path: Path) -> tuple[Path, Path]:
    """Two evaluations of 24 questions about 12 videos, four answers to each, no two alike."""
    first = [[((7 * n + 3 * k) % 10) / 10 for k in range(4)] for n in range(24)]
    second = [[min(1.0, v + 0.05 * (n % 3)) for v in row] for n, row in enumerate(first)]
    a, b = (
        make_eval(tmp_path / name, name, {"spans": asked(numbers, name, shared=2)}, frames=False)
        for name, numbers in (("old", first), ("new", second))
    )
    return a, b


def terminal(result: FolderComparison) -> str:
    from rich.console import Console

    console = Console(width=300, file=io.StringIO(), record=True)
    console.print(result)
    return console.export_text()


def assert_says(cell: dict[str, Any], name: str, gap: Gap) -> None:
    """A cell of a page has the numbers of the terminal; it says `same` where every answer has the same score."""
    if cell["text"] == "same":
        assert gap.differ == 0
        return
    assert f"{cell['text']} {cell['small']}" == f"{difference_text(name, gap)} p {p_text(gap.p)}"


def test_page_and_terminal_agree_on_four_answers_to_a_question(tmp_path: Path):
    a, b = four_samples(tmp_path)
    result = compare_folders(a, b)
    (task,) = result.tasks
    text = terminal(result)
    shown = kept_documents(write_comparison(result, tmp_path / "out" / "both.html"))["comparison/out"]["tables"][1]
    rows = {row[0]: row for row in shown["rows"]}
    assert {"miou", "r1@0.5", "tokens", "pass@2", "all_right", "macro"} <= set(task.gaps)
    for name, gap in task.gaps.items():
        if name == "score":
            continue  # it repeats another
        _, n, before, after, cell, test = rows[LABELS[name]]
        assert (n, before, after, test) == (str(gap.n), figure(name, gap.a), figure(name, gap.b), gap.test)
        assert_says(cell, name, gap)
        if cell["text"] != "same":
            (line,) = [line for line in text.splitlines() if re.match(rf"  {re.escape(LABELS[name])}( \(primary\))?(, n \d+)?: ", line)]
            assert f"{difference_text(name, gap)}, p {p_text(gap.p)} {gap.test}" in line


def test_the_report_of_a_run_agrees_with_the_terminal(tmp_path: Path):
    """A run keeps its evaluations as files of records, which `vlmrl compare` reads as well."""
    first = [[((7 * n + 3 * k) % 10) / 10 for k in range(4)] for n in range(24)]
    stages = {
        "base": asked(first, "base", shared=2),
        "rl": asked([[min(1.0, v + 0.1 * (n % 2)) for v in row] for n, row in enumerate(first)], "rl", shared=2),
    }
    run = make_run(tmp_path / "run", stages, frames=False)
    (task,) = compare_folders(run / "eval" / "base.jsonl", run / "eval" / "rl.jsonl", seed=1).tasks  # the seed of the run's recipe
    tables = View([run]).document("run/run")["tables"]
    (table,) = (one for one in tables if one["title"] == "Differences")
    ((_, better, worse, *cells),) = table["rows"]
    found = dict(zip(table["header"][3:], cells, strict=True))
    assert {"mIoU", "R1@0.5", "tokens"} <= set(found)
    for label, cell in found.items():
        name = next(name for name in task.gaps if LABELS[name] == label)
        assert_says(cell, name, task.gaps[name])
    assert (better, worse) == (str(task.better), str(task.worse))


def markdown_tables(text: str) -> list[list[list[str]]]:
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    rows = [[[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()] for block in blocks]
    return [[row for row in table if not set("".join(row)) <= {"-", ":"}] for table in rows]


def test_a_forced_comparison_says_the_same_everywhere(tmp_path: Path):
    """The same paired tables in the terminal, in Markdown and on the page, and the differences as warnings above all of them."""
    a, b = four_samples(tmp_path)
    file = b / "spans.jsonl"
    records = read_records(file)
    changed = [dataclasses.replace(r, prompt_ids_hash="other", n_in=(r.n_in or 0) + 7) for r in records]
    file.write_bytes(b"".join(r.line() for r in changed))
    for folder, processor in ((a, "Qwen2_5_VLProcessor"), (b, "Qwen3VLProcessor")):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "processor": processor}))
    with pytest.raises(Incomparable):
        compare_folders(a, b)
    result = compare_folders(a, b, force=True)
    result.write(tmp_path / "out")
    text, markdown = terminal(result), (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8")
    page = kept_documents(write_comparison(result, tmp_path / "out" / "comparison.html"))["comparison/out"]
    (task,) = result.tasks
    primary, metrics = result.primary_cells(), result.metric_cells(task)
    assert len(metrics) > 5
    assert markdown_tables(markdown)[:2] == [primary, metrics]
    assert [row[0] for row in page["tables"][0]["rows"]] == [row[0] for row in primary[1:]]
    assert sorted(row[0] for row in page["tables"][1]["rows"]) == sorted(row[1] for row in metrics[1:])
    for n, label, before, after, difference, p, test in metrics[1:]:
        (line,) = [line for line in text.splitlines() if re.match(rf"  {re.escape(label)}( \(primary\))?(, n {n})?: ", line)]
        assert f": {before} -> {after}, {difference}, p {p} {test}" in line
    assert page["tables"][0]["note"] == ONE_RUN
    n = records[0].n_in or 0
    words = "task 'spans': the prompt differs on 24 samples (processor Qwen2_5_VLProcessor against Qwen3VLProcessor; first: "
    (warning,) = result.warnings
    assert warning.startswith(words)
    assert warning.endswith(f"{n} against {n + 7} prompt tokens)")
    assert text.startswith(f"warning: {warning}")
    assert markdown.index(warning) < markdown.index("## Primary metrics")
    assert page["warnings"] == [warning]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_ids_hash": "x"}, "prompt tokens on both sides, but others"),
        ({"prompt_ids_hash": "x", "n_in": None}, "against unknown prompt tokens"),
        ({"sample_hash": "x", "gold": (0.0, 1.5)}, "against (0, 1.5))"),
        ({"sample_hash": "x", "cluster": "other.mp4"}, "against 'other.mp4')"),
        ({"sample_hash": "x"}, "its question, its media or their pixels)"),
        ({"settings": {"max_new_tokens": 17, "temperature": 0.0, "top_p": 1.0}}, "against 17)"),
        ({"answer_format": "answer_only"}, "against answer_only)"),
        ({"task_version": 2}, "1 against 2)"),
        ({"harness": "lmms-eval 0.7.3"}, "against lmms-eval 0.7.3)"),
    ],
)
def test_a_difference_is_told_in_words_and_not_in_hashes(change, words):
    rows = [dataclasses.replace(r, prompt_ids_hash="d41d8cd9", sample_hash="8f00b204") for r in asked([[1.0], [0.0]], "m")]
    (problem,) = mismatches("t", by_sample(rows), by_sample([rows[0], dataclasses.replace(rows[1], **change)]))
    assert words in problem.text()
    assert rows[1].sample_id in problem.text()
    assert "d41d8cd9" not in problem.text()
    assert "8f00b204" not in problem.text()

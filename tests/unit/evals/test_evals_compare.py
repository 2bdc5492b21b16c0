"""Comparing evaluations: numbers by hand and from the evaluation notes, verdicts, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from tests.unit.evals.test_evals_records import make_record
from vlmrl import __version__
from vlmrl.errors import StorageError
from vlmrl.evals.score.compare import compare_folders, is_worse
from vlmrl.evals.score.evaluation import load_evaluation
from vlmrl.evals.score.paired import Gap, Incomparable
from vlmrl.evals.score.recipes import ONE_RUN
from vlmrl.evals.score.table import difference_text
from vlmrl.run.ui import Ui

A10 = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1]
B10 = [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]
"""Section 3.10 of the evaluation notes: B gains 2, loses 1; p = 1."""


def choice(values, *, task="quiz", model="m", k=None, **changes):
    """One record per value, or per (sample, answer) with `k` answers in a row."""
    base = {"model": model, "task": task, "answer_type": "choice", "pred": (), "gold": ()}
    return [
        make_record(
            f"q{n // (k or 1):03d}",
            **{**base, "scores": {"exact": float(v)}, "text": f"{model} {n}", "cluster": f"c{n // (k or 1)}", **changes},
            k=n % (k or 1),
        )
        for n, v in enumerate(values)
    ]


def save(folder, tasks, *, model="m", primary="exact", version=__version__, **definition):
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in tasks.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in records))
    suite = {"id": "s", "version": 1, "tasks": [{"id": name, "primary": primary, **definition} for name in tasks]}
    summary = {"suite": suite, "model": model, "fingerprint": "w", "vlmrl": version, "tasks": {name: {} for name in tasks}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def two(tmp_path, a, b, **arguments):
    first = save(tmp_path / "a", {"quiz": choice(a, model="old")}, model="old")
    second = save(tmp_path / "b", {"quiz": choice(b, model="new")}, model="new")
    return compare_folders(first, second, **arguments)


def test_the_vector_of_the_notes(tmp_path):
    result = two(tmp_path, A10, B10)
    (task,) = result.tasks
    x = task.gaps["exact"]
    assert (x.n, x.a, x.b, x.test, x.p) == (10, 0.7, 0.8, "McNemar", 1.0)
    assert x.difference == pytest.approx(0.1)
    assert x.low < 0 < x.high
    assert (task.primary, task.p_holm, result.regressed, result.macro) == ("exact", 1.0, (), None)
    assert [(f.sample_id, f.a, f.b) for f in task.flips] == [("q002", 0, 1), ("q007", 0, 1), ("q009", 1, 0)]
    assert (task.flips[0].texts_a, task.flips[0].texts_b) == (("old 2",), ("new 2",))


def test_exact_mcnemar_by_hand(tmp_path):
    # 1 gained, 7 lost: 2 * (C(8,0) + C(8,1)) / 2^8 = 18 / 256. 0 gained, 8 lost: 2 / 256.
    assert two(tmp_path / "x", [0] + [1] * 7 + [1] * 4, [1] + [0] * 7 + [1] * 4).tasks[0].gaps["exact"].p == pytest.approx(18 / 256)
    result = two(tmp_path / "y", [1] * 12, [0] * 8 + [1] * 4)
    assert result.tasks[0].gaps["exact"].p == pytest.approx(2 / 256)
    assert result.regressed == ("quiz",)


def test_several_answers_take_the_mean_and_no_mcnemar(tmp_path):
    # Samples: (1, 1) -> (0, 0), (1, 0) -> (1, 1), (0, 0) -> (1, 0).
    a = save(tmp_path / "a", {"quiz": choice([1, 1, 1, 0, 0, 0], k=2)})
    b = save(tmp_path / "b", {"quiz": choice([0, 0, 1, 1, 1, 0], k=2)})
    (task,) = compare_folders(a, b).tasks
    x = task.gaps["exact"]
    assert (task.n, x.n, x.test, x.low, x.why) == (3, 3, "permutation", None, "no interval: 3 clusters")
    assert (x.a, x.b) == (pytest.approx(0.5), pytest.approx(0.5))
    # (1, 0.5, 0) -> (0, 1, 0.5); 0.5 counts as right, so the second is no flip. The larger change comes first.
    assert [(f.sample_id, f.a, f.b, len(f.texts_a)) for f in task.flips] == [("q000", 1, 0, 2), ("q002", 0, 0.5, 2)]
    # pass@2 of each sample: (1, 1, 0) -> (0, 1, 1).
    assert (task.gaps["pass@2"].n, task.gaps["pass@2"].a, task.gaps["pass@2"].b) == (3, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert task.gaps["pass@2"].test == "McNemar"


def test_groups_of_questions_are_paired_as_groups(tmp_path):
    sides = []
    for name, values in (("a", [1, 1, 1, 1, 0, 1]), ("b", [1, 1, 1, 0, 1, 1])):
        records = [dataclasses.replace(r, group=f"g{n // 2}") for n, r in enumerate(choice(values))]
        sides.append(save(tmp_path / name, {"quiz": records}, primary="all_right"))
    (task,) = compare_folders(*sides).tasks
    x = task.gaps["all_right"]
    assert (task.primary, x.n, x.a, x.b) == ("all_right", 3, pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert [f.sample_id for f in task.flips] == ["q003", "q004"]


def made_gap(difference, low, high, p) -> Gap:
    return Gap(n=9, clusters=9, a=0.5, b=0.5 + difference, difference=difference, low=low, high=high, p=p, test="permutation")


@pytest.mark.parametrize(
    ("difference", "low", "high", "p", "tolerance", "lower_is_better", "worse"),
    [
        (-0.1, -0.15, -0.05, 0.01, 0.0, False, True),
        (-0.1, -0.15, -0.05, 0.01, 0.1, False, False),  # a drop of exactly the tolerance is allowed
        (-0.1, -0.15, -0.05, 0.01, 0.09, False, True),
        (-0.1, -0.25, 0.0, 0.01, 0.0, False, False),  # the interval touches 0
        (-0.1, -0.15, -0.05, 0.05, 0.0, False, False),  # the test does not agree
        (0.1, 0.05, 0.15, 0.01, 0.0, False, False),
        (0.1, 0.05, 0.15, 0.01, 0.0, True, True),
        (-0.1, -0.15, -0.05, 0.01, 0.0, True, False),
        (-0.1, None, None, 0.01, 0.0, False, False),  # too few clusters for an interval
    ],
)
def test_what_counts_as_worse(difference, low, high, p, tolerance, lower_is_better, worse):
    assert is_worse(made_gap(difference, low, high, p), tolerance, lower_is_better=lower_is_better) is worse


def test_verdict_and_files(tmp_path):
    a = save(tmp_path / "a", {"quiz": choice([1] * 20), "same": choice(A10, task="same"), "gone": choice([1])}, model="old|x")
    b = save(tmp_path / "b", {"same": choice(A10, task="same"), "quiz": choice([0] * 12 + [1] * 8), "fresh": choice([1])}, model="new")
    result = compare_folders(a, b)
    result.write(tmp_path / "out")
    assert result.regressed == ("quiz",)
    assert compare_folders(b, a).regressed == compare_folders(a, b, tolerance=0.6).regressed == ()
    assert compare_folders(a, b, tolerance=0.59).regressed == ("quiz",)
    value = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (value["regressed"], value["only"], value["warnings"]) == (["quiz"], [["gone"], ["fresh"]], [])
    assert value["macro_mean"] == pytest.approx([(1 + 0.7) / 2, (0.4 + 0.7) / 2])
    # Holm over p = 2 / 2^12 and 1: twice the first.
    assert [(x["task"], x["p_holm"]) for x in value["tasks"]] == [("quiz", pytest.approx(4 / 2**12)), ("same", 1.0)]
    assert len(value["tasks"][0]["flips"]) == 12
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert text == result.markdown()
    assert "- regressed: quiz\n" in text
    assert "- macro mean over 2 tasks (primary metrics, each task counted once): 0.850 -> 0.550, -0.300 (no interval: 2 tasks)\n" in text
    assert f"- only in {a}: gone\n" in text
    assert "| quiz | 20 | exact | 1.000 | 0.400 | -0.600 [" in text
    assert "old\\|x" in text


def test_terminal_shows_warnings_first(tmp_path):
    from rich.console import Console

    a = save(tmp_path / "a", {"quiz": choice([1, 0, 1, 1])}, model="old")
    b = save(tmp_path / "b", {"quiz": choice([1, 0, 1, 0], prompt_ids_hash="other")}, model="new\x1b[2J")
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(compare_folders(a, b, force=True))
    text = console.export_text()
    assert text.startswith("warning: task 'quiz': the prompt differs on 4 samples")
    assert "no regression" in text
    assert "\x1b[2J" not in text


def test_eighty_columns_cut_no_word_and_no_path(tmp_path):
    from rich.console import Console

    folder = tmp_path / ("long-" * 20)
    a = save(folder / "a", {"quiz": choice([1] * 20), "other": choice(A10, task="other")}, model="m")
    b = save(folder / "b", {"quiz": choice([0] * 12 + [1] * 8), "other": choice(B10, task="other")}, model="m")
    console = Console(width=80, file=io.StringIO(), record=True, force_terminal=True)
    result = compare_folders(a, b)
    Ui(console).show(result)
    text = console.export_text()
    assert str(a) in text
    assert str(b) in text
    assert all(len(line.rstrip()) <= 80 or str(folder) in line for line in text.splitlines())
    assert " ".join(text.split()) == " ".join(" ".join([*result.told(), *result.lines(), *result.under()]).split())
    assert f"\n  exact (primary): 1.000 -> 0.400, {difference_text('exact', result.tasks[0].gaps['exact'])}, p" in text


def test_what_two_single_runs_cannot_tell_is_said_in_every_form(tmp_path):
    result = two(tmp_path, A10, B10)
    result.write(tmp_path / "out")
    assert result.under() == [ONE_RUN]
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert text.index("## Primary metrics") < text.index(f"- {ONE_RUN}\n") < text.index("## quiz")
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["note"] == ONE_RUN


def test_texts_of_models_cannot_write_the_page(tmp_path):
    a = save(tmp_path / "a", {"quiz": choice([1], text="<answer>a|b</answer>\n\n# big\ud800")}, model="old")
    b = save(tmp_path / "b", {"quiz": choice([0], text="y" * 5000)}, model="new")
    compare_folders(a, b).write(tmp_path / "out")
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "&lt;answer>a\\|b&lt;/answer> # big\\ud800 | " + "y" * 400 + " [...] |\n" in text


CHANGES = [
    ("prompt_ids_hash", "other", "the prompt differs"),
    ("sample_hash", "other", "question, gold answer, media or pixel budget differs"),
    ("answer_format", "answer_only", "the answer format differs"),
    ("settings", {"max_new_tokens": 17, "temperature": 0.0, "top_p": 1.0}, "generation settings differs"),
    ("task_version", 2, "the task version differs"),
    ("harness", "lmms-eval 0.7.3", "the harness differs"),
]


@pytest.mark.parametrize(("field", "value", "message"), CHANGES)
def test_what_was_asked_otherwise_is_refused(tmp_path, field, value, message):
    changed = [dataclasses.replace(r, **{field: value}) if n in (1, 4, 5) else r for n, r in enumerate(choice(B10))]
    a, b = save(tmp_path / "a", {"quiz": choice(A10)}), save(tmp_path / "b", {"quiz": changed})
    with pytest.raises(Incomparable, match=rf"task 'quiz': {message} on 3 samples \(first: 'q001'") as caught:
        compare_folders(a, b)
    assert caught.value.exit_code == 65
    result = compare_folders(a, b, force=True)
    assert len(result.warnings) == 1
    assert f"{message} on 3 samples" in result.warnings[0]
    assert result.markdown().index(result.warnings[0]) < result.markdown().index("## Primary metrics")
    assert result.tasks == compare_folders(a, save(tmp_path / "c", {"quiz": choice(B10)})).tasks


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt_ids_hash", "unknown", "the prompt is unknown"),
        ("sample_hash", "unknown:1", "media or pixel budget is unknown"),
        ("answer_format", "unknown", "the answer format is unknown"),
        ("settings", {}, "generation settings is unknown"),
        ("task_version", 0, "the task version is unknown"),
        ("harness", "unknown version of lmms-eval", "the harness is unknown"),
    ],
)
def test_two_unknowns_are_not_equal(tmp_path, field, value, message):
    a, b = (save(tmp_path / name, {"quiz": choice(A10, **{field: value})}) for name in "ab")
    with pytest.raises(Incomparable, match=f"{message} on 10 samples"):
        compare_folders(a, b)


def test_other_samples_and_other_numbers_of_answers(tmp_path):
    a = save(tmp_path / "a", {"quiz": choice([1, 1, 0, 1], k=2)})
    b = save(tmp_path / "b", {"quiz": choice([1, 0, 1])})
    with pytest.raises(Incomparable) as caught:
        compare_folders(a, b)
    lines = str(caught.value).splitlines()[1:]
    assert lines == [
        "  task 'quiz': only the second has answers on 1 samples (first: 'q002')",
        "  task 'quiz': the number of answers differs on 2 samples (first: 'q000' has 2 and 1)",
    ]
    (task,) = compare_folders(a, b, force=True).tasks
    assert (task.n, task.gaps["exact"].a, task.gaps["exact"].b) == (2, pytest.approx(0.75), 0.5)
    nothing = save(tmp_path / "c", {"quiz": choice([1] * 9)[8:]})
    with pytest.raises(Incomparable, match="no sample in common"):
        compare_folders(a, nothing, force=True)
    with pytest.raises(Incomparable, match=r"no task in common: .* has quiz, .* has other"):
        compare_folders(a, save(tmp_path / "d", {"other": choice([1])}), force=True)


def test_definitions_of_the_task_are_compared(tmp_path):
    a = save(tmp_path / "a", {"quiz": choice(A10)}, media={"max_pixels": 100, "cache_bytes": 1, "workers": 2}, extraction="lenient")
    same = save(tmp_path / "b", {"quiz": choice(A10)}, media={"max_pixels": 100, "cache_bytes": 2, "workers": 0}, extraction="lenient")
    assert compare_folders(a, same).warnings == ()
    assert compare_folders(a, save(tmp_path / "d", {"quiz": choice(A10)}, extraction="lenient", scoring={})).warnings == ()
    b = save(tmp_path / "c", {"quiz": choice(A10)}, media={"max_pixels": 200}, extraction="strict", version="0.0.0", primary="parse_rate")
    scored = save(tmp_path / "e", {"quiz": choice(A10)}, extraction="lenient", scoring={"take": "first"})
    with pytest.raises(Incomparable, match=r"how answers are scored differs on 10 samples \(\{\} and \{'take': 'first'\}\)"):
        compare_folders(tmp_path / "d", scored)
    with pytest.raises(Incomparable) as caught:
        compare_folders(a, b)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"task 'quiz': the version of vlmrl differs on 10 samples ({__version__} and 0.0.0)",
        "task 'quiz': the primary metric differs on 10 samples (exact and parse_rate)",
        "task 'quiz': how answers are read differs on 10 samples (lenient and strict)",
        "task 'quiz': media.max_pixels differs on 10 samples (100 and 200)",
    ]


def test_single_files(tmp_path):
    a, b = save(tmp_path / "a", {"quiz": choice(A10, model="old")}), save(tmp_path / "b", {"quiz": choice(B10, model="new")})
    whole = compare_folders(a, b)
    for left, right in ((a / "quiz.jsonl", b / "quiz.jsonl"), (a / "quiz.jsonl", b), (a, b / "quiz.jsonl")):
        result = compare_folders(left, right)
        assert result.tasks == whole.tasks
        assert result.warnings == ()
    # Records of several tasks in one file, as a training run keeps them, and no summary beside it.
    for name, records in (("old", choice(A10) + choice([0], task="z")), ("new", choice(B10))):
        both = [dataclasses.replace(r, sample_id=f"{r.task}-{r.sample_id}") for r in records]
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in both))
    result = compare_folders(tmp_path / "old.jsonl", tmp_path / "new.jsonl")
    assert ([x.task for x in result.tasks], result.only, result.tasks[0].primary) == (["quiz"], (("z",), ()), "exact")
    assert result.tasks[0].gaps["exact"] == whole.tasks[0].gaps["exact"]
    bare = "is of no run and has no summary.json beside it: program version and media settings are unchecked"
    assert result.warnings == tuple(f"{tmp_path / name}.jsonl {bare}" for name in ("old", "new"))
    assert load_evaluation(tmp_path / "old.jsonl").model == "m"


def test_primary_without_a_suite(tmp_path):
    def primary(records, stated=""):
        folder = save(tmp_path / "x", {"quiz": records}, primary=stated)
        return compare_folders(folder, folder).tasks[0].primary

    assert primary(choice([1, 0]), "parse_rate") == "parse_rate"
    assert primary(choice([1, 0])) == "exact"
    mixed = [*choice([1]), make_record("z")]
    assert primary(mixed) == "score"
    with pytest.raises(Incomparable, match="'quiz': its primary metric 'miou' cannot be compared on any sample; there is: score, exact"):
        primary(choice([1, 0]), "miou")


def test_more_tokens_are_worse(tmp_path):
    a, b = (save(tmp_path / str(n), {"quiz": choice([1] * 20, n_out=n)}, primary="tokens") for n in (10, 30))
    grown = compare_folders(a, b)
    assert (grown.regressed, grown.macro, grown.tasks[0].flips) == (("quiz",), None, ())
    assert compare_folders(b, a).regressed == ()


def test_files_that_are_no_evaluation(tmp_path):
    good = save(tmp_path / "a", {"quiz": choice(A10)})
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"empty: no summary\.json; give a folder"):
        compare_folders(good, tmp_path / "empty")
    with pytest.raises(StorageError, match="no evaluation records"):
        compare_folders(good, tmp_path / "missing.jsonl")
    for text in ("{", "[]", '{"suite": {"tasks": [{"id": 1}]}, "model": "m", "vlmrl": "1", "tasks": {}}', '{"suite": {}}'):
        (tmp_path / "empty" / "summary.json").write_text(text)
        with pytest.raises(StorageError, match=r"summary\.json: not the summary"):
            compare_folders(good, tmp_path / "empty")
    with pytest.raises(ValueError, match="tolerance"):
        compare_folders(good, good, tolerance=-1)

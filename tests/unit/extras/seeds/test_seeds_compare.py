"""Two methods over seeds: numbers by hand, what is paired with what, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import ttest_ind, ttest_rel
from typer.testing import CliRunner

from tests.unit.evals.test_evals_compare import A10, B10, choice, save
from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.evals.score.recipes import ONE_RUN
from vlmrl.extras.seeds.command import BETWEEN, parted
from vlmrl.extras.seeds.compare import compare_seeds

ONES = [1.0] * 20


def make_run(path: Path, values: list[float], seed: int, **recipe: Any) -> Path:
    """A run with one evaluation."""
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"stages": [{"name": "rl"}], "run": {"seed": seed, "name": path.name}, **recipe}))
    (path / "eval" / "order.json").write_text(json.dumps(["rl"]))
    (path / "eval" / "rl.jsonl").write_bytes(b"".join(r.line() for r in choice(values, model="rl")))
    return path


def right(count: int) -> list[float]:
    """So many of 20 questions right."""
    return [1.0] * count + [0.0] * (20 - count)


def sides(tmp_path: Path, first: list[int], second: list[int]) -> tuple[list[Path], list[Path]]:
    a = [make_run(tmp_path / f"a{seed}", right(n), seed) for seed, n in enumerate(first)]
    b = [make_run(tmp_path / f"b{seed}", right(n), seed) for seed, n in enumerate(second)]
    return a, b


def test_runs_are_paired_by_their_seed_in_whatever_order(tmp_path: Path):
    a, b = sides(tmp_path, [10, 12, 14], [11, 14, 17])
    result = compare_seeds(a, [b[2], b[0], b[1]])
    (task,) = result.tasks
    assert result.sides.seeds == ((0, 1, 2), (0, 1, 2))
    assert (task.a_by_seed, task.b_by_seed) == ((0.5, 0.6, 0.7), (0.55, 0.7, 0.85))
    assert (task.metric, task.questions, task.a, task.b) == ("exact", 20, pytest.approx(0.6), pytest.approx(0.7))
    assert task.difference == pytest.approx(0.1)
    assert task.low == pytest.approx(0.1 - 4.3027 * 0.05 / math.sqrt(3), abs=1e-4)
    assert task.wide_low < task.low
    assert result.regressed == ()
    assert "Student's t over 3 seeds (0, 1, 2), paired by seed, with base and data shared; the second" in result.lines()[1]


def test_the_seed_alone_is_no_effect_though_single_runs_say_so(tmp_path: Path):
    """What two single runs call a regression, with p below 0.001, three seeds of either side do not."""
    a, b = sides(tmp_path, [20, 4, 18], [4, 20, 18])
    single = CliRunner().invoke(app, ["compare", str(a[0]), str(b[0])])
    assert single.exit_code == 1
    assert "< 0.001" in single.output
    assert ONE_RUN in " ".join(single.output.split())
    several = CliRunner().invoke(app, ["compare", *map(str, a), "--", *map(str, b)])
    assert several.exit_code == 0, several.output
    assert "no regression" in several.output


def test_a_steady_loss_is_a_regression_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    a, b = sides(tmp_path, [20, 19, 20], [8, 8, 7])
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["compare", *map(str, a), "--", *map(str, b), "--out", str(out)])
    assert done.exit_code == 1, done.output
    assert "regressed: rl" in done.output
    assert "rl: exact, 3 seeds x 20 questions, regressed" in done.output
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "comparison.md"]
    written = json.loads((out / "comparison.json").read_text())
    assert (written["seeds"], written["paired"], written["regressed"]) == ([[0, 1, 2]] * 2, True, ["rl"])
    assert "| rl | 20 |" in (out / "comparison.md").read_text()
    assert compare_seeds(a, b, tolerance=0.9).regressed == ()


def test_lower_is_better_of_tokens(tmp_path: Path):
    a = [save(tmp_path / f"a{n}", {"quiz": choice([1, 0], n_out=10 + n)}, primary="tokens") for n in range(3)]
    b = [save(tmp_path / f"b{n}", {"quiz": choice([1, 0], n_out=50 + n)}, primary="tokens") for n in range(3)]
    assert compare_seeds(a, b).regressed == ("quiz",)
    assert compare_seeds(b, a).regressed == ()


def test_folders_of_no_run_are_two_samples(tmp_path: Path):
    a = [save(tmp_path / f"a{n}", {"quiz": choice(A10)}) for n in range(2)]
    b = [save(tmp_path / f"b{n}", {"quiz": choice(B10)}) for n in range(3)]
    result = compare_seeds(a, b)
    assert (result.sides.paired, result.sides.seeds) == (False, None)
    assert "Welch's t over 2 and 3 runs, not paired: not all are of runs" in result.lines()[1]


@pytest.mark.parametrize(
    ("seeds", "change", "why"),
    [
        ((0, 1, 2), {"stages": [{"name": "rl", "kind": "grpo"}]}, ""),
        ((3, 4, 5), {}, "the sides have other seeds"),
        ((0, 1), {}, "the sides have other seeds"),
        ((0, 1, 2), {"model": {"path": "other"}}, "they do not share their base"),
        ((0, 1, 2), {"toy": {"base_seed": 1}}, "they do not share their world"),
        ((0, 1, 2), {"stages": [{"name": "rl", "source": {"path": "more.jsonl"}}]}, "they do not share their data"),
    ],
)
def test_a_seed_pairs_runs_only_where_it_means_the_same(tmp_path: Path, seeds: tuple[int, ...], change: dict, why: str):
    a = [make_run(tmp_path / f"a{seed}", right(10 + seed), seed) for seed in range(3)]
    b = [make_run(tmp_path / f"b{seed}", right(12 + 2 * n), seed, **change) for n, seed in enumerate(seeds)]
    result = compare_seeds(a, b)
    assert (result.sides.apart, result.sides.paired) == (why, not why)
    (task,) = result.tasks
    if why:
        welch = ttest_ind(task.b_by_seed, task.a_by_seed, equal_var=False)
        assert (task.p, task.low) == (pytest.approx(welch.pvalue), pytest.approx(welch.confidence_interval().low))
        assert f"Welch's t over 3 and {len(seeds)} runs, not paired: {why}" in " ".join(result.told())
    else:
        assert task.p == pytest.approx(ttest_rel(task.b_by_seed, task.a_by_seed).pvalue)


def test_one_recipe_on_both_sides_is_named_as_such(tmp_path: Path):
    a = [make_run(tmp_path / f"a{seed}", right(10 + seed), seed) for seed in range(3)]
    b = [make_run(tmp_path / f"b{seed}", right(9 + seed), seed) for seed in range(3, 6)]
    said = "A and B are one recipe: a difference is one between seeds, not between methods"
    result = compare_seeds(a, b)
    assert said in result.lines()
    assert result.json()["one_recipe"] is True
    other = [make_run(tmp_path / f"c{seed}", right(9 + seed), seed, stages=[{"name": "rl", "kind": "dapo"}]) for seed in range(3)]
    assert said not in compare_seeds(a, other).lines()
    single = compare_folders(a[0], b[0])
    assert single.seeds == (0, 3)
    assert single.under()[1].startswith("the two runs differ in nothing but run.seed (0, 3)")
    assert compare_folders(a[0], other[0]).under() == [ONE_RUN]


def test_one_recipe_with_two_seeds_does_not_regress_and_two_recipes_do(tmp_path: Path):
    better, worse = make_run(tmp_path / "s0", right(19), 0), make_run(tmp_path / "s1", right(2), 1)
    pair = compare_folders(better, worse)
    assert (pair.seeds, pair.regressed, pair.tasks[0].regressed) == ((0, 1), (), False)
    assert pair.verdict() == "no verdict: one recipe with two seeds; compare several runs of each side"
    assert pair.tasks[0].gaps[pair.tasks[0].primary].p < 0.001, "the difference is there, between seeds"
    other = make_run(tmp_path / "other", right(2), 1, stages=[{"name": "rl", "kind": "dapo"}])
    assert compare_folders(better, other).regressed == ("rl",)


def test_few_questions_leave_the_second_level_without_an_interval(tmp_path: Path):
    a = [save(tmp_path / f"a{n}", {"quiz": choice([1, 0, 1, n % 2])}) for n in range(3)]
    b = [save(tmp_path / f"b{n}", {"quiz": choice([1, 1, 1, n % 2])}) for n in range(3)]
    (task,) = compare_seeds(a, b).tasks
    assert task.low is not None
    assert (task.wide_low, task.wide_why) == (None, "no interval: fewer than 10 clusters")


def test_what_has_no_spread_is_refused(tmp_path: Path):
    a, b = sides(tmp_path, [10, 12], [11, 14])
    with pytest.raises(ConfigError, match="1 and 2 evaluations: a t interval over seeds needs two of each side"):
        compare_seeds(a[:1], b)
    twice = make_run(tmp_path / "again", right(3), 0)
    with pytest.raises(ConfigError, match=r"again: another run of its side has the same run\.seed"):
        compare_seeds([*a, twice], [*b, b[0]])


def test_unlike_questions_are_refused_as_between_two_runs(tmp_path: Path):
    a, b = sides(tmp_path, [10, 12], [11, 14])
    (b[1] / "eval" / "rl.jsonl").write_bytes(b"".join(r.line() for r in choice(right(3)[:10], model="rl")))
    with pytest.raises(Incomparable, match="cannot be compared"):
        compare_seeds(a, b)
    result = compare_seeds(a, b, force=True)
    assert any("only the first has answers" in text for text in result.warnings)
    assert result.tasks[0].questions == 10


@pytest.mark.parametrize(
    ("words", "published", "expected"),
    [
        (["a", "b"], False, (1, 1)),
        (["a", BETWEEN, "b"], False, (1, 1)),
        (["a", "b", BETWEEN, "c", "d", "e"], False, (2, 3)),
        (["a"], True, (1, 0)),
    ],
)
def test_the_two_sides(words: list[str], published: bool, expected: tuple[int, int]):
    first, second = parted(words, published)
    assert (len(first), len(second)) == expected


@pytest.mark.parametrize(
    ("words", "published", "said"),
    [
        (["a"], False, "needs a second evaluation"),
        (["a", "b", "c"], False, "which of the 3 are one side?"),
        (["a", BETWEEN], False, "needs a second evaluation"),
        (["a", BETWEEN, "b", BETWEEN, "c"], False, "stands once"),
        (["a", "b"], True, "--published stands in place of B"),
    ],
)
def test_sides_that_are_none(words: list[str], published: bool, said: str):
    with pytest.raises(ConfigError, match=said):
        parted(words, published)

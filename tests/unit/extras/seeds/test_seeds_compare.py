"""Two methods over seeds: numbers by hand, what is paired with what, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.evals.test_evals_compare import A10, B10, choice, save
from vlmrl.cli import app
from vlmrl.errors import ConfigError
from vlmrl.evals.score.compare import ONE_RUN
from vlmrl.evals.score.paired import Incomparable
from vlmrl.extras.seeds.command import BETWEEN, parted
from vlmrl.extras.seeds.compare import compare_seeds, over_seeds, paired

ONES = [1.0] * 20


def make_run(path: Path, values: list[float], seed: int) -> Path:
    """A run with one evaluation."""
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"stages": [{"name": "rl"}], "run": {"seed": seed}}))
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


def test_student_by_hand():
    # Differences -0.54, +0.013, -0.127: mean -0.218, sd 0.2876, t(2) 4.3027: half 0.7142; t = -1.313, p = 0.320.
    mean, half, wide, p = over_seeds([-0.54, 0.013, -0.127], {}, 0.0)
    assert mean == pytest.approx(-0.218)
    assert half == pytest.approx(0.7142, abs=1e-4)
    assert wide == half
    assert p == pytest.approx(0.3197, abs=1e-3)


def test_questions_widen_the_interval_and_those_of_one_medium_count_once():
    apart = {f"q{n}": (float(n % 2), f"c{n}") for n in range(4)}
    # variance of a mean of 0, 1, 0, 1: 4/3 * 4 * 0.25 / 16 = 1/12
    _, half, wide, _ = over_seeds([0.4, 0.6], apart, 0.0)
    assert wide == pytest.approx(math.sqrt(half**2 + 12.7062**2 / 12), rel=1e-4)
    shared = {f"q{n}": (float(n % 2), f"c{n % 2}") for n in range(4)}
    assert over_seeds([0.4, 0.6], shared, 0.0)[2] > wide
    one = {f"q{n}": (float(n % 2), "c") for n in range(4)}
    assert over_seeds([0.4, 0.6], one, 0.0)[2] == half


def test_seeds_that_agree_to_the_last_answer_leave_something_to_know():
    mean, half, _, p = over_seeds([0.1, 0.1, 0.1], {}, 0.05)
    assert (mean, half) == (pytest.approx(0.1), pytest.approx(4.3027 * 0.05 / math.sqrt(3), rel=1e-4))
    assert p == pytest.approx(0.0742, abs=1e-3)
    assert over_seeds([0.0, 0.0], {}, 0.0)[3] == 1.0
    assert over_seeds([0.1, 0.1], {}, 0.0)[3] == 0.0


def test_runs_are_paired_by_their_seed_in_whatever_order(tmp_path: Path):
    a, b = sides(tmp_path, [10, 12, 14], [11, 14, 17])
    result = compare_seeds(a, [b[2], b[0], b[1]])
    (task,) = result.tasks
    assert result.seeds == (0, 1, 2)
    assert task.by_seed == (pytest.approx(0.05), pytest.approx(0.1), pytest.approx(0.15))
    assert (task.metric, task.questions, task.a, task.b) == ("exact", 20, pytest.approx(0.6), pytest.approx(0.7))
    assert task.difference == pytest.approx(0.1)
    assert task.low == pytest.approx(0.1 - 4.3027 * 0.05 / math.sqrt(3), abs=1e-4)
    assert task.wide_low < task.low
    assert result.regressed == ()
    assert "Student's t over 3 seeds (0, 1, 2), paired by seed and by question" in result.lines()[1]


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
    assert (written["seeds"], written["regressed"]) == ([0, 1, 2], ["rl"])
    assert "| rl | 20 |" in (out / "comparison.md").read_text()
    assert compare_seeds(a, b, tolerance=0.9).regressed == ()


def test_lower_is_better_of_tokens(tmp_path: Path):
    a = [save(tmp_path / f"a{n}", {"quiz": choice([1, 0], n_out=10 + n)}, primary="tokens") for n in range(3)]
    b = [save(tmp_path / f"b{n}", {"quiz": choice([1, 0], n_out=50 + n)}, primary="tokens") for n in range(3)]
    assert compare_seeds(a, b).regressed == ("quiz",)
    assert compare_seeds(b, a).regressed == ()


def test_folders_of_no_run_are_paired_as_they_stand(tmp_path: Path):
    a = [save(tmp_path / f"a{n}", {"quiz": choice(A10)}) for n in range(2)]
    b = [save(tmp_path / f"b{n}", {"quiz": choice(B10)}) for n in range(2)]
    result = compare_seeds(a, b)
    assert result.seeds is None
    assert result.warnings[0].endswith("paired in the order given")
    assert "paired in the order given and by question" in result.lines()[1]
    with pytest.raises(ConfigError, match="2 and 3 evaluations; of each side one per seed"):
        paired(a, [*b, a[0]])


def test_what_cannot_be_paired_is_refused(tmp_path: Path):
    a, b = sides(tmp_path, [10, 12], [11, 14])
    with pytest.raises(ConfigError, match="1 and 2 evaluations: Student's t over seeds needs two of each side"):
        compare_seeds(a[:1], b)
    twice = make_run(tmp_path / "again", right(3), 0)
    with pytest.raises(ConfigError, match=r"again: another run of its side has the same run\.seed"):
        compare_seeds([*a, twice], [*b, b[0]])
    other = make_run(tmp_path / "other", right(3), 7)
    with pytest.raises(ConfigError, match=r"a1 \(seed 1\), .*other \(seed 7\): the other side has no run with this seed"):
        compare_seeds(a, [b[0], other])


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

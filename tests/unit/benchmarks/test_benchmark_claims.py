"""benchmarks/claims*: which runs a claim needs, that finished ones are kept, and how numbers become verdicts."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import claims
from benchmarks.claims_cells import CLAIMS, Condition, cells_of, digest, rollouts_of
from benchmarks.claims_report import condition_cells, document, measure_cells, number, summary_json
from benchmarks.claims_stats import FAILS, HOLDS, OPEN, Finding, find, interval, judge, moments, rollouts_to, verdict, with_curve
from benchmarks.common import BenchmarkError
from vlmrl.config.load import load
from vlmrl.methods import require_methods

GAIN = Condition(text="x", arm="new", than="old", measure="m", kind="greater")


def stages_of(cell) -> list[dict]:
    return json.loads(next(o for o in cell.overrides if o.startswith("stages=")).removeprefix("stages="))


@pytest.fixture(scope="module")
def cells():
    return {name: cells_of(claim, [0, 1], claims.RECIPES, []) for name, claim in CLAIMS.items()}


@pytest.mark.parametrize("name", CLAIMS)
def test_arms_have_equal_rollouts_and_differ_only_in_their_method(name, cells) -> None:
    budgets = {rollouts_of(stages_of(cell)) for cell in cells[name] if cell.arm != "sft"}
    assert len(budgets) == 1
    assert budgets != {0}
    assert len({cell.digest for cell in cells[name]}) == len({cell.name for cell in cells[name]}) == len(cells[name])
    for condition in CLAIMS[name].conditions:
        assert {condition.arm, condition.than or condition.arm} <= set(CLAIMS[name].arms)


@pytest.mark.parametrize("name", CLAIMS)
def test_every_run_is_a_valid_recipe(name, cells) -> None:
    for cell in cells[name][: len(cells[name]) // 2]:
        require_methods(load(Path(cell.recipe), list(cell.overrides)).config)


def test_arms_of_a_claim_by_hand(cells) -> None:
    rl = {cell.arm: stages_of(cell)[-1] for cell in cells["tempsamp"]}
    assert rl["TempSamp-R1"]["reward_shaping"][0]["name"] == "tempsamp_nonlinear"
    assert rl["unrepaired"]["reward_shaping"] == rl["GRPO"]["reward_shaping"] == []
    assert {arm: stage["rollout"]["strategy"]["name"] for arm, stage in rl.items() if arm != "sft"} == {
        "TempSamp-R1": "offpolicy_gt",
        "unrepaired": "offpolicy_gt",
        "GRPO": "plain",
    }
    assert {stage["advantage"]["name"] for arm, stage in rl.items() if arm != "sft"} == {"grpo"}
    ton = {cell.arm: stages_of(cell) for cell in cells["ton"]}
    assert [stages[0]["thought_dropout"] for stages in ton.values()] == [0.5, 0.0]
    parents = {cell.seed: cell for cell in cells["fgrpo"] if cell.arm == "sft"}
    assert all(cell.parent == parents[cell.seed] for cell in cells["fgrpo"] if cell.arm != "sft")


def test_digest_depends_on_what_moves_numbers_and_on_nothing_else() -> None:
    claim = CLAIMS["fgrpo"]
    (first, again, threads, longer, moved) = (
        cells_of(claim, [0], claims.RECIPES, extra)[-1].digest
        for extra in ([], [], ["run.threads=1"], ["data.max_prompt_tokens=128"], ["toy.cache=elsewhere"])
    )
    assert first == again == threads == moved
    assert first != longer
    # a change of the fine-tuning changes what comes after it
    assert cells_of(claim, [0], claims.RECIPES, ["stages.sft.steps=7"])[-1].digest != first
    assert digest({"run": {"seed": 0}}, None) != digest({"run": {"seed": 1}}, None)


def test_finished_runs_are_kept_and_parents_come_first(cells, tmp_path) -> None:
    ran: list[str] = []

    def execute(arguments, log):
        name = next(a for a in arguments if a.startswith("run.name=")).removeprefix("run.name=")
        start = [a.removeprefix("model.path=") for a in arguments if a.startswith("model.path=")]
        assert all((Path(path).parent / "FINISHED").exists() for path in start)
        ran.append(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "FINISHED").touch()

    mine = cells["fgrpo"]
    claims.run_cells(mine[:3], tmp_path, execute, [], lambda text: None)
    assert ran == [cell.name for cell in mine[:3]]
    claims.run_cells(mine, tmp_path, execute, ["run.threads=1"], lambda text: None)
    parents_first = sorted(mine, key=lambda cell: cell.parent is not None)
    assert ran == [cell.name for cell in mine[:3]] + [cell.name for cell in parents_first if cell not in mine[:3]]
    plan = claims.plan_lines([CLAIMS["fgrpo"]], {"fgrpo": mine}, tmp_path)
    assert sum("done" in line for line in plan) == len(mine)
    (tmp_path / mine[-1].name / "FINISHED").unlink()
    assert "to run" in claims.plan_lines([CLAIMS["fgrpo"]], {"fgrpo": mine}, tmp_path)[-1]


def test_a_run_that_stops_early_is_an_error_and_not_a_number(cells, tmp_path) -> None:
    with pytest.raises(BenchmarkError, match="ended without finishing"):
        claims.run_cells(cells["ton"][:1], tmp_path, lambda arguments, log: None, [], lambda text: None)
    assert claims.collect(CLAIMS["ton"], cells["ton"], tmp_path) == {}


def test_a_failure_stops_what_has_not_begun(cells, tmp_path) -> None:
    begun: list[str] = []

    def execute(arguments, log):
        begun.append(log.stem)
        raise BenchmarkError("the machine is on fire")

    with pytest.raises(BenchmarkError, match="on fire"):
        claims.run_cells(cells["fgrpo"], tmp_path, execute, [], lambda text: None)
    assert len(begun) < len(cells["fgrpo"])
    assert all("-sft-" in name for name in begun), "children of a parent that failed are not begun"


def test_a_command_that_fails_says_why(tmp_path) -> None:
    with pytest.raises(BenchmarkError, match="no_such_recipe"):
        claims.execute(["train", "no_such_recipe.yaml"], tmp_path / "logs" / "x.log")
    assert "no_such_recipe" in (tmp_path / "logs" / "x.log").read_text()


def test_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, error 1/sqrt(3); t(0.975, 2) = 4.302653
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert high - 2 == 2 - low == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert interval([0.5]) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("greater", 0.01, 0.2, HOLDS),
        ("greater", -0.01, 0.2, OPEN),
        ("greater", -0.2, -0.01, FAILS),
        ("greater", 0.0, 0.0, FAILS),
        ("less", -3.0, -1.0, HOLDS),
        ("less", 1.0, 3.0, FAILS),
        ("less", -1.0, 3.0, OPEN),
        ("not_less", -0.01, 0.5, HOLDS),
        ("not_less", -0.03, 0.5, OPEN),
        ("not_less", -0.3, -0.02, FAILS),
        ("greater", -math.inf, math.inf, OPEN),
    ],
)
def test_only_an_interval_on_one_side_decides(kind, low, high, expected) -> None:
    assert judge(dataclasses.replace(GAIN, kind=kind, margin=0.02), low, high) == expected


def test_a_claim_needs_all_of_its_conditions() -> None:
    def finding(text):
        return Finding(condition=GAIN, difference=0.0, low=0.0, high=0.0, seeds=3, verdict=text)

    assert verdict([finding(HOLDS), finding(HOLDS)]) == HOLDS
    assert verdict([finding(HOLDS), finding(OPEN)]) == OPEN
    assert verdict([finding(HOLDS), finding(OPEN), finding(FAILS)]) == FAILS
    assert verdict([]) == OPEN


def measured_claim():
    alone = dataclasses.replace(GAIN, than=None)
    claim = dataclasses.replace(CLAIMS["g2rpo"], arms={"new": None, "old": None}, conditions=(GAIN, alone), shown=("m", "gain *"))
    measured = {"new": {0: {"m": 0.9}, 1: {"m": 0.8}, 2: {"m": 0.85, "gain x": 1.0}}, "old": {0: {"m": 0.5}, 1: {"m": 0.4}, 3: {"m": 0.9}}}
    return claim, measured


def test_pairs_are_of_the_same_seed() -> None:
    claim, measured = measured_claim()
    pair, alone = find(claim, measured)
    assert (pair.seeds, alone.seeds) == (2, 3)
    assert pair.difference == pytest.approx(0.4)  # seed 3, which the other arm lacks, does not count
    assert pair.verdict == HOLDS
    assert alone.difference == pytest.approx(0.85)
    assert find(claim, {"new": measured["new"]})[0].condition.than is None


def test_rollouts_to_a_target_by_hand() -> None:
    curve = [(0, 0.2), (100, 0.4), (200, 0.8)]
    assert rollouts_to(0.5, curve) == 125
    assert rollouts_to(0.4, curve) == 100
    assert rollouts_to(0.1, curve) == 0
    assert rollouts_to(0.9, curve) == 200
    assert rollouts_to(0.5, [(0, 0.6), (100, 0.3), (200, 0.7)]) == 0
    with pytest.raises(ValueError, match="in order"):
        rollouts_to(0.5, [(100, 0.2), (0, 0.4)])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_target_never_needs_fewer_rollouts(values, a, b) -> None:
    curve = [(10 * n, value) for n, value in enumerate(values)]
    low, high = sorted((a, b))
    assert rollouts_to(low, curve) <= rollouts_to(high, curve) + 1e-9


def test_curve_by_hand() -> None:
    claim = dataclasses.replace(CLAIMS["curriculum_gui"], target=("step_success", 0.375))
    found = with_curve(claim, [(0, 0.2), (100, 0.4), (200, 0.8)])
    assert found["target"] == pytest.approx(0.5)  # 0.2 and three eighths of the 0.8 that are left
    assert found["rollouts to target"] == pytest.approx(125)
    assert found["mean success"] == pytest.approx((0.2 + 0.4 + 0.8) / 3)
    assert found["step_success@100"] == 0.4
    assert found["target reached"] == 1
    assert with_curve(claim, [(0, 0.2), (100, 0.4)])["target reached"] == 0


def test_moments_by_hand() -> None:
    lines = [
        {"loss": 1.0},
        {"advantage/skewness": 1.0, "advantage/kurtosis": 2.0, "advantage/skewness/a": -2.0, "advantage/kurtosis/a": 5.0},
        {"advantage/skewness": -2.0, "advantage/kurtosis": 4.0, "advantage/skewness/a": 0.0, "advantage/kurtosis/a": 1.0},
    ]
    assert moments(lines) == {
        "skewness": -0.5,
        "|skewness|": 0.5,
        "kurtosis": 3.0,
        "skewness a": -1.0,
        "kurtosis a": 3.0,
        "largest |skewness|": 1.0,
        "largest kurtosis": 3.0,
    }
    assert moments([{"loss": 1.0}]) == {}


def test_tables_by_hand() -> None:
    claim, measured = measured_claim()
    names = [row[0] for row in measure_cells(claim, measured, {0: {"m": 0.3}})]
    assert names == ["measure", "m", "gain x"]
    assert measure_cells(claim, measured, {0: {"m": 0.3}})[1][-1] == "0.300 (one seed)"
    rows = condition_cells(find(claim, measured))
    assert rows[1][:3] == ["x: more", "new - old", "+0.400"]
    assert rows[1][-2:] == ["2", HOLDS]
    assert (number(1234.4), number(0.1234)) == ("1234", "0.123")


def test_the_page_says_what_does_not_hold() -> None:
    skips = {"exact": 0.5, "skips easy - hard": 0.1}
    worse = {
        "TON": {0: {"tokens": 30.0} | skips, 1: {"tokens": 31.0} | skips},
        "thinking": {0: {"tokens": 20.0, "exact": 0.9}, 1: {"tokens": 21.0, "exact": 0.9}},
    }
    results = {"ton": {"measured": worse, "before": {}, "constant": {"toy_color": ("red", 0.25)}}}
    page = document(results, "bash scripts/claims.sh", [0, 1])
    assert "**Here: does not hold here.**" in page
    assert "| tokens per answer: less | TON - thinking | +10.000 |" in page
    assert "toy_color: 0.250 (`red`)" in page
    stored = summary_json(results, "c", [0, 1])["claims"]["ton"]
    assert (stored["verdict"], stored["holds"]) == (FAILS, False)
    assert json.loads(json.dumps(stored, allow_nan=False))["measured"]["TON"]["1"]["tokens"] == 31.0


def test_measures_are_shown_in_the_order_of_their_numbers() -> None:
    claim = dataclasses.replace(CLAIMS["curriculum_gui"], shown=("step_success@*",))
    measured = {"curriculum": {0: {"step_success@640": 0.1, "step_success@1280": 0.2}}}
    assert [row[0] for row in measure_cells(claim, measured, {})] == ["measure", "step_success@640", "step_success@1280"]

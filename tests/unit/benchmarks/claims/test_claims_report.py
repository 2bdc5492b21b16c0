"""benchmarks/claims/report.py: each verdict from numbers by hand, the published numbers, the page, and the plan, which must agree."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.report import (
    cost_cells,
    document,
    found_of,
    judged,
    pilot_page,
    plan_cells,
    power_plan_cells,
    premise_plan_cells,
    runs_of,
    secondary_plan_cells,
    summary_json,
)
from benchmarks.claims.table import CLAIMS
from vlmrl.evals.score.table import markdown
from vlmrl.extras.study.forecast import planned
from vlmrl.extras.study.judge import values_of
from vlmrl.extras.study.measures import resolution_of
from vlmrl.extras.study.report import finding_json
from vlmrl.extras.study.spec import Condition, Premise
from vlmrl.extras.study.stats import HOLDS, NO_EFFECT, NO_PREMISE, OPEN
from vlmrl.extras.study.tables import bounds, compared, condition_rows, measure_rows, number, premise_rows
from vlmrl.methods import registries

PLAN = Path(__file__).resolve().parents[4] / "docs" / "benchmarks" / "claims_plan.md"
TON = CLAIMS["ton"]


def measured(skips, *, think=0.4, gap=0.5, tokens=2.0, accuracy=0.0, seeds=7):
    """Arms of TON: `skips` per seed; by how much thoughts help (`gap`); tokens and accuracy that it gives up."""
    out = {"ton": {}, "thinking": {}, "answers": {}}
    for seed in range(seeds):
        wiggle = 0.01 * (-1) ** seed
        out["ton"][seed] = {
            "end skips easy - hard": skips[seed % len(skips)],
            "sampled thoughts, first steps": think,
            "end tokens": 14.0 - tokens + wiggle,
            "end accuracy": 0.9 - accuracy + wiggle / 10,
        }
        out["thinking"][seed] = {"end tokens": 14.0, "end accuracy": 0.9, "end accuracy hard": 0.8 + wiggle}
        if seed < 3:
            out["answers"][seed] = {"end accuracy hard": 0.8 - gap}
    return out


@pytest.mark.parametrize(
    ("skips", "more", "verdict", "remark"),
    [
        ([0.8, 0.9], {}, HOLDS, ""),
        ([0.0], {}, NO_EFFECT, "equivalent within delta (both one-sided tests)"),
        ([0.05, 0.06], {}, NO_EFFECT, "an effect, but a smaller one than delta"),
        ([-0.4, -0.5], {}, NO_EFFECT, "the opposite: the whole interval is below 0"),
        ([0.9, -0.5], {}, OPEN, ""),
        ([0.8, 0.9], {"gap": 0.1}, NO_PREMISE, ""),
        ([0.8, 0.9], {"think": 0.95}, NO_PREMISE, ""),
        ([0.8, 0.9], {"seeds": 1}, OPEN, ""),
    ],
)
def test_each_verdict_of_a_claim(skips, more, verdict, remark) -> None:
    found = found_of(TON, measured(skips, **more))
    assert (found.verdict, found.remark) == (verdict, remark)


def test_a_premise_without_numbers_leaves_the_claim_open() -> None:
    arms = measured([0.8, 0.9])
    del arms["answers"]
    found = found_of(TON, arms)
    assert found.verdict == OPEN
    assert [one.met for one in found.premises] == [False, True]
    # but one that is known to fail is enough
    for of in arms["ton"].values():
        of["sampled thoughts, first steps"] = 1.0
    assert found_of(TON, arms).verdict == NO_PREMISE


def test_agreement_of_all_seeds_is_not_certainty() -> None:
    found = found_of(TON, measured([1.0])).found
    assert found is not None
    assert found.sd == pytest.approx(1 / REGIMES["shell"].questions)
    assert found.low < 1 < found.high
    resolution = resolution_of(REGIMES["shell"].questions)
    assert resolution("end tokens") == resolution("log entropy end") == 0


def test_pairs_are_of_the_same_seed() -> None:
    arms = {"a": {0: {"m": 0.9}, 1: {"m": 0.8}, 2: {"x": 1.0}}, "b": {0: {"m": 0.5}, 2: {"m": 0.4}}}
    assert values_of(arms, "a", "b", "m") == {0: pytest.approx(0.4)}
    assert values_of(arms, "a", None, "m") == {0: 0.9, 1: 0.8}


def test_further_conditions_are_corrected_and_decide_nothing() -> None:
    found = found_of(TON, measured([0.8, 0.9], accuracy=0.5))
    tokens, accuracy = found.secondary
    assert found.verdict == HOLDS
    assert tokens.shown
    assert not accuracy.shown
    assert (tokens.p_holm, accuracy.p_holm) == (pytest.approx(2 * tokens.p), pytest.approx(max(accuracy.p, 2 * tokens.p)))
    # within the margin of 0.02 it is not lower
    assert found_of(TON, measured([0.8, 0.9], accuracy=0.005)).secondary[1].shown
    assert not found_of(TON, measured([0.8, 0.9], accuracy=0.03)).secondary[1].shown


def test_the_power_that_was_had_is_told() -> None:
    sure, unsure = found_of(TON, measured([0.8, 0.9])), found_of(TON, measured([0.9, -0.5]))
    assert sure.power.holds > 0.9 > 0.3 > unsure.power.holds
    assert sure.power_null.no_effect > 0.9 > unsure.power_null.no_effect


def test_tables_by_hand() -> None:
    found = found_of(TON, measured([0.8, 0.9], gap=0.1))
    rows = premise_rows(found)
    assert rows[1][1:] == ["thinking - answers", "at least 0.2", "0.103", "no"]
    assert rows[2][2:] == ["0.1 to 0.9", "0.400", "yes"]
    cells = condition_rows(found)
    assert cells[1][1:3] == ["ton", "+0.843"]
    assert cells[1][-1] == NO_PREMISE
    assert cells[2][1] == "thinking - ton"
    assert cells[3][0] == "accuracy, not lower by 0.02"
    assert measure_rows(TON.comparison, measured([0.5], seeds=1))[1] == ["end skips easy - hard", "0.500 (one seed)", "-", "-"]
    assert (number(1234.4), number(0.1234)) == ("1234", "0.123")
    assert bounds(Premise(arm="a", measure="m", high=0.5)) == "at most 0.5"
    assert compared(Condition(arm="a", measure="m", direction="lower")) == "-(a)"


def test_the_page_tells_every_verdict_and_the_file_is_json() -> None:
    arms = {"shell": measured([0.0])}
    page = document(arms, "bash scripts/claims.sh", quick=False)
    assert "**no effect above delta (equivalent within delta (both one-sided tests)).**" in page
    assert "one seed and a few steps" not in page
    assert "one seed and a few steps" in document(arms, "c", quick=True)
    stored = json.loads(json.dumps(summary_json(arms, "c", quick=False), allow_nan=False))
    assert stored["claims"]["ton"]["verdict"] == NO_EFFECT
    assert stored["claims"]["ton"]["premises"][0]["met"] is True
    assert stored["claims"]["ton"]["primary"]["seeds"] == 7
    assert stored["measured"]["shell"]["thinking"]["6"]["end tokens"] == 14.0
    few = document({"shell": measured([0.0], seeds=5)}, "c", quick=False)
    assert "equivalent within delta (both one-sided tests); preliminary, 5 of 7 seeds" in few
    one = json.loads(json.dumps(summary_json({"shell": measured([0.0], seeds=1)}, "c", quick=True), allow_nan=False))
    assert one["claims"]["ton"]["primary"]["low"] is None
    # claims of the same regime whose arms were not run are not on the page
    assert [claim.id for claim, _ in judged(arms)] == ["ton"]


def test_a_pilot_tells_premises_and_costs_and_no_effect() -> None:
    page = pilot_page({"shell": measured([0.77])}, {"shell": {"arm": [60.0, 64.0], "base": [200.4]}})
    assert "thinking - answers | at least 0.2 | 0.503 | yes" in page
    assert "shell: arm 62 (2), base 200 (1)" in page
    assert "0.77" not in page
    assert "G2RPO" not in page, "nothing of it was run"


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_published_numbers_come_out_of_the_stored_values_of_each_seed(claim) -> None:
    """The page was written by machinery of its own; the statistics of a study give the same numbers to the last digit."""
    stored = json.loads((PLAN.parent / "claims.json").read_text())
    arms = {arm: {int(seed): of for seed, of in seeds.items()} for arm, seeds in stored["measured"][claim.regime].items()}
    finding = found_of(claim, arms)
    published, found = stored["claims"][claim.id], finding_json(finding)
    for key in published.keys() - {"planned_seeds", "primary"}:
        assert found[key] == published[key], key
    assert {key: found["primary"][key] for key in published["primary"]} == published["primary"]
    page = (PLAN.parent / "claims.md").read_text()
    for rows in (premise_rows(finding), condition_rows(finding), measure_rows(claim.comparison, arms)):
        assert markdown(rows) in page


# ---- the plan ----------------------------------------------------------------------------------------------------------


def table_of(text: str, first: str) -> list[list[str]]:
    """The rows under the header that begins with these cells."""
    lines = text[text.index(first) :].splitlines()
    rows = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def test_the_plan_and_the_program_agree_on_claims_and_deltas() -> None:
    rows = table_of(PLAN.read_text(), "| claim | paper | regime |")
    assert {row[0]: (row[1], row[2], row[5], float(row[6]), int(row[7])) for row in rows} == {
        claim.id: (claim.paper, claim.regime, claim.primary.measure, claim.primary.delta, REGIMES[claim.regime].seeds)
        for claim in CLAIMS.values()
    }


@pytest.mark.parametrize("cells", [plan_cells, premise_plan_cells, secondary_plan_cells, power_plan_cells, cost_cells])
def test_every_table_of_the_plan_is_the_programs(cells) -> None:
    assert markdown(cells()) in PLAN.read_text()


def test_the_five_named_methods_and_three_more_are_asked() -> None:
    assert {claim.paper for claim in CLAIMS.values()} >= {
        "arXiv:2604.08539",
        "arXiv:2604.08476",
        "arXiv:2505.16854",
        "arXiv:2509.18056",
        "arXiv:2508.11360",
    }
    assert len(CLAIMS) >= 8
    for claim in CLAIMS.values():
        assert claim.says in PLAN.read_text()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_a_claim_names_arms_and_methods_that_there_are(claim) -> None:
    regime = REGIMES[claim.regime]
    for arm in claim.arms():
        regime.arm(arm)
    assert claim.premises
    assert claim.primary.delta > 0
    assert planned(claim.primary.spread) > 0
    for named in claim.methods:
        slot, _, name = named.partition(" ")
        if slot != "stage":
            assert name in registries()[slot].names()


def test_every_arm_serves_a_claim() -> None:
    for regime in REGIMES.values():
        used = {arm for claim in CLAIMS.values() if claim.regime == regime.name for arm in claim.arms()}
        assert used == {arm.name for arm in regime.arms}
        assert sum(runs_of(regime).values()) > 0
    with pytest.raises(KeyError, match="no arm 'x'"):
        REGIMES["shell"].arm("x")


def test_assumed_deviations_are_taken_as_they_are() -> None:
    spread = CLAIMS["mc_grpo"].primary.spread
    assert planned(spread) == spread.sd
    assert planned(spread.model_copy(update={"seeds": 5})) == pytest.approx(spread.sd * math.sqrt(4 / 1.648777), rel=1e-5)

"""benchmarks/claims/studies.py and measures.py: which runs the studies of claims have, and what is read from them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.claims import studies
from benchmarks.claims.measures import curve_measures, points_of, scores_of, training_measures
from benchmarks.claims.regimes import PICTURES, REGIMES, SHELL
from benchmarks.claims.spec import changed
from benchmarks.claims.studies import PILOTS, Scale, study_of, wanted
from benchmarks.claims.table import CLAIMS
from benchmarks.common import BenchmarkError
from vlmrl.config.load import load
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.runs import with_needs
from vlmrl.methods import require_methods

ONE = Scale(seeds=1)


def conductor(regime, scale: Scale = ONE) -> Conductor:
    return Conductor(study_of(regime, CLAIMS.values(), scale), Path("there"))


@pytest.fixture(scope="module")
def runs():
    """(Regime, arm or start) -> run, of the first seed; with `base` for base models."""
    found = {name: with_needs(conductor(regime).looks[-1].runs) for name, regime in REGIMES.items()}
    named = {(name, f"sft_{run.arm}" if run.kind == "start" else run.arm or "base"): run for name, of in found.items() for run in of}
    assert len(named) == sum(map(len, found.values()))
    return named


@pytest.fixture(scope="module")
def configs(runs):
    """(Regime, arm or start) -> its recipe."""
    return {key: load(run.words[1], list(run.words[2:])).config for key, run in runs.items() if run.kind != "prepare"}


def test_arms_are_shared_between_claims(runs) -> None:
    assert {key for key, run in runs.items() if run.kind == "arm"} == {
        (claim.regime, arm) for claim in CLAIMS.values() for arm in claim.arms()
    }
    assert sum(run.kind == "prepare" for run in runs.values()) == len(REGIMES)


def test_every_run_is_a_valid_recipe(configs) -> None:
    for config in configs.values():
        require_methods(config)
        assert len(config.stages) == 1


def test_arms_of_a_regime_have_equal_budgets(runs, configs) -> None:
    for regime in REGIMES:
        stages = [configs[key].stages[0] for key, run in runs.items() if key[0] == regime and run.kind == "arm"]
        assert len({(s.steps, s.rollout.prompts_per_step, s.rollout.num_generations, s.optim.lr) for s in stages}) == 1


def test_arms_by_hand(runs, configs) -> None:
    def of(regime: str, name: str):
        return configs[regime, name].stages[0]

    assert [of("grounding", name).rollout.strategy.name for name in ("plain", "ground_truth", "tempsamp")] == [
        "plain",
        "offpolicy_gt",
        "offpolicy_gt",
    ]
    assert [[m.name for m in of("grounding", name).reward_shaping] for name in ("plain", "tempsamp")] == [
        ["claims_recorder"],
        ["tempsamp_nonlinear"],
    ]
    assert [of("shell", f"sft_{n}").thought_dropout for n in ("careless", "ton", "thinking")] == [0.7, 0.5, 0.0]
    assert [of("shell", n).answer_format for n in ("ton", "answers", "sft_answers")] == ["think", "answer_only", "answer_only"]
    assert of("spatial", "gdpo").rewards == of("spatial", "additive").rewards
    assert [bool(of("spatial", n).constraints) for n in ("right", "additive", "multiplicative", "gdpo", "fgrpo")] == [False] * 4 + [True]
    labels = [of("shell", f"sft_{n}").source.path for n in ("careless", "ton", "thinking", "answers")]
    assert labels == ["sft.jsonl", *["pretrain.jsonl"] * 3]
    assert runs["shell", "sft_ton"] in runs["shell", "ton"].after
    assert f"model.path={runs['shell', 'sft_ton'].folder.absolute() / 'final'}" in runs["shell", "ton"].words
    assert runs["shell", "base"].words[:3] == ("tools", "toy", "prepare")
    assert of("pictures", "g2rpo").rollout.num_generations == 16
    # an arm asks the model that it starts from; a start need not
    assert configs["shell", "ton"].eval.at_start
    assert not configs["shell", "sft_ton"].eval.at_start


def test_arms_of_a_premise_have_fewer_seeds() -> None:
    found = with_needs(wanted(conductor(SHELL, Scale(seeds=5)), [CLAIMS["ton"]]))
    names = [(run.kind, run.arm) for run in found]
    assert [names.count(("arm", name)) for name in ("ton", "thinking", "answers", "uniform")] == [5, 5, 3, 0]
    assert names.count(("start", "answers")) == 3
    assert [run.seed for run in found] == sorted(run.seed for run in found)


def test_pilots_have_worlds_and_seeds_of_their_own() -> None:
    pilot, planned = (conductor(PICTURES, Scale(seeds=2, first=first)).looks[-1].runs for first in (PILOTS, 0))
    assert {run.seed for run in pilot} == {101, 102}
    worlds = [{word for run in runs for word in run.words if word.startswith("toy.world.seed=")} for runs in (pilot, planned)]
    assert worlds == [{"toy.world.seed=4"}, {"toy.world.seed=5"}]


def test_a_quick_plan_is_one_seed_of_few_steps() -> None:
    found = conductor(REGIMES["spatial"], Scale(quick=True, seeds=5)).looks[-1].runs
    assert {run.seed for run in found} == {0}
    assert {load(run.words[1], list(run.words[2:])).config.stages[0].steps for run in found} == {2}


def test_a_change_can_remove_a_field() -> None:
    stage = {"a": 1, "b": {"c": 2}}
    assert changed(a=None, b={"d": 3})(stage) == {"b": {"d": 3}}
    assert stage == {"a": 1, "b": {"c": 2}}


# ---- measures ----------------------------------------------------------------------------------------------------------


def answer(score: float, *, category="hard", thinks=True, task="t", **scores: float):
    return SimpleNamespace(
        scores={"exact": score, **scores},
        category=category,
        think=SimpleNamespace(has=thinks),
        task=task,
        n_out=10,
        answer_type="exact_text",
    )


def test_scores_of_an_evaluation_by_hand() -> None:
    found = scores_of(
        [
            answer(1.0, category="easy", thinks=False),
            answer(1.0, category="easy", consistency=0.0),
            answer(1.0, consistency=1.0),
            answer(0.0),
        ]
    )
    assert found["accuracy"] == 0.75
    assert (found["accuracy easy"], found["accuracy hard"], found["easy - hard"]) == (1, 0.5, 0.5)
    assert found["skips easy - hard"] == 0.5
    assert (found["inconsistent"], found["right and consistent"]) == (0.5, 0.25)
    assert "miou" not in found
    assert "best task" not in found
    several = scores_of([answer(1.0, task="a"), answer(0.0, task="b"), answer(1.0, task="b")])
    assert (several["score a"], several["score b"], several["score"], several["best task"]) == (1, 0.5, 0.75, 1)


def test_curves_by_hand() -> None:
    points = [
        (0, {"score a": 0.2, "score b": 0.5, "inconsistent": 0.1}),
        (10, {"score a": 0.4, "score b": 0.6}),
        (30, {"score a": 0.8, "score b": 0.6, "inconsistent": 0.3}),
    ]
    found = curve_measures(points)
    assert found["start score a"] == 0.2
    assert found["end inconsistent"] == 0.3
    assert found["auc score a"] == pytest.approx((10 * 0.3 + 20 * 0.6) / 30)
    assert found["auc least gain"] == pytest.approx((10 * 0.55 + 20 * 0.6) / 30 - 0.5)
    assert "auc inconsistent" not in found, "a curve needs all of its points"


def test_figures_of_training_by_hand() -> None:
    def line(mixed: float):
        return {"frac_reward_zero_std": 0.0, "groups_with_signal": mixed}

    lines = [{"loss": 1.0}, *(line(8) for _ in range(3)), *(line(4) for _ in range(3))]
    lines[1]["completions/think_rate"] = 0.6
    found = training_measures(lines, prompts=8)
    assert found["mixed groups"] == pytest.approx(0.75)
    assert found["sampled thoughts, first steps"] == 0.6
    assert training_measures([{"loss": 1.0}], prompts=8) == {}


def test_evaluations_are_put_in_the_order_of_steps(tmp_path, monkeypatch) -> None:
    import benchmarks.claims.measures as measures
    import vlmrl.evals.score.records as records

    (tmp_path / "eval").mkdir()
    (tmp_path / "eval/order.json").write_text(json.dumps(["rl@10", "rl@20", "rl"]))
    monkeypatch.setattr(records, "read_records", lambda path: path)
    monkeypatch.setattr(measures, "scores_of", lambda path: {"from": path.stem})
    stage = {"name": "rl", "steps": 30}
    with pytest.raises(BenchmarkError, match="how its start answered"):
        points_of(tmp_path, stage)
    (tmp_path / "eval/order.json").write_text(json.dumps(["base", "rl@10", "rl@20", "rl"]))
    found = points_of(tmp_path, stage)
    assert [(step, of["from"]) for step, of in found] == [(0, "base"), (10, "rl@10"), (20, "rl@20"), (30, "rl")]
    (tmp_path / "eval/order.json").write_text(json.dumps(["base", "rl"]))
    assert [step for step, _ in points_of(tmp_path, stage)] == [0, 30]


def test_recipes_are_found() -> None:
    assert all((studies.RECIPES / f"{regime.recipe}.yaml").exists() for regime in REGIMES.values())

"""benchmarks/claims/cells.py, run.py and measures.py: which runs there are, in which order, and what is read from them."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.claims import cells as claims_cells
from benchmarks.claims import process as claims_process
from benchmarks.claims import run as claims_run
from benchmarks.claims.cells import PILOTS, Plan, arguments_of, cells_for, cells_of, digest, groups_file
from benchmarks.claims.measures import curve_measures, points_of, scores_of, training_measures
from benchmarks.claims.process import Cost, execute
from benchmarks.claims.recorder import FILE
from benchmarks.claims.regimes import PICTURES, REGIMES, SHELL
from benchmarks.claims.run import costs, run_cells
from benchmarks.claims.spec import changed
from benchmarks.claims.table import CLAIMS
from benchmarks.common import BenchmarkError
from vlmrl.config.load import load
from vlmrl.methods import require_methods

ONE = Plan(seeds=1)


@pytest.fixture(scope="module")
def cells():
    return cells_for(CLAIMS.values(), ONE)


def test_arms_are_shared_between_claims(cells) -> None:
    assert len({cell.name for cell in cells}) == len(cells)
    assert {(cell.regime, cell.arm) for cell in cells if cell.kind == "arm"} == {
        (claim.regime, arm) for claim in CLAIMS.values() for arm in claim.arms()
    }
    assert sum(cell.kind == "base" for cell in cells) == len(REGIMES)


def test_every_run_is_a_valid_recipe(cells) -> None:
    for cell in cells:
        require_methods(load(Path(cell.recipe), list(cell.settings)).config)


def test_arms_of_a_regime_have_equal_budgets(cells) -> None:
    for regime in REGIMES:
        stages = {cell.arm: cell.stage for cell in cells if cell.regime == regime and cell.kind == "arm"}
        budgets = {(s["steps"], s["rollout"]["prompts_per_step"], s["rollout"]["num_generations"]) for s in stages.values()}
        assert len(budgets) == 1
        assert {s["optim"]["lr"] for s in stages.values()} == {next(iter(stages.values()))["optim"]["lr"]}


def test_arms_by_hand(cells) -> None:
    of = {(cell.regime, cell.arm): cell for cell in cells}
    grounding = {name: of["grounding", name].stage for name in ("plain", "ground_truth", "tempsamp")}
    assert [s["rollout"]["strategy"]["name"] for s in grounding.values()] == ["plain", "offpolicy_gt", "offpolicy_gt"]
    assert [[m["name"] for m in s["reward_shaping"]] for s in grounding.values()] == [
        ["claims_recorder"],
        ["claims_recorder"],
        ["tempsamp_nonlinear"],
    ]
    assert {s["advantage"]["name"] for s in grounding.values()} == {"grpo"}
    assert [of["shell", f"sft_{n}"].stage["thought_dropout"] for n in ("careless", "ton", "thinking")] == [0.7, 0.5, 0.0]
    assert {of["shell", n].stage["answer_format"] for n in ("ton", "thinking")} == {"think"}
    assert of["shell", "answers"].stage["answer_format"] == of["shell", "sft_answers"].stage["answer_format"] == "answer_only"
    assert of["shell", "clip_high"].stage["loss"]["clip_high"] == 0.28
    assert of["shell", "clip_low"].stage["updates_per_step"] == of["shell", "gspo"].stage["updates_per_step"] == 4
    assert of["spatial", "gdpo"].stage["rewards"] == of["spatial", "additive"].stage["rewards"]
    assert [of["spatial", n].stage["constraints"] == [] for n in ("right", "additive", "multiplicative", "gdpo", "fgrpo")] == [True] * 4 + [
        False
    ]
    assert {r["weight"] for r in of["spatial", "right"].stage["rewards"] if r["name"].startswith("rule_")} == {0.0}
    labels = [of["shell", f"sft_{n}"].stage["source"]["path"] for n in ("careless", "ton", "thinking", "answers")]
    assert labels == ["sft.jsonl", *["pretrain.jsonl"] * 3]
    assert of["shell", "ton"].after == of["shell", "sft_ton"]
    assert of["shell", "sft_ton"].after == of["shell", "base"]
    assert of["pictures", "g2rpo"].stage["rollout"]["num_generations"] == 16
    # a start is asked once, by the run that made it; without one each arm asks the base model
    assert "eval.at_start=true" in of["pictures", "grpo"].settings
    assert "eval.at_start=false" in of["shell", "ton"].settings


def test_arms_of_a_premise_have_fewer_seeds() -> None:
    found = cells_of(SHELL, ["thinking", "answers"], Plan(seeds=5))
    assert [sum(cell.arm == name for cell in found) for name in ("thinking", "answers", "sft_answers", "base")] == [5, 3, 3, 5]
    assert [cell.seed for cell in cells_for([CLAIMS["tempsamp"], CLAIMS["ton"]], Plan(seeds=2))] == sorted(
        cell.seed for cell in cells_for([CLAIMS["tempsamp"], CLAIMS["ton"]], Plan(seeds=2))
    )


def test_a_digest_depends_on_what_moves_numbers_and_on_nothing_else() -> None:
    def of(*more: str, arm: str = "ton") -> str:
        return cells_of(SHELL, [arm], Plan(seeds=1, more=more))[-1].digest

    first = of()
    assert first == of("run.threads=1") == of("toy.cache=elsewhere") == of("checkpoint.every=7")
    assert first != of("data.max_prompt_tokens=128")
    assert first != of("toy.base.steps=7"), "a change of the base model changes what comes after it"
    assert first != of(arm="thinking")
    assert first != of("stages.sft.optim.lr=1e-5"), "a change of the fine-tuning changes what comes after it"
    base, other = (cells_of(SHELL, ["ton"], Plan(seeds=1, more=more))[0].digest for more in ((), ("eval.max_new_tokens=7",)))
    assert base == other, "a base model does not depend on how its children are asked"
    assert len({digest("arm", cell.recipe, cell.settings, None) for cell in cells_of(PICTURES, ["grpo"], Plan(seeds=2))}) > 1


def test_commands_by_hand(cells, tmp_path) -> None:
    of = {(cell.regime, cell.arm): cell for cell in cells}
    base, start, arm = (of["shell", name] for name in ("base", "sft_ton", "ton"))
    assert arguments_of(base, tmp_path, [])[:3] == ["tools", "toy", "prepare"]
    assert not any(a.startswith("model.path") for a in arguments_of(start, tmp_path, []))
    assert f"model.path={tmp_path / start.name / 'final'}" in arguments_of(arm, tmp_path, ["run.threads=1"])
    assert arguments_of(arm, tmp_path, ["run.threads=1"]).count("run.threads=1") == 1
    assert f"toy.cache={tmp_path}/cache/shell-0" in arguments_of(arm, tmp_path, [])


def test_pilots_have_worlds_and_seeds_of_their_own() -> None:
    pilot, planned = (cells_for([CLAIMS["mc_grpo"]], Plan(seeds=2, first=first)) for first in (PILOTS, 0))
    assert [cell.seed for cell in pilot if cell.kind == "base"] == [101, 102]
    worlds = [{s for cell in cells for s in cell.settings if s.startswith("toy.world.seed=")} for cells in (pilot, planned)]
    assert worlds == [{"toy.world.seed=4"}, {"toy.world.seed=5"}]


def test_a_quick_plan_is_one_seed_of_few_steps() -> None:
    found = cells_for([CLAIMS["fgrpo"]], Plan(quick=True, seeds=5))
    assert {cell.seed for cell in found} == {0}
    assert {cell.stage["steps"] for cell in found if cell.stage is not None} == {2}
    assert not {c.name for c in found} & {c.name for c in cells_for([CLAIMS["fgrpo"]], ONE)}


def test_a_change_can_remove_a_field() -> None:
    stage = {"a": 1, "b": {"c": 2}}
    assert changed(a=None, b={"d": 3})(stage) == {"b": {"d": 3}}
    assert stage == {"a": 1, "b": {"c": 2}}


# ---- running -----------------------------------------------------------------------------------------------------------


class Fake:
    """Runs of no time: writes what marks a finished run, and remembers the order."""

    def __init__(self, out: Path, failing: str = "") -> None:
        self.out, self.failing, self.begun, self.environments = out, failing, [], {}
        self.lock = threading.Lock()

    def __call__(self, arguments, log, more) -> None:
        name = next(a for a in arguments if a.startswith("run.name=")).removeprefix("run.name=")
        with self.lock:
            self.begun.append(name)
            self.environments[name] = dict(more)
        for path in (a.removeprefix("model.path=") for a in arguments if a.startswith("model.path=")):
            assert (Path(path).parent / "FINISHED").exists()
        if self.failing and self.failing in name:
            raise BenchmarkError(f"{name}: the machine is on fire")
        if arguments[0] == "train":
            (self.out / name).mkdir(parents=True)
            (self.out / name / "FINISHED").touch()
        return Cost(cpu=2.0, wall=5.0)


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_run_comes_after_what_it_starts_from_and_finished_ones_are_kept(jobs, cells, tmp_path) -> None:
    fake = Fake(tmp_path)
    run_cells(cells, tmp_path, [], lambda text: None, jobs=jobs, execute=fake)
    assert sorted(fake.begun) == sorted(cell.name for cell in cells)
    for cell in cells:
        assert cell.after is None or fake.begun.index(cell.after.name) < fake.begun.index(cell.name)
        assert fake.environments[cell.name] == ({FILE: str(groups_file(cell, tmp_path))} if cell.records else {})
    took = costs(tmp_path, cells)
    assert {regime: {kind: len(of) for kind, of in kinds.items()} for regime, kinds in took.items()} == {
        regime: {kind: n for kind in ("base", "start", "arm") if (n := sum((c.regime, c.kind) == (regime, kind) for c in cells))}
        for regime in REGIMES
    }
    assert costs(tmp_path, []) == {}
    again = Fake(tmp_path)
    (tmp_path / cells[-1].name / "FINISHED").unlink()
    (tmp_path / cells[-1].name).rmdir()
    run_cells(cells, tmp_path, [], lambda text: None, jobs=jobs, execute=again)
    assert again.begun == [cells[-1].name]


def test_a_failure_begins_nothing_more(cells, tmp_path) -> None:
    fake = Fake(tmp_path, failing="base")
    with pytest.raises(BenchmarkError, match="on fire"):
        run_cells(cells, tmp_path, [], lambda text: None, jobs=2, execute=fake)
    assert len(fake.begun) <= 2
    assert all("-base-" in name for name in fake.begun)


def test_a_run_that_stops_early_is_an_error_and_not_a_number(cells, tmp_path) -> None:
    arm = next(cell for cell in cells if cell.kind == "start")
    (tmp_path / arm.after.name).mkdir()
    (tmp_path / arm.after.name / "FINISHED").touch()
    with pytest.raises(BenchmarkError, match="ended without finishing"):
        run_cells([arm], tmp_path, [], lambda text: None, execute=lambda arguments, log, more: None)
    orphan = next(cell for cell in cells if cell.kind == "arm" and cell.regime == "pictures")
    with pytest.raises(BenchmarkError, match="not among those"):
        run_cells([orphan], tmp_path, [], lambda text: None, execute=Fake(tmp_path))


def test_a_command_that_fails_says_why(tmp_path) -> None:
    with pytest.raises(BenchmarkError, match="no_such_recipe"):
        execute(["train", "no_such_recipe.yaml"], tmp_path / "logs" / "x.log", {})
    assert "no_such_recipe" in (tmp_path / "logs" / "x.log").read_text()
    before = dict(os.environ)
    cost = execute(["--version"], tmp_path / "logs" / "y.log", {FILE: "somewhere"})
    assert 0 < cost.cpu < 60
    assert dict(os.environ) == before, "what runs are given is not kept"


@pytest.mark.parametrize("how", ["an error", "a signal"])
def test_what_is_under_way_ends_with_the_one_who_asked(how, cells, tmp_path, monkeypatch) -> None:
    """An error that ends the benchmark, and the signal that asks it to end, stop the runs before they are waited for."""
    told, once = threading.Event(), threading.Lock()
    monkeypatch.setattr(claims_run, "stop_all", told.set)

    def runs_until_told(arguments, log, more):
        if how == "a signal" and once.acquire(blocking=False):  # two runs are under way, and one signal is asked for
            os.kill(os.getpid(), signal.SIGTERM)
        assert told.wait(30)
        raise BenchmarkError("stopped")

    def say(text: str) -> None:
        if how == "an error" and text.startswith("[2/"):
            raise RuntimeError("the disk is full")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError if how == "an error" else KeyboardInterrupt):
        run_cells(cells, tmp_path, [], say, jobs=2, execute=runs_until_told)
    assert told.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_ends_when_nobody_waits_for_it_any_more(monkeypatch) -> None:
    """However the benchmark ended: the operating system closes its end of the pipe."""
    ours, theirs = os.pipe()
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(claims_process.os, "kill", lambda pid, number: killed.append((pid, number)))
    waiting = threading.Thread(target=claims_process._end_with, args=(SimpleNamespace(sentinel=ours),))
    waiting.start()
    assert killed == []
    os.close(theirs)
    waiting.join(30)
    os.close(ours)
    assert killed == [(os.getpid(), signal.SIGTERM)]


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
    def line(entropy: float, mixed: float, clipped: float):
        return {"frac_reward_zero_std": 0.0, "entropy": entropy, "groups_with_signal": mixed, "clip_ratio/high": clipped}

    lines = [{"loss": 1.0}, *(line(1.0, 8, 0.0) for _ in range(3)), *(line(0.25, 4, 0.01) for _ in range(3))]
    lines[1]["completions/think_rate"] = 0.6
    found = training_measures(lines, prompts=8)
    assert found["entropy start"] == 1
    assert found["log entropy fall"] == pytest.approx(math.log(0.25))
    assert found["log entropy end"] == pytest.approx(math.log(0.25))
    assert found["mixed groups"] == pytest.approx(0.75)
    assert found["clipped above"] == pytest.approx(0.005)
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
    found = points_of(tmp_path, stage, Path("sft.jsonl"))
    assert [(step, of["from"]) for step, of in found] == [(0, "sft"), (10, "rl@10"), (20, "rl@20"), (30, "rl")]
    with pytest.raises(BenchmarkError, match="how its start answered"):
        points_of(tmp_path, stage, None)
    (tmp_path / "eval/order.json").write_text(json.dumps(["base", "rl"]))
    assert [step for step, _ in points_of(tmp_path, stage, None)] == [0, 30]


def test_recipes_are_found() -> None:
    assert all((claims_cells.RECIPES / f"{regime.recipe}.yaml").exists() for regime in REGIMES.values())

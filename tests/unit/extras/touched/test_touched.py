"""extras.touched: what methods change in a step, found by comparing what goes into them with what comes out. Without a model."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.builders import inputs
from tests.unit.train.test_algorithm import batch_of
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.extras.touched.watch import Touched, watched
from vlmrl.methods import registries
from vlmrl.rollout.strategy.plain import Plain
from vlmrl.run.silent import AFTER, EMPTIED, silent_methods, spoken
from vlmrl.train.stage.algorithm import Algorithm, credit_tokens, select
from vlmrl.train.stage.base import StepResult
from vlmrl.train.step import StepReport


def section(**stage: Any) -> GrpoSection:
    registries()
    given = {"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "exact"}]}
    (out,) = Config.model_validate({"model": {"path": "m"}, "stages": [given | stage]}).stages
    assert isinstance(out, GrpoSection)
    return out


def opened(**stage: Any) -> tuple[Algorithm, Touched]:
    """The methods of a stage as a run calls them."""
    cfg = section(**stage)
    return watched(Algorithm.of(cfg), cfg, Plain())


def counted(touched: Touched, call: Any, values: dict[str, float] | None = None) -> StepResult:
    """A step that does `call`."""

    def step() -> StepResult:
        call()
        return StepResult(report=StepReport(applied=True, grad_norm=1.0, loss=0.0), values=dict(values or {}))

    return touched.around(step)()


def test_a_stage_of_defaults_is_left_alone() -> None:
    cfg = section()
    algorithm = Algorithm.of(cfg)
    methods, touched = watched(algorithm, cfg, Plain())
    assert methods is algorithm
    assert not touched.watched


@pytest.mark.parametrize(("max_turns", "named"), [(1, []), (2, ["advantage.trajectory"])])
def test_with_attempts_of_one_turn_the_advantage_of_attempts_is_the_default(max_turns: int, named: list[str]) -> None:
    """A stage with an environment has no other choice, and would be told after ten steps that it changes nothing."""
    turns = {"environment": {"name": "toy_desk", "max_turns": max_turns}, "history": {"screens": 1, "actions": False}}
    _, touched = opened(advantage={"name": "trajectory"}, rewards=[{"name": "environment_reward"}], reduce={"name": "token_mean"}, **turns)
    assert touched.watched == named


def test_rows_of_filters_shapings_and_advantages_by_hand() -> None:
    """Two groups of three and one of two: one overlong row; ranks in place of a deviation; a reward below 1 that is shaped."""
    algorithm, touched = opened(
        filters=[{"name": "zero_variance"}],
        reward_shaping=[{"name": "product", "reward": "task", "factor": "gate"}],
        advantage={"name": "dr_grpo"},
    )
    x = inputs(
        [(1.0, 0, True), (0.0, 0, True), (0.0, 0, True), (1.0, 1, True), (1.0, 1, True), (1.0, 1, True), (0.0, 2, True), (1.0, 2, True)]
    )
    gate = torch.tensor([1, 1, 1, 0.5, 1, 1, 1, 1], dtype=torch.float64)
    x = dataclasses.replace(
        x, rewards_NK=torch.stack([x.reward_N, gate], dim=1), columns=("task", "gate"), weights_K=torch.tensor([1.0, 0.0]).double()
    )
    batch = batch_of(x, list(range(8)), [[1]] * 8)

    def step() -> None:
        select(algorithm.filters, batch)
        credit_tokens(algorithm, batch)

    values = counted(touched, step).values
    assert values["touched/filter.zero_variance/rows"] == pytest.approx(3 / 8)
    assert values["touched/filter.zero_variance/groups"] == pytest.approx(1 / 3)
    assert values["touched/reward_shaping.product/rows"] == pytest.approx(1 / 8)
    assert values["touched/reward_shaping.product/groups"] == pytest.approx(1 / 3)
    # all rows of all groups differ, the shaped one too
    assert values["touched/advantage.dr_grpo/rows"] == 1.0
    assert not [name for name in values if "zeroed" in name]


def test_tokens_of_this_rank_and_what_is_set_to_0() -> None:
    algorithm, touched = opened(reweight=[{"name": "gtpo"}, {"name": "ap_grpo", "k": 0.0}])
    x = inputs([(1.0, 0, True), (0.0, 0, True), (0.5, 0, True)])
    ids = torch.tensor([[5, 6, 7], [5, 8, 9], [1, 2, 3]])
    x = dataclasses.replace(x, ids_NT=ids, length_N=torch.tensor([3, 2, 3]))
    batch = batch_of(x, [0, 1, 2], [[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    values = counted(touched, lambda: credit_tokens(algorithm, batch)).values
    # the first token of the right answer twice, of the wrong one not at all; of eight. The middle answer has advantage 0.
    assert values["touched/reweight.gtpo/tokens"] == pytest.approx(2 / 8)
    assert values["touched/reweight.gtpo/zeroed"] == pytest.approx(1 / 5)
    assert values["touched/reweight.ap_grpo/rows"] == values["touched/reweight.ap_grpo/zeroed"] == 0.0


def loss_inputs(old: list[float]) -> LossInputs:
    logp = torch.tensor([old], requires_grad=True)
    return LossInputs(
        logp_BT=logp * 1.0,
        logp_old_BT=torch.tensor([[-1.0, -1.0, -1.0]]),
        logp_ref_BT=None,
        adv_BT=torch.tensor([[1.0, 1.0, 1.0]]),
        mask_BT=torch.tensor([[True, True, False]]),
        group_B=torch.tensor([0]),
    )


@pytest.mark.parametrize(("logp", "changed"), [([-1.0, -1.0, -1.0], 0), ([-1.0, -0.2, -0.2], 1)], ids=["ratio 1", "ratio 2.2"])
def test_tokens_of_a_loss_are_those_whose_weight_is_another(logp: list[float], changed: int) -> None:
    """CISPO keeps the gradient of a token whose ratio is clipped by the default loss."""
    algorithm, _ = opened(loss={"name": "cispo"})
    x = loss_inputs(logp)
    output: LossOutput = algorithm.loss.call(x)
    number, of = output.metrics["touched/policy_loss.cispo/tokens"]
    assert (int(number), int(of)) == (changed, 2)
    assert output.loss_BT.requires_grad, "the graph is still there"
    output.loss_BT.sum().backward()


def test_without_a_gradient_nothing_is_counted() -> None:
    algorithm, _ = opened(loss={"name": "cispo"})
    with torch.no_grad():
        assert "touched/policy_loss.cispo/tokens" not in algorithm.loss.call(loss_inputs([-1.0, -1.0, -1.0])).metrics


def test_a_group_loss_keeps_its_arguments_readable() -> None:
    from vlmrl.algo.group_loss.two_pass import choice, pass_weights

    algorithm, touched = opened(group_loss={"name": "disco"}, beta=0.0)
    assert algorithm.group_loss is not None
    assert choice(algorithm.group_loss.call, "score") is not None
    score, group = torch.tensor([-1.0, -2.0, -1.0, -1.0]).double(), torch.tensor([0, 0, 1, 1])
    advantage = torch.tensor([1.0, -1.0, 0.0, 0.0]).double()
    result = counted(
        touched, lambda: pass_weights(algorithm.group_loss.call, score, advantage, group, torch.zeros(4).double(), torch.ones(4).long())
    )
    assert result.values["touched/group_loss.disco/rows"] == 0.5, "the second group has nothing to compare"


def test_rows_of_a_strategy_and_groups_of_a_budget() -> None:
    algorithm, touched = opened(
        budget={"name": "knapsack"},
        rollout={"num_generations": 3, "strategy": {"name": "offpolicy_gt", "gt_cot": "bare"}},
    )
    x = inputs([(1.0, 0, True), (0.0, 0, True), (1.0, 0, True), (0.0, 1, True), (1.0, 1, True)], off_policy=[2])
    values = counted(touched, lambda: algorithm.advantage.call(x)).values
    assert values["touched/strategy.offpolicy_gt/rows"] == pytest.approx(0.2)
    assert values["touched/strategy.offpolicy_gt/groups"] == values["rollout/given_rows"] == 0.5
    assert values["touched/budget.knapsack/groups"] == 0.5


def test_what_an_auxiliary_loss_counts_stands_under_its_own_name() -> None:
    _, touched = opened(auxiliary_losses=[{"name": "entropy_bonus", "weight": 0.1}])
    values = counted(
        touched, lambda: None, {"auxiliary/entropy_bonus/touched/auxiliary_loss.entropy_bonus/tokens": 0.5, "loss": 1.0}
    ).values
    assert values == {"touched/auxiliary_loss.entropy_bonus/tokens": 0.5, "loss": 1.0}


def test_a_method_of_two_places_has_two_names() -> None:
    _, touched = opened(
        reward_shaping=[
            {"name": "tempsamp_nonlinear", "reward": "exact"},
            {"name": "tempsamp_nonlinear", "reward": "format"},
            {"name": "product", "reward": "exact", "factor": "format"},
        ]
    )
    assert touched.watched == ["reward_shaping.tempsamp_nonlinear", "reward_shaping.tempsamp_nonlinear-2", "reward_shaping.product"]


IDLE = {"touched/reweight.adora/rows": 0.0, "touched/reweight.adora/groups": 0.0, "touched/reweight.adora/zeroed": 0.0}


def test_ten_idle_steps_are_said_once_also_by_a_run_that_goes_on() -> None:
    whole, first = Touched(), Touched()
    said = [whole.look(IDLE) for _ in range(3 * AFTER)]
    assert [n for n, texts in enumerate(said, start=1) if texts] == [AFTER]
    (text,) = said[AFTER - 1]
    assert text.startswith("reweight 'adora' changed nothing in 10 steps in a row: ")
    for _ in range(AFTER - 3):
        assert first.look(IDLE) == []
    resumed = Touched()
    resumed.load_state_dict(first.state_dict())
    assert [bool(resumed.look(IDLE)) for _ in range(AFTER)] == [False, False, True] + [False] * (AFTER - 3)
    assert first.look(IDLE | {"touched/reweight.adora/rows": 0.1}) == []
    assert not any(first.look(IDLE) for _ in range(AFTER - 1)), "counted from the change on"


def test_a_method_that_sets_everything_to_0_is_named() -> None:
    touched, values = Touched(), {"touched/reweight.capo_proposed/tokens": 1.0, "touched/reweight.capo_proposed/zeroed": 1.0}
    said = [touched.look(values) for _ in range(EMPTIED + 3)]
    assert [len(texts) for texts in said] == [0, 0, 1, 0, 0, 0]
    assert said[2][0].startswith("reweight 'capo_proposed' set every advantage to 0 in 3 steps in a row")


def test_the_page_says_the_longest_stretch() -> None:
    steps = list(range(1, 31))
    columns = {
        "touched/policy_loss.gspo/tokens": [0.5] * 5 + [0.0] * 12 + [0.5] + [0.0] * 12,
        "touched/filter.pods/rows": [0.0] * 9 + [0.5] * 21,
        "touched/filter.pods/groups": [0.0] * 9 + [0.5] * 21,
        "touched/reweight.capo_proposed/tokens": [1.0] * 30,
        "touched/reweight.capo_proposed/zeroed": [0.9] * 28 + [1.0] * 2,
        "loss": [0.0] * 30,
    }
    (text,) = silent_methods({name: dict(zip(steps, values, strict=True)) for name, values in columns.items()})
    assert text.startswith("loss 'gspo' changed nothing in steps 6 to 17 of the run: ")
    assert spoken("reward_shaping.product") == "reward_shaping 'product'"

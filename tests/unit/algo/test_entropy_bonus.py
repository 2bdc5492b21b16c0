"""The entropy bonus: minus the entropy per token, with its gradient, and through a whole optimizer step."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.tiny import Tiny
from tests.unit.train.test_step import batch, learner
from vlmrl.algo.auxiliary.entropy import entropy_bonus
from vlmrl.algo.inputs import LossInputs
from vlmrl.algo.registries import policy_loss, reducer
from vlmrl.train.stage.loss import Auxiliary, TokenObjective
from vlmrl.train.step import optimizer_step, score_tokens


def test_entropy_bonus_by_hand():
    entropy = torch.tensor([[0.5, 2.0]], requires_grad=True)
    x = LossInputs(
        logp_BT=torch.zeros(1, 2),
        logp_old_BT=torch.zeros(1, 2),
        logp_ref_BT=None,
        adv_BT=torch.zeros(1, 2),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        group_B=torch.zeros(1, dtype=torch.int64),
        entropy_BT=entropy,
    )
    assert entropy_bonus(x).loss_BT.tolist() == [[-0.5, -2.0]]
    with pytest.raises(ValueError, match="entropy_BT"):
        entropy_bonus(dataclasses.replace(x, entropy_BT=None))


@pytest.mark.parametrize("weight", [0.5, -0.5])
def test_entropy_bonus_moves_the_entropy(weight: float, tiny: Tiny):
    """Without any advantage the step follows the bonus alone: entropies rise with a positive weight and fall with a negative one."""
    one = learner(tiny)
    one.entropy_gradient = True
    data = dataclasses.replace(batch(tiny), adv_NT=torch.zeros_like(batch(tiny).adv_NT))
    before = score_tokens(one, data.rows).entropy_NT.sum() / data.mask_NT.sum()
    bonus = Auxiliary(name="entropy_bonus", loss=entropy_bonus, weight=weight)
    objective = TokenObjective(loss=policy_loss.bind("ppo_clip"), reducer=reducer.bind("token_mean"), auxiliary=[bonus])
    report = optimizer_step(one, data, objective)
    after = score_tokens(one, data.rows).entropy_NT.sum() / data.mask_NT.sum()
    assert report.loss == pytest.approx(-weight * float(before), rel=1e-4)
    assert report.metrics["auxiliary/entropy_bonus"] == pytest.approx(-float(before), rel=1e-4)
    assert (after - before) * weight > 1e-6

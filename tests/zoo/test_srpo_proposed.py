"""algo.reweight.srpo_proposed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.srpo_proposed import srpo_proposed, sure_weights


def step(routed, teacher, policy, entropy):
    """Answers of three tokens."""
    x = inputs([(0.0, 0, True) for _ in routed])
    provided = {
        "sibling_logp_NT": torch.tensor(teacher),
        "sibling_entropy_NT": torch.tensor(entropy),
        "routed_N": torch.tensor(routed),
    }
    return dataclasses.replace(x, logp_NT=torch.tensor(policy), provided=provided)


def test_srpo_proposed_weights_by_hand():
    # entropies 0.1, 1, 2: exp(-H) 0.9048, 0.3679, 0.1353, over their mean
    out = sure_weights(torch.tensor([[0.1, 1.0, 2.0, 7.0]]), torch.tensor([[True, True, True, False]]), 1.0)
    assert out[0].tolist() == pytest.approx([1.928, 0.784, 0.288, 0.0], abs=1e-3)
    assert sure_weights(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), 0.0)[0].tolist() == [1.0, 1.0]


def test_srpo_proposed_by_hand():
    x = step([True, False], [[-1.0, -2.0, -3.0]] * 2, [[-2.0, -2.0, -1.0]] * 2, [[0.5, 0.5, 0.5]] * 2)
    out = srpo_proposed(x, torch.full((2, 3), -0.7), coefficient=2.0)
    assert out.tolist() == [pytest.approx([2.0, 0.0, -4.0]), pytest.approx([-0.7] * 3)]
    far = step([True], [[-100.0, -1.0, -1.0]], [[-1.0, -1.0, -1.0]], [[0.0] * 3])
    assert srpo_proposed(far, torch.zeros(1, 3))[0].tolist() == pytest.approx([-5.0, 0.0, 0.0])


def test_srpo_proposed_is_the_gradient_of_the_reverse_kl():
    """The expectation over the policy of advantage times grad log-prob is minus the gradient of KL(policy || teacher)."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([-0.5, 0.4, 0.1], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    kl = (logp.exp() * (logp - teacher)).sum()
    [wanted] = torch.autograd.grad(kl, logits, retain_graph=True)
    x = step([True], [teacher.tolist()], [logp.tolist()], [[0.0] * 3])  # each token once, weighted by its probability below
    adv = srpo_proposed(x, torch.zeros(1, 3, dtype=torch.float64), beta=0.0)[0]
    [found] = torch.autograd.grad((logp.exp().detach() * adv * logp).sum(), logits)
    assert found.tolist() == pytest.approx([-float(g) for g in wanted], abs=1e-6)


def test_srpo_proposed_without_routed_rows_is_grpo():
    x = step([False], [[math.nan] * 3], [[-1.0] * 3], [[math.nan] * 3])
    assert srpo_proposed(x, torch.full((1, 3), 0.4)).tolist() == [pytest.approx([0.4] * 3)]
    with pytest.raises(ValueError, match="negative"):
        srpo_proposed(x, torch.zeros(1, 3), beta=-1.0)

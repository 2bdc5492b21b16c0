"""What holds for every registered policy loss and divergence estimator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.algo import registries
from vlmrl.algo.inputs import LossInputs
from vlmrl.methods import registries as load_all

load_all()
LOSSES = registries.policy_loss.names()
KLS = registries.kl_estimator.names()
NEUTRAL: dict[str, dict[str, float]] = {"asymre": {"shift": 0.0}}
"""Arguments without which a loss adds something of its own to the advantage, by definition."""
REGRESSIONS = {"opmd", "reg_grpo_proposed", "mdpo_proposed", "r2vpo"}
"""With advantage 0 these pull a log-ratio back, to its group's mean or to 0; only at ratio 1 there is nothing to pull."""
STOPPED = {"cispo", "dispo", "gspo", "opmd", "reg_grpo_proposed", "p3o_proposed", "rank_grpo"}
"""Their gradient is defined with stopped gradients, so it is not the slope of their value: see test_loss_coefficient."""
MASK = torch.tensor([[True, True, True, False], [True, False, False, False], [False, False, False, False]])


def inputs(logp, old, adv, mask=MASK, ref=None) -> LossInputs:
    return LossInputs(
        logp_BT=logp,
        logp_old_BT=old,
        logp_ref_BT=ref,
        adv_BT=adv,
        mask_BT=mask,
        group_B=torch.zeros(len(mask), dtype=torch.int64),
        offpolicy_B=torch.zeros(len(mask), dtype=torch.bool),
        provided={
            "score_mean_B": torch.zeros(len(mask), dtype=logp.dtype),
            "adv_median_B": torch.zeros(len(mask), dtype=logp.dtype),
            "item_BT": torch.zeros(mask.shape, dtype=torch.int64),
        },
    )


def random(seed: int, scale: float = 0.1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(MASK.shape, generator=g, dtype=torch.float64) - 0.1
    old = logp + scale * torch.randn(MASK.shape, generator=g, dtype=torch.float64)
    return logp.requires_grad_(), old, torch.randn(MASK.shape, generator=g, dtype=torch.float64)


def gradient(name: str, x: LossInputs, arguments: dict[str, float] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum over the mask, gradient by logp)."""
    value = torch.where(x.mask_BT, registries.policy_loss.bind(name, arguments)(x).loss_BT, torch.zeros((), dtype=torch.float64)).sum()
    (grad,) = torch.autograd.grad(value, x.logp_BT)
    return value.detach(), grad


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), float("-inf"), 1e30])
def test_values_under_the_mask_change_nothing(name, junk):
    logp, old, adv = random(1)
    value, grad = gradient(name, inputs(logp, old, adv))
    spoilt = [torch.where(MASK, t.detach(), torch.full((), junk, dtype=torch.float64)) for t in (logp, old, adv)]
    spoilt_value, spoilt_grad = gradient(name, inputs(spoilt[0].requires_grad_(), spoilt[1], spoilt[2]))
    assert torch.equal(value, spoilt_value)
    assert torch.equal(grad, spoilt_grad)
    assert (grad[~MASK] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_ignore_what_is_under_the_mask_and_carry_no_gradient(name):
    logp, old, adv = random(2, scale=1.0)
    clean = registries.policy_loss.bind(name)(inputs(logp, old, adv)).metrics
    spoilt = [torch.where(MASK, t.detach(), torch.full((), float("nan"), dtype=torch.float64)) for t in (logp, old, adv)]
    dirty = registries.policy_loss.bind(name)(inputs(*spoilt)).metrics
    assert clean.keys() == dirty.keys()
    for key, (total, count) in clean.items():
        assert not total.requires_grad
        assert not count.requires_grad
        assert (float(total), float(count)) == (float(dirty[key][0]), float(dirty[key][1]))


@pytest.mark.parametrize("name", LOSSES)
def test_zero_advantage_gives_zero_gradient(name):
    logp, old, adv = random(3, scale=0.0 if name in REGRESSIONS else 2.0)
    _, grad = gradient(name, inputs(logp, old.detach(), torch.zeros_like(adv)), NEUTRAL.get(name))
    assert (grad == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_the_gradient_is_that_of_reinforce(name):
    logp, _, adv = random(4)
    _, grad = gradient(name, inputs(logp, logp.detach().clone(), adv), NEUTRAL.get(name))
    torch.testing.assert_close(grad, torch.where(MASK, -adv, torch.zeros_like(adv)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(gap=st.sampled_from([-80.0, -21.0, -20.0, -1.0, 0.0, 1.0, 20.0, 21.0, 80.0]), adv=st.sampled_from([-3.0, 0.0, 3.0]))
def test_finite_at_large_ratios(name, dtype, gap, adv):
    logp = torch.full((1, 1), -100.0 + gap, dtype=dtype, requires_grad=True)
    x = inputs(logp, torch.full((1, 1), -100.0, dtype=dtype), torch.full((1, 1), adv, dtype=dtype), torch.ones(1, 1, dtype=torch.bool))
    loss = registries.policy_loss.bind(name)(x).loss_BT.sum()
    (grad,) = torch.autograd.grad(loss, logp)
    assert loss.isfinite()
    assert grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in STOPPED])
def test_gradient_check(name):
    logp, old, adv = random(5, scale=0.05)
    method = registries.policy_loss.bind(name)
    assert torch.autograd.gradcheck(lambda p: torch.where(MASK, method(inputs(p, old, adv)).loss_BT, torch.zeros_like(p)), (logp,))


@pytest.mark.parametrize("name", KLS)
def test_divergence_is_zero_at_equality_and_finite_far_away(name):
    method = registries.kl_estimator.bind(name)
    same = torch.tensor([[-1.0, -30.0]], dtype=torch.float64)
    assert method(same, same).tolist() == [[0.0, 0.0]]
    for gap in (-80.0, 80.0):
        logp = torch.full((1, 1), -100.0 + gap, requires_grad=True)
        value = method(logp, torch.full((1, 1), -100.0)).sum()
        (grad,) = torch.autograd.grad(value, logp)
        assert value.isfinite()
        assert grad.isfinite().all()

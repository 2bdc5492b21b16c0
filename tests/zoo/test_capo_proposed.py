"""Reweight `capo_proposed`, and what it needs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.providers import logit_step
from vlmrl.zoo.reweight.capo_proposed import capo_proposed, shifts
from vlmrl.zoo.token_stat import power_sums


def sums(p, y):
    """Probability of y, and the sums of p^2 and p^3."""
    p = torch.tensor(p, dtype=torch.float64)
    return p[y], (p**2).sum(), (p**3).sum()


def test_capo_proposed_shifts_by_hand():
    # the specification's example: p (0.5, 0.3, 0.2), y 0, A 1, eta |h|^2 0.1
    objective, policy = shifts(*sums([0.5, 0.3, 0.2], 0), torch.tensor(1.0).double(), 0.1)
    assert (float(objective), float(policy)) == (pytest.approx(0.037994, abs=1e-6), pytest.approx(0.000728, abs=1e-6))


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(-2, 2), st.floats(0, 0.5))
def test_shifts_are_those_of_vectors(weights, advantage, step):
    """An independent computation: the move of the logits as a vector, its variance under the distribution as a matrix."""
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    v = -p.clone()
    v[0] += 1
    u = step * advantage * v
    variance = u @ (torch.diag(p) - torch.outer(p, p)) @ u
    objective, policy = shifts(*sums(p.tolist(), 0), torch.tensor(advantage, dtype=torch.float64), step)
    assert float(policy) == pytest.approx(float(variance) / 2, abs=1e-12)
    assert float(objective) == pytest.approx(float(advantage * (v @ u) + advantage / 2 * ((v @ u) ** 2 - variance)), abs=1e-12)


def tokens(distributions, ys, *, rate=1.5e-5, hidden=3584):
    found = [sums(p, y) for p, y in zip(distributions, ys, strict=True)]
    logp, p2, p3 = (torch.stack([one[n] for one in found]).log().float()[None] for n in range(3))
    provided = {"log_p2_NT": p2, "log_p3_NT": p3, "logit_step_N": torch.tensor([rate * hidden], dtype=torch.float64)}
    return dataclasses.replace(inputs([(1.0, 0, True)]), logp_NT=logp, provided=provided)


def test_capo_proposed_masks_what_moves_too_far():
    x = tokens([[0.999, 0.001], [0.5, 0.5], [0.01, 0.99]], [0, 0, 0])
    adv = torch.tensor([[1.0, 1.0, -1.0]])
    # |v|^2 is 2e-6, 0.5 and 1.96; variances 1e-9 (nearly), 0, 0.0097 * 4
    assert capo_proposed(x, adv, step=0.01)[0].tolist() == [1.0, 1.0, 0.0]
    assert capo_proposed(x, adv, step=0.0)[0].tolist() == [1.0, 1.0, -1.0], "no step keeps everything"
    assert capo_proposed(x, adv, step=10.0, objective=9.0, policy=9.0)[0].tolist()[0] == 1.0
    assert capo_proposed(x, adv, step=1.0)[0].tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="policy"):
        capo_proposed(x, adv, policy=0.0)


def test_by_default_the_step_is_that_of_the_run():
    """What the authors' rate masks trains with a rate that is fifteen times smaller: a default of one number would mask it too."""
    uncertain, adv = [[0.25] * 4, [0.5, 0.5], [0.95, 0.05]], torch.tensor([[1.0, -1.0, 1.0]])
    of_authors = capo_proposed(tokens(uncertain, [0, 0, 0]), adv)
    assert of_authors[0].tolist() == [0.0, 0.0, 1.0]
    assert capo_proposed(tokens(uncertain, [0, 0, 0], rate=1e-6, hidden=2048), adv)[0].tolist() == [1.0, -1.0, 1.0]
    assert torch.equal(of_authors, capo_proposed(tokens(uncertain, [0, 0, 0], rate=1e-6, hidden=2048), adv, step=1.5e-5 * 3584))


@pytest.mark.parametrize(("done", "rate"), [(0, 0.5e-3), (1, 1e-3), (2, 1e-3), (3, 0.75e-3)])
def test_the_step_follows_the_learning_rate(done, rate):
    """Warm-up over two of six updates, then down to 0 in a line; the update that comes is meant, not the last one."""
    optim = SimpleNamespace(lr=1e-3, schedule="linear", warmup=1 / 3)
    text = SimpleNamespace(hidden_size=128)
    stage = SimpleNamespace(
        cfg=SimpleNamespace(optim=optim, steps=6),
        state=SimpleNamespace(step=done),
        policy=SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))),
    )
    found = logit_step.logit_step(stage, SimpleNamespace(rows=(1, 2)), None)["logit_step_N"]
    assert found.tolist() == pytest.approx([rate * 128] * 2)


def test_the_sums_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert power_sums.log_p2(p.log()).exp().tolist() == pytest.approx([0.38, 1.0])
    assert power_sums.log_p3(p.log()).exp().tolist() == pytest.approx([0.16, 1.0])

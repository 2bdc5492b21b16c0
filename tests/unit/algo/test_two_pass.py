"""algo.group_loss.two_pass: the gradient of a loss over groups, with micro-batches that cut them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from vlmrl.algo import registries
from vlmrl.algo.group_loss.two_pass import choice, pass_weights, row_terms, surrogate
from vlmrl.algo.inputs import LossInputs
from vlmrl.zoo.group_loss.disco import disco

ROWS, WIDTH, WORDS = 10, 6, 11
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
LABELS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, -1, -1, -1], dtype=torch.float64)
"""The last question has no right answer."""


class Model(torch.nn.Module):
    """Log-probs of tokens given the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, 5)
        self.head = torch.nn.Linear(5, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.embed(ids[:, :-1])))
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def world() -> tuple[Model, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(model, ids, mask, old log-probs)."""
    torch.manual_seed(3)
    model = Model().double()
    ids = torch.randint(0, WORDS, (ROWS, WIDTH + 1))
    mask = torch.arange(WIDTH)[None] < torch.tensor([6, 1, 3, 4, 2, 6, 5, 1, 3, 2])[:, None]
    old = model(ids).detach() + 0.2 * torch.randn(ROWS, WIDTH, dtype=torch.float64)
    return model, ids, mask, old


def inputs(logp: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, rows: slice) -> LossInputs:
    return LossInputs(
        logp_BT=torch.where(mask[rows], logp, torch.full_like(logp, float("nan"))),
        logp_old_BT=old[rows],
        logp_ref_BT=None,
        adv_BT=torch.zeros_like(logp),
        mask_BT=mask[rows],
        group_B=GROUPS[rows],
    )


def flat(model: Model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("cuts", [[10], [3, 5, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [6, 10]])
@pytest.mark.parametrize("score", ["logL", "ratio"])
@pytest.mark.parametrize("divergence", ["kl", "low_variance"])
@pytest.mark.parametrize("hard", [True, False])
def test_disco_split_into_micro_batches_has_the_gradient_of_the_whole_step(cuts, score, divergence, hard):
    arguments = {"score": score, "divergence": divergence, "hard_negatives": hard, "tau": 0.7, "beta": 50.0, "delta": -1.0}
    loss = registries.group_loss.bind("disco", arguments)
    assert registries.group_loss.get("disco").function is disco
    model, ids, mask, old = world()

    whole = row_terms(inputs(model(ids), old, mask, slice(0, ROWS)), score=score, divergence=divergence)
    value = loss(whole.score_B, LABELS, GROUPS, whole.kl_B, whole.tokens_B)
    value.backward()
    expected = flat(model)

    model.zero_grad()
    with torch.no_grad():
        first = row_terms(inputs(model(ids), old, mask, slice(0, ROWS)), score=choice(loss, "score") or "", divergence=divergence)
    weights = pass_weights(loss, first.score_B, LABELS, GROUPS, first.kl_B, first.tokens_B)
    assert float(weights.loss) == pytest.approx(float(value.detach()), rel=1e-14)
    for start, stop in zip([0, *cuts[:-1]], cuts, strict=True):
        part = slice(start, stop)
        terms = row_terms(inputs(model(ids[part]), old, mask, part), score=score, divergence=divergence)
        assert weights.kl_N is not None
        surrogate(terms, weights.score_N[part], weights.kl_N[part]).backward()
    assert float(expected.norm()) > 1e-2
    torch.testing.assert_close(flat(model), expected, rtol=1e-12, atol=1e-12)


def test_row_terms():
    logp = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    x = LossInputs(
        logp_BT=logp, logp_old_BT=logp - 0.5, logp_ref_BT=None, adv_BT=torch.zeros(2, 3), mask_BT=mask, group_B=torch.zeros(2).long()
    )
    terms = row_terms(x)
    assert terms.score_B.tolist() == [-1.5, -1.0]
    assert terms.kl_B.tolist() == [-1.0, -0.5]
    assert terms.tokens_B.tolist() == [2, 1]
    assert row_terms(x, score="ratio").score_B.tolist() == pytest.approx([1.6487212707] * 2)
    assert row_terms(x, score="log_ratio_sum").score_B.tolist() == pytest.approx([1.0, 0.5])
    assert row_terms(x, divergence="low_variance").kl_B.tolist() == pytest.approx([2 * 0.1487212707, 0.1487212707])
    assert row_terms(x, divergence=None).kl_B.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="unknown score 'mean'"):
        row_terms(x, score="mean")
    with pytest.raises(ValueError, match="unknown divergence 'k3'"):
        row_terms(x, divergence="k3")


def test_choice_reads_the_bound_argument_or_its_default():
    assert choice(registries.group_loss.bind("disco", {"score": "ratio"}), "score") == "ratio"
    assert choice(registries.group_loss.bind("disco"), "score") == "logL"
    assert choice(registries.group_loss.bind("disco"), "colour") is None


def test_pass_weights_of_a_step_with_nothing_to_learn_are_zero():
    score = torch.tensor([-1.0, -2.0])
    weights = pass_weights(registries.group_loss.bind("disco", {"beta": 0.0}), score, torch.zeros(2), torch.zeros(2).long())
    assert weights.score_N.tolist() == [0.0, 0.0]
    assert weights.kl_N is None


def test_pass_weights_work_without_gradients_and_leave_their_input_alone():
    score = torch.tensor([-1.0, -2.0], requires_grad=True)
    with torch.no_grad():
        weights = pass_weights(lambda s, *rest: s.square().sum(), score, torch.zeros(2), torch.zeros(2).long())
    assert weights.score_N.tolist() == [-2.0, -4.0]
    assert not weights.score_N.requires_grad
    assert score.grad is None


def test_pass_weights_name_the_row_that_is_not_finite():
    fn = partial(lambda s, *rest: s.sum())
    with pytest.raises(ValueError, match="score of rollout 1 is nan"):
        pass_weights(fn, torch.tensor([0.0, float("nan")]), torch.zeros(2), torch.zeros(2).long())
    with pytest.raises(ValueError, match="different lengths"):
        pass_weights(fn, torch.zeros(3), torch.zeros(2), torch.zeros(2).long())

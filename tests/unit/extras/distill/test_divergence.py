"""The chunked divergence against whole distributions in float64: values, gradients, limits of beta, and any cut into chunks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vlmrl.extras.distill.divergence import Outputs, generalised_jsd

M, V, H, G = 5, 11, 4, 3
FORBIDDEN = (2, 9)


def outputs(seed: int, *, m: int = M, v: int = V, h: int = H, biased: bool = True, cap: float | None = None, size: float = 1.0) -> Outputs:
    g = torch.Generator().manual_seed(seed)
    hidden, head, bias = (size * torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((m, h), (v, h), (v,)))
    bias_V = bias.requires_grad_() if biased else None
    return Outputs(hidden_MH=hidden.requires_grad_(), head_VH=head.requires_grad_(), bias_V=bias_V, cap=cap)


def whole(one: Outputs, temperature: float, allowed: list[int]) -> Tensor:
    z = one.hidden_MH @ one.head_VH.T
    z = z if one.bias_V is None else z + one.bias_V
    z = z if one.cap is None else one.cap * (z / one.cap).tanh()
    return (z / temperature)[:, allowed].log_softmax(1)


def dense(student: Outputs, teacher: Outputs, *, beta: float, temperature: float, forbidden: tuple[int, ...] = ()) -> Tensor:
    """Equation 1 of arXiv:2306.13649 as it stands, by torch's own divergence and autograd."""
    size = min(len(student.head_VH), len(teacher.head_VH))
    allowed = [i for i in range(size) if i not in forbidden]
    q, p = whole(student, temperature, allowed), whole(teacher, temperature, allowed).detach()

    def kl(of: Tensor, under: Tensor) -> Tensor:
        return torch.nn.functional.kl_div(under, of, reduction="none", log_target=True).sum(1)

    if beta in (0, 1):
        return kl(p, q) if beta == 0 else kl(q, p)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def gradients(one: Outputs, value: Tensor) -> list[Tensor]:
    leaves = [leaf for leaf in (one.hidden_MH, one.head_VH, one.bias_V) if leaf is not None]
    weights = torch.linspace(-1, 2, len(value), dtype=value.dtype)
    return list(torch.autograd.grad((value * weights).sum(), leaves))


def test_by_hand() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): at beta 1/2 m = (5/8, 3/8)."""
    student = Outputs(hidden_MH=torch.ones(1, 1, dtype=torch.float64), head_VH=torch.zeros(2, 1, dtype=torch.float64))
    teacher = Outputs(hidden_MH=torch.ones(1, 1, dtype=torch.float64), head_VH=torch.tensor([[math.log(3.0)], [0.0]], dtype=torch.float64))
    found = {beta: float(generalised_jsd(student, teacher, beta=beta, temperature=1.0)) for beta in (0.0, 0.5, 1.0)}
    assert found[0.0] == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-12)
    assert found[1.0] == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2.0), abs=1e-12)
    of_p, of_q = 0.75 * math.log(6 / 5) + 0.25 * math.log(2 / 3), 0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3)
    assert found[0.5] == pytest.approx(0.5 * of_p + 0.5 * of_q, abs=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("cap", "biased", "forbidden"), [(None, True, ()), (1.5, False, FORBIDDEN), (2.0, True, FORBIDDEN)])
def test_values_and_gradients_are_those_of_whole_distributions(beta: float, cap: Any, biased: bool, forbidden: tuple[int, ...]) -> None:
    student, teacher = outputs(0, biased=biased, cap=cap), outputs(1, h=G, biased=not biased)
    how: dict[str, Any] = {"beta": beta, "temperature": 0.7, "forbidden": forbidden}
    found = generalised_jsd(student, teacher, chunk_rows=2, chunk_vocab=3, **how)
    expected = dense(student, teacher, **how)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for mine, theirs in zip(gradients(student, found), gradients(student, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert teacher.hidden_MH.grad is None
    assert (found > 0).all()


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(0, 7),
    v=st.integers(2, 13),
    extra=st.integers(0, 4),
    rows=st.integers(1, 9),
    vocab=st.integers(1, 15),
    beta=st.floats(0, 1),
    temperature=st.floats(0.2, 3),
    seed=st.integers(0, 99),
    banned=st.booleans(),
)
def test_any_cut_into_chunks_gives_the_same(
    m: int, v: int, extra: int, rows: int, vocab: int, beta: float, temperature: float, seed: int, banned: bool
) -> None:
    """Also with an output matrix of the teacher that is padded further, and with no tokens at all."""
    student, teacher = outputs(seed, m=m, v=v), outputs(seed + 1, m=m, v=v + extra, h=G)
    how: dict[str, Any] = {"beta": beta, "temperature": temperature, "forbidden": (0, v + extra - 1) if banned and v > 2 else ()}
    found = generalised_jsd(student, teacher, chunk_rows=rows, chunk_vocab=vocab, **how)
    torch.testing.assert_close(found, dense(student, teacher, **how), rtol=1e-9, atol=1e-10)
    assert (found >= -1e-12).all()
    for mine, theirs in zip(gradients(student, found), gradients(student, dense(student, teacher, **how)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_teacher_that_is_the_student_teaches_nothing(beta: float) -> None:
    student = outputs(4)
    found = generalised_jsd(student, student, beta=beta, temperature=0.9, forbidden=FORBIDDEN, chunk_vocab=4)
    torch.testing.assert_close(found, torch.zeros(M, dtype=torch.float64), rtol=0, atol=1e-12)
    assert max(float(one.abs().max()) for one in gradients(student, found)) < 1e-12


def test_near_its_limits_the_mixture_is_a_multiple_of_both_divergences() -> None:
    """D / beta -> KL(p || q) for beta -> 0, and D / (1 - beta) -> KL(q || p) for beta -> 1 (section 2 of the paper)."""
    student, teacher = outputs(5), outputs(6)
    of = {beta: generalised_jsd(student, teacher, beta=beta, temperature=1.0) for beta in (0.0, 1e-6, 1 - 1e-6, 1.0)}
    torch.testing.assert_close(of[1e-6] / 1e-6, of[0.0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(of[1 - 1e-6] / 1e-6, of[1.0], rtol=1e-3, atol=1e-6)


def test_far_apart_it_stays_finite() -> None:
    student, teacher = outputs(7, size=30.0), outputs(8, size=30.0)
    for beta in (0.0, 0.5, 1.0):
        found = generalised_jsd(student, teacher, beta=beta, temperature=1.0, forbidden=FORBIDDEN)
        assert found.isfinite().all()
        assert all(one.isfinite().all() for one in gradients(student, found))


def test_under_autocast_products_are_of_16_bits() -> None:
    student, teacher = (
        Outputs(hidden_MH=one.hidden_MH.detach().float().requires_grad_(), head_VH=one.head_VH.detach().float())
        for one in (outputs(9), outputs(10))
    )
    exact = generalised_jsd(student, teacher, beta=0.5, temperature=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = generalised_jsd(student, teacher, beta=0.5, temperature=1.0)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.02)
    assert not torch.equal(rough, exact)


def test_refusals() -> None:
    student, teacher = outputs(11), outputs(12, m=M + 1)
    with pytest.raises(ValueError, match="5 tokens of the student and 6"):
        generalised_jsd(student, teacher, beta=0.5, temperature=1.0)
    with pytest.raises(ValueError, match=r"beta is 1\.5"):
        generalised_jsd(student, student, beta=1.5, temperature=1.0)
    with pytest.raises(ValueError, match="nothing is left"):
        generalised_jsd(student, student, beta=0.5, temperature=1.0, forbidden=tuple(range(V)))

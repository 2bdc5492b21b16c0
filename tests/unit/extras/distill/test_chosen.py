"""The divergence over the likeliest ids against whole distributions in float64: values, gradients, its bound, any cut into chunks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.extras.distill.test_divergence import FORBIDDEN, G, M, V, dense, gradients, outputs, whole
from vlmrl.extras.distill.chosen import FLOOR, chosen_logprobs, chosen_reverse_kl, top_ids
from vlmrl.extras.distill.divergence import Outputs

CHUNKS = {"chunk_rows": 2, "chunk_vocab": 3}


def bucketed(student: Outputs, teacher: Outputs, k: int, temperature: float, forbidden: tuple[int, ...]) -> Tensor:
    """The divergence of the distributions over the student's k likeliest ids and all others as one, by torch's autograd."""
    allowed = [i for i in range(len(student.head_VH)) if i not in forbidden]
    q, p = whole(student, temperature, allowed).exp(), whole(teacher, temperature, allowed).exp().detach()
    best = q.detach().topk(k, 1).indices

    def buckets(of: Tensor) -> Tensor:
        chosen = of.gather(1, best)
        rest = of.scatter(1, best, 0.0).sum(1, keepdim=True)
        return torch.cat([chosen, rest], 1) if k < len(allowed) else chosen

    ours, theirs = buckets(q), buckets(p)
    return (ours * (ours / theirs).log()).sum(1)


def found_of(student: Outputs, teacher: Outputs, k: int, **how: Any) -> Tensor:
    ids = top_ids(student, k, ids=len(student.head_VH), **how)
    return chosen_reverse_kl(student, ids, chosen_logprobs(teacher, ids, **how), **how)


def test_by_hand() -> None:
    """q = (1/2, 1/4, 1/4), p = (1/4, 1/4, 1/2); of the likeliest id alone: 1/2 log 2 + 1/2 log (2/3)."""
    student, teacher = (
        Outputs(hidden_MH=torch.ones(1, 1, dtype=torch.float64), head_VH=torch.tensor(p, dtype=torch.float64).log()[:, None])
        for p in ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    )
    assert float(found_of(student, teacher, 1)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-12)
    assert float(found_of(student, teacher, 3)) == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5), abs=1e-12)


@pytest.mark.parametrize("k", [1, 4, V - 2])
@pytest.mark.parametrize(("cap", "biased", "forbidden"), [(None, True, FORBIDDEN), (1.5, False, FORBIDDEN), (2.0, True, FORBIDDEN)])
def test_values_and_gradients_are_those_of_whole_distributions(k: int, cap: Any, biased: bool, forbidden: tuple[int, ...]) -> None:
    student, teacher = outputs(0, biased=biased, cap=cap), outputs(1, h=G, biased=not biased)
    found = found_of(student, teacher, k, temperature=0.7, forbidden=forbidden, **CHUNKS)
    expected = bucketed(student, teacher, k, 0.7, forbidden)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for mine, theirs in zip(gradients(student, found), gradients(student, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    assert (found > 0).all()


@settings(deadline=None)
@given(
    m=st.integers(0, 6),
    v=st.integers(3, 12),
    k=st.integers(1, 12),
    rows=st.integers(1, 7),
    vocab=st.integers(1, 13),
    temperature=st.floats(0.3, 3),
    seed=st.integers(0, 99),
    banned=st.booleans(),
)
def test_it_bounds_the_whole_divergence_from_below_in_any_cut(
    m: int, v: int, k: int, rows: int, vocab: int, temperature: float, seed: int, banned: bool
) -> None:
    student, teacher = outputs(seed, m=m, v=v), outputs(seed + 100, m=m, v=v, h=G)
    forbidden = (1,) if banned else ()
    most = v - len(forbidden)
    how: dict[str, Any] = {"temperature": temperature, "forbidden": forbidden}
    found = found_of(student, teacher, min(k, most), chunk_rows=rows, chunk_vocab=vocab, **how)
    torch.testing.assert_close(found, bucketed(student, teacher, min(k, most), temperature, forbidden), rtol=0, atol=1e-10)
    above = dense(student, teacher, beta=1, **how)
    assert (found <= above + 1e-10).all()
    torch.testing.assert_close(found_of(student, teacher, most, **how), above, rtol=0, atol=1e-10)


def test_the_likeliest_ids_are_of_the_tokenizer_and_may_be_drawn() -> None:
    student = outputs(3)
    best = top_ids(student, 3, ids=V - 3, temperature=0.7, forbidden=FORBIDDEN, **CHUNKS)
    allowed = [i for i in range(V - 3) if i not in FORBIDDEN]
    expected = torch.tensor(allowed)[whole(student, 0.7, allowed).topk(3, 1).indices]
    assert torch.equal(best, expected)
    with pytest.raises(ValueError, match=r"k is 8, and there are 7 ids that may be drawn"):
        top_ids(student, 8, ids=V - 3, forbidden=FORBIDDEN)


def test_log_probs_of_given_ids() -> None:
    teacher, ids = outputs(4), torch.tensor([[0, 3, 10], [5, 4, 3], [1, 0, 10], [6, 7, 8], [0, 1, 3]])
    allowed = [i for i in range(V) if i not in FORBIDDEN]
    every = torch.full((M, V), -torch.inf, dtype=torch.float64)
    every[:, allowed] = whole(teacher, 1.3, allowed).detach()
    found = chosen_logprobs(teacher, ids, temperature=1.3, forbidden=FORBIDDEN, **CHUNKS)
    torch.testing.assert_close(found, every.gather(1, ids), rtol=0, atol=1e-10)


def test_a_teacher_that_leaves_nothing_to_other_ids_is_taken_to_leave_the_floor() -> None:
    student = Outputs(hidden_MH=torch.ones(1, 1), head_VH=torch.tensor([[2.0], [0.0], [0.0]]))
    found = chosen_reverse_kl(student, torch.tensor([[0]]), torch.zeros(1, 1))
    q = math.exp(2) / (math.exp(2) + 2)
    assert float(found) == pytest.approx(q * math.log(q) + (1 - q) * math.log((1 - q) / FLOOR), rel=1e-5)


def test_equal_models_differ_in_nothing() -> None:
    student = outputs(5)
    found = found_of(student, student, 3, temperature=0.9, **CHUNKS)
    assert float(found.detach().abs().max()) < 1e-12
    assert all(float(of.abs().max()) < 1e-12 for of in gradients(student, found))


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(5, 2\) ids, \(5, 3\) log-probs and 5 tokens"):
        chosen_reverse_kl(outputs(6), torch.zeros(M, 2, dtype=torch.int64), torch.zeros(M, 3))

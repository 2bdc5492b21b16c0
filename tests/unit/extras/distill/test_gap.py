"""The gap of sampled tokens as an advantage and in the log, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.extras.distill.gap import gap_sums, means, reverse_kl_advantage
from vlmrl.extras.distill.methods.scores import GAP, teacher_reverse_kl
from vlmrl.types import MediaHandle, Prompt, Sample


def prompt(task: str, *kinds: Any) -> Prompt:
    media = tuple(MediaHandle(kind=kind, key="k", grid_thw=(1, 2, 2), tokens=1) for kind in kinds)
    sample = Sample(id=task, task=task, answer_type="number", question="?", media=(), answer="1", gt={})
    return Prompt(sample=sample, ids=(1, 2), media=media, spans=(), answer_format="think")


def test_teacher_reverse_kl_is_the_clamped_log_ratio() -> None:
    gap_NT = torch.tensor([[0.5, -2.0, 30.0], [0.0, -30.0, 1.0]])  # student - teacher
    found = reverse_kl_advantage(gap_NT, coefficient=0.5, clamp=10.0)
    assert found.tolist() == [[-0.25, 1.0, -5.0], [0.0, 5.0, -0.5]]


def test_its_policy_gradient_is_that_of_the_divergence() -> None:
    """The mean of advantage * grad log q over all tokens, each by its probability, is -grad KL(q || p)."""
    z = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    logp = torch.tensor([0.2, 0.5, -0.4], dtype=torch.float64).log_softmax(0)
    logq = z.log_softmax(0)
    (expected,) = torch.autograd.grad((logq.exp() * (logq - logp)).sum(), z, retain_graph=True)
    advantage = reverse_kl_advantage((logq - logp).detach()[None], coefficient=1.0, clamp=10.0)[0]
    (found,) = torch.autograd.grad(-(logq.exp().detach() * advantage * logq).sum(), z)
    torch.testing.assert_close(found, expected)


def test_teacher_reverse_kl_stands_beside_an_advantage_of_rewards() -> None:
    x = dataclasses.replace(inputs([(1.0, 0, True)]), provided={GAP: torch.tensor([[0.5, -0.5, 9.0]])})
    found = teacher_reverse_kl(x, torch.tensor([[1.0, 1.0]]), coefficient=2.0)
    assert found.tolist() == [[0.0, 2.0]]
    with pytest.raises(ValueError, match="clamp is 0"):
        teacher_reverse_kl(x, torch.ones(1, 2), clamp=0.0)


def test_means_by_media_and_task_over_ranks() -> None:
    gap_NT, mask_NT = torch.tensor([[1.0, 2.0], [4.0, 100.0]]), torch.tensor([[True, True], [True, False]])
    first = gap_sums(gap_NT, mask_NT, [prompt("count", "image"), prompt("when", "video")])
    second = gap_sums(gap_NT[:1], mask_NT[:1], [prompt("when", "video")])
    assert means([first, second]) == {
        "distill/gap": 2.0,
        "distill/gap/image": 1.5,
        "distill/gap/video": pytest.approx(7 / 3),
        "distill/task_gap/count": 1.5,
        "distill/task_gap/when": pytest.approx(7 / 3),
    }
    assert means([{"distill/gap": (0.0, 0)}, {}]) == {}

"""The simulated regimes: what follows from their construction alone."""

from __future__ import annotations

import pytest

from benchmarks.learning import regimes
from benchmarks.learning.regimes import advantages, curriculum, gate, heavy


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regimes, "STEPS", 12)


def test_a_gate_that_is_all_shared_cannot_tell_questions_apart() -> None:
    assert gate((0.5, 1.0), 1.0, seed=0) == 0
    assert gate((0.5, 1.0), 0.0, seed=0) > 0.1, "own logits: a thought costs on easy questions and pays on hard ones"


def test_where_all_rows_are_right_nothing_is_learned() -> None:
    assert curriculum(1 - 1e-12, short_first=True, seed=0) == pytest.approx(1)
    # with a chance of 1e-12 at full length, and 0.03 at one step, short rows alone have a signal
    assert curriculum(1e-12, short_first=True, seed=0) > 1.2 * curriculum(1e-12, short_first=False, seed=0) > 1e-12


@pytest.mark.parametrize("name", ["grpo", "g2rpo"])
def test_a_policy_over_arms_learns_without_noise_in_the_tails(name: str) -> None:
    assert heavy("normal", name, group=16, seed=1) > 0.6


def test_same_seed_same_number() -> None:
    assert heavy("Cauchy", "g2rpo", group=8, seed=2) == heavy("Cauchy", "g2rpo", group=8, seed=2)
    assert curriculum(0.1, short_first=False, seed=3) == curriculum(0.1, short_first=False, seed=3)


def test_groups_lie_one_after_the_other() -> None:
    import torch

    from benchmarks.claims.mechanisms import bound

    adv_N = advantages(bound("grpo"), torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64), group=2)
    assert adv_N[0] == -adv_N[1] != 0
    assert adv_N[2:].tolist() == [0, 0], "a flat group"

"""The cost of keeping groups from pairs of runs: known costs are found, and what only one run met does not count."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.parts.view_pairs import SIDES, WARM, cost, page


def steps(pairs: int = 12, steps: int = 38, noise: float = 0.03, seed: int = 0) -> np.ndarray:
    """Seconds of steps that differ from each other by far more than the noise."""
    random = np.random.default_rng(seed)
    work = 0.2 + 0.3 * np.random.default_rng(99).random(steps)
    return work * (1 + noise * np.abs(random.standard_normal((pairs, steps))))


def test_a_known_cost_is_found_within_its_interval() -> None:
    found = [cost(1.02 * steps(seed=2 * n), steps(seed=2 * n + 1)) for n in range(20)]
    assert all(abs(share - 0.02) < 0.01 for share, _, _ in found)
    assert sum(low < 0.02 < high for _, low, high in found) >= 15
    assert all(low > 0 for _, low, _ in found), "2% is seen through 3% of noise"
    same = [cost(steps(seed=2 * n), steps(seed=2 * n + 1)) for n in range(20)]
    assert sum(low < 0 < high for _, low, high in same) >= 15


def test_what_a_few_runs_met_does_not_count() -> None:
    disturbed = steps(seed=1)
    disturbed[2:4] *= 5
    assert abs(cost(disturbed, steps(seed=2))[0]) < 0.01


def test_sides_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="the same pairs and steps"):
        cost(steps(pairs=3), steps(pairs=4))
    with pytest.raises(ValueError, match="the same pairs and steps"):
        cost(steps(pairs=1), steps(pairs=1))


def test_the_page_leaves_out_the_first_steps() -> None:
    found = {name: np.concatenate([np.full((12, WARM), 50.0), steps(seed=n)], axis=1).tolist() for n, name in enumerate(SIDES)}
    text = page(found, [0.5, 1.5])
    assert "12 alternating pairs, 38 steps each" in text
    rows = [line for line in text.splitlines() if line.startswith("| keeps")]
    assert len(rows) == 2
    assert all("%" in row and "50." not in row for row in rows)

"""The benchmark of flips: in float32 there are none, so that replay changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rollout.router_flips import LAYOUTS, measured, opened

pytestmark = pytest.mark.not_fast  # builds a model


def test_in_float32_both_sides_choose_the_same_experts(tmp_path: Path) -> None:
    given = opened("qwen3_vl_moe", tmp_path, dtype="float32", prompts=2)
    found = measured(given, prompts=2, answers=2, tokens=4)
    assert [layout for layout, _ in found] == list(LAYOUTS)
    for _, (flips, mean, worst, *replayed) in found:
        assert (flips, [flips, mean, worst]) == (0.0, replayed)
        assert mean <= worst < 1e-4

"""Thought dropout of TON (arXiv:2505.16854): exact targets, the rate of the draws, and what they depend on."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import sample as make_sample
from vlmrl.config.schema import SftSection, SourceSection
from vlmrl.train.stage.sft import drops_thought, target

SAMPLE = dataclasses.replace(make_sample("3.0 to 5.0", {"time": [3.0, 5.0]}), thought="The red square is at the top left.")


def cfg(p: float, **more: object) -> SftSection:
    return SftSection.model_validate(
        {"kind": "sft", "name": "sft", "source": SourceSection(path="x"), "steps": 1, "thought_dropout": p} | more
    )


def test_dropped_thought_is_two_newlines_byte_for_byte() -> None:
    assert target(cfg(1.0), 0, SAMPLE, 0) == "<think>\n\n</think><answer>3.0 to 5.0</answer>"
    assert target(cfg(0.0), 0, SAMPLE, 0) == "<think>The red square is at the top left.</think><answer>3.0 to 5.0</answer>"


def test_answer_only_template_has_no_thought() -> None:
    assert target(cfg(0.0, answer_format="answer_only"), 0, SAMPLE, 0) == "<answer>3.0 to 5.0</answer>"


def test_row_without_a_thought_gets_the_empty_one() -> None:
    plain = dataclasses.replace(SAMPLE, thought=None)
    assert target(cfg(0.0), 0, plain, 0) == "<think>\n\n</think><answer>3.0 to 5.0</answer>"


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_rate_is_p_within_three_sigma(p: float) -> None:
    n = 10_000
    drops = sum(drops_thought(cfg(p), 0, f"row-{i}", 0) for i in range(n))
    assert abs(drops - n * p) < 3 * (n * p * (1 - p)) ** 0.5


def test_p_zero_never_and_p_one_always() -> None:
    assert not any(drops_thought(cfg(0.0), 0, f"row-{i}", 0) for i in range(1000))
    assert all(drops_thought(cfg(1.0), 0, f"row-{i}", 0) for i in range(1000))


def test_static_draw_ignores_the_epoch_and_the_other_does_not() -> None:
    rows = [f"row-{i}" for i in range(200)]

    def draws(c: SftSection, seed: int, epoch: int) -> list[bool]:
        return [drops_thought(c, seed, row, epoch) for row in rows]

    static, anew = cfg(0.5), cfg(0.5, dropout_per_epoch=True)
    assert draws(static, 0, 0) == draws(static, 0, 1)
    assert draws(anew, 0, 0) != draws(anew, 0, 1)
    assert draws(static, 0, 0) != draws(static, 1, 0)

"""What `vlmrl check` says of the evidence for a recipe's methods."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.cards import cards
from vlmrl.config.load import load
from vlmrl.extras.tools.pays import experience


def told(recipe: str, *overrides: str) -> list[str]:
    return experience(load(recipe, list(overrides)).config)


def test_a_method_with_evidence_is_said_once_with_the_page_of_its_numbers() -> None:
    (line,) = [line for line in told("g2rpo") if line.startswith("advantage")]
    assert line == f"advantage 'g2rpo' pays: {cards()['advantage', 'g2rpo'].pays}"
    assert "docs/benchmarks/" in line


def test_defaults_and_methods_of_which_nothing_was_measured_are_left_out() -> None:
    assert told("toy_video") == []


GATE = "pays nothing for leaving a thought out"
UNPAID = "stages.rl.rewards=[{name: exact}, {name: format, weight: 0.1}]"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], False),
        ([UNPAID], True),
        ([UNPAID, "stages.rl.answer_format=answer_only"], False),
        ([UNPAID, "stages.sft.thought_dropout=0.0"], False),
    ],
)
def test_a_choice_to_think_that_nothing_pays_for_is_said(overrides: list[Any], said: bool) -> None:
    assert any(GATE in line for line in told("toy_video", *overrides)) is said

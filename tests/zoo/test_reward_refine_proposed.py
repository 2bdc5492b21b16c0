"""The reward `refine_proposed`: right, in sections, with references, and honest."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.refine_proposed import refine_proposed, refine_score, sections

WHOLE = (
    "<understanding>u</understanding><facts>f</facts><plan>p</plan><think>By the FACTS and my understanding, as the plan says.</think>"
    "<answer>3.0 to 5.0</answer><self_assessment>Sound. Confidence: 9/10</self_assessment>"
)


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        ((True, True, 1.0, 9.0), 0.9975),
        ((False, True, 1.0, 9.0), 0.5475),
        ((False, True, 2 / 3, 2.0), 0.6567),
        ((True, False, 0.0, None), 0.1875),
    ],
)
def test_refine_proposed_numbers_of_the_authors_code(terms, wanted):
    assert refine_score(*terms) == pytest.approx(wanted, abs=1e-4)


def test_refine_proposed_reads_sections():
    broken = WHOLE.replace("<plan>p</plan>", "")
    unsure = WHOLE.replace("9/10", "not known")
    out = refine_proposed(group([WHOLE, broken, unsure, "", WHOLE.replace("3.0 to 5.0", "7")], sample()), RewardContext())
    assert out == pytest.approx([0.9975, 0.7475, (3 + 0.75 - 1) / 4, (0.75 - 1) / 4, 0.5475])


def test_confidence_is_a_proper_score():
    for truth in (0.2, 0.5, 0.8):
        worth = {c: truth * refine_score(True, True, 1, c) + (1 - truth) * refine_score(False, True, 1, c) for c in range(11)}
        assert max(worth, key=worth.__getitem__) == round(10 * truth)


def test_sections_stand_once_and_in_order():
    assert sections(WHOLE)[1]
    assert not sections(WHOLE + "<plan>again</plan>")[1]
    assert sections("<answer>4</answer>")[0] == {"answer": "4"}

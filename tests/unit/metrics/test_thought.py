"""metrics.thought."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.thought import Thought, agreement, summarize


def test_summarize():
    rows = [(1, 0, 10), (1, 1, 200), (0, 1, 150), (1, 0, 12)]
    out = summarize([Thought(correct=c, thinks=bool(t), tokens=n, truncated=n == 200, well_formed=n > 10) for c, t, n in rows])
    assert (out.think_rate, out.mean_tokens, out.tokens_per_correct) == (0.5, 93, 124)
    assert (out.accuracy_given_think, out.accuracy_given_skip) == (0.5, 1.0)
    assert (out.truncation_rate, out.format_rate) == (0.25, 0.75)


def test_undefined_rates_are_none():
    out = summarize([Thought(correct=0.5, thinks=False, tokens=4)])
    assert out.tokens_per_correct is None
    assert out.accuracy_given_think is None
    assert out.accuracy_given_skip == 0.5
    with pytest.raises(ValueError, match="no answers"):
        summarize([])


def test_agreement_vector():
    """Five answers: three right, three consistent, two both."""
    out = agreement([True, True, True, False, False], [True, True, False, True, False])
    assert (out.n, out.judged) == (5, 5)
    assert (out.accuracy, out.consistency, out.faithful_accuracy, out.inconsistency_rate) == (0.6, 0.6, 0.4, 0.4)
    assert out.consistency_given_correct == pytest.approx(0.6667, abs=1e-4)


def test_agreement_without_all_verdicts():
    right, verdicts = [True, True, False, False], [True, None, False, None]
    out = agreement(right, verdicts)
    assert (out.judged, out.consistency, out.inconsistency_rate) == (2, 0.5, 0.25)  # of 2 verdicts; of 4 answers
    assert (out.faithful_accuracy, out.consistency_given_correct) == (0.25, 1.0)
    rules = agreement(right, [True, False, None, None], wrong_judged=False)
    assert (rules.consistency, rules.inconsistency_rate) == (None, None)  # nothing is known of wrong answers
    assert (rules.faithful_accuracy, rules.consistency_given_correct) == (0.25, 0.5)
    none = agreement(right, [None] * 4)
    assert (none.judged, none.accuracy) == (0, 0.5)
    assert none.consistency is none.inconsistency_rate is none.faithful_accuracy is none.consistency_given_correct is None
    assert agreement([False], [True]).consistency_given_correct is None
    for wrong in (([], []), ([True], [])):
        with pytest.raises(ValueError, match="one verdict"):
            agreement(*wrong)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_rates_of_a_full_set_fit_together(rows):
    right, consistent = [r for r, _ in rows], [c for _, c in rows]
    out = agreement(right, consistent)
    assert out.consistency + out.inconsistency_rate == pytest.approx(1)
    assert out.faithful_accuracy <= min(out.accuracy, out.consistency)
    if any(right):
        assert out.consistency_given_correct * out.accuracy == pytest.approx(out.faithful_accuracy)

"""metrics.thought."""

from __future__ import annotations

import pytest

from vlmrl.metrics.thought import Thought, summarize


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

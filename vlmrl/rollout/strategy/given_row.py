"""Appends a row that was not sampled to a group: its text is given (ground truth, demonstration), so it has no log-probs of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vlmrl.types import Group, Rollout


def with_given_row(group: Group, text: str, tokenize: Callable[[str], Sequence[int]]) -> Group:
    """Append the text to a group as its last row, of provenance `ground_truth`. `tokenize` adds the end token."""
    row = Rollout(
        k=len(group.rollouts),
        ids=tuple(tokenize(text)),
        logprobs=(),
        text=text,
        finish="stop",
        policy_version=group.rollouts[0].policy_version,
        provenance="ground_truth",
    )
    return replace(group, rollouts=(*group.rollouts, row))

"""Strategy `demonstration` (LUFFY): one row of each group is a teacher's trace. arXiv:2504.14945, with the authors' code.

The group is G - 1 sampled rows and one trace, from `meta.demonstrations` of the row (texts as a model would answer, tags included;
taken as they are, with the end token behind), else built from the row's thought and answer. A trace is used where it earns more than
`above`: one with a bad reward would push its own tokens down. Without a trace the group goes on with its G - 1 rows. The loss is
`luffy`, which takes the teacher's probability as 1: the row has no log-probs of its own.

Ours: several traces of a row take turns by the place of the group in the run, so that each is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vlmrl import rng
from vlmrl.answers.tags import gold_text
from vlmrl.errors import DataError
from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.given_row import with_given_row
from vlmrl.types import Group, Sample


def traces(sample: Sample, answer_format: str) -> list[str]:
    """Read the row's demonstrations. Its own thought and answer count as one where it lists none.

    Raises:
        DataError: `meta.demonstrations` is not a list of texts.
    """
    given: Any = sample.meta.get("demonstrations")
    if given is None:
        usable = answer_format == "answer_only" or (sample.thought is not None and bool(sample.thought.strip()))
        return [gold_text(sample, answer_format, sample.thought)] if usable else []
    if not isinstance(given, list) or not all(isinstance(text, str) and text.strip() for text in given):
        raise DataError(f"row '{sample.id}' ({sample.source}): 'meta.demonstrations' must be a list of texts, none of them empty")
    return list(given)


class Demonstration:
    """See the module docstring."""

    def __init__(self, above: float):
        self.above = above

    def sampled(self, rollouts: int) -> int:
        return rollouts - 1

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        texts = traces(group.prompt.sample, group.prompt.answer_format)
        if not texts:
            return group
        text = texts[rng.key(0, "demonstration", group.id) % len(texts)]  # the id holds step and place: traces take turns
        out = with_given_row(group, text, tokenize)
        value = score(out)[-1]
        return out if value is not None and value > self.above else group


@strategy("demonstration", paper="arXiv:2504.14945", injects_rows=True)
def demonstration(*, above: float = 0.0) -> Demonstration:
    """LUFFY: the last row of each group is a teacher's trace that earns more than `above`."""
    return Demonstration(above)

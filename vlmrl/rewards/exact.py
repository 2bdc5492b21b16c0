"""Reward `exact`: the answer equals the gold answer, case and white space aside."""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.metrics.relaxed import open_match
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample


def normalise(text: str) -> str:
    """Lower case, single spaces."""
    return " ".join(text.lower().split())


def same_text(answer: str, sample: Sample) -> bool:
    """Whether an answer equals the gold answer up to case and white space; where the row lists `gt.accepted`, whether one of these is
    among its parts (MMMU's rule, `metrics.relaxed.open_match`).

    Raises:
        ValueError: `gt.accepted` is not a list of texts.
    """
    accepted = sample.gt.get("accepted")
    if accepted is None:
        return normalise(answer) == normalise(sample.answer)
    if not isinstance(accepted, list | tuple) or not all(isinstance(text, str) and text.strip() for text in accepted):
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.accepted must be a list of texts, got {str(accepted)[:80]}")
    return normalise(answer) == normalise(sample.answer) or open_match(answer, accepted)


@reward("exact")
def exact(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer equals the gold answer up to case and white space, or says one of `gt.accepted` where the row lists them; else 0."""
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [float(answer is not None and same_text(answer, group.prompt.sample)) for answer in answers]

"""Strategy `expert_answers_proposed`: where the policy asked an expert, the expert's answer joins the group. After HILA, arXiv:2603.07972.

The outer loop of HILA turns the answers of experts into fine-tuning. Here the expert is the row: its `meta.demonstrations`, else its
thought and answer, as for `demonstration`. A group in which somebody answered with the word of deferral (reward `deferral_proposed`) gets
it as a further row, which `auxiliary_losses: [{name: expo, weight: 0.1}]` imitates; a group in which nobody asked stays as it is. Ours:
that the answer is imitated in the same step, not in a stage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.answers.exact_text import normalise
from vlmrl.answers.tags import parse
from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.demonstration import traces
from vlmrl.rollout.strategy.given_row import with_given_row
from vlmrl.types import Group


class ExpertAnswers:
    """See the module docstring."""

    def __init__(self, word: str):
        self.word = normalise(word)

    def sampled(self, rollouts: int) -> int:
        return rollouts - 1

    def asked(self, group: Group) -> bool:
        """Whether a rollout answers with the word."""
        answers = (parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts)
        return any(answer is not None and normalise(answer) == self.word for answer in answers)

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        texts = traces(group.prompt.sample, group.prompt.answer_format) if self.asked(group) else []
        return with_given_row(group, texts[0], tokenize) if texts else group


@strategy("expert_answers_proposed", paper="arXiv:2603.07972", injects_rows=True)
def expert_answers_proposed(*, word: str = "ask an expert") -> ExpertAnswers:
    """Groups in which a rollout asks an expert get the row's own solution as a further row.

    Raises:
        ValueError: an empty word.
    """
    if not word.strip():
        raise ValueError("strategy 'expert_answers_proposed': word is empty")
    return ExpertAnswers(word)

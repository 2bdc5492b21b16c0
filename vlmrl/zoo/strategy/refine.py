"""Strategy `igrpo`: the policy learns to improve on the best of its own drafts. arXiv:2602.09000.

Half of a group's rollouts are drafts, sampled under the plain prompt and scored as always; no gradient comes from them. The draft with
the highest reward is put behind the question, as many refinements are sampled under that prompt, and these are the group that trains: under
the prompt that they were sampled under, so on-policy. Evaluation asks with the plain prompt.

Ours: the halves (the paper matches budgets); of equal drafts the shorter one, then the first; the words around the draft, which is cut to
`MOST` characters at its front; a group whose prompt with a draft cannot be made, or of which nobody was judged, trains on its drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.hint import formed
from vlmrl.types import Group, HintRequest, HintRound

MOST = 4000
"""Characters of a draft."""
Rewards = Sequence[float | None]


def best_draft(group: Group, rewards: Rewards) -> str | None:
    """Text of the judged rollout with the highest reward; None where nobody was judged."""
    judged = [(-reward, len(r.ids), r.k, r.text) for r, reward in zip(group.rollouts, rewards, strict=True) if reward is not None]
    return min(judged)[3] if judged else None


def with_draft(question: str, draft: str) -> str:
    """The question with an earlier attempt behind it."""
    return f"{question}\nAn earlier attempt:\n{draft.strip()[-MOST:]}\nGive a better answer, or the same if it is right."


class Refining:
    """See the module docstring."""

    def sampled(self, rollouts: int) -> int:
        return rollouts // 2

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        draft = best_draft(group, rewards)
        if rounds or draft is None:
            return []
        return [HintRequest(question=with_draft(group.prompt.sample.question, draft), tier=1, rows=len(group.rollouts))]

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        refined = next((one for one in rounds if one.rollouts), None)
        if refined is None:
            return group
        return formed(group, rewards, refined, form="all", train="guided", old="policy", success_at=0.0)


@strategy(
    "igrpo",
    paper="arXiv:2602.09000",
    min_generations=4,
    min_generations_why="of which half are drafts and half refinements that are compared with each other",
)
def igrpo() -> Refining:
    """iGRPO: half of the rows are drafts; the others refine the best of them, and only these train."""
    return Refining()

"""Strategies that ask a group more than one question: `paraphrases`, `masa` and `think_and_direct_proposed`. With advantage
`grpo_by_question`.

`paraphrases` (PS-GRPO, arXiv:2510.04392): a row's question and the rewordings in its `meta.paraphrases`, each with as many rollouts; the
reward `paraphrase_agreement` says how much an answer agrees with those to the other wordings.
`masa` (arXiv:2510.03259): as many rollouts as solve the question are asked to foretell how that goes: how many of eight attempts are
right, how long a right one is, and which notions it rests on. The reward of the same name compares the forecasts with the group's own
solutions, so the policy learns to know what it can do. Not there: the paper's gate that leaves out prompts and ends answers by the
forecasts, and its fine-tuning on the best forecasts.
`think_and_direct_proposed` (MiMo-VL-Miloco, arXiv:2512.17436, token-budget-aware reasoning): every question is asked as it is and once more
with the demand to answer directly, so one policy keeps both modes. The paper makes such pairs of its fine-tuning data; ours are pairs of
prompts in a GRPO stage, half of the rollouts each, and the demand's words. The reward_shaping of this name holds direct answers to a
budget.

Rows train under the question that they were asked. Ours: the wording of the forecast's question, and that it is answered in the same
answer format, as JSON between the answer tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.errors import RowError
from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.hint import joined
from vlmrl.types import Group, HintRequest, HintRound, Sample

OF = 8
"""Attempts that a forecast counts the right ones of."""
MOST = 50
Rewards = Sequence[float | None]


def paraphrases_of(sample: Sample) -> list[str]:
    """`meta.paraphrases`: other wordings of the question, without empty and equal ones.

    Raises:
        RowError: `paraphrases`, it is no list of texts, or too long.
    """
    given = sample.meta.get("paraphrases", [])
    if not isinstance(given, list) or len(given) > MOST or not all(isinstance(text, str) for text in given):
        where = f"row '{sample.id}' ({sample.source}): 'meta.paraphrases'"
        raise RowError("paraphrases", f"{where} must be a list of at most {MOST} texts, other wordings of the question")
    return list(dict.fromkeys(text for text in given if text.strip() and text != sample.question))


def forecast_question(question: str) -> str:
    """What asks for a forecast of the own answers."""
    return (
        f"{question}\nDo not answer this question. Foretell what happens if you try to answer it {OF} times, with a thought each time. "
        f'As the answer give JSON: {{"pass_rate": how many of the {OF} answers will be right, "solution_length": how many tokens a right '
        'one takes, "notions": [names of what a right solution uses that the question does not name]}'
    )


def direct_question(question: str) -> str:
    """The question with the demand to answer without thinking."""
    return f"{question}\nAnswer directly: leave the thought empty."


class Several:
    """A strategy that asks further questions once, with as many rows each as the group's own."""

    def __init__(self, share: int):
        self.share = share

    def sampled(self, rollouts: int) -> int:
        return rollouts // self.share

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def questions(self, sample: Sample) -> list[str]:
        """The further questions."""
        raise NotImplementedError

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        if rounds:
            return []
        asked = self.questions(group.prompt.sample)
        return [HintRequest(question=text, tier=n, rows=len(group.rollouts)) for n, text in enumerate(asked, 1)]

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        """All rows; those of the further questions train under them."""
        return joined(group, rounds)


class Paraphrased(Several):
    def questions(self, sample: Sample) -> list[str]:
        return paraphrases_of(sample)[: self.share - 1]


class Foretelling(Several):
    def questions(self, sample: Sample) -> list[str]:
        return [forecast_question(sample.question)]


class Direct(Several):
    def questions(self, sample: Sample) -> list[str]:
        return [direct_question(sample.question)]


@strategy(
    "paraphrases",
    paper="arXiv:2510.04392",
    min_generations=4,
    min_generations_why="which are shared among wordings of the question and compared within each",
    wants={"advantage": ("grpo_by_question",)},
)
def paraphrases(*, views: int = 2) -> Paraphrased:
    """A question in `views` wordings (`meta.paraphrases`), each with its share of the rollouts; for reward `paraphrase_agreement`.

    Raises:
        ValueError: fewer than two views.
    """
    if views < 2:
        raise ValueError(f"strategy 'paraphrases': views is {views}; it must be at least 2")
    return Paraphrased(views)


@strategy(
    "masa",
    paper="arXiv:2510.03259",
    min_generations=4,
    min_generations_why="of which half are solutions and half forecasts of them",
    wants={"advantage": ("grpo_by_question",)},
)
def masa() -> Foretelling:
    """MASA: half of the rollouts foretell how the other half goes; with reward `masa`."""
    return Foretelling(2)


@strategy(
    "think_and_direct_proposed",
    paper="arXiv:2512.17436",
    min_generations=4,
    min_generations_why="of which half think and half answer directly",
    wants={"advantage": ("grpo_by_question",)},
)
def think_and_direct_proposed() -> Direct:
    """Half of the rollouts are asked to answer directly; with the reward_shaping of this name, which holds these to a budget of tokens."""
    return Direct(2)

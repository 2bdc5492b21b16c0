"""The answer type of episodes: how one attempt in an environment stands in a record of evaluation (docs/environments.md).

No row has it, since the environment says how an attempt went: `record.pred` is (return, turns), `record.gold` (greatest return, fewest
turns) where the environment knows them, else empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.errors import RowError
from vlmrl.types import Sample

EPISODE = "episode"


def spl(*, success: bool, turns: int, fewest: int) -> float:
    """Compute success weighted by the length of the path (Anderson et al., arXiv:1807.06757, equation 1), of one episode: fewest turns
    over turns taken where it succeeded, else 0."""
    return fewest / max(turns, fewest) if success else 0.0


def _return(record: Any) -> float | None:
    return record.pred[0] if record.answer_type == EPISODE else None


def _turns(record: Any) -> float | None:
    return record.pred[1] if record.answer_type == EPISODE and record.scores["success"] else None


def _excess(record: Any) -> float | None:
    turns = _turns(record)
    return None if turns is None or not record.gold else turns - record.gold[1]


@answer_type(EPISODE)
class EpisodeAnswer(AnswerType):
    """An attempt in an environment, which says whether it succeeded. Made by playing; no row has this type."""

    ask = "the next action"
    main = "success"
    metrics = (
        Metric("success", "success", scored("success")),
        Metric("spl", "success by path length", scored("spl")),
        Metric("return", "return", _return),
        Metric("turns", "turns of successes", _turns),
        Metric("excess_turns", "turns more than fewest", _excess),
        Metric("valid_actions", "readable actions", scored("valid_actions")),
    )

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        """Refuses every row."""
        raise RowError("bad_value", "'answer_type': rows of an environment are tasks without an answer type (docs/environments.md)")

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Refuses: nothing but playing scores an episode."""
        raise ValueError(f"row '{sample.id}': an episode is scored by its environment while it is played, never from a text")

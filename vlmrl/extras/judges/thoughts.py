"""Asks a judge about the thoughts of evaluated answers: do they lead to the answer, and do they say what is seen?

Rules judge thoughts in the toy world's language, and only of right answers; their scores stand in the records. For free text a judge is
asked, with the prompts and the client of the rewards `consistency`, `semantic_grounding` and `spatial_grounding` (Faithful GRPO,
arXiv:2604.08476), so that training and evaluation ask the same. In training only right answers are judged; here every answered one
is, since the published inconsistency rate (1 - `judged_consistency`) is over all samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from vlmrl.evals.score.measures import JUDGED
from vlmrl.evals.score.records import Record, prompt_ids_hash, sample_hash
from vlmrl.extras.judges.rewards.faithful_judges import consistency, semantic_grounding, spatial_grounding
from vlmrl.extras.judges.services import EVERY
from vlmrl.extras.judges.verdicts import JudgeColumn
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import MediaOnDemand
from vlmrl.types import Group, Prompt, Rollout

JUDGED_AT_ONCE = 8
"""Records in the hands of a judge; its endpoint's `concurrency` bounds the requests."""
Answer = tuple[str, int]
"""(sample id, k): which answer of a set of records."""
Asked = Literal["consistency", "grounding", "spatial"]
ASKED: tuple[Asked, ...] = ("consistency", "grounding", "spatial")


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedThought:
    """What a judge says of one thought. None: not asked, not applicable, or no verdict (then `reasons` says why)."""

    consistency: float | None = None
    """1 if the thought's own conclusion is the answer, else 0; an empty thought of an answered row is 0."""
    grounding: float | None = None
    """Share of the checkable sentences that agree with the pictures, in [0, 1]."""
    spatial: float | None = None
    """Overlap of cited boxes with true ones, or the share of them that a judge finds right, in [0, 1]."""
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """`consistency/no_json` and the like -> 1, for each verdict that could not be had."""

    def scores(self) -> dict[str, float]:
        """As extra scores of a record: `judged_consistency`, `judged_grounding`, `judged_spatial`, those that there are."""
        found = {"judged_consistency": self.consistency, "judged_grounding": self.grounding, "judged_spatial": self.spatial}
        return {name: value for name, value in found.items() if value is not None}


def answer_key(record: Record) -> Answer:
    """Its address within a set of records."""
    return record.sample_id, record.k


def group_of(prompt: Prompt, record: Record) -> Group:
    """A record as a group of one rollout, for rewards. It has text and no token ids; rewards read text.

    Raises:
        ValueError: the record is not an answer to this prompt, or an imported one.
    """
    if (record.sample_id, record.prompt_ids_hash, record.sample_hash) != (prompt.sample.id, prompt_ids_hash(prompt), sample_hash(prompt)):
        raise ValueError(
            f"the record of sample '{record.sample_id}' is no answer to the prompt of row '{prompt.sample.id}' ({prompt.sample.source}): "
            "other question, pixels or token ids; judge records with the prompts that they were made with"
        )
    if record.finish is None:
        raise ValueError(f"the answer to sample '{record.sample_id}' comes from {record.harness}, which does not say how it ended")
    rollout = Rollout(k=record.k, ids=(), logprobs=(), text=record.text, finish=record.finish, policy_version=0)
    return Group(id=f"evaluation/{record.sample_id}", prompt=prompt, rollouts=(rollout,))


def judge_thoughts(
    pairs: Iterable[tuple[Prompt, Record]],
    *,
    endpoint: Mapping[str, Any],
    media: Mapping[str, Any] | None = None,
    asked: Sequence[Asked] = ASKED,
    correct_by: str = EVERY,
    require_thought: bool = True,
    max_sentences: int = 32,
    max_boxes: int = 20,
    workers: int = 1,
) -> dict[Answer, JudgedThought]:
    """Ask a judge about the thoughts of records; (sample id, k) -> what it says.

    Args:
        pairs: each record with the prompt that it was made with.
        endpoint: of the judge, as in a recipe.
        media: processed media by handle key (`MediaOnDemand`), for the judges that see pictures; `consistency` sees none.
        asked: which of the three to ask for.
        correct_by: the reward that says which answers are judged; every one by default.
        require_thought: whether an answer without a thought is inconsistent and ungrounded (0); else it is not judged.
        workers: records that are judged at the same time; requests at the same time are bounded by `endpoint.concurrency`.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: unknown parts, an answer that occurs twice, a record that does not belong to its prompt, or pixels that are not in
            `media`.
    """
    wanted = _checked(asked, workers)
    groups: dict[Answer, Group] = {}
    for prompt, record in pairs:
        name = answer_key(record)
        if name in groups:
            raise ValueError(f"judge_thoughts: answer {record.k} to sample '{record.sample_id}' occurs twice")
        groups[name] = group_of(prompt, record)
    ctx = RewardContext(media={} if media is None else media)
    common: dict[str, Any] = {"endpoint": dict(endpoint)}
    text: dict[str, Any] = {**common, "correct_by": correct_by, "require_thought": require_thought}
    columns: dict[Asked, Callable[[Group], Sequence[float | None]]] = {
        "consistency": lambda group: consistency(group, ctx, **text),
        "grounding": lambda group: semantic_grounding(group, ctx, **text, max_sentences=max_sentences),
        "spatial": lambda group: spatial_grounding(group, ctx, **common, max_boxes=max_boxes),
    }
    chosen: dict[Asked, Callable[[Group], Sequence[float | None]]] = {name: columns[name] for name in wanted}
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="vlmrl-thoughts")
    try:
        return dict(zip(groups, pool.map(lambda group: _judge(group, chosen), groups.values()), strict=True))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def judged_records(
    records: Sequence[Record], prompts: Iterable[Prompt], *, endpoint: Mapping[str, Any], pixels: Callable[[str], Any]
) -> tuple[list[Record], dict[str, int]]:
    """Give the records a judge's verdicts on their thoughts, and say why verdicts are missing. Those that have some are not asked again.

    Args:
        endpoint: of the judge, as in a recipe.
        pixels: gives processed media by handle key.
    """
    by_id = {prompt.sample.id: prompt for prompt in prompts}
    waiting = [(by_id[r.sample_id], r) for r in records if not any(name.startswith(JUDGED) for name in r.scores)]
    media = MediaOnDemand(tuple(handle.key for prompt, _ in waiting for handle in prompt.media), pixels)
    verdicts = judge_thoughts(waiting, endpoint=endpoint, media=media, workers=JUDGED_AT_ONCE)
    done = [with_judged(r, verdicts[answer_key(r)]) if answer_key(r) in verdicts else r for r in records]
    return done, missing_verdicts(verdicts)


def with_judged(record: Record, judged: JudgedThought) -> Record:
    """The record with the judge's verdicts among its scores, in the place of earlier ones."""
    kept = {name: value for name, value in record.scores.items() if not name.startswith(JUDGED)}
    return dataclasses.replace(record, scores=kept | judged.scores())


def missing_verdicts(judged: Mapping[Answer, JudgedThought]) -> dict[str, int]:
    """Why verdicts are missing -> how many; nothing that failed is a zero."""
    out: dict[str, int] = {}
    for thought in judged.values():
        for reason, count in thought.reasons.items():
            out[reason] = out.get(reason, 0) + count
    return dict(sorted(out.items()))


def _judge(group: Group, columns: Mapping[Asked, Callable[[Group], Sequence[float | None]]]) -> JudgedThought:
    values: dict[str, float | None] = {}
    reasons: dict[str, int] = {}
    for name, column in columns.items():
        found = column(group)
        values[name] = found[0]
        if isinstance(found, JudgeColumn):
            reasons |= {f"{name}/{reason}": count for reason, count in found.reasons.items()}
    return JudgedThought(**values, reasons=reasons)


def _checked(asked: Sequence[Asked], workers: int) -> list[Asked]:
    unknown = [name for name in asked if name not in ASKED]
    if unknown or not asked or workers < 1:
        raise ValueError(f"judge_thoughts: asked {list(asked)} with {workers} workers; ask for some of {', '.join(ASKED)}, workers >= 1")
    return [name for name in ASKED if name in asked]

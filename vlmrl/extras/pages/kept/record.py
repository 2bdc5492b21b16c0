"""A kept group: what a step asked, what was answered and what training made of it, as one JSON object (docs/view.md).

Nothing in a record depends on the clock or on the machine, so a step that is computed again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.types import MediaHandle, Rollout, Sample, ScoredGroup, TurnRollout

VERSION = 1
"""Of the records; written into each."""
DIGITS = 4
"""Decimals of values per token."""
MOST_GT = 1 << 16
"""Characters of ground truth that are kept of a row; more (large masks) is left out."""
_META = ("frame", "size", "track_unit")
"""Keys of a row's `meta` that drawing reads."""
HEAD, SAID = 160, 60
"""Characters of a question, and of an answer, that stand in the index."""
MOST_SAID = 4
"""Different answers of a group that stand in the index."""


@dataclass(kw_only=True, slots=True)
class Trained:
    """What a step made of one answer."""

    advantage: float
    adv_T: Sequence[float] = ()
    """Per token, where credit or a reweighting tells tokens apart; empty: `advantage` for each."""
    used: bool = True
    """Whether it was in the update: filters let it through."""
    logp_T: Sequence[float] = ()
    """Log-prob of each token in the update's own forward, at the temperature of the rollout; empty: not in it."""
    entropy_T: Sequence[float] = ()
    """In nats; empty: not in the update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptGroup:
    """A group of a step, with what is kept of it."""

    stage: str
    step: int
    """Of the stage, from 1: the step that logged it."""
    global_step: int
    place: int
    """In the step's plan."""
    scored: ScoredGroup
    expected: float | None
    """Mean reward of the question before this step, by the ledger; None where it was never asked."""
    surprise: float
    rows: Sequence[Trained] = ()
    """One for each rollout."""


def surprise(totals: Sequence[float | None], expected: float) -> float:
    """How far the answers of a group were from what was expected: the largest |reward - expected|. In units of the reward; 0 where no
    answer was judged. `expected`: mean reward of the question before, or of the step where it was never asked."""
    return max((abs(total - expected) for total in totals if total is not None), default=0.0)


def pick(groups: Sequence[tuple[float, int]], count: int) -> list[int]:
    """Places of at most `count` groups of (surprise, fixed number of the question): half of them the most surprising, the others those
    with the lowest numbers, so that the same questions are seen again later. In order."""
    if len(groups) <= count:
        return list(range(len(groups)))
    places = range(len(groups))
    chosen = sorted(places, key=lambda i: (-groups[i][0], groups[i][1], i))[: (count + 1) // 2]
    rest = sorted((i for i in places if i not in chosen), key=lambda i: (groups[i][1], i))
    return sorted([*chosen, *rest[: count - len(chosen)]])


def content_id(sample: Sample, media: Sequence[MediaHandle]) -> str:
    """Tell a question from all others by what it is: its words, its gold answer and its media, whatever rows call it.

    Returns:
        20 hexadecimal digits.
    """
    return _digest(sample.asked, sample.answer_type, sample.answer, sample.gt, _listed(media))


def content_of(record: Mapping[str, Any]) -> str:
    """`content_id` of a record's question. Records of earlier versions lack it: it is computed, the same where all of `gt` was kept."""
    return record.get("content") or _digest(*(record[key] for key in ("question", "answer_type", "gold", "gt", "media")))


def _digest(question: str, answer_type: str, gold: str, gt: Any, media: Sequence[Mapping[str, str]]) -> str:
    parts = [question, answer_type, gold, gt, [[one["kind"], one["key"]] for one in media]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()[:20]


def _listed(media: Sequence[MediaHandle]) -> list[dict[str, str]]:
    return [{"key": one.key, "kind": one.kind} for one in media]


def drawable(sample: Sample, media: Sequence[MediaHandle]) -> dict[str, Any]:
    """What drawing needs of a row, as JSON values: `gt`, `meta` and `media`."""
    gt = json.dumps(sample.gt, default=dict)
    meta = json.dumps({key: sample.meta[key] for key in _META if key in sample.meta}, default=dict)
    return {"gt": json.loads(gt) if len(gt) <= MOST_GT else {}, "meta": json.loads(meta), "media": _listed(media)}


def record_of(kept: KeptGroup, pieces: Callable[[Sequence[int]], list[str]]) -> dict[str, Any]:
    """The JSON object of a group.

    Args:
        pieces: the text of each token of an answer.
    """
    group, scores = kept.scored.group, kept.scored.scores
    sample, prompt = group.prompt.sample, group.prompt
    return {
        "v": VERSION,
        **{key: getattr(kept, key) for key in ("stage", "step", "global_step", "place")},
        "group": group.id,
        "sample": sample.id,
        "content": content_id(sample, prompt.media),
        "task": sample.task,
        "answer_type": sample.answer_type,
        "answer_format": prompt.answer_format,
        "question": sample.asked,
        "gold": sample.answer,
        **drawable(sample, prompt.media),
        "columns": list(scores.columns),
        "weights": [_number(weight) for weight in scores.weights],
        "reasons": dict(scores.reasons),
        "expected": _number(kept.expected),
        "surprise": _number(kept.surprise),
        "answers": [
            _answer(rollout, rewards, total, row, pieces(rollout.ids))
            for rollout, rewards, total, row in zip(group.rollouts, scores.rewards_GK, scores.total(), kept.rows, strict=True)
        ],
    }


def _answer(rollout: Rollout, rewards: Sequence[float | None], total: float | None, row: Trained, tokens: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {
        **{key: getattr(rollout, key) for key in ("k", "text", "finish", "provenance", "policy_version")},
        "rewards": [_number(value) for value in rewards],
        "reward": _number(total),
        "advantage": _number(row.advantage),
        "used": row.used,
        "tokens": tokens,
        "logp": _numbers(rollout.logprobs),
    }
    for name, values in (("advantages", row.adv_T), ("policy_logp", row.logp_T), ("entropy", row.entropy_T)):
        if values:
            out[name] = _numbers(values)
    if rollout.guidance is not None:
        out["guidance"] = {key: getattr(rollout.guidance, key) for key in ("question", "tier", "train", "old")}
    if isinstance(rollout, TurnRollout):
        out["turn"] = {"attempt": rollout.attempt, "turn": rollout.turn, "state": rollout.state, "reward": _number(rollout.reward)}
        out["question"] = rollout.prompt.sample.question
        out["media"] = _listed(rollout.prompt.media)
    return out


def completions(groups: Sequence[KeptGroup]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The answers of groups as a table, (names of the columns, rows), for trackers: what was asked, what was answered, each reward, their
    sum and the advantage. Groups of one stage have the same rewards."""
    columns = groups[0].scored.scores.columns if groups else ()
    rows: list[tuple[Any, ...]] = []
    for kept in groups:
        group, scores = kept.scored.group, kept.scored.scores
        asked = (kept.global_step, kept.stage, group.prompt.sample.id, group.prompt.sample.asked)
        for rollout, rewards, total, row in zip(group.rollouts, scores.rewards_GK, scores.total(), kept.rows, strict=True):
            rows.append((*asked, rollout.text, *rewards, total, row.advantage, rollout.provenance))
    return ("step", "stage", "sample", "question", "completion", *columns, "total", "advantage", "provenance"), rows


def media_of(record: Mapping[str, Any]) -> list[str]:
    """Keys of the media that a record shows, each once."""
    listed = [*record["media"], *(one for answer in record["answers"] for one in answer.get("media", ()))]
    return list(dict.fromkeys(one["key"] for one in listed))


def summary(record: Mapping[str, Any], at: int, length: int) -> dict[str, Any]:
    """The line of the index for a record that lies at bytes `at` to `at + length` of its shard."""
    answers = record["answers"]
    rewards = [answer["reward"] for answer in answers if answer["reward"] is not None]
    logps = [value for answer in answers for value in answer["logp"] if value is not None]
    return {
        "at": at,
        "length": length,
        **{key: record[key] for key in ("stage", "step", "global_step", "group", "sample", "task", "surprise", "expected")},
        "content": content_of(record),
        "question": record["question"][:HEAD],
        "gold": record["gold"][:SAID],
        "answers": len(answers),
        "rewards": [answer["reward"] for answer in answers],
        "said": _said(record),
        "reward": statistics.fmean(rewards) if rewards else None,
        "best": max(rewards, default=None),
        "right": max((value for answer in answers if (value := _first(record, answer)) is not None), default=None),
        "spread": statistics.pstdev(rewards) if rewards else None,
        "tokens": statistics.fmean(len(answer["tokens"]) for answer in answers) if answers else 0.0,
        "logp": round(statistics.fmean(logps), DIGITS) if logps else None,
        "cut": sum(answer["finish"] == "length" for answer in answers),
        "used": sum(answer["used"] for answer in answers),
        "provenance": sorted({answer["provenance"] for answer in answers}),
        "media": media_of(record),
    }


def _first(record: Mapping[str, Any], answer: Mapping[str, Any]) -> float | None:
    """The first reward that counts, which recipes write first because it is about the answer: a bonus or a price beside it does not make a
    right answer a wrong one."""
    of = zip(record["weights"], answer["rewards"], strict=True)
    return next((value for weight, value in of if weight is not None and weight > 0), None)


def _said(record: Mapping[str, Any]) -> list[list[Any]]:
    """What was answered: equal answers as one with their number and their mean reward, the most frequent first."""
    found: dict[str, list[float | None]] = {}
    for answer in record["answers"]:
        text = parse(answer["text"], record["answer_format"]).answer
        found.setdefault((answer["text"] if text is None else text).strip()[:SAID], []).append(answer["reward"])
    most = sorted(found.items(), key=lambda one: -len(one[1]))[:MOST_SAID]
    known = [[value for value in rewards if value is not None] for _, rewards in most]
    means = [round(statistics.fmean(values), DIGITS) if values else None for values in known]
    return [[text, len(rewards), mean] for (text, rewards), mean in zip(most, means, strict=True)]


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record or a line of the index as it is written."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinities: null."""
    return float(value) if value is not None and math.isfinite(value) else None


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [round(float(value), DIGITS) if math.isfinite(value) else None for value in values]

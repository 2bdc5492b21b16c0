"""Writes thoughts for rows that have an answer but no thought: reverse thinking of TON ("Think or Not?", arXiv:2505.16854, section 3).

The base policy sees media, question and true answer, and is asked for a concise derivation that does not state the answer:
T ~ pi(V, Q, S*). Supervised fine-tuning then teaches T with the answer.

The paper names no quality gate. Ours: a thought is dropped if it is empty, holds a tag or control token, is longer than `max_tokens`,
or repeats the question; with `forbid_answer` also if it gives the answer away (`leak`), and with `judge` if the policy, given the
question and the thought, does not come to the answer. A row whose thought was dropped is asked once more (`attempts`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vlmrl import rng
from vlmrl.answers.tags import FREE
from vlmrl.errors import MediaError, RowError
from vlmrl.protocols import RolloutEngine
from vlmrl.rollout.leak import leak
from vlmrl.types import GenerationSettings, Group, Prompt, Request, Rollout, Sample

MAX_TOKENS = 1024
WORDS = 4
"""A question of fewer words is repeated only by a thought that starts with it: elsewhere it may stand by accident."""

_TAG = re.compile(r"</?(?:think|thinking|answer)>|<\|[A-Za-z0-9_\-]{1,64}\|>|<(?:image|video)>", re.IGNORECASE)


class PromptEncoder(Protocol):
    """What is needed of `data.encode.Encoder`."""

    def encode(self, sample: Sample, answer_format: str) -> Prompt: ...


class Derived(NamedTuple):
    """What came of one row."""

    sample_id: str
    thought: str | None
    reason: str
    """`ok`; or why there is no thought, after the last attempt: `empty`, `tag`, `characters` (that no row may hold), `long`, `question`,
    `answer` (given away), `differs` (does not lead to the answer), or the code of a row or medium that cannot be encoded."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a thought must be. Lengths in tokens, the end token included."""

    max_tokens: int = MAX_TOKENS
    forbid_answer: bool = False
    success_at: float = 0.5
    """With a judge: the least reward of the answer that the thought leads to."""


def reverse_question(sample: Sample) -> str:
    """The question and its answer, with the request for a derivation."""
    return (
        f"Question: {sample.question}\nAnswer: {sample.answer}\n"
        "Explain in a few sentences how one gets from what is shown to this answer, as if you did not know it yet. "
        "Do not state the answer and do not repeat the question. Give the derivation only."
    )


def check_question(sample: Sample, thought: str) -> str:
    """The question with a thought, to see whether it leads to the answer."""
    return f"{sample.question}\nReasoning: {thought}"


def refuse(rollout: Rollout, sample: Sample, gate: Gate) -> str | None:
    """Why a thought is dropped, as in `Derived.reason`; None if it passes."""
    text = rollout.text.strip()
    if not text:
        return "empty"
    if _TAG.search(text):
        return "tag"
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        return "characters"
    if rollout.finish == "length" or len(rollout.ids) > gate.max_tokens:
        return "long"
    if _repeats(text, sample.question):
        return "question"
    if gate.forbid_answer and leak(text, sample) is not None:
        return "answer"
    return None


def _repeats(text: str, question: str) -> bool:
    said, asked = (re.sub(r"\W+", " ", t).strip().casefold() for t in (text, question))
    if not asked:
        return False
    return f"{said} ".startswith(f"{asked} ") or (len(asked.split()) >= WORDS and f" {asked} " in f" {said} ")


def reverse_thoughts(
    engine: RolloutEngine,
    encoder: PromptEncoder,
    samples: Sequence[Sample],
    *,
    settings: GenerationSettings,
    seed: int,
    gate: Gate | None = None,
    judge: Callable[[Group], Sequence[float | None]] | None = None,
    attempts: int = 2,
    chunk: int = 16,
) -> list[Derived]:
    """A thought for every sample, or the reason why there is none, in the order of `samples`.

    Args:
        settings: `max_new_tokens` is cut to the gate's `max_tokens`.
        judge: totals of a group's answers under the recipe's rewards; the answer is asked for greedily, in the answer format `answer_only`.
        chunk: prompts that are generated together. What a row gets depends on (seed, row, attempt) alone, up to the rounding of kernels.

    Raises:
        ValueError: `attempts` or `chunk` is below 1, or two samples have one id.
    """
    if attempts < 1 or chunk < 1 or len({s.id for s in samples}) < len(samples):
        raise ValueError(f"reverse_thoughts: needs attempts {attempts} >= 1, chunk {chunk} >= 1 and samples with ids of their own")
    gate = gate or Gate()
    settings = dataclasses.replace(settings, max_new_tokens=min(settings.max_new_tokens, gate.max_tokens))
    found: dict[str, Derived] = {}
    left = list(samples)
    for attempt in range(attempts):
        for start in range(0, len(left), chunk):
            part = left[start : start + chunk]
            for one in _attempt(engine, encoder, part, settings, seed, gate, judge, attempt):
                found[one.sample_id] = one
        left = [s for s in left if found[s.id].reason in _RETRIED]
    return [found[s.id] for s in samples]


_RETRIED = ("empty", "tag", "characters", "long", "question", "answer", "differs")


def _attempt(
    engine: RolloutEngine,
    encoder: PromptEncoder,
    samples: Sequence[Sample],
    settings: GenerationSettings,
    seed: int,
    gate: Gate,
    judge: Callable[[Group], Sequence[float | None]] | None,
    attempt: int,
) -> list[Derived]:
    """One draw for each sample, and its check."""
    asked = [(s, _encoded(encoder, s, reverse_question(s), FREE)) for s in samples]
    ready = [(s, p) for s, p in asked if isinstance(p, Prompt)]
    out = [Derived(s.id, None, p) for s, p in asked if isinstance(p, str)]
    requests = [Request(prompt=p, ks=(0,), seeds=(rng.key(seed, "reverse", s.id, attempt),)) for s, p in ready]
    passed: list[tuple[Sample, str]] = []
    for (sample, _), (rollout,) in zip(ready, engine.generate(requests, settings), strict=True):
        reason = refuse(rollout, sample, gate)
        if reason is None:
            passed.append((sample, rollout.text.strip()))
        else:
            out.append(Derived(sample.id, None, reason))
    return out + (_ok(passed) if judge is None else _judged(engine, encoder, passed, settings, seed, gate, judge))


def _ok(passed: Sequence[tuple[Sample, str]]) -> list[Derived]:
    return [Derived(sample.id, thought, "ok") for sample, thought in passed]


def _judged(
    engine: RolloutEngine,
    encoder: PromptEncoder,
    passed: Sequence[tuple[Sample, str]],
    settings: GenerationSettings,
    seed: int,
    gate: Gate,
    judge: Callable[[Group], Sequence[float | None]],
) -> list[Derived]:
    """Of the given thoughts those that lead the policy to the answer."""
    asked = [(s, t, _encoded(encoder, s, check_question(s, t), "answer_only")) for s, t in passed]
    ready = [(s, t, p) for s, t, p in asked if isinstance(p, Prompt)]
    out = [Derived(s.id, None, p) for s, _, p in asked if isinstance(p, str)]
    requests = [Request(prompt=p, ks=(0,), seeds=(rng.key(seed, "reverse_check", s.id),)) for s, _, p in ready]
    answers = engine.generate(requests, dataclasses.replace(settings, temperature=0.0))
    for (sample, thought, prompt), rollouts in zip(ready, answers, strict=True):
        plain = dataclasses.replace(prompt, sample=sample)
        (value,) = judge(Group(id=f"reverse/{sample.id}", prompt=plain, rollouts=tuple(rollouts)))
        right = value is not None and value >= gate.success_at
        out.append(Derived(sample.id, thought if right else None, "ok" if right else "differs"))
    return out


def _encoded(encoder: PromptEncoder, sample: Sample, question: str, answer_format: str) -> Prompt | str:
    """The prompt, or the code of why there is none."""
    try:
        return encoder.encode(dataclasses.replace(sample, question=question), answer_format)
    except (RowError, MediaError) as error:
        return error.reason

"""Strategies `sage`, `scaf_grpo`, `guide`: groups without a success are sampled again under a hint.

One contract. A guided row has two prompts: the one that it was sampled under (question and hint) and the one that the loss conditions
on, which is the same, or the plain one. `Guidance` of the row says which, and what the denominator of its ratio is. The methods differ
in who writes the hints, how they enter the group, and these two choices:

    method     arXiv        hint                       enters                          loss under    old log-probs
    sage       2602.03143   the policy's own           all rows                        the hint      policy, under the hint
    scaf_grpo  2510.19807   `meta.hints` of the row    one success for one failure     the hint      policy, under the hint
    guide      2506.13923   `meta.hints` of the row    added rows                      plain prompt  sampler, under the hint

A group is helped where at least one of its rows was judged and every judged one is below `success_at` (of the weighted sum of
rewards). The hint follows the question after "Hint:", so the media in front of it keep their place. If no hint leads to a success,
the group stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from vlmrl.errors import RowError
from vlmrl.protocols import strategy
from vlmrl.rollout.leak import leak
from vlmrl.types import Group, Guidance, HintRequest, HintRound, OldFrom, Rollout, Sample, TrainedUnder

LADDER = ("knowledge", "planning", "solution")
PIECES = 4
LEVELS = ("the idea that the solution rests on", "the steps of the solution, without carrying them out", "how to carry out every step")
"""What SAGE's hint of each level may tell."""
MAX_HINT_CHARS = 4000

Form = Literal["one", "all", "add"]
Rewards = Sequence[float | None]


def hinted(question: str, hint: str) -> str:
    """Append a hint to a question; an empty hint changes nothing."""
    return f"{question}\nHint: {hint.strip()}" if hint.strip() else question


def tiers(sample: Sample) -> list[str]:
    """Read the row's hints, each saying more than the one before. Empty where the row has none.

    `meta.hints` is a text, a list of texts, or an object with some of `knowledge`, `planning`, `solution`; each of those is cut into four
    pieces of equal numbers of words (a list is taken as its pieces), and gives as many cumulative tiers.

    Raises:
        RowError: `hints`, it is something else.
    """
    hints: Any = sample.meta.get("hints")
    if hints is None:
        return []
    if isinstance(hints, Mapping):
        unknown = [key for key in hints if key not in LADDER]
        if unknown:
            raise _bad(sample, f"has the key {unknown[0]!r}; known: {', '.join(LADDER)}")
        return [tier for name in LADDER if name in hints for tier in _cumulative(sample, hints[name])]
    return [text for text in _texts(sample, [hints] if isinstance(hints, str) else hints) if text.strip()]


def _cumulative(sample: Sample, rung: object) -> list[str]:
    """Cut a rung into its beginnings, each longer than the one before, the last the whole."""
    if isinstance(rung, str):
        words = rung.split()
        ends = sorted({-(-len(words) * i // PIECES) for i in range(1, PIECES + 1)} - {0})  # a set: a few words have fewer pieces
        return [" ".join(words[:end]) for end in ends]
    pieces = [text.strip() for text in _texts(sample, rung) if text.strip()]
    return [" ".join(pieces[: i + 1]) for i in range(len(pieces))]


def _texts(sample: Sample, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _bad(sample, f"must be a text, a list of texts, or an object of {', '.join(LADDER)}")
    return value


def _bad(sample: Sample, what: str) -> RowError:
    return RowError("hints", f"row '{sample.id}' ({sample.source}): 'meta.hints' {what}")


def failed(rewards: Rewards, success_at: float) -> bool:
    """Whether somebody was judged and nobody succeeded."""
    judged = [r for r in rewards if r is not None]
    return bool(judged) and max(judged) < success_at


def solved(one: HintRound, success_at: float) -> bool:
    return any(r is not None and r >= success_at for r in one.rewards)


def formed(group: Group, rewards: Rewards, best: HintRound, *, form: Form, train: TrainedUnder, old: OldFrom, success_at: float) -> Group:
    """Form the group with guided rows: `all` replaces its rows, `add` puts them behind, `one` gives the place of the last failure to the
    first success. Rows are numbered by place."""
    rows = [replace(r, guidance=replace(r.guidance, train=train, old=old)) for r in best.rollouts if isinstance(r.guidance, Guidance)]
    out: list[Rollout] = list(group.rollouts)
    if form == "all":
        out = rows
    elif form == "add":
        out += rows
    else:
        success = next(i for i, r in enumerate(best.rewards) if r is not None and r >= success_at)
        # every row that was judged has failed, or the group would not have been helped: the last of them gives way
        out[max(i for i, r in enumerate(rewards) if r is not None)] = rows[success]
    return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(out)))


def joined(group: Group, rounds: Sequence[HintRound]) -> Group:
    """Put the rows of all rounds behind the group's own, by tier. Rows are numbered by place; without any the group is as it was."""
    made = [r for one in sorted(rounds, key=lambda one: one.request.tier) for r in one.rollouts]
    rows = (*group.rollouts, *made)
    return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(rows))) if made else group


class Hinted:
    """What the methods share: when to help, and how the group is formed from the lowest tier with a success."""

    def __init__(self, *, form: Form, train: TrainedUnder, old: OldFrom, success_at: float, warmup_steps: int):
        self.form: Form = form
        self.train: TrainedUnder = train
        self.old: OldFrom = old
        self.success_at, self.warmup_steps = success_at, warmup_steps

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        if step < self.warmup_steps or not failed(rewards, self.success_at) or any(solved(r, self.success_at) for r in rounds):
            return []
        return self.ask(group, rounds)

    def ask(self, group: Group, rounds: Sequence[HintRound]) -> list[HintRequest]:
        """Make the next requests, for a group that needs them."""
        raise NotImplementedError

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        good = [r for r in rounds if solved(r, self.success_at)]
        if not good:
            return group
        # the hint that says least, of those that led to a success
        best = min(good, key=lambda r: r.request.tier)
        return formed(group, rewards, best, form=self.form, train=self.train, old=self.old, success_at=self.success_at)


class Tiers(Hinted):
    """Hints of the row, from tier to tier; `last_only` takes the one that says most. `rows` 0: as many as the group has."""

    def __init__(self, *, rows: int, at_once: int, last_only: bool, **common: Any):
        super().__init__(**common)
        self.rows, self.at_once, self.last_only = rows, at_once, last_only

    def ask(self, group: Group, rounds: Sequence[HintRound]) -> list[HintRequest]:
        texts = tiers(group.prompt.sample)
        # tiers count from 1
        wanted = range(len(texts), len(texts) + 1) if self.last_only and texts else range(1, len(texts) + 1)
        done = {r.request.tier for r in rounds}
        left = [tier for tier in wanted if tier not in done][: self.at_once]
        question = group.prompt.sample.question
        rows = self.rows or len(group.rollouts)
        return [HintRequest(question=hinted(question, texts[tier - 1]), tier=tier, rows=rows) for tier in left]


class Sage(Hinted):
    """Hints that the policy writes from the reference solution, one level at a time."""

    def __init__(self, *, levels: int, drafts: int, **common: Any):
        super().__init__(**common)
        self.levels, self.drafts = levels, drafts

    def ask(self, group: Group, rounds: Sequence[HintRound]) -> list[HintRequest]:
        sample = group.prompt.sample
        solution = reference_solution(sample)
        if solution is None:
            return []
        # how far the group has come is read off its rounds, and kept nowhere: a resumed run asks the same
        for level in range(1, self.levels + 1):
            written = next((r for r in rounds if r.request.tier == level and r.request.writes), None)
            if written is None:
                return [HintRequest(question=writing(sample, solution, level, self.levels), tier=level, rows=self.drafts, writes=True)]
            hint = next((text for r in written.rollouts if (text := clean_hint(r, sample)) is not None), None)
            answered = any(r.request.tier == level and not r.request.writes for r in rounds)
            if hint is not None and not answered:
                return [HintRequest(question=hinted(sample.question, hint), tier=level, rows=len(group.rollouts))]
        return []


def reference_solution(sample: Sample) -> str | None:
    """Read `meta.solution` of the row, else its thought; None without either."""
    for text in (sample.meta.get("solution"), sample.thought):
        if isinstance(text, str) and text.strip():
            return text.strip()
    return None


def writing(sample: Sample, solution: str, level: int, levels: int) -> str:
    """Write the question that asks the policy for a hint."""
    tells = LEVELS[-(-level * len(LEVELS) // levels) - 1]
    return (
        f"Question: {sample.question}\nReference solution: {solution}\n"
        f"Write a short hint for somebody who has not seen the solution. Tell {tells}. "
        "Never state the answer, nor any coordinates or times of it. Give the hint only."
    )


def clean_hint(written: Rollout, sample: Sample) -> str | None:
    """Return the hint, if it is complete, of sensible length, without tags or control tokens, and gives nothing away."""
    text = re.sub(r"\s+", " ", written.text).strip()
    tagged = re.search(r"</?(?:think|thinking|answer)>|<\|[^|]*\|>|<(?:image|video)>", text, re.IGNORECASE)
    bad = not text or written.finish != "stop" or len(text) > MAX_HINT_CHARS or tagged or leak(text, sample)
    return None if bad else text


@strategy("sage", paper="arXiv:2602.03143")
def sage(*, levels: int = 3, drafts: int = 2, success_at: float = 0.5, warmup_steps: int = 0) -> Sage:
    """Failed groups are sampled anew under hints of rising level that the policy writes from the reference solution.

    The solution is `meta.solution` of the row, else its thought. All rows share the hint, and the loss keeps it: it is on-policy.
    Ours: `drafts` hints per level, the first that passes the leak check; a level without one is left out.

    Raises:
        ValueError: a number is out of range.
    """
    _check("sage", levels=levels, drafts=drafts)
    return Sage(levels=levels, drafts=drafts, form="all", train="guided", old="policy", success_at=success_at, warmup_steps=warmup_steps)


@strategy("scaf_grpo", paper="arXiv:2510.19807")
def scaf_grpo(*, train: TrainedUnder = "guided", rows: int = 1, at_once: int = 1, success_at: float = 0.5, warmup_steps: int = 50) -> Tiers:
    """The last failure of a failed group gives way to the success with the lowest hint of the row's ladder.

    `train` "plain" is the method's switch: the row then counts as an answer to the plain prompt, old log-probs included.
    Ours: `rows` tries per tier; `at_once` tiers are sampled together, for fewer rounds and more tokens.

    Raises:
        ValueError: a number is out of range.
    """
    _check("scaf_grpo", rows=rows, at_once=at_once)
    common: dict[str, Any] = {"form": "one", "train": train, "old": "policy", "success_at": success_at, "warmup_steps": warmup_steps}
    return Tiers(rows=rows, at_once=at_once, last_only=False, **common)


@strategy("guide", paper="arXiv:2506.13923", needs=("trains_N",), old_from_sampler=True)
def guide(*, form: Form = "add", rows: int = 0, success_at: float = 0.5, warmup_steps: int = 0) -> Tiers:
    """Failed groups get rows that were sampled under guidance and train without it, against the sampler's log-probs.

    The guidance is the row's last hint, the one that says most. The ratio starts far below 1 where the guidance mattered: see
    `algo.behaviour`. Ours: the group is its own rows and as many guided ones (`rows` 0); `form` "all" or "one" replace instead.

    Raises:
        ValueError: a number is out of range.
    """
    if rows:
        _check("guide", rows=rows)
    common: dict[str, Any] = {"form": form, "train": "plain", "old": "sampler", "success_at": success_at, "warmup_steps": warmup_steps}
    return Tiers(rows=rows, at_once=1, last_only=True, **common)


def _check(name: str, **numbers: int) -> None:
    for key, value in numbers.items():
        if value < 1:
            raise ValueError(f"strategy '{name}': {key} is {value}, must be at least 1")

"""Collect groups that sample again under hints (SAGE, Scaf-GRPO, Guide), in rounds after their own rollouts are scored.

A `GuidingStrategy` sees the rewards of a group's own rollouts and may request more rollouts under prompts with hints. The requests of all
groups of a generation batch are generated together, round by round, until no group makes one.

Which groups are in a round depends on their scores, and the last bits of a rollout may depend on who else is in the round. So groups
are never journalled without scores here: a batch that was interrupted is generated again from its first rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from vlmrl.answers.tags import FREE
from vlmrl.errors import MediaError, RowError
from vlmrl.protocols import GuidingStrategy, Strategy
from vlmrl.rollout.collect import Collector, GenerationBatch, PendingGroup, RolloutBatch, Scoring, results
from vlmrl.types import Group, Guidance, HintRequest, HintRound, Prompt, Request, Rollout, Sample, ScoredGroup

Encode = Callable[[Sample, str], Prompt]
"""(sample, answer format) -> prompt: `data.encode.Encoder.encode`."""


def collector_for(strategy: Strategy, encode: Encode) -> Callable[..., Collector]:
    """Choose the class of collector that a strategy needs; `encode` makes the prompts with hints.

    Returns:
        The class, to be called with the other fields of `Collector`.
    """
    return partial(GuidedCollector, encode=encode) if isinstance(strategy, GuidingStrategy) else Collector


@dataclass(kw_only=True)
class GuidedGroup(PendingGroup):
    """A pending group, with its rounds of guided rollouts so far."""

    unguided: ScoredGroup | None = None
    """Its own rollouts with their scores."""
    rounds: list[HintRound] = field(default_factory=list)
    requests: list[HintRequest] = field(default_factory=list)
    """For the coming round."""


@dataclass(frozen=True, kw_only=True)
class GuidedCollector(Collector):
    """Collect for a strategy that samples again under hints."""

    strategy: GuidingStrategy
    encode: Encode

    journals_unscored: ClassVar[bool] = False

    def _go_on(self, one: Scoring, thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Sample and score rounds for the whole batch until no group asks for one."""
        groups = [_guided(one.pending[number]) for number in sorted(one.pending)]
        while asking := [group for group in groups if group.requests]:
            self._round(asking, thread, out)

    def _round(self, asking: Sequence[GuidedGroup], thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Sample what the groups requested, score it, and let each group say whether it wants more."""
        wanted: list[tuple[GuidedGroup, HintRequest, Prompt]] = []
        for one in asking:
            for request in one.requests:
                prompt = self._guided_prompt(one, request)
                if prompt is not None:
                    wanted.append((one, request, prompt))
        requests: list[Request] = []
        for one, request, prompt in wanted:
            kind = "write" if request.writes else "hint"
            # kind and tier are coordinates of the seeds beside those of the group's own rollouts, so no seed is drawn from twice
            where = (one.step, one.place, prompt.sample.id)
            requests.append(self._request(prompt, request.rows, where, kind, request.tier, expected_tokens=one.expected_tokens))

        def score(number: int, rollouts: Sequence[Rollout]) -> Future[HintRound]:
            return thread.submit(self._scored_round, *wanted[number], rollouts)

        if requests:
            for (one, _, _), made in zip(wanted, results(self._sample(requests, score, out), out), strict=True):
                one.rounds.append(made)
                one.notes["guidance/rollouts"] += len(made.rollouts)
                one.notes["guidance/tokens"] += sum(len(r.ids) for r in made.rollouts)
        # a round is over for all groups before the next begins: which prompts are generated together depends on no timing
        results([thread.submit(self._score_group, one) for one in asking], out)

    def _guided_prompt(self, one: GuidedGroup, request: HintRequest) -> Prompt | None:
        """Encode the prompt with the hint; None, with the reason in the group's rounds and notes, where it cannot be made."""
        try:
            return self._with_question(one.group.prompt, request.question, FREE if request.writes else one.group.prompt.answer_format)
        except (RowError, MediaError) as error:
            one.rounds.append(HintRound(request=request, problem=error.reason))
            one.notes[f"guidance/{error.reason}"] += 1
            return None

    def _with_question(self, plain: Prompt, question: str, answer_format: str) -> Prompt:
        return self.encode(replace(plain.sample, question=question), answer_format)

    def _scored_round(self, one: GuidedGroup, request: HintRequest, prompt: Prompt, rollouts: Sequence[Rollout]) -> HintRound:
        """Score guided rollouts; a text that the policy wrote has no rewards."""
        if request.writes:
            return HintRound(request=request, rollouts=tuple(rollouts))
        guidance = Guidance(question=request.question, tier=request.tier)
        guided = tuple(replace(r, provenance="guided", guidance=guidance) for r in rollouts)
        group = replace(one.group, rollouts=guided, guided=(prompt,))
        return HintRound(request=request, rollouts=guided, rewards=tuple(self.score(group, one.step).scores.total()), prompt=prompt)

    def _score_group(self, one: PendingGroup) -> PendingGroup:
        """Score the group's own rollouts, once; ask the strategy what to sample next, and finish the group when that is nothing."""
        one = _guided(one)
        if one.unguided is None:
            one.unguided = self.score(one.group, one.step)
        rewards = one.unguided.scores.total()
        try:
            one.requests = self.strategy.more(one.group, rewards, one.rounds, step=one.step)
        except RowError as error:
            one.requests = []
            one.notes[f"guidance/{error.reason}"] += 1
        _check_new(one)
        if one.requests:
            one.notes["guidance/groups"] = 1
            return one
        one.scored = self._merged(one, one.unguided, rewards)
        if one.scored.unguided is not None:
            one.notes["guidance/helped"] = 1
        return one

    def _merged(self, one: GuidedGroup, unguided: ScoredGroup, rewards: Sequence[float | None]) -> ScoredGroup:
        """Score the group that the strategy forms of all its rollouts."""
        group = self.strategy.merge(one.group, rewards, one.rounds)
        if group is not one.group:
            group = replace(group, guided=_used(group, one.rounds))
        group = self._complete(group, one.step)
        scored = unguided if group is one.group else self.score(group, one.step)  # nothing changed: its scores are there
        if any(r.provenance == "guided" for r in group.rollouts):
            pairs = zip(rewards, one.group.rollouts, strict=True)
            scored = replace(scored, unguided=tuple((value, len(r.ids)) for value, r in pairs))
        return scored

    def _pending(self, batch: GenerationBatch, number: int, rollouts: Sequence[Rollout]) -> GuidedGroup:
        plain = super()._pending(batch, number, rollouts)
        return GuidedGroup(place=plain.place, step=plain.step, group=plain.group, expected_tokens=plain.expected_tokens)

    def _replayed(self, batch: GenerationBatch, number: int) -> PendingGroup:
        one = super()._replayed(batch, number)
        plain = one.finished().group
        # the journal has the hints and not the prompts with them: these are encoded again
        questions = dict.fromkeys(r.guidance.question for r in plain.rollouts if r.guidance is not None)
        group = replace(plain, guided=tuple(self._with_question(plain.prompt, q, plain.prompt.answer_format) for q in questions))
        return replace(one, group=group, scored=replace(one.finished(), group=group))


def _guided(one: PendingGroup) -> GuidedGroup:
    assert isinstance(one, GuidedGroup)
    return one


def _check_new(one: GuidedGroup) -> None:
    """Refuse requests that would use a seed twice, or ask for ever."""
    asked = [(r.request.tier, r.request.writes) for r in one.rounds] + [(r.tier, r.writes) for r in one.requests]
    if len(set(asked)) < len(asked) or any(r.rows < 1 for r in one.requests):
        raise ValueError(f"group '{one.group.id}': the strategy asked twice for a (tier, writes), or for no rows: {asked}")


def _used(group: Group, rounds: Sequence[HintRound]) -> tuple[Prompt, ...]:
    """List the prompts with hints of the group's rollouts, each once, in their order."""
    made = {r.request.question: r.prompt for r in rounds if r.prompt is not None}
    return tuple(made[q] for q in dict.fromkeys(r.guidance.question for r in group.rollouts if r.guidance is not None))

"""Run a step's prompts through engine, strategy and scoring, chunk by chunk, and journal every finished group.

A chunk is generated as a whole or replayed as a whole: what a row samples depends on its own seed only, but the last bits of
batched kernels may depend on the batch, so after a crash a chunk that is not complete in the journal is generated again with
exactly the same company. Groups that the journal already has are not written twice.

Groups are completed and scored on a second thread while others are still generated; `score_seconds` is what had to be waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from vlmrl import faults, rng
from vlmrl.protocols import RolloutEngine, Strategy
from vlmrl.rollout.journal import Journal, rollout_from_json, rollout_to_json, scores_from_json, scores_to_json
from vlmrl.types import GenerationSettings, Group, Prompt, Request, Rollout, ScoredGroup


@dataclass(kw_only=True)
class Collected:
    """Scored groups in plan order, and where the time went."""

    groups: list[ScoredGroup] = field(default_factory=list)
    replayed: int = 0
    rollout_seconds: float = 0.0
    score_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Everything that stays the same from step to step. `coordinates` (stage name) separate the seeds of stages."""

    engine: RolloutEngine
    strategy: Strategy
    score: Callable[[Group], ScoredGroup]
    tokenize: Callable[[str], Sequence[int]]
    settings: GenerationSettings
    per_prompt: int
    chunk_prompts: int
    seed: int
    stage: str
    expected_tokens: Callable[[str], float] = field(default=lambda _: 0.0)
    """Predicted answer length of a sample, from the ledger."""

    def collect(self, prompts: Sequence[tuple[int, Prompt]], *, step: int, journal: Journal) -> Collected:
        """Groups for `(place in the plan, prompt)`, generated or replayed."""
        out = Collected()
        known = {record["group"]: record for record in journal.replay()}
        for start in range(0, len(prompts), self.chunk_prompts):
            chunk = prompts[start : start + self.chunk_prompts]
            ids = [f"{self.stage}/{step}/{place}/{prompt.sample.id}" for place, prompt in chunk]
            if all(group_id in known for group_id in ids):
                out.groups += [_replay(known[g], prompt) for g, (_, prompt) in zip(ids, chunk, strict=True)]
                out.replayed += len(chunk)
                continue
            for scored in self._generate(ids, chunk, step, out):
                out.groups.append(scored)
                if scored.group.id not in known:
                    journal.append(_record(scored))
            journal.sync()
            faults.point("rollout.chunk")
        journal.finish()
        return out

    def _generate(self, ids: Sequence[str], chunk: Sequence[tuple[int, Prompt]], step: int, out: Collected) -> list[ScoredGroup]:
        ks = tuple(range(self.strategy.sampled(self.per_prompt)))
        prompts = [prompt for _, prompt in chunk]
        # the place is a coordinate too: a batch that crosses an epoch may hold one sample twice
        seeds = [tuple(rng.key(self.seed, "rollout", self.stage, step, place, p.sample.id, k) for k in ks) for place, p in chunk]
        requests = [
            Request(prompt=p, ks=ks, seeds=s, expected_tokens=self.expected_tokens(p.sample.id)) for p, s in zip(prompts, seeds, strict=True)
        ]
        scored: dict[int, Future[ScoredGroup]] = {}
        with ThreadPoolExecutor(max_workers=1) as thread:

            def done(number: int, rollouts: Sequence[Rollout]) -> None:
                group = Group(id=ids[number], prompt=prompts[number], rollouts=tuple(rollouts))
                scored[number] = thread.submit(self._finish, group)

            began = time.perf_counter()
            self.engine.generate(requests, self.settings, done)
            out.rollout_seconds += time.perf_counter() - began
            began = time.perf_counter()
            groups = [scored[number].result() for number in range(len(requests))]
            out.score_seconds += time.perf_counter() - began
        return groups

    def _finish(self, group: Group) -> ScoredGroup:
        """The group with the rows that the strategy adds, scored."""
        return self.score(self.strategy.complete(group, lambda g: self.score(g).scores.total(), self.tokenize))


def _record(scored: ScoredGroup) -> dict[str, Any]:
    return {
        "group": scored.group.id,
        "sample": scored.group.prompt.sample.id,
        "rollouts": [rollout_to_json(r) for r in scored.group.rollouts],
        "scores": scores_to_json(scored.scores),
    }


def _replay(record: dict[str, Any], prompt: Prompt) -> ScoredGroup:
    rollouts = tuple(rollout_from_json(r) for r in record["rollouts"])
    return ScoredGroup(group=Group(id=record["group"], prompt=prompt, rollouts=rollouts), scores=scores_from_json(record["scores"]))

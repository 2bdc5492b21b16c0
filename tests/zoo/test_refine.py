"""rollout.strategy.refine: iGRPO trains on refinements of the best draft."""

from __future__ import annotations

import dataclasses

from tests.support.builders import group, sample
from vlmrl.protocols import GuidingStrategy, why_not_ahead
from vlmrl.types import Guidance, HintRequest, HintRound
from vlmrl.zoo.strategy.refine import MOST, best_draft, igrpo, with_draft

DRAFTS = ("a long wrong one", "right but long", "right", "bad")


def round_of(request: HintRequest, problem: str | None = None) -> HintRound:
    if problem is not None:
        return HintRound(request=request, problem=problem)
    guidance = Guidance(question=request.question, tier=request.tier)
    made = group([f"refined {k}" for k in range(request.rows)]).rollouts
    rows = tuple(dataclasses.replace(r, provenance="guided", guidance=guidance) for r in made)
    return HintRound(request=request, rollouts=rows, rewards=tuple(float(k % 2) for k in range(request.rows)))


def test_igrpo_trains_on_refinements_of_the_best_draft_only():
    strategy, mine, rewards = igrpo(), group(DRAFTS), [0.0, 1.0, 1.0, None]
    assert isinstance(strategy, GuidingStrategy)
    assert strategy.sampled(8) == 4
    [asked] = strategy.more(mine, rewards, [], step=0)
    assert asked.rows == 4
    assert asked.question == with_draft(mine.prompt.sample.question, "right"), "of equal drafts the shorter one"
    assert not asked.writes, "refinements are scored"
    done = round_of(asked)
    assert strategy.more(mine, rewards, [done], step=0) == []
    out = strategy.merge(mine, rewards, [done])
    assert [r.text for r in out.rollouts] == [f"refined {k}" for k in range(4)]
    assert {r.guidance and (r.guidance.train, r.guidance.old, r.guidance.question) for r in out.rollouts} == {
        ("guided", "policy", asked.question)
    }


def test_igrpo_refines_failures_too_and_stays_where_it_cannot():
    strategy, mine = igrpo(), group(DRAFTS)
    assert len(strategy.more(mine, [0.0] * 4, [], step=0)) == 1, "the best draft may be wrong"
    assert strategy.more(mine, [None] * 4, [], step=0) == []
    [asked] = strategy.more(mine, [0.0] * 4, [], step=0)
    assert strategy.merge(mine, [0.0] * 4, [round_of(asked, "overlong")]) is mine
    assert best_draft(mine, [None] * 4) is None
    assert len(with_draft("", "x" * 10**5)) < MOST + 200
    assert why_not_ahead(strategy) is not None


def test_the_question_stays_in_front_of_the_draft():
    assert with_draft(sample().question, " so ").startswith(sample().question + "\n")

"""Answers of the teacher as rows of the policy: drawn behind the teacher's prompt, learnt behind the policy's."""

from __future__ import annotations

import types
from contextlib import nullcontext
from typing import Any

from tests.support.tiny import Tiny
from tests.unit.extras.distill.test_teacher_scores import teacher_of
from vlmrl import rng
from vlmrl.extras.distill.answers import teacher_rows
from vlmrl.extras.distill.section import Imitate
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings, Request

SECTION = Imitate.model_validate(
    {"name": "copy", "kind": "teacher_sft", "source": {"path": "x"}, "steps": 1, "optim": {"lr": 1e-3}}
    | {"rollout": {"prompts_per_step": 3, "num_generations": 2, "max_new_tokens": 6, "generation_batch_size": 2}}
)


def stage_of(tiny: Tiny, *, step: int = 4) -> Any:
    """As much of a stage as asks for prompts, in an order that is not that of their places."""
    prompts = tiny.prompts(3)
    planned = types.SimpleNamespace(num_generations=2)
    taken = [(place, planned, prompts[place]) for place in (2, 0, 1)]
    loader = types.SimpleNamespace(next_batch=lambda ledger, prompts, rollouts: taken[:prompts])
    state = types.SimpleNamespace(step=step, ledger=None)
    clock = types.SimpleNamespace(phase=lambda name: nullcontext())
    return types.SimpleNamespace(loader=loader, state=state, clock=clock, seed=7, timed_loader=nullcontext)


def test_rows_hold_what_the_teacher_says_to_its_own_prompt(tiny: Tiny) -> None:
    scores, stage = teacher_of(tiny, moved=0.3), stage_of(tiny)
    assert scores.teacher is not None
    rows = teacher_rows(scores, stage, SECTION)
    assert [(row.index, row.group) for row in rows] == [(0, 2), (1, 2), (2, 0), (3, 0), (4, 1), (5, 1)]
    engine = own_engine(scores.teacher.policy, scores.teacher.vision)
    for row in rows:
        assert row.prompt is tiny_prompt(stage, row.group), "the policy's own"
        k = row.index % 2
        request = Request(prompt=scores.teacher.view.of(row.prompt), ks=(k,), seeds=(rng.key(7, "teacher", "copy", 4, row.group, k),))
        ((alone,),) = engine.generate([request], GenerationSettings(max_new_tokens=6))
        assert alone.ids == row.response
    assert len({row.response for row in rows}) > 1
    later = teacher_rows(scores, stage_of(tiny, step=5), SECTION)
    assert [row.response for row in later] != [row.response for row in rows], "drawn anew in each step"


def tiny_prompt(stage: Any, place: int) -> Any:
    return next(prompt for at, _, prompt in stage.loader.next_batch(None, 3, 2) if at == place)

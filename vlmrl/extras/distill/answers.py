"""Answers of the teacher as rows for the policy: the teacher reads its own prompt, the policy learns the answer behind its own.

Sequence-level distillation, arXiv:1606.07947, where the two prompts of a row differ in pixels. Ours: answers are drawn anew in each step
and kept nowhere. Their seeds are coordinates (run, stage, step, place of the prompt), so a resumed run draws the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmrl import rng
from vlmrl.extras.distill.teacher import Teacher
from vlmrl.policy.pack import Row
from vlmrl.rollout.own import own_engine
from vlmrl.train import dist
from vlmrl.types import GenerationSettings, Request

if TYPE_CHECKING:
    from vlmrl.extras.distill.section import Imitate
    from vlmrl.extras.distill.teacher import TeacherScores
    from vlmrl.train.stage.base import Stage


def teacher_rows(scores: TeacherScores, stage: Stage, cfg: Imitate) -> tuple[Row, ...]:
    """Plan and encode the step's prompts of this rank, and have the teacher answer them.

    Returns:
        Rows, group after group: the policy's prompt, and behind it an answer that the teacher has drawn behind its own.

    Raises:
        DataError: a file has changed between both looks at it, or a row has no hint.
    """
    teacher, rollout = scores.teacher, cfg.rollout
    assert isinstance(teacher, Teacher)
    with stage.timed_loader():
        taken = stage.loader.next_batch(stage.state.ledger, prompts=rollout.prompts_per_step, rollouts=rollout.num_generations)
    with stage.clock.phase("rollout"):
        shown = dist.run_synchronized(lambda: [teacher.view.of(prompt) for _, _, prompt in taken])
        requests: list[Request] = []
        for (place, planned, _), prompt in zip(taken, shown, strict=True):
            ks = tuple(range(planned.num_generations))
            seeds = tuple(rng.key(stage.seed, "teacher", cfg.name, stage.state.step, place, k) for k in ks)
            requests.append(Request(prompt=prompt, ks=ks, seeds=seeds))
        engine = own_engine(teacher.policy, teacher.vision, max_num_seqs=rollout.max_num_seqs)
        settings = GenerationSettings(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature)
        parts = [requests[n : n + rollout.generation_batch_size] for n in range(0, len(requests), rollout.generation_batch_size)]
        teacher.vision.get_ready(teacher.policy)  # needs all ranks, as gathering the weights does; then they go their own ways
        with engine.ready():
            answers = dist.run_synchronized(lambda: [group for part in parts for group in engine.generate(part, settings)])
    pairs = [(place, prompt, one) for (place, _, prompt), group in zip(taken, answers, strict=True) for one in group]
    return tuple(Row(index=i, group=place, prompt=prompt, response=one.ids) for i, (place, prompt, one) in enumerate(pairs))

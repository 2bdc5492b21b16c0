"""Facts of the step's rollouts that need no model: answers, log-probs of the sampler, what was cut off, value and id of the row of data."""

from __future__ import annotations

import torch

from vlmrl import rng
from vlmrl.answers.tags import parse
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides


@provides("answer_N")
def answers(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Number of each row's parsed answer among the different answers of its group, without regard to case and spaces, int64 [n]; -1 without
    an answer."""
    out: list[int] = []
    for _, scored in batch.groups:
        seen: dict[str, int] = {}
        for rollout in scored.group.rollouts:
            answer = parse(rollout.text, scored.group.prompt.answer_format).answer
            out.append(-1 if answer is None else seen.setdefault(" ".join(answer.casefold().split()), len(seen)))
    return {"answer_N": torch.tensor(out, dtype=torch.int64)}


@provides("logp_N")
def sampled_logprobs(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Sum over the response of the log-probs of the policy that sampled it, float64 [n]; NaN for rows that were not sampled."""
    sums = [sum(rollout.logprobs) if rollout.on_policy else float("nan") for rollout in batch.rollouts]
    return {"logp_N": torch.tensor(sums, dtype=torch.float64)}


@provides("truncated_N")
def cut_off(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Whether each response was cut off at the token limit, bool [n]."""
    return {"truncated_N": torch.tensor([rollout.finish == "length" for rollout in batch.rollouts], dtype=torch.bool)}


@provides("baseline_N")
def values_of_prompts(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Value of each row's prompt before this step, from the ledger, float64 [n]; NaN where it was never seen."""
    return {"baseline_N": batch.baseline_N[batch.mine]}


@provides("sample_N")
def rows_of_data(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Id of the row of data that each row's group asks about, int64 [n], the same at every step: what memories of rows go by."""
    samples = [scored.group.prompt.sample.id for _, scored in batch.groups for _ in scored.group.rollouts]
    return {"sample_N": torch.tensor([rng.key(0, "sample", name) for name in samples], dtype=torch.int64)}

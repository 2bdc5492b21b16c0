"""How likely each answer is given its thought, under a slowly averaged reference (`policy.average`): for methods that need `consistency_N`.

The reference is the stage's second model, whose parameters then hold the average. A method that needs this has the arguments `every`
and `decay`, which say how fast it moves.
"""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.errors import ConfigError
from vlmrl.policy.average import PREFIX, AveragedWeights, answer_likelihood
from vlmrl.rollout.answer_span import answer_mask
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides


class AveragedReference:
    """Lets the reference's weights follow the policy's."""

    def __init__(self, stage: Stage, method: Bound):
        assert stage.reference is not None
        own = dict(stage.reference.policy.model.named_parameters())
        self._stage, self._reference = stage, stage.reference.policy
        shards = self._reference.shards
        if not shards.open:
            raise ConfigError(
                f"{method.slot} '{method.name}': its averaged reference cannot be kept with this train.sharding; take fsdp or zero2"
            )
        average = {name: own[name] for name, _ in stage.learner.named}
        self._average = AveragedWeights(average, every=method.argument("every"), decay=method.argument("decay"), put=shards.put)

    def after_update(self) -> None:
        if self._average.step(dict(self._stage.learner.named)):
            self._moved()

    def state_dict(self) -> dict[str, Any]:
        return self._average.state_dict() | self._average.tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = {name: value for name, value in state.items() if name.startswith(PREFIX)}
        self._average.load_state_dict({name: value for name, value in state.items() if name not in tensors}, tensors)
        self._moved()

    def _moved(self) -> None:
        """Features that were computed with the reference's tower are those of other weights now, if it is among those that train."""
        self._reference.vision_version += int(self._stage.policy.vision_trains)


@provides("consistency_N", reference=True, keeps=AveragedReference, arguments=("every", "decay"))
def answer_consistency(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Likelihood of each row's answer tokens under the averaged reference, float64 [n]; NaN for a row without an answer."""
    formats = [scored.group.prompt.answer_format for _, scored in batch.groups for _ in scored.group.rollouts]
    logp_NT = stage.score_reference(batch.rows)
    mask_NT = answer_mask(batch.rollouts, formats, stage.policy.bundle.decode)[:, : logp_NT.shape[1]]
    return {"consistency_N": answer_likelihood(logp_NT, mask_NT)}

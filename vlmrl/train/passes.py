"""Which micro-batches this rank makes in a step, and by which passes of the model each of them.

Where every rank holds all weights and its rows are its own, that is one pass for each micro-batch, whatever other ranks do. Where passes
are calls between ranks, all must make the same ones: what several ranks do together then says which (`dist.SEVERAL`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vlmrl.policy.forward import Layout, TokenLogprobs
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, Row
from vlmrl.policy.vision import PassFeatures, VisionCache
from vlmrl.train import dist
from vlmrl.train.updates import Complete

if TYPE_CHECKING:
    from vlmrl.policy.repeat import MicroBatch

Micro: TypeAlias = "MicroBatch | PackedBatch"
"""A micro-batch of any layout."""
Numbered = tuple[torch.Tensor, list[Row]]
"""The rows of a micro-batch with their places in the step; one that is made only because another rank makes one has no places."""


@dataclass(frozen=True, kw_only=True)
class ModelPass:
    """One of the passes that are made for a micro-batch."""

    own: bool = True
    """Whether this rank gets the log-probs; for another's rows the result is empty."""
    media: VisionCache | PassFeatures
    """What knows the features of the rows' media."""
    complete: Complete
    """Whose gradients this pass is the last one to add to."""

    def forward(self, layout: Layout, policy: Policy, batch: Micro, *, train: bool, **more: Any) -> TokenLogprobs:
        """Run `layout.forward` with this pass's features of media; other kinds of pass do it together with other ranks."""
        stats = {name: stat.of_rows(batch.rows) for name, stat in more.pop("stats", {}).items()}
        return layout.forward(policy, batch, self.media, train=train, stats=stats, **more)


def passes_of(policy: Policy, vision: VisionCache, own: Sequence[Numbered], *, train: bool) -> Iterator[tuple[Numbered, list[ModelPass]]]:
    """Yield this rank's micro-batches with the passes that each takes. The caller runs each pass's `forward`, and in training its backward,
    before it asks for the next.

    Args:
        own: this rank's micro-batches; where ranks act together it may be empty, and the rank still makes passes with the others.
        train: whether backward passes follow.
    """
    if policy.shards.collective or policy.sequence is not None:
        # a rank that made fewer passes than another would leave it waiting in a collective, so they agree on all of them first
        yield from dist.SEVERAL["passes"](policy, vision, own, train=train)
        return
    for number, part in enumerate(own, start=1):
        # `tower` matters only to engines that hold weights in shards, and those take the branch above
        yield part, [ModelPass(media=vision, complete=Complete(tower=False, rest=number == len(own)))]

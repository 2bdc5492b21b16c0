"""The same passes on every rank, where a pass is a collective: equal numbers of micro-batches, and equal numbers of tower passes in each.

With weights in shards every forward pass gathers them, layer by layer, and every rank must take part. A rank that has fewer
micro-batches than another makes idle ones; a rank whose new media take fewer passes of the tower than another's (kinds of media, or chunks
of videos) passes a patch of zeros through it, as often as it takes. That comes *before* the language model, where the other ranks' passes
are: collectives must agree in their order, too. Idle results enter with weight zero, so that the backward pass is the same as well.

The ranks agree on all of it once, before the first micro-batch of a step: a call over all ranks costs a round trip through each of them.

Where every rank holds all weights nothing of this happens, but that ranks which share packed rows take turns with them
(`train.shard.sequence`), and so need equal numbers of micro-batches too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from vlmrl.policy.forward import Layout, TokenLogprobs
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import MicroBatch, PackedBatch, Row
from vlmrl.policy.vision import PassFeatures, VisionCache, run_tower
from vlmrl.train import dist
from vlmrl.train.shard.base import Complete
from vlmrl.types import Prompt

Numbered = tuple[torch.Tensor, list[Row]]
"""The rows of a micro-batch with their places in the step; an idle one has no places."""


@dataclass(frozen=True, kw_only=True)
class RankPass:
    """One of the passes that are made for a micro-batch: the ranks that share rows make one for each of them."""

    owner: int | None
    """The rank of the group whose rows are scored; None: nothing is shared."""
    own: bool
    """Whether it is this one, which then gets their log-probs; for another's rows the result is empty."""
    media: VisionCache | PassFeatures
    """What knows the features of the rows' media."""
    idle: int = 0
    """Passes of the tower that other ranks make and this one has no media for."""
    complete: Complete
    """Whose gradients this pass is the last one to add to."""


def agreed(policy: Policy, vision: VisionCache, own: Sequence[Numbered], *, train: bool) -> Iterator[tuple[Numbered, list[RankPass]]]:
    """This rank's micro-batches, and idle ones behind them until it has as many as any rank, each with its passes in order: `forward`,
    and in training its backward pass before the next. Every rank calls it at the same place, and makes all passes."""
    ranks, shards = policy.sequence, policy.shards.collective
    of_one = [(None, True)] if ranks is None else [(owner, owner == ranks.rank) for owner in range(ranks.size)]
    turns = [(number, owner, mine) for number in range(len(own)) for owner, mine in of_one]
    seen: list[PassFeatures] = []
    if shards:
        handles = [[handle for row in own[number][1] if mine for handle in row.prompt.media] for number, _, mine in turns]
        seen = vision.look_ahead(policy, handles, train=train)
    passes = [one.passes for one in seen] if shards else [0] * len(turns)
    most = dist.largest(passes) if shards or ranks is not None else passes
    last_with_media = max((place for place, of_tower in enumerate(most) if of_tower), default=None)
    for number in range(len(most) // len(of_one)):
        part = own[number] if number < len(own) else (torch.zeros(0, dtype=torch.int64), [_idle_row(policy)])
        row: list[RankPass] = []
        for place, (owner, mine) in enumerate(of_one, start=number * len(of_one)):
            known = place < len(turns)
            # what is taken out here is kept by nobody when its pass is over
            media = (seen.pop(0) if known else vision.look(policy, (), train=train)) if shards else vision
            complete = Complete(tower=place == last_with_media, rest=place == len(most) - 1)
            idle = most[place] - (passes[place] if known else 0)
            row.append(RankPass(owner=owner, own=mine, media=media, idle=idle, complete=complete))
        yield part, row


def forward(layout: Layout, policy: Policy, batch: MicroBatch | PackedBatch, turn: RankPass, *, train: bool, **more: Any) -> TokenLogprobs:
    """`layout.forward`, together with all ranks where that is needed."""

    def scores() -> TokenLogprobs:
        if turn.owner is None or policy.sequence is None:
            return layout.forward(policy, batch, turn.media, train=train, **more)
        from vlmrl.policy.across import shared_columns  # train.sequence

        row = cast(PackedBatch, batch) if turn.own else None
        return shared_columns(policy, row, turn.media, policy.sequence, turn.owner, train=train, **more)

    if not policy.shards.collective:
        return scores()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        zero = sum(_idle_pass(policy, train=train) for _ in range(turn.idle))
        # at the place where features enter, so that the backward pass goes through the same layers as on the other ranks
        with _added_to_embeddings(policy, zero):
            scored = scores()
        return scored.logp_BT, scored.entropy_BT

    logp_BT, entropy_BT = policy.shards.run(run)
    return TokenLogprobs(logp_BT=logp_BT, entropy_BT=entropy_BT)


@contextmanager
def _added_to_embeddings(policy: Policy, zero: torch.Tensor | int) -> Iterator[None]:
    """Context in which the embeddings of tokens carry the gradient of a value that is 0."""
    if isinstance(zero, int):
        yield
        return
    hook = policy.core.get_input_embeddings().register_forward_hook(lambda _, __, out: out + zero.to(out.dtype))
    try:
        yield
    finally:
        hook.remove()


def _idle_row(policy: Policy) -> Row:
    """A row without media whose one answer token nobody looks at, of a column for each rank that shares it."""
    end = policy.bundle.end_ids[0]
    ids = (end,) * (1 if policy.sequence is None else policy.sequence.size)
    prompt = Prompt(sample=cast(Any, None), ids=ids, media=(), spans=(), answer_format="answer_only")
    return Row(index=0, group=0, prompt=prompt, response=(end,))


def _idle_pass(policy: Policy, *, train: bool) -> torch.Tensor:
    """0, from one merged patch of zeros through the tower; with gradient where the tower's would have one."""
    bundle = policy.bundle
    side = bundle.merge_size
    width = 3 * bundle.temporal_patch_size * bundle.patch_size**2
    with torch.set_grad_enabled(train and policy.vision_trains):
        # as the real ones: a pass that backward runs again gathers weights there too
        parts = run_tower(policy, "image", lambda: torch.zeros(side * side, width), [(1, side, side)], train=train)
    return sum((part.float().sum() for part in parts), torch.zeros((), device=policy.device)) * 0

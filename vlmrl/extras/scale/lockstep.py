"""The same passes on every rank, where a pass is a collective: equal numbers of micro-batches, and equal numbers of tower passes in each.

With weights in shards every forward pass gathers them, layer by layer, and every rank must take part. A rank that has fewer
micro-batches than another makes idle ones; a rank whose new media take fewer passes of the tower than another's (kinds of media, or chunks
of videos) passes a patch of zeros through it, as often as it takes. That comes *before* the language model, where the other ranks' passes
are: collectives must agree in their order, too. Idle results enter with weight zero, so that the backward pass is the same as well.

The ranks agree on all of it once, before the first micro-batch of a step: a call over all ranks costs a round trip through each of them.

Ranks which share packed rows take turns with them (`scale.sharing`), and so need equal numbers of micro-batches too, also where
every rank holds all weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as torch_dist

from vlmrl.extras.scale.across import shared_columns
from vlmrl.policy.forward import Layout, TokenLogprobs
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, Row
from vlmrl.policy.vision import PassFeatures, VisionCache, run_tower
from vlmrl.train import dist
from vlmrl.train.passes import Micro, ModelPass, Numbered
from vlmrl.train.updates import Complete
from vlmrl.types import MediaHandle, Prompt

_PLACES = 256
"""Numbers that go in one call."""
_SIDE = 64
"""Pixels of a side of the picture that a family's own processor is given for an idle pass."""


@dataclass(frozen=True, kw_only=True)
class RankPass(ModelPass):
    """A pass that all ranks make together: those that share rows make one for each of them."""

    owner: int | None
    """The rank of the group whose rows are scored; None: nothing is shared."""
    idle: int = 0
    """Passes of the tower that other ranks make and this one has no media for."""

    def forward(self, layout: Layout, policy: Policy, batch: Micro, *, train: bool, **more: Any) -> TokenLogprobs:
        """What `layout.forward` gives, together with all ranks where that is needed."""
        more["stats"] = {name: stat.of_rows(batch.rows) for name, stat in more.get("stats", {}).items()}
        if not policy.shards.collective:
            return self._scores(layout, policy, batch, train=train, **more)

        def run() -> tuple[torch.Tensor, ...]:
            zero = sum(_idle_pass(policy, train=train) for _ in range(self.idle))
            # at the place where features enter, so that the backward pass goes through the same layers as on the other ranks
            with _added_to_embeddings(policy, zero):
                return self._scores(layout, policy, batch, train=train, **more).tensors()

        # tensors of their own: what is differentiated by these alone, on this rank alone, must not meet the hooks of a backward pass, which
        # gather weights on all ranks
        return TokenLogprobs.of([value.view_as(value) for value in policy.shards.run(run)], more["stats"])

    def _scores(self, layout: Layout, policy: Policy, batch: Micro, *, train: bool, **more: Any) -> TokenLogprobs:
        if self.owner is None or policy.sequence is None:
            return layout.forward(policy, batch, self.media, train=train, **more)
        row = cast(PackedBatch, batch) if self.own else None
        return shared_columns(policy, row, self.media, policy.sequence, self.owner, train=train, **more)


def agreed(policy: Policy, vision: VisionCache, own: Sequence[Numbered], *, train: bool) -> Iterator[tuple[Numbered, list[RankPass]]]:
    """This rank's micro-batches, and idle ones behind them until it has as many as any rank, each with its passes in order. Every rank
    calls it at the same place, and makes all passes."""
    ranks, shards = policy.sequence, policy.shards.collective
    of_one = [(None, True)] if ranks is None else [(owner, owner == ranks.rank) for owner in range(ranks.size)]
    turns = [(number, owner, mine) for number in range(len(own)) for owner, mine in of_one]
    seen: list[PassFeatures] = []
    if shards:
        handles = [[handle for row in own[number][1] if mine for handle in row.prompt.media] for number, _, mine in turns]
        seen = look_ahead(vision, policy, handles, train=train)
    passes = [one.passes for one in seen] if shards else [0] * len(turns)
    most = largest(passes)
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


def look_ahead(vision: VisionCache, policy: Policy, passes: Sequence[Sequence[MediaHandle]], *, train: bool) -> list[PassFeatures]:
    """`VisionCache.look` for several passes before the first of them is made, so that ranks can agree on all of them at once. Their
    features are asked for in this order: what one encodes is known to the later ones. Until a pass is over its features stay, whatever
    the budget."""
    if train and policy.vision_trains:
        return [vision.look(policy, handles, train=True) for handles in passes]
    out: list[PassFeatures] = []
    first: dict[str, PassFeatures] = {}
    for handles in passes:
        again = {handle.key for handle in handles if handle.key in first}
        vision.hits += len(again)
        out.append(vision.look(policy, [handle for handle in handles if handle.key not in again], train=train))
        for key in again:
            first[key].later.append((key, out[-1].known))
        first |= {handle.key: out[-1] for handle in out[-1].unknown}
    return out


def largest(values: Sequence[int]) -> list[int]:
    """The largest value at each place over all ranks, whose lists may differ in length; values are at least 0. One call, or two where a
    list is long."""
    if dist.world() == 1:
        return list(values)
    room = _PLACES
    while True:
        own = torch.zeros(room, dtype=torch.int64)
        fits = min(len(values), room - 1)
        own[0], own[1 : 1 + fits] = len(values), torch.tensor(values[:fits], dtype=torch.int64)
        with dist.collective("agreement"):
            torch_dist.all_reduce(own, op=torch_dist.ReduceOp.MAX, group=dist.control())
        if (most := int(own[0])) < room:
            return own[1 : 1 + most].tolist()
        room = most + 1


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
    end, writer = policy.bundle.end_ids[0], policy.bundle.writer
    ids, kinds = (end,) * (1 if policy.sequence is None else policy.sequence.size), {}
    if writer is not None:  # some models ask what kind of token stands in a column
        ids, kinds = writer.expand(writer.render([{"role": "user", "content": [{"type": "text", "text": "."}]}]), ())
    prompt = Prompt(sample=cast(Any, None), ids=ids, media=(), spans=(), answer_format="answer_only", kinds=kinds)
    return Row(index=-1, group=0, prompt=prompt, response=(end,))


def _idle_pass(policy: Policy, *, train: bool) -> torch.Tensor:
    """0, from one merged patch of zeros, or a black picture, through the tower; with gradient where the tower's would have one."""
    with torch.set_grad_enabled(train and policy.vision_trains):
        parts = _idle_features(policy, train=train)
    return sum((part.float().sum() for part in parts), torch.zeros((), device=policy.device)) * 0


def _idle_features(policy: Policy, *, train: bool) -> Sequence[torch.Tensor]:
    bundle = policy.bundle
    if bundle.argue is not None:
        black = bundle.argue(np.zeros((1, _SIDE, _SIDE, 3), np.uint8), "image", None, None)
        with policy.autocast():
            return policy.subject.hand_over(black).tensors()
    side = bundle.merge_size
    width = 3 * bundle.temporal_patch_size * bundle.patch_size**2
    # as the real ones: a pass that backward runs again gathers weights there too
    return run_tower(policy, "image", lambda: torch.zeros(side * side, width), [(1, side, side)], train=train)

"""Log-probabilities of one packed row whose columns lie on several ranks (`scale.sequence`).

One rank owns the row: it encodes its media, embeds its tokens, hands the columns out and gets the log-probs of all answers back, so a
loss sees the same as from `forward.shared_prefix`. The others come without a row, work on their columns and get no log-probs; their
backward pass starts from the empty result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from vlmrl.extras.scale.sequence import Columns, Ranks
from vlmrl.policy.attention import require
from vlmrl.policy.forward import ModelInput, TokenLogprobs, embed, read_tokens, scored
from vlmrl.policy.head import HeadOptions
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, to_device
from vlmrl.policy.runs import RowLayout
from vlmrl.policy.vision import PassFeatures, VisionCache


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What the owner says of its row; all tensors on the CPU."""

    layout: RowLayout
    positions_31N: torch.Tensor
    visual_N: torch.Tensor
    score_M: torch.Tensor
    targets_M: torch.Tensor
    levels: tuple[torch.dtype, ...]
    """Types of the deepstack features."""

    @staticmethod
    def of(batch: PackedBatch, inputs: ModelInput) -> _Row:
        return _Row(
            layout=replace(batch.layout),  # without the tensors that were made of it
            positions_31N=batch.positions_31N.cpu(),
            visual_N=inputs.visual_BS[0].cpu(),
            score_M=batch.score_M.cpu(),
            targets_M=batch.targets_M,
            levels=tuple(level.dtype for level in inputs.deepstack),
        )


def shared_columns(
    policy: Policy,
    batch: PackedBatch | None,
    vision: VisionCache | PassFeatures,
    ranks: Ranks,
    owner: int,
    *,
    train: bool,
    **how: Any,
) -> TokenLogprobs:
    """The owner comes with its row and gets what `forward.shared_prefix` gives, to rounding; the others come with None and get empty
    tensors. Every rank makes this call, and the backward pass of what it got.

    Raises:
        ConfigError: the model cannot run packed rows, or its heads cannot be shared by so many ranks.
        ValueError: a row of fewer tokens than ranks.
    """
    asked = HeadOptions(**how)
    require(policy.model.config.get_text_config())
    if batch is not None and batch.tokens < ranks.size:
        raise ValueError(f"a packed row of {batch.tokens} tokens has no column for each of {ranks.size} ranks")
    inputs = _inputs(policy, batch, vision, train=train)
    row: _Row = ranks.told(None if batch is None else _Row.of(batch, inputs), owner)
    columns = Columns(ranks, row.layout.tokens, owner)
    places = columns.of(row.score_M)
    with policy.autocast():
        hidden_nH = policy.core.language_model(
            **_handed_out(policy, inputs, row, columns, train=train).arguments(),
            attention_mask=None,
            position_ids=to_device(row.positions_31N[:, :, columns.own], policy.device),
            use_cache=False,
            prefix_layout=row.layout,
            prefix_backend=policy.prefix_backend,
            prefix_columns=columns,
        ).last_hidden_state[0]
        mine = places[ranks.rank]
        scored_mH = hidden_nH[to_device(row.score_M[mine] - columns.own.start, policy.device)]
        values = read_tokens(scored_mH, policy.head, row.targets_M[mine], asked)
    found = columns.collect(torch.stack(values, dim=1), [len(place) for place in places])
    if batch is None:
        return TokenLogprobs.of([value.clone() for value in found.unbind(1)], asked.stats)
    ordered = torch.zeros_like(found).index_copy(0, to_device(torch.cat(places), found.device), found)
    return scored(batch.rows, ordered.unbind(1), asked)


def _inputs(policy: Policy, batch: PackedBatch | None, vision: VisionCache | PassFeatures, *, train: bool) -> ModelInput:
    """Of the whole row; without a row of no columns, by way of the embedding all the same: what hangs on it belongs to the graph."""
    if batch is None:
        nothing = torch.zeros(1, 0, dtype=torch.int64, device=policy.device)
        return ModelInput(policy.core.get_input_embeddings()(nothing), nothing.bool(), [])
    features = vision.features(policy, [handle for prompt, _ in batch.prompts for handle in prompt.media], train=train)
    return embed(policy, batch.ids_1N, [(prompt, 0, offset) for prompt, offset in batch.prompts], features)


def _handed_out(policy: Policy, inputs: ModelInput, row: _Row, columns: Columns, *, train: bool) -> ModelInput:
    """This rank's columns."""
    embeds_nH = columns.hand_out(inputs.embeds_BSH[0], columns.sizes, gradient=train)
    visual = [int(part.sum()) for part in row.visual_N.split(columns.sizes)]
    width = embeds_nH.shape[1]
    deep = inputs.deepstack or [torch.zeros(0, width, dtype=dtype, device=policy.device) for dtype in row.levels]
    levels = [columns.hand_out(level, visual, gradient=train and policy.vision_trains) for level in deep]
    return ModelInput(embeds_nH[None], row.visual_N[columns.own][None].to(policy.device), levels)

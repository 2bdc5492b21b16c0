"""Log-probabilities of answers under a policy: the only place that knows how a group is laid out in a forward pass.

`repeat` gives each answer a row of its own with its prompt repeated, and the features of each distinct medium computed once per
micro-batch. A layout that shares the prompt fills the same interface; losses, advantages and samplers never know which one ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from vlmrl.policy.load import Policy
from vlmrl.policy.pack import MicroBatch
from vlmrl.policy.vision import VisionCache
from vlmrl.types import Prompt

CHUNK_ROWS = 4096
"""Response tokens whose logits exist at one time."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Log-probs and entropies of response tokens, float32, zero outside the mask."""

    logp_BT: torch.Tensor
    entropy_BT: torch.Tensor
    """Entropy of the distribution, without gradient."""


def embed(policy: Policy, ids_BS: torch.Tensor, prompts: list[tuple[Prompt, int]], features: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Token embeddings with vision features in their placeholders, [B, S, H]. `prompts` gives each row's prompt and its first column.

    Raises:
        ValueError: a row has placeholder ids outside the visual spans of its prompt (a sampled one, for example).
    """
    embeds = policy.core.get_input_embeddings()(ids_BS)
    pads = torch.zeros_like(ids_BS, dtype=torch.bool)
    for pad in policy.bundle.pad_ids.values():
        pads |= ids_BS == pad
    flat_index: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []
    for b, (prompt, offset) in enumerate(prompts):
        for (start, end), handle in zip(prompt.spans, prompt.media, strict=True):
            flat_index.append(torch.arange(start, end) + b * ids_BS.shape[1] + offset)
            parts.append(features[handle.key])
    expected = sum(int(index.numel()) for index in flat_index)
    if int(pads.sum()) != expected:
        raise ValueError(f"{int(pads.sum())} placeholder tokens but {expected} vision features: a placeholder id outside a visual span")
    if not parts:
        return embeds
    index = torch.cat(flat_index).to(embeds.device)
    flat = embeds.reshape(-1, embeds.shape[-1])
    return flat.index_copy(0, index, torch.cat(parts).to(flat.dtype)).view_as(embeds)


def token_logprobs(
    hidden_MH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_M: torch.Tensor,
    *,
    temperature: float,
    forbidden: tuple[int, ...],
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-prob, entropy), each [M] float32, of softmax(hidden @ head.T / temperature) without the forbidden ids.

    Runs over chunks of rows whose logits are recomputed in backward, so that [M, V] never exists whole.
    """

    def one(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (hidden @ head_VH.T).float() / temperature
        if forbidden:
            logits = logits.index_fill(1, torch.tensor(forbidden, device=logits.device), float("-inf"))
        logits_all = torch.log_softmax(logits, dim=-1)
        logp = logits_all.gather(1, targets[:, None])[:, 0]
        with torch.no_grad():
            p = logits_all.exp()
            entropy = -(p * torch.where(p > 0, logits_all, 0.0)).sum(-1)
        return logp, entropy

    outs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for start in range(0, hidden_MH.shape[0], chunk_rows):
        part, goal = hidden_MH[start : start + chunk_rows], targets_M[start : start + chunk_rows]
        if torch.is_grad_enabled() and hidden_MH.shape[0] > chunk_rows:
            outs.append(checkpoint(one, part, goal, use_reentrant=False))  # pyright: ignore[reportArgumentType]
        else:
            outs.append(one(part, goal))
    if not outs:
        empty = hidden_MH.sum() * 0.0 + torch.zeros(0, device=hidden_MH.device)
        return empty, empty.detach()
    return torch.cat([o[0] for o in outs]), torch.cat([o[1] for o in outs])


def repeat(
    policy: Policy, batch: MicroBatch, vision: VisionCache, *, temperature: float, forbidden: tuple[int, ...], train: bool
) -> Scored:
    """One row per answer."""
    handles = [handle for row in batch.rows for handle in row.prompt.media]
    features = vision.features(policy, handles, train=train)
    embeds = embed(policy, batch.ids_BS, [(row.prompt, 0) for row in batch.rows], features)
    row, column = batch.mask_BT.nonzero(as_tuple=True)
    with policy.autocast():
        hidden_BSH = policy.core.language_model(
            inputs_embeds=embeds, attention_mask=batch.attention_BS, position_ids=batch.positions_3BS, use_cache=False
        ).last_hidden_state
        logp_M, entropy_M = token_logprobs(
            hidden_BSH[row, batch.hidden_BT[row, column]],
            policy.head,
            batch.targets_BT[row, column],
            temperature=temperature,
            forbidden=forbidden,
        )
    blank = torch.zeros(batch.mask_BT.shape, device=logp_M.device)
    return Scored(logp_BT=blank.index_put((row, column), logp_M), entropy_BT=blank.index_put((row, column), entropy_M))


LAYOUTS: dict[str, Any] = {"repeat": repeat}

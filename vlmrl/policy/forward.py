"""Log-probabilities of answers under a policy: the training forward pass, with shared or repeated prompts.

`shared_prefix` computes each prompt once for all its answers; `repeat`, the reference, gives each answer a row of its own with its
prompt repeated. Extras add to `LAYOUTS` what is imported when a run asks for it: `chains` is `shared_prefix` over rows in
which consecutive turns of an episode share their past as well, and `trees` over rows in which everything that conversations of a group
begin with in common stands once. All compute the features of each distinct medium once per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vlmrl.policy.attention import require
from vlmrl.policy.head import HeadOptions, streaming_logprobs
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import MicroBatch, PackedBatch, Row, pack, pack_shared, response_mask, split, split_shared, to_device, visual_index
from vlmrl.policy.vision import Features, VisionCache
from vlmrl.registry import Catalogue
from vlmrl.types import Prompt


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Log-probs and entropies of response tokens, and what else was asked of the head, float32, zero outside the mask."""

    logp_BT: torch.Tensor
    entropy_BT: torch.Tensor
    """Entropy of the distribution; with gradient only where the forward was asked for it."""
    stats: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """[B, T] of each of the `stats` that were asked for."""

    @staticmethod
    def of(values: Sequence[torch.Tensor], asked: Iterable[str]) -> TokenLogprobs:
        """Put together what `tensors` took apart. `asked`: names of the stats."""
        logp, entropy, *stats = values
        return TokenLogprobs(logp_BT=logp, entropy_BT=entropy, stats=dict(zip(asked, stats, strict=True)))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """List log-probs, entropies and stats in their order."""
        return self.logp_BT, self.entropy_BT, *self.stats.values()

    def nothing(self) -> torch.Tensor:
        """Make a 0 that hangs on all of them: its backward pass goes the ways of a loss, which ranks with shards must agree on."""
        return torch.stack(self.tensors()).sum() * 0


@dataclass(frozen=True)
class ModelInput:
    """Inputs of the language model besides positions and masks."""

    embeds_BSH: torch.Tensor
    visual_BS: torch.Tensor
    """bool: columns that hold vision features."""
    deepstack: list[torch.Tensor]
    """Features that are added to the visual columns behind the first layers (Qwen3-VL), each [visual columns, H]; empty elsewhere."""

    def arguments(self) -> dict[str, Any]:
        """Make the keyword arguments of the language model's forward."""
        out: dict[str, Any] = {"inputs_embeds": self.embeds_BSH}
        if self.deepstack:
            out |= {"visual_pos_masks": self.visual_BS, "deepstack_visual_embeds": self.deepstack}
        return out


def embed(policy: Policy, ids_BS: torch.Tensor, prompts: Sequence[tuple[Prompt, int, int]], features: Mapping[str, Features]) -> ModelInput:
    """Embed token ids, and put vision features in their placeholders. `ids_BS` lies on the host, where placeholders are counted.
    `prompts` gives prompts with their row and first column, in the order of rows and columns.

    Returns:
        Embeddings [B, S, H] with the columns that hold features.

    Raises:
        ValueError: a row has placeholder ids outside the visual spans of its prompt (a sampled one, for example).
    """
    embeds = policy.core.get_input_embeddings()(to_device(ids_BS, policy.device))
    pads = torch.zeros_like(ids_BS, dtype=torch.bool)
    # by id and not by span: a placeholder that the policy sampled has no span, and must be found
    for pad in policy.bundle.pad_ids.values():
        pads |= ids_BS == pad
    flat_index: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []
    deep: list[list[torch.Tensor]] = []
    for prompt, b, offset in prompts:
        for span in visual_index(prompt):
            found = features[span.handle.key]
            flat_index.append(torch.arange(span.start, span.end) + b * ids_BS.shape[1] + offset)
            parts.append(found.merged[span.first : span.last])
            deep.append([layer[span.first : span.last] for layer in found.deepstack])
    # deepstack layers count their features along this mask: one placeholder that was sampled would move all behind it
    expected = sum(int(index.numel()) for index in flat_index)
    if int(pads.sum()) != expected:
        raise ValueError(f"{int(pads.sum())} placeholder tokens but {expected} vision features: a placeholder id outside a visual span")
    visual = to_device(pads, embeds.device)
    if not parts:
        return ModelInput(embeds, visual, [])
    index = to_device(torch.cat(flat_index), embeds.device)
    flat = embeds.reshape(-1, embeds.shape[-1])
    # features are of the compute type, and the stream of hidden states is float32 (`policy.precision`)
    filled = flat.index_copy(0, index, torch.cat(parts).to(flat.dtype)).view_as(embeds)
    # from layers of each span to spans of each layer, as the model adds them
    return ModelInput(filled, visual, [torch.cat(layer) for layer in zip(*deep, strict=True)])


def repeat(policy: Policy, batch: MicroBatch, vision: VisionCache, *, train: bool, **how: Any) -> TokenLogprobs:
    """Run the model on one row per answer, each with its prompt. `how`: fields of `HeadOptions`.

    Returns:
        Log-probs and entropies [B, T] float32, in nats, and what else is asked for.
    """
    asked = HeadOptions(**how)
    handles = [handle for row in batch.rows for handle in row.prompt.media]
    features = vision.features(policy, handles, train=train)
    inputs = embed(policy, batch.ids_BS, [(row.prompt, b, 0) for b, row in enumerate(batch.rows)], features)
    with policy.autocast():
        hidden_BSH = policy.core.language_model(
            **inputs.arguments(), attention_mask=batch.attention_BS, position_ids=batch.positions_3BS, use_cache=False
        ).last_hidden_state
        values = read_tokens(
            hidden_BSH.flatten(0, 1)[batch.score_M],  # [B, S, H] -> [M, H]: of prompts nobody needs logits
            policy.head,
            batch.targets_M,
            asked,
        )
    return scored(batch.rows, values, asked)


def shared_prefix(policy: Policy, batch: PackedBatch, vision: VisionCache, *, train: bool, **how: Any) -> TokenLogprobs:
    """Run the model on one packed row: every prompt and its media once, whatever the number of its answers. `how`: fields of
    `HeadOptions`.

    Returns:
        Log-probs and entropies [B, T] float32, in nats, and what else is asked for: the values of `repeat`, to rounding.

    Raises:
        ConfigError: the model cannot run packed rows.
    """
    asked = HeadOptions(**how)
    # a model that ignored the layout would read the packed row as one long text, without an error
    require(policy.model.config.get_text_config())
    features = vision.features(policy, [handle for prompt, _ in batch.prompts for handle in prompt.media], train=train)
    inputs = embed(policy, batch.ids_1N, [(prompt, 0, offset) for prompt, offset in batch.prompts], features)
    with policy.autocast():
        hidden_NH = policy.core.language_model(
            **inputs.arguments(),
            # the layout says who sees whom
            attention_mask=None,
            position_ids=batch.positions_31N,
            use_cache=False,
            prefix_layout=batch.layout,
            prefix_backend=policy.prefix_backend,
        ).last_hidden_state[0]
        # [N, H] -> [M, H]; a prompt's last column stands once for each answer, whose first token it predicts
        values = read_tokens(hidden_NH[batch.score_M], policy.head, batch.targets_M, asked)
    return scored(batch.rows, values, asked)


def read_tokens(
    hidden_MH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_M: torch.Tensor,
    asked: HeadOptions,
    *,
    bias: torch.Tensor | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Compute what is asked of the head for scored tokens (`streaming_logprobs`, `token_stats`).

    Returns:
        Log-prob, entropy and each of the `stats` in their order, [M] each.
    """
    how: dict[str, Any] = {"temperature": asked.temperature, "forbidden": asked.forbidden, "bias": bias, "cap": cap}
    values = streaming_logprobs(hidden_MH, head_VH, targets_M, entropy_gradient=asked.entropy_gradient, **how)
    if not asked.stats:
        return values
    from vlmrl.policy.token_stats import token_stats  # a method that needs one

    return (*values, *token_stats(hidden_MH, head_VH, asked.stats, **how))


def scored(rows: Sequence[Row], values: Sequence[torch.Tensor], asked: HeadOptions) -> TokenLogprobs:
    """Put values of response tokens, given row after row as by `read_tokens`, in their places. The places are those of the rows on the
    host: a mask of the device would have to be waited for.

    Returns:
        Log-probs, entropies and stats [B, T]; 0 outside the responses, and without gradient what was asked for so.
    """
    mask_BT, device = response_mask(rows), values[0].device
    where = tuple(to_device(places, device) for places in mask_BT.nonzero(as_tuple=True))
    blank = torch.zeros(mask_BT.shape, dtype=values[0].dtype, device=device)
    gradients = (True, asked.entropy_gradient, *(stat.gradient for stat in asked.stats.values()))
    kept = [value if gradient else value.detach() for value, gradient in zip(values, gradients, strict=True)]
    # [M] -> [B, T]
    return TokenLogprobs.of([blank.index_put(where, value) for value in kept], asked.stats)


@dataclass(frozen=True)
class Layout:
    """A way of packing: how rows become micro-batches, and these log-probs. Samplers, losses and advantages never know which one ran."""

    split: Callable[[Sequence[Row], int], list[list[int]]]
    """(rows, token budget) -> places of the rows of each micro-batch."""
    pack: Callable[..., Any]
    forward: Callable[..., TokenLogprobs]


LAYOUTS: Catalogue[Layout] = Catalogue(
    "layout", {"shared_prefix": Layout(split_shared, pack_shared, shared_prefix), "repeat": Layout(split, pack, repeat)}
)

TURNS = ("chains", "trees")
"""Layouts of what turns of episodes share."""


def layout_of(policy: Policy, name: str) -> Layout:
    """Find a layout as this policy's family runs it.

    Raises:
        KeyError: the family has no such layout.
    """
    return (LAYOUTS if policy.layouts is None else policy.layouts)[name]

"""The layouts in which a model of any family trains through its own forward.

The layouts are those of `families.layouts`. Rows are grouped by their prompts, features of media come from the cache of features, and the
streaming head applies what the model's head does behind its matrix: bias, scale, soft cap.

Letters: M scored columns, V vocabulary, B rows, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vlmrl.extras.families import generic, layouts, routing
from vlmrl.extras.families.generic import Encoded
from vlmrl.extras.families.layouts import Read, Subject
from vlmrl.policy.forward import Layout, TokenLogprobs, read_tokens, scored
from vlmrl.policy.head import HeadOptions
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PositionSpec, Row, by_prompt, response_mask, split_shared, to_device
from vlmrl.policy.repeat import split
from vlmrl.policy.vision import PassFeatures, VisionCache
from vlmrl.registry import Catalogue
from vlmrl.types import Prompt

_LOW = -1e30


@dataclass(frozen=True, kw_only=True)
class RowsBatch:
    """Rows of a micro-batch; tensors of prompts are made where the model is asked for their positions."""

    rows: tuple[Row, ...]
    mask_BT: Tensor
    tokens: int
    """Tokens that pass through the model, padding included."""
    measured: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict[str, tuple[Tensor, Tensor]])
    """Metric -> (sum, count) of what the last forward pass has seen beside its log-probs."""

    @property
    def group_B(self) -> Tensor:
        return torch.tensor([row.group for row in self.rows])


def encoded(subject: Subject, prompt: Prompt, pixels: Any) -> Encoded:
    """A prompt as the layouts take it, with its positions. `pixels`: the media store."""
    argued = [pixels.get_key(handle.key).argued for handle in prompt.media]
    names = dict.fromkeys(name for one in argued for name in one.arguments if not name.startswith("pixel_"))
    inputs = {name: _joined([one.arguments[name] for one in argued if name in one.arguments]) for name in names}
    made = Encoded(
        ids_P=torch.tensor(prompt.ids),
        types={name: torch.tensor(kinds) for name, kinds in prompt.kinds.items()},
        inputs=inputs,
        arguments=tuple(one.arguments for one in argued),
        kinds=tuple(one.kind for one in argued),
        counts=tuple(one.tokens for one in argued),
    )
    return replace(made, places=generic.positions(subject.core, made))


def _joined(parts: Sequence[Any]) -> Any:
    """Arguments of several media as those of one prompt."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts)) if parts[0].ndim and len({p.shape[1:] for p in parts}) == 1 else parts[0]
    return [item for part in parts for item in part] if isinstance(parts[0], list | tuple) else parts[0]


def reading(policy: Policy, asked: HeadOptions) -> Read:
    """(log-prob, entropy, all stats that are asked for) of each scored column, [M, k]."""
    subject: Subject = policy.subject
    head = subject.head

    def whole(found: Tensor, targets: Tensor) -> Tensor:
        z_MV = found.float() / asked.temperature
        banned = torch.tensor(asked.forbidden, dtype=torch.int64, device=z_MV.device)
        logp_MV = torch.log_softmax(z_MV.index_fill(1, banned, _LOW), -1)
        values = [logp_MV.gather(1, targets[:, None])[:, 0], -(logp_MV.exp() * logp_MV).sum(-1)]
        if asked.stats:
            from vlmrl.policy.token_stats import stats_of  # a method that needs one

            values += stats_of(z_MV, asked.stats, asked.forbidden)
        return torch.stack(values, -1)

    def streamed(found: Tensor, targets: Tensor) -> Tensor:
        assert head is not None
        bias = getattr(head.module, "bias", None)
        values = read_tokens(
            found if head.scale == 1.0 else found * head.scale,
            head.module.weight,
            targets,
            asked,
            bias=bias if bias is None or head.scale == 1.0 else bias * head.scale,
            cap=head.cap,
        )
        return torch.stack(values, -1)

    return whole if head is None else streamed


def _pack(width: Callable[[Sequence[Row]], int]) -> Callable[..., RowsBatch]:
    def pack(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> RowsBatch:
        """One micro-batch. Positions and padding are the layout's own affair."""
        del spec, pad_id
        return RowsBatch(rows=tuple(rows), mask_BT=to_device(response_mask(rows), device), tokens=width(rows))

    return pack


def _padded(rows: Sequence[Row]) -> int:
    return len(rows) * max(len(row.prompt.ids) + len(row.response) for row in rows)


def _shared(rows: Sequence[Row]) -> int:
    return sum(len(rows[places[0]].prompt.ids) for places in _groups(rows)) + sum(len(row.response) for row in rows)


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    """Group the places of rows whose prompt is computed once: the same prompt, whose columns take the same experts. A row that was not
    sampled (of the ground truth) takes its own, so it stands apart from those that were, however rows are split."""
    out: list[list[int]] = []
    for places in by_prompt(rows):
        alike: dict[tuple[str, ...], list[int]] = {}
        for place in places:
            alike.setdefault(rows[place].routes[:1], []).append(place)
        out += alike.values()
    return out


def _experts(rows: Sequence[Row]) -> list[Tensor | None]:
    """Experts that the columns of a prompt and of its answers take; none where none were kept."""
    if not rows[0].routes:
        return []
    prompt = rows[0].prompt
    before = routing.read(rows[0].routes[0], routing.mark(prompt.ids, [handle.key for handle in prompt.media]), len(prompt.ids))
    return [before, *(routing.read(row.routes[1], routing.mark(row.response), len(row.response) - 1) for row in rows)]


def _forward(name: str) -> Callable[..., TokenLogprobs]:
    def forward(
        policy: Policy,
        batch: RowsBatch,
        vision: VisionCache | PassFeatures,
        *,
        train: bool,
        **how: Any,
    ) -> TokenLogprobs:
        """Log-probs and entropies of a micro-batch, and what else is asked for. `how`: fields of `HeadOptions`."""
        asked = HeadOptions(**how)
        groups = _groups(batch.rows)
        prompts = [batch.rows[places[0]].prompt for places in groups]
        pixels = vision.pixels if isinstance(vision, VisionCache) else vision.cache.pixels
        features = vision.features(policy, [handle for prompt in prompts for handle in prompt.media], train=train)
        questions = [
            layouts.PromptAnswers(
                prompt=encoded(policy.subject, prompt, pixels),
                media=[features[handle.key].features for handle in prompt.media],
                answers=[batch.rows[place].response for place in places],
                experts=_experts([batch.rows[place] for place in places]),
            )
            for prompt, places in zip(prompts, groups, strict=True)
        ]
        read = reading(policy, asked)
        with policy.autocast(), routing.tallied() as tally:
            found = layouts.LAYOUTS[name](policy.subject, questions, read)
        batch.measured.update(tally.share())
        flat = {place: row for places, group in zip(groups, found, strict=True) for place, row in zip(places, group, strict=True)}
        return scored(batch.rows, torch.cat([flat[place] for place in range(len(batch.rows))]).unbind(1), asked)

    return forward


LAYOUTS: Catalogue[Layout] = Catalogue(
    "layout of a family without code of its own",
    {
        "repeat": Layout(split, _pack(_padded), _forward("repeat")),
        "fork": Layout(split_shared, _pack(_shared), _forward("fork")),
        "shared_prefix": Layout(split_shared, _pack(_shared), _forward("shared_prefix")),
    },
)
"""`policy.forward.LAYOUTS` of such a family."""

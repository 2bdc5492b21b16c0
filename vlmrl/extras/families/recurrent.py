"""Recurrent layers in packed rows: the prompt once, its state forked to the answers. Gated delta nets, short convolutions and their kin.

No mask can keep an answer's state from the next one's columns. So each such layer is run twice on a packed row: on the columns of the
prompt, and then, from copies of the state that it left, on the answers as a batch. The layer's own code runs, whichever kernel it uses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.extras.families.cache import fork_layer, gradient_cache
from vlmrl.extras.families.masks import PackedGroup

T = TypeVar("T")
_GROUPS: ContextVar[tuple[PackedGroup, ...]] = ContextVar("vlmrl_groups", default=())
_CACHES = ("cache_params", "past_key_values")


def install(model: Any) -> list[str]:
    """Make the recurrent layers of a model heed packed rows; their names. Without a packed row they do what they did."""
    done: list[str] = []
    for name, module in model.named_modules():
        key = next((k for k in _CACHES if k in inspect.signature(type(module).forward).parameters), None)
        state = any(isinstance(child, torch.nn.Conv1d) for child in module.children())
        if key is not None and hasattr(module, "layer_idx") and state:
            module.forward = _heeding(module.forward, module.layer_idx, key, model.config.get_text_config())
            done.append(name)
    return done


def _heeding(plain: Callable[..., Any], layer: int, key: str, text_config: Any) -> Callable[..., Any]:
    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        groups = _GROUPS.get()
        if not groups:
            return plain(hidden_states, *args, **kwargs)
        out: list[Tensor] = []
        for group in groups:
            cache = gradient_cache(text_config)
            given = kwargs | {key: cache, "attention_mask": None}
            end = group.start + group.prompt
            out.append(_hidden(plain(hidden_states[:, group.start : end], **given)))
            fork_layer(cache.layers[layer], len(group.answers))
            answers = _hidden(plain(_rows(hidden_states[0, end:], group.answers), **given))
            out += [answers[i : i + 1, :n] for i, n in enumerate(group.answers)]
        return torch.cat(out, 1)

    return forward


def _rows(columns: Tensor, lengths: Sequence[int]) -> Tensor:
    """Answers one behind the other, [columns, H], as a batch padded on the right, [answers, longest, H]."""
    longest = max(lengths)
    parts = columns[: sum(lengths)].split(list(lengths))
    return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])


def _hidden(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def heeded(model: Any, groups: Sequence[PackedGroup]) -> AbstractContextManager[None]:
    """Context of one forward pass of a packed row."""
    return carried(model, _GROUPS, tuple(groups))


@contextmanager
def carried(model: Any, variable: ContextVar[T], value: T) -> Iterator[None]:
    """Context of one forward pass in which a variable has this value. Layers that are recomputed for the backward pass, when this context
    is over, find it too: it travels with what is recomputed."""
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) and hasattr(m, "_gradient_checkpointing_func")]
    before = [layer._gradient_checkpointing_func for layer in layers]
    token = variable.set(value)
    try:
        for layer, checkpoint in zip(layers, before, strict=True):
            layer._gradient_checkpointing_func = _travelling(checkpoint, variable, value)
        yield
    finally:
        variable.reset(token)
        for layer, checkpoint in zip(layers, before, strict=True):
            layer._gradient_checkpointing_func = checkpoint


def _travelling(checkpoint: Callable[..., Any], variable: ContextVar[T], value: T) -> Callable[..., Any]:
    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def again(*inner: Any, **more: Any) -> Any:
            token = variable.set(value)
            try:
                return function(*inner, **more)
            finally:
                variable.reset(token)

        return checkpoint(again, *args, **kwargs)

    return call

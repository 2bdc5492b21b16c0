"""A cache of transformers through which gradients flow, and that can be forked: a prompt is computed once, and each of its answers goes on
from a copy of what the prompt left behind.

Keys and values are concatenated by transformers, so they carry gradients as they are. Recurrent and convolution states are copied in
place there, for CUDA graphs; here they are assigned.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def gradient_cache(text_config: Any) -> Any:
    """A `DynamicCache` with states that carry gradients."""
    from transformers import DynamicCache
    from transformers.cache_utils import LinearAttentionLayer

    cache = DynamicCache(config=text_config)
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionLayer):
            layer.update_conv_state = types.MethodType(_assign_conv, layer)
            layer.update_recurrent_state = types.MethodType(_assign_recurrent, layer)
    return cache


def fork(cache: Any, copies: int) -> None:
    """Repeat everything in the cache for so many rows. Gradients of the copies add up in what they were made of."""
    for layer in cache.layers:
        fork_layer(layer, copies)


def fork_layer(layer: Any, copies: int) -> None:
    """The same for one layer."""
    _each(layer, lambda tensor: tensor.repeat_interleave(copies, 0))


def select(cache: Any, rows: Tensor) -> None:
    """Keep these rows of the cache, by their places."""
    for layer in cache.layers:
        _each(layer, lambda tensor: tensor[rows])


def _each(layer: Any, change: Callable[[Tensor], Tensor]) -> None:
    """Change everything that a layer keeps of the columns before, rows along the first dimension."""
    for name in ("conv_states", "recurrent_states"):
        states: Any = getattr(layer, name, None) or {}
        for place in list(states) if isinstance(states, dict) else range(len(states)):
            if states[place] is not None:
                states[place] = change(states[place])
    if isinstance(getattr(layer, "keys", None), Tensor) and layer.keys.numel():
        layer.keys, layer.values = change(layer.keys), change(layer.values)


def _assign_conv(self: Any, new: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any) -> Tensor:
    """`LinearAttentionLayer.update_conv_state` without a copy in place: [..., columns] -> state and new columns together."""
    size = new.shape[-1] if conv_kernel_size is None else conv_kernel_size
    if not self.has_previous_state[state_idx]:
        full = F.pad(new, (max(size - new.shape[-1], 0), 0))
        self.has_previous_state[state_idx] = self.is_conv_states_initialized[state_idx] = True
        self.conv_kernel_size[state_idx] = size
        if self.device is None:
            self.dtype, self.device = new.dtype, new.device
    else:
        full = torch.cat([self.conv_states[state_idx], new], -1)
    self.conv_states[state_idx] = full[..., -self.conv_kernel_size[state_idx] :]
    return full


def _assign_recurrent(self: Any, state: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
    """`LinearAttentionLayer.update_recurrent_state` without a copy in place."""
    self.is_recurrent_states_initialized[state_idx] = True
    self.recurrent_states[state_idx] = state
    return state

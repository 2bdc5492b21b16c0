"""The module around a policy whose weights lie in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Root(torch.nn.Module):
    """What FSDP2 and DeepSpeed see as the outermost module: any function of the model runs inside its forward, so that their hooks fire.

    The packed forward calls the parts of a transformers model one by one (tower, embeddings, decoder, output matrix) and never the whole.
    Its own hooks would gather the weights of the whole only, and an embedding would be looked up in a shard.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, fn: Callable[[], T]) -> T:
        """`fn()`, which must return a tensor or a tuple of tensors: the hooks of the backward pass hang on them."""
        return fn()

"""Types of weights: float32 where they train, the type of the forward pass where they do not.

Autocast makes products in the compute type, from a copy of each matrix. A matrix that never changes is kept as that copy: 2 bytes a weight
instead of 4 and 2, and nothing to copy in each token. Norms, decay rates and small tables of positions are not in products: they are few,
and stay float32. So does the decoder's stream of hidden states, which starts at the embedding.

So a file in bfloat16 gives the same bits whether its weights train or not, and a reference equals the policy that it is compared with
before the first update. Under FSDP what is gathered has the compute type throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from vlmrl.families.base import Family
from vlmrl.types import Part

Settle = Callable[[Any], None]


def settle_types(model: Any, *, family: Family, compute: torch.dtype, trains: Collection[Part]) -> None:
    """Bring the matrices of parts that do not train, and the biases beside them, to the compute type; they want no gradients then. Nothing
    changes in float32. The model may be empty (on the meta device)."""
    if compute == torch.float32:
        return
    exact = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())  # transformers' own list of what needs 32 bits
    embedding = model.get_input_embeddings()
    # transformers calls the type of its first weight the model's, and some classes bring features to that before they join the stream
    first = None if family.own_code else next(model.parameters())
    for path, module in model.named_modules():
        table = isinstance(module, torch.nn.Embedding) and module is not embedding
        own = dict(module.named_parameters(recurse=False))
        if table or not any(p.ndim > 1 for p in own.values()):
            continue  # tables and norms: see the module docstring
        for name, parameter in own.items():
            whole = f"{path}.{name}" if path else name
            stays = parameter is first or family.part_of(whole) in trains or bool(exact & set(whole.split(".")))
            if parameter.is_floating_point() and not stays:
                parameter.requires_grad_(False)
                parameter.data = parameter.data.to(compute)


def typed(kind: Any, settle: Settle) -> Any:
    """Make a subclass of a transformers model whose empty parameters have the types that `settle` gives: `from_pretrained` brings each
    tensor to the type of the parameter that waits for it. The caller gives the loaded model its own class back."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        settle(self)

    return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__, "__qualname__": kind.__qualname__})


def keep_stream_wide(model: Any) -> None:
    """Start the stream of hidden states in float32 also where the embedding is kept in 16 bits."""
    embedding = model.get_input_embeddings()
    if embedding.weight.element_size() < 4:
        embedding.register_forward_hook(_widen)


def _widen(module: torch.nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    del module, args
    return out.float()

"""Frozen linear layers of the decoder in 4 bits by bitsandbytes: NormalFloat with double quantisation (QLoRA, arXiv:2305.14314, eq. 5-6).

A weight [out, in] lies as two values a byte. Every 64 values share a scale of 8 bits, and 256 scales share one of 32 bits and the mean
that was taken off (eq. 6): 4.127 bits a weight. A product is made with the weight in the compute type, which the layer makes anew in each
pass, forward and backward.

The vision tower, its mergers, embeddings and head stay as they are. The tower runs once for each medium while it is frozen, and is small
beside a decoder; an embedding is a table and no product; and every error of the head goes into a log-prob at full size.

Ours: the layer's forward. That of bitsandbytes packs weights of a CPU with AVX512-BF16 in place at the first pass without a gradient, and
packed ones have no backward pass; it rounds biases in the model to the compute type; and it does not follow autocast.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch

from vlmrl.errors import ConfigError

NF4 = "nf4"
BLOCK = 64
"""Values that share a scale."""


def options(model: Any, compute: torch.dtype) -> Any:
    """Make the options with which `from_pretrained` loads a model with its decoder's layers in 4 bits.

    Args:
        model: the same one, maybe on the meta device; its names say which layers stay as they are.
        compute: type of the products.

    Raises:
        ConfigError: bitsandbytes does not load here, or the model has no layer to quantise.
    """
    _layer()
    from transformers import BitsAndBytesConfig

    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    stay = [name for name in linear if not _quantised(name)]
    if len(stay) == len(linear):
        raise ConfigError(f"model.quantize: {type(model).__name__} has no linear layers under language_model.layers; leave it out")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=NF4,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
        llm_int8_skip_modules=stay,
    )


def settle(model: Any) -> None:
    """Give the layers of a loaded model the forward of this module, and let an export be written as a model that is not quantised."""
    for layer in layers(model).values():
        layer.__class__ = _layer()
    model.hf_quantizer = None
    del model.config.quantization_config


def layers(model: Any) -> dict[str, Any]:
    """Find the layers in 4 bits.

    Returns:
        Name in the model -> layer, in the order of the model.
    """
    return {name: module for name, module in model.named_modules() if is_quantised(module)}


def is_quantised(layer: Any) -> bool:
    """Whether a layer's weight lies in 4 bits."""
    return getattr(getattr(layer, "weight", None), "quant_state", None) is not None


def dense(layer: Any) -> torch.Tensor:
    """Dequantise the weight that the layer computes with.

    Returns:
        [out, in] float32, fresh.
    """
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def _quantised(name: str) -> bool:
    return ".language_model.layers." in f".{name}"


@lru_cache(maxsize=1)
def _layer() -> Any:
    """Make the class of the layers where it is first used, for bitsandbytes need not be there."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of kernels that are not used here
    try:
        import bitsandbytes as bnb  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"model.quantize: needs the bitsandbytes package, which does not load here ({error}); "
            "pip install 'vlmrl[bitsandbytes]', or leave it out"
        ) from error

    linear: Any = bnb.nn.Linear4bit  # pyright: ignore[reportPrivateImportUsage]
    multiply: Any = bnb.matmul_4bit  # pyright: ignore[reportPrivateImportUsage]

    class Nf4Linear(linear):
        """y = dequantised(W) x + b in the type of x, or under autocast in its type, as torch.nn.Linear does."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kind = x.device.type
            if torch.is_autocast_enabled(kind):
                x = x.to(torch.get_autocast_dtype(kind))
            bias = None if self.bias is None else self.bias.to(x.dtype)
            weight: Any = self.weight
            return multiply(x, weight, bias=bias, quant_state=weight.quant_state)

        def dense(self) -> torch.Tensor:
            """The weight that it computes with, float32 [out, in], fresh."""
            return dense(self)

    return Nf4Linear

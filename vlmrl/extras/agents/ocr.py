"""Text in a picture, read by RapidOCR: the models of PP-OCR on a CPU, which its package brings with it. Nothing is loaded from a network.

One thread reads, so that equal pixels give equal text on one machine. Small pictures are not enlarged before text is looked for: the
package's default makes every short side 736 pixels, which takes twenty times as long and splits words.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import Any

import numpy as np

from vlmrl.errors import ConfigError

LONGEST_SIDE = 960
"""Pixels; larger pictures are made smaller before text is looked for in them."""
_SETTINGS = {
    "Global.log_level": "error",
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    "Det.limit_type": "max",
    "Det.limit_side_len": LONGEST_SIDE,
}


def missing() -> str | None:
    """What must be installed before text can be read, in words; None where nothing is missing."""
    lacks = [name for name in ("rapidocr", "onnxruntime") if importlib.util.find_spec(name) is None]
    return f"the tool read_text needs {' and '.join(lacks)}; pip install 'vlmrl[ocr]'" if lacks else None


def version() -> str:
    """What reads, for the identity of an environment: other versions read otherwise."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("rapidocr", "onnxruntime"))


@functools.cache
def reader() -> Any:
    """The reader of this process; seconds to make.

    Raises:
        ConfigError: it is not installed.
    """
    lacks = missing()
    if lacks is not None:
        raise ConfigError(lacks)
    from rapidocr import RapidOCR  # heavy, and optional  # pyright: ignore[reportMissingImports]

    return RapidOCR(params=_SETTINGS)


def read(pixels: np.ndarray) -> tuple[str, ...]:
    """Lines of text in a picture, uint8 [H, W, 3] in RGB, from the top; none where there is no text.

    Raises:
        ConfigError: as `reader`.
    """
    found = reader()(np.ascontiguousarray(pixels[..., ::-1]))  # it takes BGR
    return tuple(found.txts or ())

"""The most tiles that a family's own processor cuts a picture into: under which name it keeps that number, and what has to follow it.

A picture as a whole that stands beside its tiles (thumbnail, global picture) is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from vlmrl.errors import ConfigError

PINS = "image_grid_pinpoints"


def cap(processor: Any, most: int, path: str) -> None:
    """Set the processor's own cap. It is saved with the processor, so a model that is exported goes on with it.

    Raises:
        ConfigError: the processor cuts no tiles, or cannot cut so few or so many.
    """
    images = processor.image_processor
    for kept, setter in _SETTERS:
        if kept(images):
            setter(processor, images, most)
            return
    raise ConfigError(
        f"media.max_tiles: {type(processor).__name__} of '{path}' cuts pictures into no tiles under a cap that its files keep; leave it "
        "out, media.max_pixels bounds pictures of any family"
    )


def follow(config: Any, processor: Any) -> None:
    """Some cores read the shapes of tiles from the model's config as well (LLaVA): give it those of the processor."""
    pins = getattr(processor.image_processor, PINS, None)
    if pins is not None and getattr(config, PINS, None) is not None:
        setattr(config, PINS, [list(pin) for pin in pins])


def _bounded(images: Any, least: str, name: str, most: int) -> None:
    """Set a cap, and lower the bound from below to it."""
    setattr(images, name, most)
    if getattr(images, least, None) is not None:
        setattr(images, least, min(getattr(images, least), most))


def _patches(processor: Any, images: Any, most: int) -> None:
    """InternVL, Cohere 2, Ovis 2, Llama 4."""
    _bounded(images, "min_patches", "max_patches", most)


def _tiles(processor: Any, images: Any, most: int) -> None:
    """LFM2-VL."""
    _splits(processor, images)
    _bounded(images, "min_tiles", "max_tiles", most)


def _slices(processor: Any, images: Any, most: int) -> None:
    """MiniCPM-V, which slices frames of clips too."""
    for part in (images, getattr(processor, "video_processor", None)):
        if part is not None:
            part.max_slice_nums = most


def _pins(processor: Any, images: Any, most: int) -> None:
    """LLaVA-NeXT and LLaVA-OneVision: the resolutions of so few tiles."""
    box = getattr(images, "crop_size", None) or images.size
    area = box["height"] * box["width"]
    kept = [list(pin) for pin in getattr(images, PINS) if math.prod(pin) <= most * area]
    if not kept:
        fewest = min(math.ceil(math.prod(pin) / area) for pin in getattr(images, PINS))
        raise ConfigError(f"media.max_tiles: {most} is fewer than {type(processor).__name__} can cut; take {fewest} or more")
    setattr(images, PINS, kept)


def _squares(processor: Any, images: Any, most: int) -> None:
    """SmolVLM and Idefics3: the longer side of a picture always has as many tiles as this allows, the shorter one as many or fewer."""
    _splits(processor, images)
    side = math.isqrt(most)
    if side > 1 and f"<row_{side}_col_{side}>" not in processor.tokenizer.get_vocab():
        raise ConfigError(f"media.max_tiles: the tokenizer has no words for {side} rows of tiles; take {(side - 1) ** 2} or fewer")
    images.size = type(images.size)(longest_edge=side * images.max_image_size["longest_edge"])


def _splits(processor: Any, images: Any) -> None:
    if not images.do_image_splitting:
        raise ConfigError(
            f"media.max_tiles: the files of {type(processor).__name__} say do_image_splitting: false, so every picture is one tile "
            "already; leave it out"
        )


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda images: all(getattr(images, name, None) is not None for name in names)


_SETTERS: Sequence[tuple[Callable[[Any], bool], Callable[[Any, Any, int], None]]] = (
    (_has("max_patches", "crop_to_patches"), _patches),
    (_has("max_patches", "resize_to_max_canvas"), _patches),
    (_has("max_tiles", "do_image_splitting"), _tiles),
    (_has("max_slice_nums"), _slices),
    (_has(PINS), _pins),
    (_has("max_image_size", "do_image_splitting"), _squares),
)
"""(whether an image processor is of this kind, how its cap is set): by what it has, whichever family it is of."""

"""The media store and the encoder of a run, made from its config and processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vlmrl.config.schema import Config
from vlmrl.data.encode import Encoder
from vlmrl.media.store import MediaSettings, MediaStore

if TYPE_CHECKING:
    from vlmrl.policy.model import ProcessorBundle


def media_settings(cfg: Config) -> MediaSettings:
    """How media are sampled and sized, from the recipe."""
    m = cfg.media
    return MediaSettings(
        min_pixels=m.min_pixels,
        max_pixels=m.max_pixels,
        video_total_pixels=m.video_total_pixels,
        fps=m.fps,
        min_frames=m.min_frames,
        max_frames=m.max_frames,
        cache_bytes=m.cache_bytes,
        decoder=m.decoder,
        workers=m.workers,
        deadline=m.deadline,
    )


def open_media(cfg: Config, bundle: ProcessorBundle, data: Path) -> tuple[MediaStore, Encoder]:
    """`data` is the folder that sources and media roots are relative to."""
    store = MediaStore.of(media_settings(cfg), bundle)
    return store, Encoder.of(bundle, store, data, max_prompt_tokens=cfg.data.max_prompt_tokens, prompt=cfg.data.prompt)

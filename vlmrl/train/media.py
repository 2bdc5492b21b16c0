"""The media store and the encoder of a run, made from its config and processor."""

from __future__ import annotations

from pathlib import Path

from vlmrl.config.schema import Config
from vlmrl.data.encode import Encoder
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.model import ProcessorBundle


def open_media(cfg: Config, bundle: ProcessorBundle, data: Path) -> tuple[MediaStore, Encoder]:
    """`data` is the folder that sources and media roots are relative to."""
    m = cfg.media
    store = MediaStore.of(
        MediaSettings(
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
        ),
        bundle,
    )
    return store, Encoder.of(bundle, store, data, max_prompt_tokens=cfg.data.max_prompt_tokens)

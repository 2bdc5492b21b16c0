"""The media store and the encoder of a run, made from its config and processor."""

from __future__ import annotations

from pathlib import Path

from vlmrl.config.schema import Config
from vlmrl.data.encode import Encoder
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import ProcessorBundle


def open_media(cfg: Config, bundle: ProcessorBundle, data: Path) -> tuple[MediaStore, Encoder]:
    """`data` is the folder that sources and media roots are relative to."""
    m = cfg.media
    store = MediaStore(
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
        patchify=bundle.patchify,
        patch_size=bundle.patch_size,
        merge_size=bundle.merge_size,
        temporal_patch_size=bundle.temporal_patch_size,
        fingerprint=bundle.fingerprint,
        step_times=bundle.step_times,
    )
    encoder = Encoder(
        tokenizer=bundle.tokenizer,
        media=store,
        data_root=data,
        pad_ids=bundle.pad_ids,
        special_ids=bundle.special_ids,
        max_prompt_tokens=cfg.data.max_prompt_tokens,
    )
    return store, encoder

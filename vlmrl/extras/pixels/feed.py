"""Makes what the trainers are fed: a tiny model that looks at its pixels, one that wants placeholders, pictures and lossless videos."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from vlmrl.config.schema import ToySection
from vlmrl.extras.pixels.job import Job, Row
from vlmrl.run.optional import TOY

CELL = 28
"""Pixels along the side of a visual token of the tiny model."""
TICKS = 12_000
"""Time base of the videos, per second."""
LOUDER = 8.0
"""Factor on the last layer of the merger: the tiny model starts with soft features, and log-probs shall tell one picture from another."""
WANT = 40.0
"""Logit of placeholders in the model that wants them, in deviations of a projection of the hidden state."""
PLACEHOLDERS = ("<|image_pad|>", "<|video_pad|>")


@dataclass
class Feed:
    """A folder with models and media, all made from seeds."""

    folder: Path
    jobs: int = 0

    def model(self, wants_placeholders: bool = False) -> str:
        """Make the model, once, and return its folder.

        Args:
            wants_placeholders: at every token either an image or a video placeholder is by far the likeliest.
        """
        out = self.folder / ("wants" if wants_placeholders else "model")
        if not (out / "READY").exists():
            _make_model(out, wants_placeholders)
        return str(out)

    def job(self, *rows: Row, wants_placeholders: bool = False, **how: Any) -> Job:
        """Make a job with a new folder. `how`: fields of `Job`."""
        self.jobs += 1
        folder = self.folder / f"job-{self.jobs}"
        folder.mkdir(parents=True)
        return Job(model=self.model(wants_placeholders), folder=str(folder), rows=rows, **how)

    def save(self, name: str, picture: Image.Image | np.ndarray, **how: Any) -> str:
        """Write a picture; the suffix of `name` says how."""
        path = self.folder / name
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        image.save(path, **how)
        return str(path)

    def video(self, name: str, frames: np.ndarray, times: Sequence[float], last: float) -> str:
        """Write frames uint8 [T, H, W, 3] as an MP4 that loses no bit. Frame i comes on screen at `times[i]` seconds, the last one for
        `last` seconds."""
        import av

        path = self.folder / name
        with av.open(str(path), mode="w") as container:
            options = {"qp": "0", "preset": "ultrafast", "threads": "1", "bf": "0"}
            rate = 1 / Fraction(last).limit_denominator(TICKS)
            stream = cast(Any, container.add_stream("libx264rgb", rate=rate, options=options))
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "rgb24"
            stream.codec_context.time_base = Fraction(1, TICKS)
            for time, pixels in zip(times, frames, strict=True):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = round(time * TICKS), Fraction(1, TICKS)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return str(path)


def blocks(seed: int, width: int, height: int, count: int = 1) -> np.ndarray:
    """Draw `count` pictures of coloured blocks, 14 pixels a side, from a seed.

    Returns:
        uint8 [count, height, width, 3].
    """
    random = np.random.Generator(np.random.Philox(seed))
    small = random.integers(0, 256, (count, -(-height // 14), -(-width // 14), 3), dtype=np.uint8)
    return small.repeat(14, axis=1).repeat(14, axis=2)[:, :height, :width].copy()


def _make_model(out: Path, wants_placeholders: bool) -> None:
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    TOY["untrained"](ToySection(), out)
    model: Any = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32, trust_remote_code=False, use_safetensors=True)
    with torch.no_grad():
        model.model.visual.merger.mlp[2].weight.mul_(LOUDER)
        if wants_placeholders:
            direction = torch.randn(model.lm_head.weight.shape[1], generator=torch.Generator().manual_seed(0))
            direction /= direction.norm()
            # opposite rows: whatever the hidden state, one of the two is the likeliest token by far
            tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=False)
            ids = tokenizer.convert_tokens_to_ids(list(PLACEHOLDERS))
            model.lm_head.weight[ids[0]], model.lm_head.weight[ids[1]] = WANT * direction, -WANT * direction
    model.save_pretrained(out)
    (out / "READY").touch()

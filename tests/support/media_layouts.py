"""One prompt of each media layout that a family has to get right, of a tiny model: text, image, images, video, videos, image and video."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.support import tiny
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.extras.toy.multitask import items
from vlmrl.extras.toy.picture import png
from vlmrl.types import MediaRef, Prompt

LAYOUTS = ("text", "image", "images", "video", "videos", "mixed")


def make(folder: Path, family: ModelFamily) -> tiny.Tiny:
    """A tiny model with videos and two pictures, under the position rule `max`."""
    model, world = tiny.make_files(folder, sft=2, train=6, test=2, family=family)
    (world / "images" / "train").mkdir(parents=True)
    for item in [one for index in range(2) for one in items(0, "train", index)]:
        (world / item.row["image"]).write_bytes(png(item.pixels))
    loaded = tiny.load(model, world)
    loaded.policy.positions = dataclasses.replace(loaded.policy.positions, rule="max")
    return loaded


def prompts(loaded: tiny.Tiny, answer_format: str = "answer_only") -> dict[str, Prompt]:
    """Layout -> a prompt of it."""
    root = loaded.encoder.data_root
    pictures = [MediaRef(kind="image", path=str(path.relative_to(root))) for path in sorted((root / "images" / "train").iterdir())[:2]]
    one, two = (sample.media[0] for sample in loaded.samples[:2])
    media = {
        "text": (),
        "image": (pictures[0],),
        "images": tuple(pictures),
        "video": (one,),
        "videos": (one, two),
        "mixed": (pictures[0], one),
    }
    return {
        name: loaded.encoder.encode(dataclasses.replace(loaded.samples[0], id=name, media=shown), answer_format)
        for name, shown in media.items()
    }

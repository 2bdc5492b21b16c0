"""What can be told without pixels or weights: tokens from the headers of media, sizes from the headers of shards (P2)."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch

from vlmrl.extras.families import generic
from vlmrl.extras.families.conform.check import Check, broken, equal
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.subject import Tried
from vlmrl.extras.families.generic import Clip, Medium, Size
from vlmrl.families import stored
from vlmrl.media.headers import read_image_size


def planned(tried: Tried) -> list[Check]:
    """P2: ids and tokens per medium are known from the headers of files alone, before anything is decoded."""
    out: list[Check] = []
    for name, prompt in tried.prompts.items():
        if not prompt.counts:
            continue
        try:
            ours = generic.plan(tried.processor, tried.facts.pads, tried.asked[name].messages, read_sizes(tried.asked[name].media))
        except ERRORS as error:
            out.append(broken("P2", name, "planned from headers", error))
            continue
        same = ours.counts == prompt.counts and torch.equal(ours.ids_P, prompt.ids_P)
        out.append(equal("P2", name, "planned from headers", same, f"{ours.counts} planned, {prompt.counts} encoded"))
    return out


def read_sizes(media: Sequence[Medium]) -> list[Size]:
    """Sizes of media: of pictures as read from the header of a file, of clips as a container states them."""
    return [
        Size(*m.frames.shape[1:3], frames=len(m.frames), fps=m.fps) if isinstance(m, Clip) else Size(*read_image_size(_file(m)))
        for m in media
    ]


def _file(picture: np.ndarray) -> io.BytesIO:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return out


def shards(tried: Tried) -> list[Check]:
    """P2: the headers of a folder's shards name as many numbers as the model has, each of them once."""
    if tried.folder is None:
        return []
    model = tried.subject.model
    named = {id(t): t.numel() for t in model.state_dict(keep_vars=True).values()}
    counted, _ = stored.sizes(stored.stored(tried.folder))
    ours = sum(named.values())
    return [equal("P2", "weights", "numbers by the headers of the shards", counted == ours, f"{counted} stored, {ours} loaded")]

"""What a judge is shown of a rollout: the pictures of its prompt as PNG files, and the sentences and boxes of its thought.

No file is opened: frames come from the run's media store.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.metrics.boxes import Box
from vlmrl.protocols import RewardContext
from vlmrl.types import Group


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of a request, with the line of text that stands before it."""

    label: str
    png: bytes
    digest: str
    """sha256 of label and PNG: part of the address of the verdict."""

    def part(self) -> dict[str, Any]:
        """As content of a chat message."""
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(self.png).decode()}}


def pictures(group: Group, ctx: RewardContext) -> tuple[Picture, ...]:
    """Every frame of every medium of the group's prompt, in order.

    Raises:
        ValueError: pixels of the prompt are not in `ctx.media`. A judge is never asked about pictures that it does not get.
    """
    sample, handles = group.prompt.sample, group.prompt.media
    if len(handles) != len(sample.media):
        raise ValueError(
            f"row '{sample.id}' ({sample.source}): {len(sample.media)} media but {len(handles)} of them processed; a judge with pictures "
            "needs prompts made by `data.encode`"
        )
    out: list[Picture] = []
    for number, handle in enumerate(handles, start=1):
        if handle.key not in ctx.media:
            raise ValueError(
                f"row '{sample.id}' ({sample.source}): the pixels of medium {number} ({handle.kind}) are not in the reward's context "
                "(`RewardContext.media`), so a judge cannot see what the policy saw"
            )
        medium = ctx.media[handle.key]
        for i, frame in enumerate(medium.frames):
            label = f"Image {number}:" if medium.times is None else f"Video {number}, frame at {float(medium.times[i]):.2f} s:"
            out.append(_picture(label, frame))
    return tuple(out)


def _picture(label: str, frame: np.ndarray) -> Picture:
    png = encode_png(frame)
    return Picture(label=label, png=png, digest=hashlib.sha256(label.encode() + b"\0" + png).hexdigest())


def encode_png(frame: np.ndarray) -> bytes:
    """uint8 [h, w, 3] as a lossless PNG.

    Raises:
        ValueError: another shape or type.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise ValueError(f"a picture must be uint8 [h, w, 3], got {frame.dtype} {list(frame.shape)}")
    height, width = frame.shape[:2]
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = frame.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


BIGGEST = 1e6
"""Coordinates beyond this are no coordinates."""
NO_BOX: Box = (0.0, 0.0, 0.0, 0.0)
"""Stands for a malformed box: it counts as one and overlaps nothing."""

_END = re.compile(r"(?<=[.!?])\s+|\n+")
_OPENER = re.compile(
    r"(?:let me|let's|let us|therefore|thus|hence|wait|hmm+|ok(?:ay)?|so|first|next|now|then|finally|alright|in summary|to answer|"
    r"i need to|i should|i will|i'll|i think|maybe|perhaps)\b",
    re.IGNORECASE,
)
_VISUAL = re.compile(
    r"\d|<bbox>|\b(?:red|green|blue|yellow|orange|purple|pink|brown|black|white|gr[ae]y|silver|gold|colou?r\w*|left|right|above|below|"
    r"under|over|behind|front|beside|between|near\w*|next to|far\w*|top|bottom|cent(?:er|re)|middle|corner|inside|outside|on|in|"
    r"image|picture|photo|frame|video|scene|screen|background|foreground|object\w*|person|people|man|woman|child\w*|hand\w*|face\w*|"
    r"car\w*|vehicle\w*|dog|cat|animal\w*|table|chair|wall|door|window|building|tree|road|text|sign|label|button|line|circle|square|"
    r"triangle|rectangle|shape\w*|big\w*|small\w*|large\w*|tall\w*|short\w*|round|see\w*|show\w*|visible|appear\w*|look\w*)\b",
    re.IGNORECASE,
)
_TRIVIAL_WORDS = 16
_NUMBER = r"\s*([+-]?\d{1,12}(?:\.\d{0,12})?)\s*"
_CORNERS = re.compile(rf"\s*\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]\s*")
_ANSWERS = re.compile(
    r"\b(?:final (?:answer|choice|decision)|(?:my|the) (?:answer|choice)|(?:correct|right|best) (?:answer|option|choice)"
    r"|answer\s*(?:is|:|=|should|must|would)|(?:option|choice|choose|pick|select)\s*\(?[a-t]\)?(?![a-z])"
    r"|i(?:'ll| will| would|'d)? (?:choose|pick|select|go with|answer))|\\boxed|<answer>",
    re.IGNORECASE,
)


def sentences(text: str) -> list[str]:
    """Split after `.`, `!`, `?` with white space behind, and at line ends; linear in the text."""
    return [part.strip() for part in _END.split(text) if part.strip()]


def is_trivial(sentence: str) -> bool:
    """A planning, hedging or meta sentence without a word of something visible: there is nothing to check in it."""
    return len(sentence.split()) <= _TRIVIAL_WORDS and _OPENER.match(sentence) is not None and _VISUAL.search(sentence) is None


def cited_boxes(text: str) -> list[Box]:
    """Every `<bbox>[x1,y1,x2,y2]</bbox>`, in order; a malformed one, also one never closed, is `NO_BOX`. Linear in the text."""
    out: list[Box] = []
    for piece in text.split("<bbox>")[1:]:
        inner, closed, _ = piece.partition("</bbox>")
        match = _CORNERS.fullmatch(inner) if closed and len(inner) <= 200 else None
        box = NO_BOX if match is None else (float(match[1]), float(match[2]), float(match[3]), float(match[4]))
        out.append(box if max(map(abs, box)) <= BIGGEST else NO_BOX)
    return out


def without_answer(thought: str, last: int = 3) -> str:
    """The thought without sentences of its last `last` that state an answer, wherever they stand among them."""
    parts = sentences(thought)
    kept = parts[:-last] if len(parts) > last else []
    return " ".join([*kept, *(part for part in parts[len(kept) :] if not _ANSWERS.search(part))])


def spread(count: int, most: int) -> list[int]:
    """At most `most` of range(count), evenly spaced from the first to the last."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [i * (count - 1) // (most - 1) for i in range(most)]

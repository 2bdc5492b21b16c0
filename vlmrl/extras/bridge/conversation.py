"""Turns the messages of lmms-eval into a `Prompt`, by the one path that makes prompts (`data.encode.Encoder`).

A sample of ours is one user turn with its media together; upstream messages may have several turns and media anywhere. So the sample
holds text and media, and the encoder's tokenizer is shown the turns themselves where the sample's own turn would be rendered. Counts
of placeholders and of control tokens are checked as for every prompt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from vlmrl import fs
from vlmrl.answers.tags import FREE
from vlmrl.data.encode import Encoder
from vlmrl.errors import RowError
from vlmrl.types import MediaKind, MediaRef, Prompt, Sample

ROOT = Path("/")
"""Media of upstream tasks are named by absolute paths; the code of a task is trusted to name them, as it is trusted to run."""

_AS_THEY_ARE = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
"""Modes of Pillow that a PNG keeps; of the others, those with an alpha channel become RGBA and the rest RGB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn: texts and media in the order in which they are shown."""

    role: str
    parts: tuple[str | MediaRef, ...]


class Pictures:
    """Pictures that tasks hold in memory, kept as PNG files under the hash of their content, so that equal pictures are one medium."""

    def __init__(self, folder: Path):
        self.folder = folder

    def keep(self, image: Image.Image) -> str:
        """The absolute path of the picture's file. Upright pixels are kept without loss; colour profiles are not applied."""
        data = png(image)
        path = self.folder.absolute() / f"{hashlib.sha256(data).hexdigest()}.png"
        if not path.exists():
            fs.mkdir(self.folder)
            fs.write_bytes(path, data)
        return str(path)


def png(image: Image.Image) -> bytes:
    """The picture as a PNG file, upright."""
    upright = ImageOps.exif_transpose(image) or image
    if upright.mode not in _AS_THEY_ARE:
        upright = upright.convert("RGBA" if upright.mode in ("PA", "La", "RGBa") else "RGB")
    buffer = io.BytesIO()
    upright.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def read_messages(messages: Sequence[Mapping[str, Any]], pictures: Pictures, where: str) -> tuple[Turn, ...]:
    """The turns of upstream messages.

    Raises:
        RowError: `message`, for content of another shape, audio, parts of videos, and addresses on the network.
    """
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, Sequence) or not isinstance(message.get("role"), str):
            raise RowError("message", f"{where}: turn {number} needs a 'role' and a 'content' of text or a list")
        turns.append(Turn(role=message["role"], parts=tuple(_part(part, pictures, f"{where}, turn {number}") for part in content)))
    return tuple(turns)


def _part(part: Mapping[str, Any], pictures: Pictures, where: str) -> str | MediaRef:
    kind = part.get("type")
    if kind == "text":
        return str(part["text"])
    if kind not in ("image", "video"):
        raise RowError("message", f"{where}: content of type {kind!r}; supported are text, image and video")
    url = part.get("url")
    if kind == "image" and isinstance(url, Image.Image):
        url = pictures.keep(url)
    if not isinstance(url, str):
        raise RowError("message", f"{where}: {kind} given as {type(url).__name__}; supported are file paths, and pictures of Pillow")
    if "://" in url or url.startswith("data:"):
        raise RowError("message", f"{where}: {url[:60]!r}: nothing is downloaded; give the path of a local file")
    media: MediaKind = "image" if kind == "image" else "video"
    return MediaRef(kind=media, path=os.path.abspath(url).lstrip("/"))


def with_instruction(turns: Sequence[Turn], ask: str) -> tuple[Turn, ...]:
    """The turns with an instruction after the last text; unchanged where it is empty."""
    if not ask:
        return tuple(turns)
    *before, last = turns
    *parts, end = last.parts or ("",)
    ended = [*parts, f"{end} {ask}"] if isinstance(end, str) else [*parts, end, ask]
    return (*before, Turn(role=last.role, parts=tuple(ended)))


def encode(turns: Sequence[Turn], encoder: Encoder, *, name: str, task: str, source: str) -> Prompt:
    """The prompt of a conversation. Media paths are relative to `ROOT`.

    Args:
        name, task: of the sample.
        source: where the document is, for messages.

    Raises:
        MediaError, RowError: as `Encoder.encode`.
    """
    question = "\n".join(part for turn in turns for part in turn.parts if isinstance(part, str))
    media = tuple(part for turn in turns for part in turn.parts if isinstance(part, MediaRef))
    sample = Sample(id=name, task=task, answer_type="upstream", question=question, media=media, answer="", gt={}, source=source)
    shown = dataclasses.replace(encoder, tokenizer=_Shown(encoder.tokenizer, turns, question), data_root=ROOT)
    return shown.encode(sample, FREE)


class _Shown:
    """A tokenizer that renders the turns of one conversation where a sample's turn is asked for.

    The encoder also renders the sample with another question, to count control tokens; then every text is replaced by that question.
    """

    def __init__(self, tokenizer: Any, turns: Sequence[Turn], question: str):
        self._tokenizer, self._turns, self._question = tokenizer, turns, question

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        asked = "".join(part["text"] for turn in conversation for part in turn["content"] if part["type"] == "text")
        other = None if asked == self._question else asked
        shown = [{"role": turn.role, "content": [_content(part, other) for part in turn.parts]} for turn in self._turns]
        return self._tokenizer.apply_chat_template(shown, **kwargs)

    def __call__(self, text: str, **kwargs: Any) -> Any:
        return self._tokenizer(text, **kwargs)

    def convert_ids_to_tokens(self, ids: int) -> Any:
        return self._tokenizer.convert_ids_to_tokens(ids)


def _content(part: str | MediaRef, other: str | None) -> dict[str, str]:
    if isinstance(part, MediaRef):
        return {"type": part.kind}
    return {"type": "text", "text": part if other is None else other}

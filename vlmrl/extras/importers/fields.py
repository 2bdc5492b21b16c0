"""The parts that an adapter takes out of a row, and safe readers of its keys."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import MediaError, RowError
from vlmrl.media.access import IMAGE_BYTES, SUFFIXES, open_media
from vlmrl.types import CoordinateFrame

if TYPE_CHECKING:
    from vlmrl.answers.coordinates import Size

PROCESSING = ("fps", "nframes", "min_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width")
"""Keys that other trainers put on a medium. How media are processed is the recipe's `media` section here; they go to `meta`."""


@dataclass(kw_only=True, slots=True)
class Found:
    """The parts of a foreign row, in foreign terms; `adapters.build.build` turns them into a row of our schema."""

    question: str
    history: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Earlier questions with their answers."""
    answer: object = None
    images: list[object] = field(default_factory=list[object])
    videos: list[object] = field(default_factory=list[object])
    answer_type: str | None = None
    task: str | None = None
    id: str | None = None
    options: list[str] = field(default_factory=list[str])
    system: str | None = None
    thought: str | None = None
    data_type: str | None = None
    source: str | None = None
    frame: CoordinateFrame | None = None
    """Where the row itself declares it."""
    size: Size | None = None
    """Of the first picture, where `objects` of the row declares it."""
    meta: dict[str, Any] = field(default_factory=dict[str, Any])


def text_of(row: Mapping[str, Any], key: str) -> str:
    """A text that must be there.

    Raises:
        RowError: `missing_key`, `bad_type` or `bad_value`.
    """
    if row.get(key) is None:
        raise RowError("missing_key", f"'{key}' is missing")
    value = row[key]
    if not isinstance(value, str):
        raise RowError("bad_type", f"'{key}' must be text, got {type(value).__name__}")
    if not value.strip():
        raise RowError("bad_value", f"'{key}' is empty")
    return value


def optional_text(row: Mapping[str, Any], key: str) -> str | None:
    """A text that may be missing, null or empty (then None)."""
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise RowError("bad_type", f"'{key}' must be text, got {type(value).__name__}")
    return value if value and value.strip() else None


def mapping_of(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object that may be missing or null (then empty)."""
    value = row.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RowError("bad_type", f"'{key}' must be an object, got {type(value).__name__}")
    return value or {}


def list_of(row: Mapping[str, Any], one: str, many: str) -> list[object]:
    """Media under a singular or a plural key; either may hold one medium or a list of them."""
    if row.get(one) is not None and row.get(many) is not None:
        raise RowError("bad_value", f"'{one}' and '{many}' are both given; use one of them")
    value = row.get(one) if row.get(one) is not None else row.get(many)
    if value is None:
        return []
    if one == "video" and is_pictures(value):
        return [value]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]


def is_pictures(value: object) -> bool:
    """Whether this is a list of pictures and of nothing else: where a video belongs, they are its frames."""
    if not isinstance(value, list) or not value:
        return False
    paths = [item.get("path") if isinstance(item, Mapping) else item for item in cast("list[object]", value)]
    return all(isinstance(path, str) and path.lower().endswith(SUFFIXES) for path in paths)


def id_of(row: Mapping[str, Any], *keys: str) -> str | None:
    """The first of `keys` that is there, as text."""
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise RowError("bad_type", f"'{key}' must be text or a whole number, got {type(value).__name__}")
        if not str(value).strip():
            raise RowError("bad_value", f"'{key}' is empty")
        return str(value)
    return None


def options_of(row: Mapping[str, Any]) -> list[str]:
    """The list of options, without those that are empty."""
    value = row.get("options")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(option, str) for option in value):
        raise RowError("bad_type", "'options' must be a list of texts")
    return [option.strip() for option in value if option.strip()]


def left_over(row: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """Columns that no part of our schema stands for: they go to `meta` under their own names."""
    return {key: value for key, value in row.items() if key not in used and value is not None}


def media_entry(
    item: object, place: str, root: Path | None = None, frames_fps: float | None = None
) -> tuple[str | dict[str, Any], dict[str, Any]]:
    """(what our schema takes for a medium, processing keys that it carried).

    A leading `./` is dropped, and `file://` and absolute paths below `root` become relative to it. Other URLs, absolute paths and `..`
    are refused later, by the schema. A list of pictures is a video, which has `fps` (`sample_fps` of Qwen-VL) or `times` beside it, or
    `frames_fps`.

    Raises:
        RowError: a list of pictures of which nothing says when they are shown, an object without a path, or with keys of unknown meaning.
    """
    if isinstance(item, str):
        return _relative(item, root), {}
    if isinstance(item, list):
        return _frames_entry({"frames": cast("list[object]", item)}, "frames", place, root, frames_fps)
    if isinstance(item, Mapping):
        key = next((key for key in ("frames", "video", "path") if key == "frames" in item or isinstance(item.get(key), list)), None)
        if key is not None:
            return _frames_entry(item, key, place, root, frames_fps)
    else:
        raise RowError("bad_type", f"'{place}' must be a path, got {type(item).__name__}")
    paths = [(key, item[key]) for key in ("path", "image", "video", "url") if item.get(key) is not None]
    unknown = sorted(set(item) - {"path", "image", "video", "url", "type", "sha256", "bytes", *PROCESSING})
    if unknown:
        raise RowError("unknown_key", f"'{place}.{unknown[0]}'")
    if item.get("bytes") is not None:
        raise RowError("image_bytes", f"'{place}' holds bytes; set 'media_folder' of the source to the folder to write them to")
    if len(paths) != 1 or not isinstance(paths[0][1], str):
        raise RowError("bad_type", f"'{place}' must name one path as text under 'path', got keys {sorted(item)}")
    path = _relative(paths[0][1], root)
    extra = {key: item[key] for key in PROCESSING if item.get(key) is not None}
    return ({"path": path, "sha256": item["sha256"]} if item.get("sha256") is not None else path), extra


def _frames_entry(
    item: Mapping[str, Any], key: str, place: str, root: Path | None, frames_fps: float | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A video given as pictures, which stand under `key`: a list, or the folder that holds them."""
    if place.startswith("image"):
        raise RowError("bad_type", f"'{place}' is a list of frames; they make a video, which stands under 'videos'")
    clock = ("times", "fps", "sample_fps")
    unknown = sorted(set(item) - {key, "type", "raw_fps", *clock, *PROCESSING})
    if unknown:
        raise RowError("unknown_key", f"'{place}.{unknown[0]}' (a video given as pictures has 'times', or 'fps' or 'sample_fps')")
    frames = item[key]
    if isinstance(frames, list):
        frames = [media_entry(frame, f"{place}[{i}]", root)[0] for i, frame in enumerate(cast("list[object]", frames))]
    elif isinstance(frames, str):
        frames = _relative(frames, root)
    given = {name: item[name] for name in clock if item.get(name) is not None}
    if "fps" in given and given.get("sample_fps", given["fps"]) != given["fps"]:
        raise RowError("bad_value", f"'{place}.fps' is {given['fps']} and '{place}.sample_fps' is {given['sample_fps']}; give one of them")
    if "sample_fps" in given:
        given["fps"] = given.pop("sample_fps")
    if not given and frames_fps is None:
        how = "give 'fps' or 'times' with it, or 'frames_fps' of the source"
        raise RowError("missing_key", f"'{place}' is a video given as pictures, and nothing says when each is shown; {how}")
    extra = {name: item[name] for name in ("raw_fps", *PROCESSING) if name != "fps" and item.get(name) is not None}
    return {"frames": frames, **(given or {"fps": frames_fps})}, extra


def picture_size(path: str, options: ImportOptions) -> Size:
    """(width, height) of a picture as it is shown, from its header.

    Raises:
        RowError: the folder is not known, or what `media` says about the file (`missing`, `corrupt`, ...).
    """
    from vlmrl.media.headers import read_image_size

    if options.media_dir is None:
        raise RowError("frame", "boxes in pixels need the size of their picture, and the folder of the media is not known")
    try:
        with open_media(options.media_dir, path, max_bytes=IMAGE_BYTES) as file:
            height, width = read_image_size(file, path)
    except MediaError as error:
        raise RowError(error.reason, f"size of {path}: {str(error).removeprefix(error.reason + ': ')}") from error
    return float(width), float(height)


def _relative(path: str, root: Path | None) -> str:
    """The path below `root`; whether it may be opened is for the schema and the media store to say."""
    local = unquote(path[len("file://") :]) if path[: len("file://")].lower() == "file://" else path
    if local.startswith("/") and root is not None:
        for folder in (root.absolute(), root.resolve()):
            below = posixpath.normpath(local)
            if Path(below).is_relative_to(folder) and Path(below) != folder:
                return str(Path(below).relative_to(folder))
    if not path.startswith("./"):
        return path
    normal = posixpath.normpath(path)
    return path if normal.startswith(("..", "/")) or "/../" in path else normal

"""AndroidControl (arXiv:2406.03679) to rows. Layout of the release: `android_control-*` (gzipped TFRecord files) and `splits.json`.

Each record is one episode: n + 1 screenshots (PNG, inside), n actions as JSON with x and y in pixels, n step instructions. The last
screenshot has no action and gives no row. `--level low` gives each step its instruction, `high` only the goal of the episode, `both`
two rows per step; they differ in nothing else. The direction of a scroll is where the view moves.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.answers.coordinates import convert_point
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.gui_rows import action_space, field, kind_of, pointing, step_row, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, main, official, read_json

NAME = "android_control"
LEVELS = ("both", "low", "high")
ACTIONS = {
    "click": "click",
    "long_press": "long_press",
    "scroll": "scroll",
    "open_app": "open_app",
    "input_text": "input_text",
    "navigate_home": "navigate_home",
    "navigate_back": "navigate_back",
    "wait": "wait",
}
"""`action_type`. The description also names `type` (click, type and press enter in one), which no single action stands for."""
SPACE = action_space(ACTIONS.values(), moves="view")
LARGEST = 1 << 30
"""Most bytes of one record; more is a damaged length."""
Features = dict[str, list[Any]]


def rows(root: Path, split: str, *, level: str = "both") -> Iterator[Row | Skipped]:
    """The rows of a split's episodes, in the order of the files.

    Raises:
        DataError: a file is missing or damaged, or an episode of the split is not in the files that are there (by the count, later).
        RowError: an episode is not as described, or has an unknown action.
    """
    wanted = set(field(read_json(official(root, "splits.json")), split, "splits.json"))
    paths = sorted(path for path in root.glob("android_control-*") if path.is_file())
    if not paths:
        raise DataError(f"{root}: no 'android_control-*' file is there; card.md says how the official download is laid out")
    for path in paths:
        for number, record in enumerate(records(path)):
            place = f"{path.name}, record {number}"
            features = example(record, place)
            if one(features, "episode_id", place) in wanted:
                yield from episode(features, split, level, place)


def episode(features: Features, split: str, level: str, place: str) -> Iterator[Row | Skipped]:
    number = one(features, "episode_id", place)
    actions, steps = texts(features, "actions", place), texts(features, "step_instructions", place)
    if not len(actions) == len(steps) == len(features.get("screenshots", ())) - 1:
        counts = f"{len(features.get('screenshots', ()))} screenshots, {len(actions)} actions and {len(steps)} step instructions"
        raise RowError("bad_value", f"{place}, episode {number}: {counts}; expected n + 1, n and n")
    for step in range(len(actions)):
        for wanted in ("low", "high") if level == "both" else (level,):
            make = partial(step_of, features, actions, steps, step, wanted, split, place)
            yield usable(f"{NAME}-{number}-{step}-{wanted}", make, unit=number)


def step_of(features: Features, actions: list[str], steps: list[str], step: int, level: str, split: str, place: str) -> Row:
    number = one(features, "episode_id", place)
    where = f"{place}, episode {number}, step {step}"
    size = (features["screenshot_widths"][step], features["screenshot_heights"][step])
    action = to_action(actions[step], size, where)
    row = step_row(
        id=f"{NAME}-{number}-{step}-{level}",
        task=f"{NAME}_{level}",
        image="",
        goal=texts(features, "goal", place)[0],
        action=action,
        space=SPACE,
        trajectory=f"{NAME}-{number}-{level}",
        step=step,
        length=len(actions),
        history=steps[:step],
        now=steps[step] if level == "low" else None,
        meta={"split": split, "category": action["action"], "episode": number, "level": level, "size": list(size), "scroll": "view"},
    )
    return row | {"image": Embedded(f"screenshots/{number}_{step}.png", features["screenshots"][step])}


def to_action(text: str, size: tuple[int, int], place: str) -> dict[str, Any]:
    """The canonical action of the JSON text, with the point in 0 to 1000."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RowError("bad_value", f"{place}: action {text[:60]!r} is not JSON") from error
    kind = kind_of(field(value, "action_type", place), ACTIONS, place)
    if kind in ("click", "long_press"):
        pixels = [field(value, "x", place), field(value, "y", place)]
        return pointing(kind, convert_point(pixels, frame="pixel", axis="xyxy", target="norm1000", size=size))[0]
    keys = {"scroll": "direction", "open_app": "app_name", "input_text": "text"}
    return {"action": kind} | ({keys[kind]: field(value, keys[kind], place)} if kind in keys else {})


def one(features: Features, key: str, place: str) -> Any:
    return field(features, key, place)[0]


def texts(features: Features, key: str, place: str) -> list[str]:
    try:
        return [value.decode() for value in field(features, key, place)]
    except UnicodeDecodeError as error:
        raise RowError("encoding", f"{place}: '{key}' is not UTF-8") from error


# TFRecord: length (8 bytes), its checksum (4), data, its checksum (4). The checksums of gzip cover all of it, so those are not computed.


def records(path: Path) -> Iterator[bytes]:
    """The records of a gzipped TFRecord file.

    Raises:
        DataError: the file is cut, damaged or something else.
    """
    try:
        with gzip.open(path, "rb") as file:
            while head := file.read(12):
                length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else LARGEST + 1
                data = file.read(length + 4) if length <= LARGEST else b""
                if len(data) != length + 4:
                    raise DataError(f"{path}: a record is cut or its length is damaged; download the file again")
                yield data[:-4]
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: not a gzipped TFRecord file, or cut ({error}); download it again") from error


def example(data: bytes, place: str) -> Features:
    """The features of a `tf.train.Example` message: name -> list of bytes or integers.

    Raises:
        RowError: `not_object`: it is no such message.
    """
    out: Features = {}
    for _, features in fields(data, place):
        for _, entry in fields(features, place):
            pair = dict(fields(entry, place))
            for kind, values in fields(pair.get(2, b""), place):
                found = integers(values, place) if kind == 3 else [value for _, value in fields(values, place)]
                out[name_of(pair.get(1, b""), place)] = found
    return out


def name_of(data: Any, place: str) -> str:
    try:
        return data.decode()
    except (AttributeError, UnicodeDecodeError) as error:
        raise RowError("not_object", f"{place}: not a tf.train.Example message (a feature without a name)") from error


def integers(data: bytes, place: str) -> list[int]:
    """An `Int64List`: packed, or one field per value."""
    out: list[int] = []
    for _, value in fields(data, place):
        if isinstance(value, int):
            out.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = varint(value, at, place)
            out.append(number)
    return out


def fields(data: Any, place: str) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a protocol buffer message that are integers or have a length."""
    if not isinstance(data, bytes):
        raise RowError("not_object", f"{place}: not a tf.train.Example message")
    at = 0
    while at < len(data):
        tag, at = varint(data, at, place)
        value, at = varint(data, at, place)
        if tag & 7 == 0:
            yield tag >> 3, value
        elif tag & 7 == 2 and at + value <= len(data):
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise RowError("not_object", f"{place}: not a tf.train.Example message (field {tag >> 3} of wire type {tag & 7})")


def varint(data: bytes, at: int, place: str) -> tuple[int, int]:
    """(number, place after it) of a variable-length integer."""
    number, shift = 0, 0
    while at < len(data) and shift < 64:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return number, at
    raise RowError("not_object", f"{place}: not a tf.train.Example message (an integer is cut)")


DATASET = Dataset(
    folder=Path(__file__).resolve().parent, rows=rows, splits=("train", "validation", "test"), unit="episode", options={"level": LEVELS}
)

if __name__ == "__main__":
    main(DATASET)

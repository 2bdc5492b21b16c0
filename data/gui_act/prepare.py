"""GUIAct (GUICourse, arXiv:2406.11317) to rows. Layout of the release: `{part}_{split}_data.json` and `{part}_{split}_images.parquet`.

`--part` is `web-single`, `web-multi` or `smartphone`. A record gives positions twice, as text in pixels (`absolute`) and in 0 to 1
(`related`); `related` is read: `<box>x1, y1, x2, y2</box>`, `<point>x, y</point>`. The direction of a web page's scroll is where the view
moves (`down` and `right` are how far), that of a phone's swipe is where the finger goes. A record may have several actions: the row is
about the first, and `meta.more` names the others. Pictures are base64 text in the Parquet file, which is indexed by `image_id`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmrl.answers.coordinates import convert_box, convert_point
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.gui_rows import action_space, field, kind_of, pointing, step_row, swipe, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Embedded, Row, Skipped, main, official, read_json

NAME = "gui_act"
PARTS = ("web-single", "web-multi", "smartphone")
ACTIONS = {
    "click": "click",
    "hover": "hover",
    "tap": "click",
    "input": "input_text",
    "enter": "enter",
    "scroll": "scroll",
    "swipe": "scroll",
    "select_text": "select_text",
    "copy": "copy",
    "copy_text": "copy",
    "select": "select",
    "answer": "answer",
    "go_back": "navigate_back",
    "go_home": "navigate_home",
    "task_complete": "complete",
    "task_impossible": "impossible",
}
"""`name`, in lower case. Of `select_text` the two points are left out: no rule compares them; of `select` the value counts."""
WEB = ("click", "hover", "input_text", "enter", "scroll", "select_text", "copy", "select", "answer")
PHONE = ("click", "input_text", "enter", "scroll", "answer", "navigate_back", "navigate_home", "complete", "impossible")
_UID = re.compile(r"(.+)_step_(\d+)")
_NUMBERS = re.compile(r"<(box|point)>([^<]*)</\1>")


def rows(root: Path, split: str, *, part: str = "web-single") -> Iterator[Row | Skipped]:
    """One row per record, with its picture.

    Raises:
        DataError: a file is missing or not what it should be, or a picture is.
        RowError: a record is not as described, or has an unknown action.
    """
    name = f"{part}_{split}_data.json"
    data = read_json(official(root, name))
    if not isinstance(data, list):
        raise DataError(f"{root / name}: expected a list of records")
    lengths: dict[str, int] = {}
    for item in data:
        trajectory, _ = place_of(field(item, "uid", name))
        lengths[trajectory] = lengths.get(trajectory, 0) + 1
    # By picture, so that each is decoded once and none is kept.
    waiting: dict[str, list[Any]] = {}
    for item in data:
        waiting.setdefault(field(item, "image_id", f"{name}, {item['uid']}"), []).append(item)
    for image_id, picture in pictures(official(root, f"{part}_{split}_images.parquet"), waiting):
        for item in waiting.pop(image_id):
            uid = item["uid"]
            make = partial(row_of, item, picture, part, split, lengths[place_of(uid)[0]], f"{name}, {uid}")
            yield usable(f"{NAME}-{part}-{uid}", make)
    if waiting:
        raise DataError(f"{root}: {part}_{split}_images.parquet lacks {len(waiting)} picture(s), first {next(iter(waiting))!r}")


def row_of(item: Any, picture: bytes, part: str, split: str, length: int, place: str) -> Row:
    labels = field(item, "actions_label", place)
    labels = [labels] if isinstance(labels, dict) else labels
    if not labels:
        raise RowError("bad_value", f"{place}: no action")
    action, off = to_action(labels[0], place)
    size = field(item, "image_size", place)
    trajectory, step = place_of(item["uid"])
    moves = "finger" if part == "smartphone" else "view"
    row = step_row(
        id=f"{NAME}-{part}-{item['uid']}",
        task=f"{NAME}_{part.replace('-', '_')}",
        image="",
        goal=field(item, "question", place),
        action=action,
        space=action_space(PHONE if part == "smartphone" else WEB, moves=moves),
        trajectory=f"{NAME}-{part}-{trajectory}",
        step=step,
        length=length,
        history=[line for line in str(item.get("actions_history") or "").splitlines() if line.strip()],
        thought=item.get("thoughts"),
        meta={
            "split": split,
            "category": action["action"],
            "part": part,
            "size": [field(size, "width", place), field(size, "height", place)],
            "scroll": moves,
            "box_misses_point": off,
            "more": [str(field(label, "name", place)).lower() for label in labels[1:]],
        },
    )
    suffix = ".png" if picture.startswith(b"\x89PNG") else ".jpg"
    return row | {"image": Embedded(f"{part}/{item['image_id']}{suffix}", picture)}


def to_action(label: Any, place: str) -> tuple[dict[str, Any], bool]:
    """(canonical action of one label, whether a box was left out)."""
    name = str(field(label, "name", place)).lower()
    kind = kind_of(name, ACTIONS, place)
    if name in ("click", "hover"):
        return pointing(kind, None, box(related(label, "element", place), place))
    if name == "tap":
        return pointing(kind, point(related(label, "point", place), place))
    if name == "select":
        return {"action": kind, "text": field(label, "text", place)}, False
    if name == "scroll":
        far = related(label, "scroll", place)
        down, right = (float(field(far, key, place)) for key in ("down", "right"))
        return {"action": kind, "direction": swipe(right, down)}, False
    if name == "swipe":
        ends = related(label, "dual_point", place)
        (x1, y1), (x2, y2) = (point(field(ends, key, place), place) for key in ("from", "to"))
        return {"action": kind, "direction": swipe(x2 - x1, y2 - y1)}, False
    if kind in ("input_text", "answer"):
        return {"action": kind, "text": field(label, "text", place)}, False
    return {"action": kind}, False


def related(label: Any, key: str, place: str) -> Any:
    return field(field(label, key, place), "related", f"{place}, {key}")


def box(text: Any, place: str) -> list[float]:
    return convert_box(numbers(text, "box", place), frame="norm1", axis="xyxy", target="norm1000", place=place)


def point(text: Any, place: str) -> list[float]:
    return convert_point(numbers(text, "point", place), frame="norm1", axis="xyxy", target="norm1000")


def numbers(text: Any, tag: str, place: str) -> list[float]:
    """The numbers of `<tag>a, b, ...</tag>`."""
    found = _NUMBERS.search(text) if isinstance(text, str) else None
    if found is None or found[1] != tag:
        raise RowError("bad_type", f"{place}: {str(text)[:60]!r} is not '<{tag}>...</{tag}>'")
    try:
        return [float(part) for part in found[2].split(",")]
    except ValueError as error:
        raise RowError("bad_type", f"{place}: {text[:60]!r} has something else than numbers") from error


def place_of(uid: str) -> tuple[str, int]:
    """(trajectory, step from 0) of a record; records of single steps are trajectories of their own."""
    match = _UID.fullmatch(uid)
    return (match[1], int(match[2])) if match else (uid, 0)


def pictures(path: Path, wanted: Any) -> Iterator[tuple[str, bytes]]:
    """(image id, encoded picture) of those that are wanted, in the order of the file.

    Raises:
        DataError: the file has not the columns `base64` and the index `__index_level_0__`, or a picture is no base64.
    """
    file = pq.ParquetFile(path)
    index = next((name for name in ("__index_level_0__", "image_id", "uid") if name in file.schema_arrow.names), None)
    if index is None or "base64" not in file.schema_arrow.names:
        raise DataError(f"{path}: columns are {', '.join(file.schema_arrow.names)}; expected 'base64' and the index of image ids")
    for batch in file.iter_batches(batch_size=16, columns=[index, "base64"]):
        for name, text in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            if name in wanted:
                try:
                    yield name, base64.b64decode(text, validate=True)
                except (binascii.Error, ValueError) as error:
                    raise DataError(f"{path}: picture {name!r} is not base64 ({error}); download the file again") from error


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train", "test"), options={"part": PARTS})

if __name__ == "__main__":
    main(DATASET)

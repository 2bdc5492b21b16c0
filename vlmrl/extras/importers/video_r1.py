"""Rows of Video-R1 (arXiv:2503.21776), OneThinker (arXiv:2512.03043) and OpenVLThinkerV2 (arXiv:2604.08539).

    {"problem_id": 2, "problem": "What happens?", "problem_type": "multiple choice", "options": ["A. Rain", "B. Snow"],
     "data_type": "video", "path": "./clips/a.mp4", "solution": "<answer>A</answer>", "data_source": "LLaVA-Video-178K"}

`problem_type` is the answer type and the task, with pictures and videos of segmentation apart: by these OpenVLThinkerV2's code ranks the
rewards of a batch (`advantage: g2rpo`). `task_type` is the task of rows without a `problem_type`, else it is kept in `meta`.
`data_source` is the source, `process` (of rows for supervised fine-tuning) the reference thought. Times and boxes carry no unit and no
frame: the source must say `time_unit` and `frame`.

The answers of OneThinker's visual tasks are JSON objects, in the forms that its training code asks a model for and compares with:

    tracking                    {"boxes": {"1": [x1, y1, x2, y2], "2": [...]}}, one box per second
    spatial-temporal grounding  {"time": [start, end], "boxes": {"9": [...], "10": [...]}}, keys are whole seconds
    segmentation, picture       {"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]}
    segmentation, video         the same with "time": seconds

These forms were read in the code that trains on the rows (its prompts and its rewards); the rows themselves were not looked at. What has
another form is refused with the part at fault: other keys, a frame that is no number, a box or point of another length, a picture with
a time, or a video without one. Numbers of points other than the three that its rewards ask for are taken.

`meta.track_unit` is `s` for spatial-temporal grounding whose source says `time_unit: s`: the form asks for keys that are whole seconds
within the time span. It is not set for tracking: keys count seconds from 1, and where 1 lies is not said (the release's own example
gives it to the first frame, which is at 0 s). A row's own `track_unit` is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build, kind_of
from vlmrl.extras.importers.fields import Found, id_of, is_pictures, left_over, list_of, optional_text, options_of, text_of
from vlmrl.extras.importers.text import unwrap

name = "video_r1"
_USED = (
    *("id", "problem_id", "problem", "problem_type", "options", "path", "image", "images", "video", "videos"),
    *("data_type", "data_source", "process"),
)
PROBLEM_TYPES: dict[str, str | None] = {
    "multiple choice": "choice",
    "numerical": "number",
    "regression": "regression",
    "math": "math",
    "ocr": "short_text",
    "free form": "exact_text",
    "open ended": "exact_text",
    "temporal grounding": "time_span",
    "spatial grounding": "bbox",
    "spatial temporal grounding": "spatio_temporal",
    "tracking": "tracking",
    "segmentation": "segmentation",
}


def detect(row: Mapping[str, Any]) -> bool:
    """`problem` with `problem_type` or `path`."""
    others = {"answer_type", "prompt", "messages", "conversations"}
    return "problem" in row and ("problem_type" in row or "path" in row) and not others & set(row)


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    given = next((key for key in ("solution", "answer") if row.get(key) is not None), None)
    if given is None:
        raise RowError("missing_key", "no gold answer: 'solution' or 'answer' is missing")
    images, videos = list_of(row, "image", "images"), list_of(row, "video", "videos")
    kind = _data_type(row, images, videos)
    if row.get("path") is not None:
        if images or videos:
            raise RowError("bad_value", "'path' and 'images' or 'videos' are both given; use one of them")
        listed = list_of(row, "path", "paths")
        (videos if kind == "video" else images).extend([listed] if kind == "video" and is_pictures(listed) else listed)
    if kind == "image" and len(images) > 1:
        kind = "multi_image"
    process = optional_text(row, "process")
    named = None if row.get("problem_type") is None else kind_of(row["problem_type"], PROBLEM_TYPES, "problem_type")
    meta = left_over(row, *_USED, given, *(() if named is not None else ("task_type",)))
    if (named or options.answer_type) == "spatio_temporal" and options.time_unit == "s":
        meta.setdefault("track_unit", "s")
    return build(
        Found(
            question=text_of(row, "problem"),
            answer=row[given],
            images=images,
            videos=videos,
            answer_type=named,
            task=_task(row, named, kind),
            id=id_of(row, "id", "problem_id"),
            options=options_of(row),
            thought=None if process is None else _thought(process),
            data_type=kind,
            source=optional_text(row, "data_source"),
            meta=meta,
        ),
        options,
    )


def _task(row: Mapping[str, Any], answer_type: str | None, kind: str) -> str | None:
    """None: the answer type is the task."""
    if answer_type == "segmentation":
        return f"segmentation_{'video' if kind == 'video' else 'image'}"
    return None if answer_type is not None else optional_text(row, "task_type")


def _data_type(row: Mapping[str, Any], images: list[object], videos: list[object]) -> str:
    kind = row.get("data_type")
    if kind is None and row.get("path") is None:
        return "video" if videos else "image" if images else "text"
    known = ("image", "multi_image", "video", "text")
    if kind not in known:
        raise RowError("bad_value", f"'data_type' is {str(kind)[:40]!r}; known: {', '.join(known)}")
    if kind == "text" and row.get("path") is not None:
        raise RowError("bad_value", "'data_type' is 'text', but the row has a 'path'")
    return str(kind)


def _thought(process: str) -> str:
    """What stands between the think tags, or the whole text if it has none."""
    if "<think" not in process.lower():
        return process.strip()
    _, thought = unwrap(process if "<answer>" in process.lower() else f"{process}<answer>-</answer>")
    return thought or process.strip()

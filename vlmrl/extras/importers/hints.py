"""What to do with rows that no adapter reads: a mapping made from their keys, or why this kind of row is not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.errors import RowError

USUAL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prompt": (("question", "query", "instruction", "prompt", "problem"), ("user", "text", "input", "request", "sentence")),
    "answer": (
        (
            *("answer", "response", "output", "solution", "ground_truth"),
            *("bbox", "box", "boxes", "bbox_2d", "point", "points", "point_2d", "click"),
            *("timestamps", "timestamp", "span", "segment"),
        ),
        ("completion", "label", "target", "caption", "answers", "gold", "time"),
    ),
    "images": (
        ("image", "images", "img", "image_path", "img_path", "image_file", "image_paths", "screenshot", "screenshots", "screen"),
        ("picture", "pictures", "photo", "file_name", "filename", "file"),
    ),
    "videos": (("video", "videos", "video_path", "clip", "video_file"), ("vid",)),
    "options": (("options", "choices", "candidates"), ()),
    "id": (("id", "uid", "question_id", "qid", "index", "sample_id"), ()),
}
"""Our key -> columns that mean it, and columns that do where there is none of these; the surest first."""
_OURS = ("answer_type", "task", "gt")
"""Keys by which a row of our own schema with something missing is known."""


def refuse_kind(row: Mapping[str, Any]) -> None:
    """
    Raises:
        RowError: `preference`, `sound` or `captions`: rows of a kind that is not trained on as it is, with what to do about it.
    """
    if "chosen" in row and "rejected" in row:
        asked = next((key for key in ("prompt", "conversations", "question", "instruction") if key in row), "question")
        key = "messages" if asked == "conversations" else "prompt"
        raise RowError(
            "preference",
            f"pairs of a chosen and a rejected answer (DPO) are not trained on; to take the chosen one as gold answer set "
            f"'columns: {{{key}: {asked}, answer: {'chosen.value' if isinstance(row['chosen'], Mapping) else 'chosen'}}}' of the source",
        )
    if isinstance(row.get("label"), bool) and {"messages", "conversations", "completion"} & set(row):
        how = "keep those with true and leave 'label' out, or map their columns with 'columns' of the source"
        raise RowError("preference", f"answers that 'label' calls good or bad (KTO) are not trained on as they are; {how}")
    for key in ("audios", "audio"):
        if row.get(key):
            raise RowError("sound", f"'{key}': sound is not read; leave these rows out, or leave out '{key}' and its <audio> in the text")
    if isinstance(row.get("captions"), list) and not {"prompt", "question", "messages", "conversations"} & set(row):
        video = next((key for key in ("video_path", "video", "video_id") if key in row), "video_path")
        raise RowError(
            "captions",
            "captions (ShareGPT4Video) have no question; give one with 'columns' of the source, like "
            f'columns: {{prompt: "=Describe the video.", answer: captions.0.content, videos: {video}}}',
        )


def unknown_shape(row: Mapping[str, Any], known: list[str]) -> RowError | None:
    """What to say of a row that no adapter knows; None for one that is of our own schema and lacks something."""
    if any(key in row for key in _OURS):
        return None
    keys = ", ".join(str(key)[:40] for key in list(row)[:12]) + (", ..." if len(row) > 12 else "")
    how = f"; known are {', '.join(known)} (docs/data.md); map the keys with 'columns' of the source"
    return RowError("unknown_shape", f"a row with the keys {keys or '(none)'} has no known shape{how}, like {suggestion(row)}")


def suggestion(row: Mapping[str, Any]) -> str:
    """`columns: {...}` for the keys of a row, with ? where none of them looks right."""
    out: dict[str, str] = {}
    for ours, (sure, less) in USUAL.items():
        found = next((name for name in (*sure, *less) if name in row and name not in out.values()), None)
        if found is not None:
            out[ours] = found
    letters = [letter for letter in "ABCDEFGH" if letter in row]
    if letters[:2] == ["A", "B"]:
        out["options"] = f"[{', '.join(letters)}]"
    if out.get("prompt") == "instruction" and "input" in row:
        out["prompt"] = "[instruction, input]"
    for needed in ("prompt", "answer"):
        out.setdefault(needed, "?")
    order = ("prompt", "answer", "images", "videos", "options", "id")
    return "columns: {" + ", ".join(f"{key}: {out[key]}" for key in order if key in out) + "}"

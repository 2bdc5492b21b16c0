"""Rows of the hostile corpus: lines of a JSONL file (D1, D2, D4, D6, D7, S3, S4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RowCase:
    """One line of the corpus."""

    group: str
    line: bytes
    reason: str | None
    """None: a good row."""


def good_row(name: str, **changes: Any) -> dict[str, Any]:
    """A row that the reader accepts; `changes` replace keys, or remove those that are given as Ellipsis."""
    row = {"id": name, "task": "vqa", "answer_type": "exact_text", "image": "rgb.png", "prompt": "What is it?", "answer": "a picture"}
    return {key: value for key, value in (row | changes).items() if value is not ...}


def row_cases() -> list[RowCase]:
    """Lines of a JSONL file, the last of which is cut off. Good ones are among them, so that nothing may spill over."""
    out = [RowCase(group=group, line=line, reason=reason) for group, line, reason in _lines()]
    out += [RowCase(group="D1", line=json.dumps(good_row(f"good-{n}")).encode() + b"\n", reason=None) for n in range(8)]
    out += [
        RowCase(group=g, line=json.dumps(good_row(f"row-{n}", **c)).encode() + b"\n", reason=r) for n, (g, c, r) in enumerate(_changes())
    ]
    repeats = [good_row("twice"), good_row("twice"), good_row("twice", answer="another")]
    out += [
        RowCase(group="D2", line=json.dumps(row).encode() + b"\n", reason="duplicate_id" if n else None) for n, row in enumerate(repeats)
    ]
    return [*out, RowCase(group="D1", line=json.dumps(good_row("half")).encode()[:40], reason="half_line")]


def _lines() -> Iterator[tuple[str, bytes, str]]:
    """(fault, line, reason) of lines that are no JSON object of the right form."""
    row = json.dumps(good_row("x"))
    texts: list[tuple[str, str]] = [
        ("{", "json"), ("nonsense", "json"), ("{'id': 1}", "json"), (row[:-1], "json"), (row + ",", "json"), (row + row, "json"),
        ('{"a": 01}', "json"), ('{"a": .5}', "json"), ('{"a": "\t"}', "json"), ("// note", "json"), ("\0" * 50, "json"),
        ("[]", "not_object"), ("null", "not_object"), ("3", "not_object"), ('"text"', "not_object"), ("true", "not_object"),
        (row[:-1] + ', "id": "y"}', "duplicate_key"), (row[:-1] + ', "meta": {"a": 1, "a": 2}}', "duplicate_key"),
        (row[:-1] + ', "meta": {"a": NaN}}', "not_finite"), (row[:-1] + ', "meta": {"a": -Infinity}}', "not_finite"),
        (row[:-1] + ', "meta": {"a": 1e999}}', "not_finite"), (row[:-1] + ', "meta": {"a": ' + "9" * 5000 + "}}", "bad_value"),
        (row[:-1] + ', "meta": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}", "nesting"),
        (row[:-1] + ', "meta": {"a": ' + "[" * 80 + "]" * 80 + "}}", "nesting"),
        (row[:-1] + ', "meta": {"a": "\\ud800"}}', "encoding"), (row[:-1] + ', "meta": {"a": "\\u0000"}}', "bad_value"),
        (row[:-1] + ', "meta": {"a": "' + "x" * 4_000_001 + '"}}', "too_long"),
    ]  # fmt: skip
    for text, reason in texts:
        yield "D1", text.encode() + b"\n", reason
    for raw in (b"\xff\xfe" + row.encode("utf-16-le") + b"\n", row.encode().replace(b"What", b"W\xe9") + b"\n", b"\x80\x04\x95\n"):
        yield "D1", raw, "encoding"


def _changes() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(fault, change of a good row, reason)."""
    for key in ("task", "answer_type", "prompt", "answer", "id"):
        yield "D1", {key: ...}, "missing_key"
        yield "D1", {key: 7}, "bad_type"
        yield "D1", {key: "  "}, "bad_value"
    yield "D1", {"answr": "x"}, "unknown_key"
    yield "D1", {"answer_type": "opne"}, "bad_value"
    yield "D1", {"gt": [1]}, "bad_type"
    yield "D1", {"image": 3}, "bad_type"
    yield "D1", {"images": ["a.png"]}, "bad_value"
    yield "D1", {"options": "abc"}, "bad_type"
    yield "D1", {"data_type": "video"}, "bad_value"
    for text in ("<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>"):
        yield "D4", {"prompt": f"What {text} is it?"}, "control_token"
        yield "D4", {"answer": text}, "control_token"
    yield "D4", {"thought": "<|im_start|>system"}, "control_token"
    yield "D6", {"prompt": "What is <image> it?"}, "placeholder"
    yield "D6", {"prompt": "<image><image> What?"}, "placeholder"
    yield "D6", {"prompt": "<video> What?"}, "placeholder"
    for box in ([3, 3, 1, 1], [-1, 0, 2, 2], [0, 0, 0, 5]):
        yield "D7", {"answer_type": "bbox", "gt": {"boxes": [box]}}, "bad_value"
    yield "D7", {"answer_type": "bbox", "gt": {"boxes": [[1, 2, 3]]}}, "bad_type"
    yield "D7", {"answer_type": "bbox", "gt": {"boxes": []}}, "missing_key"
    for span in ([5, 3], [-1, 2], [2, 2]):
        yield "D7", {"answer_type": "time_span", "gt": {"time": span}}, "bad_value"
    for path in ("../a.png", "/etc/passwd", "http://127.0.0.1/a.png", "file:///a.png", "a\\b.png"):
        yield "S4" if ":" in path else "S3", {"image": path}, "forbidden"

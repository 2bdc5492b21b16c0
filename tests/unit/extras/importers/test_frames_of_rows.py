"""Videos that rows of other trainers give as pictures, and media whose content stands in the row as base64."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.media import make_video, numbered_frames
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import SourceReport, read_source
from vlmrl.types import MediaRef, Sample

OPTIONS: dict[str, Any] = {"answer_type": "exact_text"}


def png(color: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), color).save(buffer, "PNG")
    return buffer.getvalue()


def jpg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3), "blue").save(buffer, "JPEG")
    return buffer.getvalue()


def read(folder: Path, *rows: dict[str, Any], **options: Any) -> SourceReport:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_source(path, media_root="media", options=ImportOptions(**OPTIONS, media_dir=folder / "media", **options))


def sample(folder: Path, row: dict[str, Any], **options: Any) -> Sample:
    report = read(folder, row, **options)
    assert not report.bad, report.bad[0]
    return report.samples[0]


def refused(folder: Path, row: dict[str, Any], **options: Any) -> tuple[str, str]:
    report = read(folder, row, **options)
    assert len(report.bad) == 1
    return report.bad[0].reason, report.bad[0].message


def chat(part: dict[str, Any]) -> dict[str, Any]:
    parts = [part, {"type": "text", "text": "What happens?"}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "It opens."}]}


def frames(*paths: str, **clock: Any) -> tuple[MediaRef, ...]:
    return (MediaRef(kind="video", path=paths[0], frames=tuple(MediaRef(kind="image", path=p) for p in paths), **clock),)


@pytest.mark.parametrize(
    ("part", "media"),
    [
        ({"video": ["f/1.jpg", "./f/2.jpg"], "fps": 2}, frames("f/1.jpg", "f/2.jpg", fps=2.0)),
        ({"video": ["f/1.jpg", "f/2.jpg"], "sample_fps": 1.5}, frames("f/1.jpg", "f/2.jpg", fps=1.5)),
        ({"video": ["f/1.jpg", "f/2.jpg"], "fps": 2, "sample_fps": 2}, frames("f/1.jpg", "f/2.jpg", fps=2.0)),
        ({"video": ["f/1.jpg", "f/2.jpg"], "times": [0, 3]}, frames("f/1.jpg", "f/2.jpg", times=(0.0, 3.0))),
        ({"frames": ["f/1.jpg", "f/2.jpg"], "times": [0, 3]}, frames("f/1.jpg", "f/2.jpg", times=(0.0, 3.0))),
        ({"frames": "f", "fps": 4}, (MediaRef(kind="video", path="f", fps=4.0),)),
    ],
)
def test_qwen_vl_lists_of_frames(tmp_path: Path, part: dict[str, Any], media: tuple[MediaRef, ...]) -> None:
    found = sample(tmp_path, chat({"type": "video", **part, "max_pixels": 5000}))
    assert found.media == media
    assert found.question == "What happens?"
    assert found.meta["media_options"] == {"videos[0]": {"max_pixels": 5000}}


def test_local_urls_in_lists_of_frames(tmp_path: Path) -> None:
    inside = f"file://{tmp_path}/media/f/1.jpg"
    assert sample(tmp_path, chat({"type": "video", "video": [inside], "fps": 2})).media == frames("f/1.jpg", fps=2.0)
    assert refused(tmp_path, chat({"type": "video", "video": ["file:///etc/1.jpg"], "fps": 2}))[0] == "forbidden"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "<video>What happens?", "answer": "x", "video": ["f/1.jpg", "f/2.jpg"]},
        {"prompt": "<video>What happens?", "answer": "x", "videos": [["f/1.jpg", "f/2.jpg"]]},
        {"problem": "<video>What happens?", "answer": "x", "problem_type": "ocr", "data_type": "video", "path": ["f/1.jpg", "f/2.jpg"]},
        {
            "messages": [{"role": "user", "content": "<video>What?"}, {"role": "assistant", "content": "x"}],
            "videos": [["f/1.jpg", "f/2.jpg"]],
        },
        chat({"type": "video", "video": ["f/1.jpg", "f/2.jpg"]}),
    ],
)
def test_lists_without_a_rate_take_that_of_the_source(tmp_path: Path, row: dict[str, Any]) -> None:
    assert sample(tmp_path, row, frames_fps=2.0).media == frames("f/1.jpg", "f/2.jpg", fps=2.0)
    reason, text = refused(tmp_path, row)
    assert reason == "missing_key"
    assert "nothing says when each is shown; give 'fps' or 'times' with it, or 'frames_fps' of the source" in text


def test_mapped_columns_may_hold_frames(tmp_path: Path) -> None:
    row = {"q": "<video>What?", "a": "x", "shots": ["1.png", "2.png"]}
    columns = {"prompt": "q", "answer": "a", "videos": "shots"}
    assert sample(tmp_path, row, columns=columns, frames_fps=4.0).media == frames("1.png", "2.png", fps=4.0)


def test_several_video_files_stay_several_videos(tmp_path: Path) -> None:
    row = {"prompt": "<video><video>Same?", "answer": "x", "videos": ["a.mp4", "b.mp4"]}
    assert [ref.path for ref in sample(tmp_path, row).media] == ["a.mp4", "b.mp4"]


def test_two_rates_are_refused(tmp_path: Path) -> None:
    reason, text = refused(tmp_path, chat({"type": "video", "video": ["1.jpg"], "fps": 2, "sample_fps": 1}))
    assert (reason, "fps' is 2 and" in text) == ("bad_value", True)
    assert refused(tmp_path, chat({"type": "video", "video": ["1.jpg"], "fps": 2, "speed": 1}))[0] == "unknown_key"


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


SHAPES = {
    "column": lambda text: {"prompt": "What?", "answer": "x", "image": text},
    "list": lambda text: {"prompt": "What?", "answer": "x", "images": [text]},
    "path": lambda text: {"prompt": "What?", "answer": "x", "images": [{"path": text}]},
    "bytes": lambda text: {"prompt": "What?", "answer": "x", "images": [{"bytes": text, "path": None}]},
    "part": lambda text: chat({"type": "image", "image": text}),
    "url": lambda text: chat({"type": "image", "url": text}),
    "image_url": lambda text: chat({"type": "image_url", "image_url": {"url": text}}),
    "own": lambda text: {"id": "1", "task": "t", "answer_type": "exact_text", "prompt": "What?", "answer": "x", "image": text},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("write", [uri, lambda data: base64.b64encode(data).decode(), lambda data: base64.encodebytes(data).decode()])
def test_base64_is_written_once_to_the_folder_of_the_source(tmp_path: Path, shape: str, write: Any) -> None:
    row = SHAPES[shape](write(png()))
    digest = hashlib.sha256(png()).hexdigest()
    found = sample(tmp_path, row, media_folder="in/rows")
    assert found.media == (MediaRef(kind="image", path=f"in/rows/{digest[:2]}/{digest}.png", sha256=digest),)
    assert (tmp_path / "media" / found.media[0].path).read_bytes() == png()
    assert len([p for p in (tmp_path / "media").rglob("*") if p.is_file()]) == 1
    reason, text = refused(tmp_path, row)
    assert reason == "image_bytes"
    assert "set 'media_folder' of the source to the folder to write" in text


def test_jpegs_and_videos_are_known_by_their_content(tmp_path: Path) -> None:
    clip = make_video(tmp_path / "v.mp4", numbered_frames(4), fps=10).read_bytes()
    for data, suffix in ((jpg(), ".jpg"), (clip, ".mp4")):
        key = "video" if suffix == ".mp4" else "image"
        for text in (base64.b64encode(data).decode(), uri(data, "application/octet-stream")):
            found = sample(tmp_path, {"prompt": "What?", "answer": "x", key: text}, media_folder="m").media[0]
            assert found.path.endswith(suffix)
            assert (tmp_path / "media" / found.path).read_bytes() == data


def test_frames_may_be_base64(tmp_path: Path) -> None:
    row = chat({"type": "video", "video": [uri(png("red")), uri(png("blue"))], "fps": 2})
    (video,) = sample(tmp_path, row, media_folder="m").media
    assert [(tmp_path / "media" / frame.path).read_bytes() for frame in video.frames] == [png("red"), png("blue")]
    assert all(frame.sha256 is not None for frame in video.frames)
    own = {**SHAPES["own"](None), "video": {"frames": [uri(png("red"))], "times": [0]}}
    assert sample(tmp_path, own, media_folder="m").media[0].frames == video.frames[:1]


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        ("data:image/png;base64,????", "base64", "'image' is not valid base64"),
        ("data:image/png;base64,iVBORw0KGgo", "base64", "'image' is not valid base64"),
        ("data:image/png;base64,", "base64", "without content"),
        ("data:image/svg+xml,%3Csvg/%3E", "base64", "without ';base64'"),
        (uri(b"<svg/>", "image/svg+xml"), "format", "'image' is neither a JPEG, PNG or WebP picture"),
        ("/9j/" + "A" * 61, "base64", "'image' is not valid base64"),
        ("data:text/html;base64,AAAA", "forbidden", "is a URL"),
        ("/9j/a.png", "forbidden", "is absolute"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, text: str, reason: str, says: str) -> None:
    found, message = refused(tmp_path, {"prompt": "What?", "answer": "x", "image": text}, media_folder="m")
    assert (found, says in message) == (reason, True), message
    assert not (tmp_path / "media").exists()


def test_our_own_rows_without_a_source_are_told_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(SHAPES["own"](uri(png()))) + "\n")
    (bad,) = read_source(path, media_root=".").bad
    assert (bad.reason, "set 'media_folder'" in bad.message) == ("image_bytes", True)


def test_texts_are_left_alone(tmp_path: Path) -> None:
    """A question may speak of base64."""
    question = "What does data:image/png;base64, mean, and what is iVBORw0KGgo?"
    assert sample(tmp_path, {"prompt": question, "answer": "/9j/", "image": "a.png"}).question == question

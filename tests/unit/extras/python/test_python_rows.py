"""extras.python.rows: rows of every kind are the same samples as those of a file, written once under the name of their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.python.rows import RowsFile, given, said_by_row
from vlmrl.media.image import decode_image
from vlmrl.types import Sample

TEXTS = [{"id": f"q{n}", "prompt": f"How many dots in picture {n}?", "answer": str(n), "difficulty": n / 2} for n in range(4)]
TYPE = {"answer_type": "number"}


def pixels(n: int) -> np.ndarray:
    """A picture without two equal ones; the second is grey."""
    out = np.random.default_rng(n).integers(0, 256, (20 + n, 30, 3), dtype=np.uint8)
    return out[:, :, 0] if n == 1 else out


def image(n: int) -> Image.Image:
    return Image.fromarray(pixels(n))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Rows in a file, with pictures beside it; one of them lies on its side, as cameras write it."""
    for n in range(4):
        exif = Image.Exif()
        exif[0x0112] = 6 if n == 2 else 1
        image(n).save(tmp_path / f"{n}.png", exif=exif)
    lines = [json.dumps(row | {"image": f"{n}.png"}) for n, row in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def samples(file: RowsFile) -> list[Sample]:
    source = {"answer_type": "number"} | file.source({})
    options = ImportOptions(answer_type="number", media_dir=Path(file.media_root), media_folder=source.get("media_folder"))
    return load_source(Path(file.path), media_root=file.media_root, dedupe="error", max_bad_rows=0.0, quarantine=None, options=options)


def content(file: RowsFile) -> list[Any]:
    """What training sees: ids, questions, answers, pixels."""
    return [
        (
            s.id,
            s.question,
            s.answer,
            dict(s.gt),
            s.meta.get("difficulty"),
            [decode_image(Path(s.media_root, m.path).read_bytes()).tolist() for m in s.media],
        )
        for s in samples(file)
    ]


def with_images(made: Any, key: str = "image") -> list[dict[str, Any]]:
    return [row | {key: made(n)} for n, row in enumerate(TEXTS)]


def opened(files: Path) -> Any:
    return lambda n: Image.open(files / f"{n}.png")


KINDS = {
    "images that are files": lambda at: with_images(opened(at)),
    "bytes": lambda at: with_images(lambda n: (at / f"{n}.png").read_bytes()),
    "of the Hub, not decoded": lambda at: with_images(lambda n: {"bytes": (at / f"{n}.png").read_bytes(), "path": None}),
    "paths": lambda at: with_images(lambda n: at / f"{n}.png"),
    "texts of paths": lambda at: with_images(lambda n: str(at / f"{n}.png")),
    "lists": lambda at: with_images(lambda n: [Image.open(at / f"{n}.png")], "images"),
    "a tuple of rows": lambda at: tuple(with_images(opened(at))),
    "paths and objects": lambda at: with_images(lambda n: Image.open(at / f"{n}.png") if n % 2 else at / f"{n}.png"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_file(kind: str, files: Path, tmp_path: Path):
    """Also a picture that its file says to turn."""
    file = given(KINDS[kind](files), tmp_path / "out")
    expected = content(given(str(files / "rows.jsonl"), tmp_path / "out"))
    assert len(expected) == 4
    assert len(expected[2][-1][0]) == 30, "height and width are exchanged"
    assert content(file) == expected


def test_arrays(files: Path, tmp_path: Path):
    """As the same pixels in PIL. Numbers of numpy are numbers, and a grey array is a picture."""
    rows = [row | {"image": pixels(n), "difficulty": np.float64(n / 2), "box": np.array([1, 2])} for n, row in enumerate(TEXTS)]
    plain = [row | {"image": image(n), "box": [1, 2]} for n, row in enumerate(TEXTS)]
    assert given(rows, tmp_path) == given(plain, tmp_path)
    (first, *_) = samples(given(rows, tmp_path))
    assert first.meta["box"] == (1, 2) or first.meta["box"] == [1, 2]


@pytest.mark.parametrize("decode", [True, False])
def test_a_dataset(decode: bool, files: Path, tmp_path: Path):
    """With decoded pictures, as it comes from the Hub; nothing is decoded: the bytes are those of the file."""
    datasets = pytest.importorskip("datasets")
    rows = [row | {"image": str(files / f"{n}.png"), "difficulty": n / 2} for n, row in enumerate(TEXTS)]
    data = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image(decode=decode))
    embedded = datasets.Dataset.from_list(
        [row | {"image": {"bytes": (files / f"{n}.png").read_bytes(), "path": None}} for n, row in enumerate(TEXTS)]
    )
    for one in (data, embedded.cast_column("image", datasets.Image(decode=decode)), data.map(lambda row: row)):
        assert content(given(one, tmp_path / "out")) == content(given(files / "rows.jsonl", tmp_path / "out"))
    several = datasets.Dataset.from_list([row | {"images": [{"bytes": (files / "0.png").read_bytes(), "path": None}] * 2} for row in TEXTS])
    several = several.cast_column("images", datasets.List(datasets.Image(decode=decode)))
    file = given(several, tmp_path / "out")
    assert [len(sample.media) for sample in samples(file)] == [2] * 4
    kept = list((Path(file.path).parent / "media").rglob("*.png"))
    assert [path.read_bytes() for path in kept] == [(files / "0.png").read_bytes()]
    with pytest.raises(ConfigError, match=r"give one of its splits, as rows\['train'\]"):
        given(datasets.DatasetDict({"train": data}), tmp_path / "out")
    with pytest.raises(ConfigError, match="rows have a length and come in a fixed order"):
        given(data.to_iterable_dataset(), tmp_path / "out")


def test_a_data_frame(files: Path, tmp_path: Path):
    """An empty cell is a missing key."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(with_images(opened(files)))
    assert content(given(frame, tmp_path / "out")) == content(given(files / "rows.jsonl", tmp_path / "out"))
    frame["thought"] = [None, "It has one.", float("nan"), pandas.NA]
    assert [sample.thought for sample in samples(given(frame, tmp_path / "out"))] == [None, "It has one.", None, None]


def test_parquet_with_pictures_stays_a_file(files: Path, tmp_path: Path):
    """Its pictures are written beside it by its reader."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [row | {"image": {"bytes": (files / f"{n}.png").read_bytes(), "path": ""}} for n, row in enumerate(TEXTS)]
    pq.write_table(pa.Table.from_pylist(rows), files / "rows.parquet")
    file = given(files / "rows.parquet", tmp_path / "out")
    assert file.source({"frame": "pixel"}) == {
        "path": str(files / "rows.parquet"),
        "media_root": str(files),
        "media_folder": "pictures",
        "frame": "pixel",
    }
    assert content(file) == content(given(files / "rows.jsonl", tmp_path / "out"))
    assert given("org/name@train", tmp_path).media_root == "."


def test_equal_rows_are_written_once(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The order of keys is nothing, the order of rows is something, and so are a pixel, an answer and a row more."""
    rows = with_images(image)
    first = given(rows, tmp_path / "out")
    turned = [dict(reversed(row.items())) for row in with_images(image)]
    for name in ("write_bytes", "write_text", "mkdir"):
        monkeypatch.setattr(f"vlmrl.fs.{name}", lambda *args: pytest.fail("nothing is to be written"))
    assert given(turned, tmp_path / "out") == first
    monkeypatch.undo()
    other = pixels(3).copy()
    other[5, 5, 1] ^= 1
    others = [
        rows[::-1],
        [*rows, rows[0] | {"id": "more"}],
        [*rows[:3], rows[3] | {"image": other}],
        [*rows[:3], rows[3] | {"answer": "30"}],
    ]
    assert len({first.path, *(given(one, tmp_path / "out").path for one in others)}) == 5
    assert [sample.id for sample in samples(given(others[0], tmp_path / "out"))] == ["q3", "q2", "q1", "q0"]


def test_a_write_that_fails_leaves_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file comes last: a folder with pictures alone is filled by the next call."""
    rows = with_images(image)
    monkeypatch.setattr("vlmrl.fs.write_text", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        given(rows, tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.jsonl"))
    assert len(samples(given(rows, tmp_path))) == 4


def test_media_that_are_paths_stay_where_they_are(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their common folder is the root; `media_root` says where relative ones begin, and moves the files' name with it."""
    monkeypatch.chdir(files)
    here = given(with_images(lambda n: f"{n}.png"), Path("runs"))
    assert (here.media_root, Path(here.path).parts[0]) == (".", "runs")
    assert not list(Path("runs").rglob("*.png"))
    named = given(with_images(lambda n: f"{n}.png"), Path("runs"), {"media_root": str(files)})
    assert content(named) == content(here)
    (files / "sub").mkdir()
    there = given(with_images(lambda n: f"{n}.png"), Path("runs"), {"media_root": "sub"})
    assert (there.media_root, there.path != here.path) == ("sub", True)
    mapped = [{"question": "How many?", "answer": "1", "shot": f"{n}.png"} for n in range(2)]
    columns = {"columns": {"prompt": "question", "answer": "answer", "images": "shot"}}
    assert json.loads(Path(given(mapped, Path("runs"), columns).path).read_text().splitlines()[1])["shot"] == "1.png"


def test_frames_of_a_video_and_messages(files: Path, tmp_path: Path):
    """Pictures anywhere in a row: as the frames of a video, and within messages."""
    video = [TEXTS[0] | {"video": {"frames": [image(0), image(0), files / "0.png"], "fps": 2}}]
    (sample,) = samples(given(video, tmp_path / "out"))
    assert [len(sample.media[0].frames), sample.media[0].fps] == [3, 2]
    said = [{"type": "image", "image": image(1), "text": None}, {"type": "text", "text": "How many?"}]
    row = {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": "3"}]}
    (sample,) = samples(given([row], tmp_path / "out"))
    assert (sample.question, sample.answer, len(sample.media)) == ("How many?", "3", 1)


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


BAD = [
    ([TEXTS[0], "text"], DataError, "row 1: a dict is expected, got str 'text'"),
    ([TEXTS[0] | {3: 4}], DataError, "row 0: the name of a column must be text, got int 3"),
    (
        [TEXTS[0], TEXTS[1] | {"image": np.zeros((4, 4, 3))}],
        DataError,
        r"row 1, column 'image': an array of float64 \[4, 4, 3\] is no picture",
    ),
    ([TEXTS[0] | {"image": Odd()}], DataError, "row 0, column 'image': a Odd is not taken; give text"),
    ([TEXTS[0] | {"difficulty": float("nan")}], DataError, "row 0, column 'difficulty': 'difficulty' is nan"),
    ([TEXTS[0] | {"gt": {"numbers": [1, {2}]}}], DataError, "row 0, column 'gt': a set is not taken"),
    ([TEXTS[0], TEXTS[1] | {"images": [b"no picture"]}], DataError, r"row 1: format: 'images\[0\]' is neither a JPEG"),
    ([], ConfigError, "rows: there are none"),
    (iter([]), ConfigError, "rows: a list_iterator is not taken"),
    ({"a": [1]}, ConfigError, "rows: a dict is not taken; give one of its splits"),
]


@pytest.mark.parametrize(("rows", "error", "says"), BAD, ids=[says for *_, says in BAD])
def test_what_is_no_row_is_named(rows: Any, error: type[Exception], says: str, tmp_path: Path):
    with pytest.raises(error, match=says):
        given(rows, tmp_path)


def test_a_file_that_is_cut_is_named(files: Path, tmp_path: Path):
    data = (files / "3.png").read_bytes()
    (files / "3.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"row 3, column 'image': (truncated|corrupt): picture"):
        given(with_images(opened(files)), tmp_path / "out")


def test_readers_speak_of_rows_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file of their lines is none that the caller knows."""
    monkeypatch.chdir(tmp_path)
    file = given([TEXTS[0], TEXTS[1] | {"answer": "many"}, TEXTS[2]], Path("runs"))
    with pytest.raises(DataError, match=r"\n  row 1: answer: "), said_by_row(file, None):
        samples(file)
    absolute = f"{Path(file.path).absolute()}:3: x, {file.path}:1: y, {file.path}:0: z"
    assert file.by_row(absolute) == f"row 2: x, row 0: y, {file.path}:0: z"
    with pytest.raises(ConfigError) as caught, said_by_row(file):
        raise ConfigError([f"row 'a' ({file.path}:12): junk", "other"])
    assert caught.value.problems == ["row 'a' (row 11): junk", "other"]
    assert str(caught.value) == "row 'a' (row 11): junk\nother"

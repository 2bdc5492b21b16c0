"""data.raw, importers.containers and data.stored: what a source may be, which rows `#N` draws, pictures inside rows, and the way through
`read_source`.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.raw import drawn, files_of
from vlmrl.data.source import load_source, read_source
from vlmrl.data.stored import stored
from vlmrl.errors import DataError, RowError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def own(name: str) -> dict[str, Any]:
    return {"id": name, "task": "qa", "answer_type": "exact_text", "prompt": f"What is {name}?", "answer": name}


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arrow(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def saved(folder: Path, *names: str) -> Path:
    """As `Dataset.save_to_disk` leaves it, in two shards."""
    arrow(folder / "data-00000-of-00002.arrow", *map(own, names[:1]))
    arrow(folder / "data-00001-of-00002.arrow", *map(own, names[1:]))
    files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_format_type": None}))
    return folder


def ids(path: Path, options: ImportOptions | None = None) -> list[str]:
    report = read_source(path, media_root=".", options=options)
    assert report.bad == []
    return [sample.id for sample in report.samples]


def png(color: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(out, "PNG")
    return out.getvalue()


def test_single_files(tmp_path: Path) -> None:
    rows = [own("a"), own("b"), own("c")]
    for path in (jsonl(tmp_path / "r.jsonl", *rows), parquet(tmp_path / "r.parquet", *rows), arrow(tmp_path / "r.arrow", *rows)):
        assert ids(path) == ["a", "b", "c"]
    assert [s.source for s in read_source(path, media_root=".").samples] == [f"{path}:{i}" for i in (1, 2, 3)]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="damaged or not an Arrow file"):
        read_source(path, media_root=".")


def test_shards_of_a_folder(tmp_path: Path) -> None:
    parquet(tmp_path / "train-00000-of-00002.parquet", own("a"))
    with pytest.raises(DataError, match="one of 2 files, 1 are there"):
        files_of(tmp_path)
    second = parquet(tmp_path / "train-00001-of-00002.parquet", own("b"))
    assert ids(tmp_path) == ["a", "b"]
    assert read_source(tmp_path, media_root=".").samples[1].source == f"{second}:1"
    jsonl(tmp_path / "more.jsonl", own("c"))
    with pytest.raises(DataError, match="several kinds"):
        files_of(tmp_path)


def test_ids_repeat_across_shards(tmp_path: Path) -> None:
    first = parquet(tmp_path / "a.parquet", own("x"))
    parquet(tmp_path / "b.parquet", own("x"))
    bad = read_source(tmp_path, media_root=".").bad
    assert [(row.reason, Path(row.file).name, row.line) for row in bad] == [("duplicate_id", "b.parquet", 1)]
    assert f"{first}:1" in bad[0].message


def test_save_to_disk(tmp_path: Path) -> None:
    assert ids(saved(tmp_path / "one", "a", "b", "c")) == ["a", "b", "c"]
    saved(tmp_path / "both" / "train", "a", "b")
    saved(tmp_path / "both" / "test", "c", "d")
    (tmp_path / "both" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert ids(tmp_path / "both@test") == ["c", "d"]
    with pytest.raises(DataError, match="splits train, test; choose one as both@SPLIT"):
        files_of(tmp_path / "both")
    with pytest.raises(DataError, match="no split 'val'; it has train, test"):
        files_of(tmp_path / "both@val")
    (tmp_path / "one" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match="not there; copy the folder again"):
        files_of(tmp_path / "one")


@pytest.mark.parametrize(
    "state", [{}, {"_data_files": [{"filename": "../x.arrow"}]}, {"_data_files": [{"filename": "x"}], "_indices_files": [1]}, [], "{"]
)
def test_strange_state_files(tmp_path: Path, state: Any) -> None:
    (tmp_path / "state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    with pytest.raises(DataError):
        files_of(tmp_path)


def test_what_the_datasets_library_saves(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{**own(n), "image": {"bytes": png(), "path": None}} for n in "ab"])
    made = made.cast_column("image", datasets.Image())
    datasets.DatasetDict(train=made).save_to_disk(str(tmp_path / "d"))
    options = ImportOptions(media_dir=tmp_path, media_folder="pictures")
    samples = read_source(tmp_path / "d@train", media_root=".", options=options).samples
    assert [s.id for s in samples] == ["a", "b"]
    assert (tmp_path / samples[0].media[0].path).read_bytes() == png()


def test_drawing(tmp_path: Path) -> None:
    names = [f"r{i}" for i in range(1, 21)]
    path = jsonl(tmp_path / "rows.jsonl", *map(own, names))
    path.write_text(path.read_text().replace("\n", "\n\n", 3))  # blank lines are not rows
    order = sorted(range(1, 21), key=lambda n: hashlib.sha256(f"row {n}".encode()).digest())
    for count in (1, 5, 20):
        chosen = ids(tmp_path / f"rows.jsonl#{count}")
        assert chosen == [f"r{n}" for n in sorted(order[:count])]
    table = parquet(tmp_path / "rows.parquet", *map(own, names))
    assert ids(table.with_name("rows.parquet#5")) == ids(tmp_path / "rows.jsonl#5")
    assert ids(saved(tmp_path / "s", "a", "b", "c").with_name("s#3")) == ["a", "b", "c"]
    with pytest.raises(DataError, match="#21 rows are asked for, it has 20"):
        ids(tmp_path / "rows.jsonl#21")
    with pytest.raises(DataError, match="at least #1"):
        files_of(tmp_path / "rows.jsonl#0")
    jsonl(tmp_path / "odd#2", own("z")).rename(tmp_path / "odd#2.jsonl")
    assert ids(tmp_path / "odd#2.jsonl") == ["z"]  # a file of that very name comes first


@given(st.integers(1, 60), st.data())
def test_smaller_draws_are_part_of_larger_ones(total: int, data: st.DataObject) -> None:
    small = data.draw(st.integers(1, total))
    large = data.draw(st.integers(small, total))
    assert drawn(total, small, "x") <= drawn(total, large, "x") <= frozenset(range(1, total + 1))
    assert (len(drawn(total, small, "x")), len(drawn(total, large, "x"))) == (small, large)


def test_hub_data_sets_come_from_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    root = tmp_path / "data"
    with pytest.raises(DataError, match=r"org/set@train: this data set is not on this machine .*hf download --repo-type dataset org/set"):
        files_of(root / "org" / "set@train")

    cache = tmp_path / "hf" / "datasets" / "org___set" / "default" / "0.0.0" / "abc"
    arrow(cache / "set-train.arrow", own("cached"))
    arrow(cache / "cache-123-train.arrow", own("derived"))
    assert ids(root / "org" / "set@train") == ["cached"]
    arrow(cache.with_name("def") / "set-train.arrow", own("other"))
    with pytest.raises(DataError, match="is there 2 times"):
        files_of(root / "org" / "set@train")
    with pytest.raises(DataError, match="its split 'test' is not"):
        files_of(root / "org" / "set@test")

    hub = tmp_path / "hf" / "hub" / "datasets--org--set"
    parquet(hub / "snapshots" / "111" / "data" / "train-00000-of-00001.parquet", own("old"))
    parquet(hub / "snapshots" / "222" / "data" / "train-00000-of-00001.parquet", own("new"))
    with pytest.raises(DataError, match=r"2 snapshots and no usable refs/main"):
        files_of(root / "org" / "set@train")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("222")
    assert ids(root / "org" / "set@train") == ["new"]
    assert ids(root / "org" / "set@train#1") == ["new"]
    with pytest.raises(DataError, match="no split 'val'; it has train"):
        files_of(root / "org" / "set@val")

    jsonl(root / "org" / "set" / "train.jsonl", own("near"))
    assert ids(root / "org" / "set@train") == ["near"]
    with pytest.raises(DataError, match="is no name of a data set"):
        files_of(root / ".hidden" / "set@train")


def test_pictures_inside_rows(tmp_path: Path) -> None:
    rows = [{"problem": "<image>Which color?", "answer": c, "images": [{"bytes": png(c), "path": "x.png"}]} for c in ("red", "blue", "red")]
    path = parquet(tmp_path / "rows.parquet", *rows)
    options = ImportOptions(answer_type="exact_text", media_dir=tmp_path / "media", media_folder="in/rows")
    report = read_source(path, media_root="media", options=options)
    digest = hashlib.sha256(png("red")).hexdigest()
    assert [s.media[0].path for s in report.samples][::2] == [f"in/rows/{digest[:2]}/{digest}.png"] * 2
    assert report.samples[0].media[0].sha256 == digest
    assert (tmp_path / "media" / report.samples[0].media[0].path).read_bytes() == png("red")
    assert len([p for p in (tmp_path / "media").rglob("*") if p.is_file()]) == 2  # equal content is one file
    assert "'easyr1'" in str(report.note)
    assert [s.id for s in read_source(path, media_root="media", options=options).samples] == [s.id for s in report.samples]

    bad = read_source(path, media_root="media", options=ImportOptions(answer_type="exact_text")).bad
    assert [row.reason for row in bad] == ["image_bytes"] * 3
    assert "media_folder" in bad[0].message
    assert [row.reason for row in read_source(path, media_root="media").bad] == ["bad_type"] * 3  # our own reader takes no bytes


def test_bytes_that_are_no_picture(tmp_path: Path) -> None:
    with pytest.raises(RowError) as caught:
        stored({"image": {"bytes": b"%PDF-1.4", "path": None}}, root=tmp_path, folder="m")
    assert caught.value.reason == "format"
    assert "'image'" in str(caught.value)
    with pytest.raises(RowError) as caught:
        stored([{"bytes": png()}], root=tmp_path, folder="../m")
    assert caught.value.reason == "forbidden"
    assert list(tmp_path.iterdir()) == []
    untouched = {"note": {"bytes": "text"}, "n": [1, None]}
    assert stored(untouched, root=None, folder=None) == untouched


def test_a_foreign_file_through_the_source(tmp_path: Path) -> None:
    good = {"problem": "What?", "answer": "x"}
    path = jsonl(tmp_path / "rows.jsonl", {"junk": 1}, good, {**good, "answer": None}, {**good, "problem": "Why?"})
    report = read_source(path, media_root=".", options=ImportOptions(answer_type="exact_text"))
    assert [s.source for s in report.samples] == [f"{path}:2", f"{path}:4"]
    assert [(row.line, row.reason) for row in report.bad] == [(1, "unknown_shape"), (3, "missing_key")]
    said: list[str] = []
    options = ImportOptions(answer_type="exact_text")
    samples = load_source(path, media_root=".", dedupe="error", max_bad_rows=0.5, quarantine=None, options=options, say=said.append)
    assert len(samples) == 2
    assert len(said) == 1
    assert f"{path}:2: rows of the shape 'easyr1'" in said[0]


def test_two_shapes_in_a_file_stop_it(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", {"problem": "What?", "answer": "x"}, own("a"))
    with pytest.raises(DataError, match=rf"1 row\(s\) of another shape than the first\n  {path}:2: mixed_shapes"):
        load_source(
            path, media_root=".", dedupe="error", max_bad_rows=1.0, quarantine=None, options=ImportOptions(answer_type="exact_text")
        )


OPTIONS: list[dict[str, Any]] = [
    {"answer_type": "number"},
    {},
    {"answer_type": "bbox", "frame": "norm1"},
    {},
    {},
    {"time_unit": "s"},
]


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "data.md").read_text(encoding="utf-8")
    text = text[text.index("### Examples") :]
    blocks = [json.loads(part.split("```")[0]) for part in text.split("```json\n")[1:]]
    assert len(blocks) == 2 * len(OPTIONS)
    Image.new("RGB", (400, 300)).save(tmp_path / "a.png")
    for foreign, ours, more in zip(blocks[::2], blocks[1::2], OPTIONS, strict=True):
        (made,) = Importer(ImportOptions(media_dir=tmp_path, **more)).rows(foreign, where="docs", place=1)
        assert isinstance(made, dict)
        if "..." in ours["id"]:  # a hash, shortened
            assert made["id"].endswith("-1")
            made["id"] = ours["id"]
        assert made == ours

"""The toy world as files: real video, exact pictures, atomic and idempotent building."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from vlmrl.config.schema import ToySection, ToyWorldSection
from vlmrl.extras.toy import base, world
from vlmrl.extras.toy.picture import PAINT
from vlmrl.extras.toy.tasks import SPLITS, Event, Scene, make_scene
from vlmrl.extras.toy.world import MARKER, encode_mp4, make_world, render, world_hash
from vlmrl.run.ui import Ui

SMALL = ToyWorldSection(pretrain=2, sft=1, train=2, validation=1, test=2, seed=5)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("toy") / "deep" / "world"
    make_world(out, SMALL)
    return out


def tree(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.rglob("*")) if f.is_file()}


def decoded(data: bytes) -> tuple[list[float], np.ndarray, str, str]:
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        times = [float(f.pts * f.time_base) for f in frames]
        return times, np.stack([f.to_ndarray(format="rgb24") for f in frames]), stream.codec_context.name, frames[0].format.name


def test_rows_point_to_their_videos_and_nothing_is_shared(built: Path) -> None:
    used: list[str] = []
    for split in SPLITS:
        rows = [json.loads(line) for line in (built / f"{split}.jsonl").read_text().splitlines()]
        assert len({row["id"] for row in rows}) == len(rows)
        videos = sorted({row["video"] for row in rows})
        assert len(videos) == getattr(SMALL, split)
        used += videos
    files = [str(f.relative_to(built)) for f in built.rglob("*.mp4")]
    assert sorted(used) == sorted(files)
    assert len({hashlib.sha256((built / f).read_bytes()).hexdigest() for f in files}) == len(files) == 8


def test_videos_are_h264_of_the_stated_size_rate_and_duration(built: Path) -> None:
    for row in map(json.loads, (built / "train.jsonl").read_text().splitlines()):
        times, pixels, codec, pixel_format = decoded((built / row["video"]).read_bytes())
        meta = row["meta"]
        assert (codec, pixel_format) == ("h264", "yuv420p")
        assert pixels.shape == (round(meta["duration"] * meta["fps"]), meta["size"][1], meta["size"][0], 3)
        assert times == pytest.approx([i / meta["fps"] for i in range(len(times))], abs=1e-4)


@pytest.mark.parametrize("shape", ["square", "circle", "triangle"])
@pytest.mark.parametrize("quarter", [0, 3])
def test_what_is_seen_after_decoding_is_the_ground_truth(shape: str, quarter: int) -> None:
    event = Event(color="red", shape=shape, start=1.0, end=2.5, quarter=quarter)
    scene = Scene(split="test", index=quarter, duration=5.0, rate=6, size=(84, 56), events=(event,), phrasing=0)
    times, pixels, _, _ = decoded(encode_mp4(render(scene, 0), scene.rate, scene.size))
    near = np.abs(pixels.astype(int) - np.array(PAINT["red"])).max(-1) < 60
    seen = [t for t, mask in zip(times, near, strict=True) if mask.sum() > 60]
    assert min(seen) == pytest.approx(1.0)
    assert max(seen) == pytest.approx(2.5 - 1 / 6, abs=1e-3)
    assert len(seen) == 9
    rows, columns = np.nonzero(near.any(0))
    inside = (rows >= 28) == (quarter >= 2), (columns >= 42) == (quarter % 2 == 1)
    assert np.mean(inside[0] & inside[1]) > 0.95


def test_shapes_differ_in_area_as_geometry_says() -> None:
    def area(shape: str) -> int:
        event = Event(color="yellow", shape=shape, start=0.0, end=5.0, quarter=0)
        scene = Scene(split="test", index=0, duration=5.0, rate=6, size=(112, 112), events=(event,), phrasing=0)
        return int((next(iter(render(scene, 0)))[..., 0] > 150).sum())

    # With radius r: square 3.24 r^2, circle 3.14 r^2, triangle 2 r^2.
    assert area("triangle") / area("circle") == pytest.approx(2 / np.pi, rel=0.08)
    assert area("square") / area("circle") == pytest.approx(3.24 / np.pi, rel=0.08)
    with pytest.raises(ValueError, match="star"):
        area("star")


def test_rendering_is_deterministic_and_noisy() -> None:
    scene = make_scene(0, "train", 0)
    first, again, other = list(render(scene, 0)), list(render(scene, 0)), list(render(scene, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert first[0].std() > 1
    assert not np.array_equal(first[0], first[1])


def test_building_again_changes_nothing_and_gives_the_same_rows_elsewhere(built: Path, tmp_path: Path) -> None:
    before = {f: f.stat().st_mtime_ns for f in built.rglob("*")}
    marker = make_world(built, SMALL)
    assert {f: f.stat().st_mtime_ns for f in built.rglob("*")} == before
    calls: list[tuple[int, int]] = []
    assert make_world(tmp_path / "w", SMALL, lambda done, total: calls.append((done, total))) == marker
    assert calls == [(i, 8) for i in range(1, 9)]
    assert tree(tmp_path / "w") == tree(built)
    assert [f.name for f in tmp_path.iterdir()] == ["w"]


def test_hash_depends_on_counts_and_seed() -> None:
    assert world_hash(SMALL) == world_hash(SMALL.model_copy())
    names = ("pretrain", "sft", "train", "validation", "test", "seed")
    others = [SMALL.model_copy(update={name: getattr(SMALL, name) + 1}) for name in names]
    assert len({world_hash(s) for s in [SMALL, *others]}) == 7


@pytest.mark.parametrize("damage", ["empty video", "lost video", "changed rows", "other recipe", "torn marker"])
def test_a_damaged_or_different_world_is_built_anew(built: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "w"
    section = SMALL
    make_world(out, SMALL)
    if damage == "empty video":
        (out / "videos/train/000000.mp4").write_bytes(b"")
    elif damage == "lost video":
        (out / "videos/test/000001.mp4").unlink()
    elif damage == "changed rows":
        (out / "test.jsonl").write_text("{}\n")
    elif damage == "torn marker":
        (out / MARKER).write_text('{"recipe"')
    else:
        section = SMALL.model_copy(update={"seed": 6})
    make_world(out, section)
    assert (tree(out) == tree(built)) == (section is SMALL)
    assert json.loads((out / MARKER).read_text())["recipe"] == world_hash(section)
    assert [f.name for f in tmp_path.iterdir()] == ["w"]


def test_a_failed_build_leaves_nothing_and_a_foreign_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(world, "encode_mp4", fail)
        with pytest.raises(OSError, match="no space"):
            make_world(tmp_path / "w", SMALL)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not a toy world"):
        make_world(tmp_path / "w", SMALL)
    assert tree(tmp_path) == {"w/thesis.txt": hashlib.sha256(b"years of work").hexdigest()}


def test_one_split_alone_has_the_bytes_that_it_has_in_the_whole_world(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "w"
    calls: list[tuple[int, int]] = []
    marker = make_world(out, SMALL, lambda done, total: calls.append((done, total)), splits=("test",))
    assert calls == [(1, 2), (2, 2)]
    assert list(marker["rows"]) == ["test"]
    own = {name: digest for name, digest in tree(built).items() if name == "test.jsonl" or name.startswith("videos/test/")}
    assert len(own) == 3
    assert tree(out) == {**own, MARKER: tree(out)[MARKER]}
    before = {f: f.stat().st_mtime_ns for f in out.rglob("*")}
    assert make_world(out, SMALL, splits=("test",)) == marker
    assert {f: f.stat().st_mtime_ns for f in out.rglob("*")} == before
    make_world(out, SMALL)  # the whole is wanted: a part of it is not taken for it
    assert tree(out) == tree(built)


def defaults(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The default world is a small one in this cache."""

    class Small(ToySection):
        @classmethod
        def model_validate(cls, given: dict[str, Any], **_: Any) -> ToySection:
            return ToySection(cache=str(cache), world=SMALL.model_copy(update=given["world"]))

    monkeypatch.setattr(base, "ToySection", Small)


@pytest.mark.parametrize(
    ("sources", "folder", "splits"),
    [
        (["test.jsonl"], "world-{}-test", ("test",)),
        (["train.jsonl#1", "test.jsonl"], "world-{}-train-test", ("train", "test")),
        (["elsewhere.jsonl", "test.jsonl"], "world-{}", SPLITS),
        ([], "world-{}", SPLITS),
    ],
)
def test_an_evaluation_makes_only_the_splits_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], folder: str, splits: tuple[str, ...]
) -> None:
    defaults(monkeypatch, tmp_path)
    made = base.default_world(Ui(quiet=True), sources)
    assert made == tmp_path / folder.format(world_hash(SMALL))
    assert {f.stem for f in made.glob("*.jsonl")} == set(splits)


def test_an_evaluation_takes_the_whole_world_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults(monkeypatch, tmp_path)
    whole = base.default_world(Ui(quiet=True))
    assert base.default_world(Ui(quiet=True), ["test.jsonl"]) == whole
    assert [f.name for f in tmp_path.glob("world-*")] == [whole.name]


def test_an_evaluation_takes_any_part_of_the_world_that_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kind has a world of its own; folders beside that are no worlds are left alone."""
    defaults(monkeypatch, tmp_path)
    (tmp_path / f"world-{world_hash(SMALL)}-a-copy").mkdir()
    part = base.default_world(Ui(quiet=True), ["test.jsonl", "train.jsonl"])
    assert base.default_world(Ui(quiet=True), ["test.jsonl"]) == part
    other = base.default_world(Ui(quiet=True), ["test.jsonl"], "shell")
    assert other != part
    assert json.loads((other / "test.jsonl").read_text().splitlines()[0])["id"] == "toy-shell-test-000000"
    both = base.default_world(Ui(quiet=True), ["test.jsonl", "sft.jsonl"])
    assert {f.stem for f in both.glob("*.jsonl")} == {"test", "sft"}
    (part / "test.jsonl").write_text("damaged")
    assert base.default_world(Ui(quiet=True), ["test.jsonl"]) == both

"""What a teacher sees of a part: the box of a row, keys and proofs of the part, one decoding for both sides, and rows that cannot be."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.media import make_video, numbered_frames
from tests.support.tiny import MEDIA, Tiny
from vlmrl.data.encode import Encoder
from vlmrl.errors import CheckpointError, DataError
from vlmrl.extras.distill.crop import Crop, CropStore, MarkedEncoder, PartRef, WatchedCrops, part_of, store_of, whole_of, widened
from vlmrl.extras.distill.section import TeacherMediaSection, TeacherSection
from vlmrl.extras.distill.view import BothViews, SeenRecord, TeacherView, settings_of
from vlmrl.media.resize import resize
from vlmrl.media.store import MediaStore
from vlmrl.train.state import UsedMedia
from vlmrl.types import MediaRef, Prompt, Sample

UPPER_RIGHT = [0.5, 0.0, 1.0, 0.5]
SEES = {"crop": "meta.box", "margin": 0.0}


# ---- geometry -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "margin", "expected"),
    [
        ((0.4, 0.4, 0.6, 0.8), 0.0, (0.4, 0.4, 0.6, 0.8)),
        ((0.4, 0.4, 0.6, 0.8), 0.25, (0.35, 0.3, 0.65, 0.9)),
        ((0.0, 0.5, 0.5, 1.0), 0.5, (0.0, 0.25, 0.75, 1.0)),
        ((0.4, 0.4, 0.6, 0.6), 10.0, (0.0, 0.0, 1.0, 1.0)),
    ],
)
def test_widened_by_hand(box: Any, margin: float, expected: tuple[float, ...]) -> None:
    assert widened(box, margin) == pytest.approx(expected)


@given(x=st.tuples(st.floats(0, 1), st.floats(0, 1)), y=st.tuples(st.floats(0, 1), st.floats(0, 1)), margin=st.floats(0, 5))
def test_a_widened_box_holds_the_box_and_lies_in_the_picture(x: tuple[float, float], y: tuple[float, float], margin: float) -> None:
    (x1, x2), (y1, y2) = sorted(x), sorted(y)
    left, top, right, bottom = widened((x1, y1, x2, y2), margin)
    assert 0 <= left <= x1 <= x2 <= right <= 1
    assert 0 <= top <= y1 <= y2 <= bottom <= 1
    assert right - left <= (x2 - x1) * (1 + 2 * margin) + 1e-9
    if margin == 0:
        assert (left, top, right, bottom) == (x1, y1, x2, y2)


# ---- boxes of rows ------------------------------------------------------------------------------------------------------


def picture(path: str = "a.png") -> MediaRef:
    return MediaRef(kind="image", path=path)


def row(meta: Mapping[str, Any], media: int = 1, answer_type: str = "exact_text", name: str = "a") -> Sample:
    return Sample(
        id=name,
        task="t",
        answer_type=answer_type,
        question="Which?",
        media=tuple(picture(f"{n}.png") for n in range(media)),
        answer="x",
        gt={},
        source="rows.jsonl:3",
        meta=meta,
    )


def crop(**more: Any) -> Crop:
    found = Crop.of(TeacherMediaSection.model_validate(SEES | more))
    assert found is not None
    return found


def test_no_crop_where_the_recipe_names_none() -> None:
    assert Crop.of(TeacherMediaSection(max_pixels=3136)) is None
    assert crop(margin=0.5, beside=True) == Crop(name="box", margin=0.5, beside=True)


def test_the_box_of_a_row_is_widened() -> None:
    assert crop(margin=0.5).regions(row({"box": [0.25, 0.5, 0.5, 0.75]})) == ((0.125, 0.375, 0.625, 0.875),)
    assert crop().regions(row({"box": (0, 0, 1, 0.5)})) == ((0.0, 0.0, 1.0, 0.5),)
    assert crop().regions(row({"box": [UPPER_RIGHT]})) == (tuple(UPPER_RIGHT),)


def test_several_media_have_a_box_each_or_none() -> None:
    sample = row({"box": [None, UPPER_RIGHT]}, media=2)
    assert crop().regions(sample) == (None, tuple(UPPER_RIGHT))
    assert [type(ref) for ref in crop().marked(sample).media] == [MediaRef, PartRef]
    assert crop().views(sample) == [(0, picture("0.png")), (1, part_of(picture("1.png"), (0.5, 0.0, 1.0, 0.5)))]
    assert [n for n, _ in crop(beside=True).views(sample)] == [0, 1, 1], "the part stands behind the whole ones"
    assert crop().regions(row({}, media=0)) == ()


@pytest.mark.parametrize(
    ("box", "media", "said"),
    [
        (None, 1, "teacher.media.crop is meta.box, and the row has none; give it x1, y1, x2, y2 as shares"),
        ([10, 20, 50, 60], 1, r"has \[10, 20, 50, 60\] for a box.*divide pixels by the sides of the picture, and thousandths by 1000"),
        ([0.5, 0.1, 0.5, 0.2], 1, "0 <= x1 < x2 <= 1"),
        ([0.1, 0.1, 0.5], 1, "for a box"),
        ([-0.1, 0.1, 0.5, 0.2], 1, "for a box"),
        ([float("nan"), 0.1, 0.5, 0.2], 1, "for a box"),
        ([True, 0, 1, 1], 1, "for a box"),
        (["0.1", 0.1, 0.5, 0.2], 1, "for a box"),
        ("0.1 0.1 0.5 0.2", 1, "for a box"),
        ({"x": 1}, 1, "for a box"),
        (UPPER_RIGHT, 2, r"the row has 2 media; of several media it is a list with a box for each, null for one that is shown whole"),
        ([UPPER_RIGHT], 2, "the row has 2 media"),
        ([UPPER_RIGHT, [0, 0, 2, 2]], 2, r"has \[0, 0, 2, 2\] for a box"),
    ],
)
def test_what_is_no_box_is_an_error_with_row_and_key(box: Any, media: int, said: str) -> None:
    with pytest.raises(DataError, match=said) as found:
        crop().regions(row({"box": box}, media=media))
    assert str(found.value).startswith("row 'a' (rows.jsonl:3): ")
    assert "meta.box" in str(found.value)


@pytest.mark.parametrize("answer_type", ["bbox", "point", "segmentation", "action"])
def test_coordinates_in_a_crop_are_refused_unless_the_whole_stands_beside(answer_type: str) -> None:
    rows = [row({"box": UPPER_RIGHT}, answer_type=answer_type, name=name) for name in ("b", "c")] + [row({"box": UPPER_RIGHT})]
    with pytest.raises(DataError, match=f"2 rows have answers of the type '{answer_type}', the first is 'b'.*teacher.media.beside: true"):
        crop().check(rows)
    crop(beside=True).check(rows)
    crop().check([row({"box": [None]}, answer_type=answer_type)])
    crop().check([row({"box": UPPER_RIGHT}, answer_type="time_span")])


def test_rows_without_a_box_are_counted() -> None:
    (said,) = crop().problems([row({"box": UPPER_RIGHT}), row({}, name="b"), row({"box": [1, 2, 3, 4]}, name="c")])
    assert said.startswith("row 'b' (rows.jsonl:3): teacher.media.crop is meta.box")
    assert said.endswith("; 1 more rows have none that can be read")


def test_a_marked_row_is_the_row_with_parts() -> None:
    sample = row({"box": UPPER_RIGHT})
    marked = crop().marked(sample)
    assert dataclasses.replace(marked, media=sample.media) == sample != marked
    assert crop().marked(marked) == marked, "marking again changes nothing"
    assert [whole_of(ref) for ref in marked.media] == list(sample.media)


# ---- what is shown ------------------------------------------------------------------------------------------------------


class Sides:
    """A student and a teacher that sees a part, over a folder with a picture and a video of 168 x 112 pixels."""

    def __init__(self, tiny: Tiny, root: Path, **media: Any):
        self.section = TeacherMediaSection.model_validate({"min_pixels": 784, "max_pixels": 84 * 56} | SEES | media)
        self.crop = Crop.of(self.section)
        own = dataclasses.replace(MEDIA, min_pixels=784, max_pixels=2 * 784, workers=media.pop("workers", 0))
        self.own = MediaStore.of(own, tiny.bundle)
        self.store = store_of(settings_of(own, TeacherSection(media=self.section)), tiny.bundle, self.crop)
        plain = Encoder.of(tiny.bundle, self.own, root, max_prompt_tokens=sys.maxsize)
        assert self.crop is not None
        self.student = MarkedEncoder.like(plain, self.crop, BothViews(self.own, self.store))
        self.encoder = Encoder.of(tiny.bundle, self.store, root, max_prompt_tokens=sys.maxsize)
        self.view = TeacherView(encoder=self.encoder, store=self.store, own=self.own, crop=self.crop)

    def prompt(self, sample: Sample) -> Prompt:
        """As the loader of the stage makes it."""
        made = self.student.encode(sample, "answer_only")
        assert made.sample is sample, "what the run knows of the row has no part"
        return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (112, 168, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.png")
    make_video(tmp_path / "a.mp4", numbered_frames(20, 112, 168), fps=10)
    return tmp_path


def video_row(meta: Mapping[str, Any]) -> Sample:
    return dataclasses.replace(row(meta), media=(MediaRef(kind="video", path="a.mp4"),))


def test_the_pixels_are_those_of_pillows_crop_of_the_file(tiny: Tiny, root: Path) -> None:
    sides = Sides(tiny, root)
    prompt = sides.prompt(row({"box": UPPER_RIGHT}))
    made = sides.view.of(prompt)
    assert made.sample == prompt.sample
    shown = sides.store.get_key(made.media[0].key)
    original = Image.open(root / "0.png")
    np.testing.assert_array_equal(shown.frames[0], np.asarray(original.crop((84, 0, 168, 56))))
    student = sides.own.get_key(prompt.media[0].key)
    np.testing.assert_array_equal(student.frames, resize(np.asarray(original)[None], *student.frames.shape[1:3]))
    wide = Sides(tiny, root, margin=0.25)
    shown = wide.store.get_key(wide.view.of(wide.prompt(row({"box": UPPER_RIGHT}))).media[0].key)
    expected = resize(np.asarray(original.crop((63, 0, 168, 70)))[None], *shown.frames.shape[1:3])
    np.testing.assert_array_equal(shown.frames, expected)


def test_beside_the_whole_stands_first_and_the_part_behind_it(tiny: Tiny, root: Path) -> None:
    sides = Sides(tiny, root, beside=True)
    prompt = sides.prompt(row({"box": UPPER_RIGHT}))
    made = sides.view.of(prompt)
    whole, part = (sides.store.get_key(handle.key).frames for handle in made.media)
    original = np.asarray(Image.open(root / "0.png"))
    np.testing.assert_array_equal(whole, resize(original[None], *whole.shape[1:3]))
    np.testing.assert_array_equal(part[0], original[:56, 84:])
    assert len(prompt.media) == 1
    assert (whole.shape, part.shape) == ((1, 56, 84, 3), (1, 56, 84, 3))
    planned = sides.encoder.plan(sides.crop.shown(prompt.sample), "answer_only")  # type: ignore[union-attr]
    assert planned.ids == made.ids


def test_the_same_part_of_every_frame(tiny: Tiny, root: Path) -> None:
    sides = Sides(tiny, root)
    prompt = sides.prompt(video_row({"box": UPPER_RIGHT}))
    made = sides.view.of(prompt)
    shown, whole = sides.store.get_key(made.media[0].key), MediaStore.get(sides.store, MediaRef(kind="video", path="a.mp4"), root)
    assert len(shown.frames) == len(whole.frames) >= 4
    assert shown.frames.shape[1:3] == (56, 84)
    assert shown.times is not None
    assert whole.times is not None
    assert shown.times.tolist() == whole.times.tolist()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_is_decoded_once_for_both_sides(tiny: Tiny, root: Path, beside: bool, workers: int) -> None:
    sides = Sides(tiny, root, beside=beside)
    if workers:
        sides.own.settings = dataclasses.replace(sides.own.settings, workers=1)
        sides.own.pool = MediaStore.of(sides.own.settings, tiny.bundle).pool
    for sample in (row({"box": UPPER_RIGHT}), video_row({"box": UPPER_RIGHT})):
        sides.view.of(sides.prompt(sample))
    assert (sides.own.stats["decoded"], sides.store.stats["decoded"]) == (2, 0)
    sides.own.close()


def test_what_was_dropped_is_made_again_from_the_file(tiny: Tiny, root: Path) -> None:
    sides = Sides(tiny, root)
    made = sides.view.of(sides.prompt(row({"box": UPPER_RIGHT})))
    before = sides.store.get_key(made.media[0].key).frames.copy()
    sides.store._entries.clear()
    again = sides.store.get_key(made.media[0].key)
    np.testing.assert_array_equal(again.frames, before)
    assert again.handle == made.media[0]
    assert sides.store.stats["decoded"] == 1


def test_a_worker_decodes_a_part_for_a_store_of_its_own(tiny: Tiny, root: Path) -> None:
    settings = dataclasses.replace(MEDIA, min_pixels=784, max_pixels=84 * 56)
    alone, by_worker = (CropStore.of(dataclasses.replace(settings, workers=n), tiny.bundle) for n in (0, 1))
    for ref in (picture("0.png"), MediaRef(kind="video", path="a.mp4")):
        here, there = (store.get(part_of(ref, (0.1, 0.2, 0.7, 0.9)), root) for store in (alone, by_worker))
        assert here.handle == there.handle
        np.testing.assert_array_equal(here.frames, there.frames)
    by_worker.close()


def test_the_prefetcher_weighs_all_that_a_teacher_keeps(tiny: Tiny, root: Path) -> None:
    ref = part_of(picture("0.png"), (0.5, 0.0, 1.0, 0.5))
    alone, beside = Sides(tiny, root).store, Sides(tiny, root, beside=True).store
    whole = MediaStore.weigh(alone, picture("0.png"), root)
    assert alone.weigh(ref, root) == MediaStore.weigh(alone, ref, root) > 0
    assert beside.weigh(ref, root) == whole + alone.weigh(ref, root)


# ---- keys and proofs ----------------------------------------------------------------------------------------------------


def test_a_key_holds_the_part_and_all_that_the_key_of_the_whole_holds(tiny: Tiny) -> None:
    store = Sides(tiny, Path()).store
    refs = [picture(), *(part_of(picture(), region) for region in ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.5), (0.0, 0.0, 0.5, 1.0)))]
    keys = [store.key_of(ref, digest) for ref in refs for digest in ("a", "b")]
    assert len(set(keys)) == len(keys)
    other = CropStore.of(dataclasses.replace(store.settings, max_pixels=784), tiny.bundle)
    assert other.key_of(refs[1], "a") != store.key_of(refs[1], "a")
    plain = MediaStore.of(store.settings, tiny.bundle)
    assert [plain.key_of(ref, "a") for ref in refs] == [store.key_of(refs[0], "a")] * 4, "a student's store shows the whole of each"


@pytest.mark.parametrize("beside", [False, True])
def test_the_hash_of_what_the_teacher_read_gives_both_keys(tiny: Tiny, root: Path, tmp_path: Path, beside: bool) -> None:
    sides = Sides(tiny, root, beside=beside)
    sides.view.seen = SeenRecord.of(tmp_path / "seen.jsonl")
    prompt = sides.prompt(row({"box": UPPER_RIGHT}))
    made = sides.view.of(prompt)
    digest = sides.store.digest(picture("0.png"), root)
    assert digest is not None
    assert prompt.media[0].key == sides.own.key_of(picture("0.png"), digest)
    part = sides.store.key_of(part_of(picture("0.png"), (0.5, 0.0, 1.0, 0.5)), digest)
    expected = [sides.store.key_of(picture("0.png"), digest), part] if beside else [part]
    assert [handle.key for handle in made.media] == expected
    line = json.loads((tmp_path / "seen.jsonl").read_text())
    assert line["student"]["media"] == [prompt.media[0].key]
    assert line["teacher"]["media"] == expected


def test_a_file_that_changes_or_another_part_ends_with_the_rows_name(tiny: Tiny, root: Path) -> None:
    sides = Sides(tiny, root)
    prompt = sides.prompt(row({"box": UPPER_RIGHT}))

    class Elsewhere(CropStore):
        def get(self, ref: MediaRef, root: Path, also: MediaStore | None = None) -> Any:
            return super().get(part_of(ref, (0.0, 0.0, 0.5, 0.5)), root, also)

    elsewhere = Elsewhere.of(sides.store.settings, tiny.bundle)
    wrong = dataclasses.replace(sides.view, encoder=dataclasses.replace(sides.encoder, media=elsewhere), store=elsewhere)
    with pytest.raises(DataError, match=r"row 'a'.*another content of 0\.png"):
        wrong.of(prompt)
    assert sides.view.of(prompt)
    Image.new("RGB", (168, 112)).save(root / "0.png")
    with pytest.raises(DataError, match=r"row 'a'.*another content of 0\.png"):
        sides.view.of(prompt)


def test_parts_of_one_file_are_watched_apart(tiny: Tiny, root: Path, tmp_path: Path) -> None:
    store = Sides(tiny, root, beside=True).store
    used = UsedMedia(tmp_path / "inputs", data_root=root)
    watched = WatchedCrops(used, store, "teacher/rl/")
    refs = [picture("0.png"), *(part_of(picture("0.png"), region) for region in ((0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 1.0, 0.5)))]
    assert len({watched.get(ref, root).handle.key for ref in refs}) == 3
    again = WatchedCrops(UsedMedia(tmp_path / "inputs", data_root=root), store, "teacher/rl/")
    assert [again.get(ref, root).handle for ref in refs] == [store.get(ref, root).handle for ref in refs]
    Image.new("RGB", (168, 112)).save(root / "0.png")
    for ref in refs:
        with pytest.raises(CheckpointError, match=r"0\.png"):
            again.get(ref, root)

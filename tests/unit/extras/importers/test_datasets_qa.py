"""`data/<name>/`: every folder turns its sample, which is in the official layout, into valid rows whose gold answers score in full."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.support.standins import fill, image_bytes
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.row import parse_row
from vlmrl.data.source import load_source
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import (
    Dataset,
    Skipped,
    media_paths,
    official_counts,
    prepare,
)
from vlmrl.media.image import decode_image
from vlmrl.media.video import probe_video
from vlmrl.metrics.boxes import convert
from vlmrl.protocols import reward
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

DATA = Path(__file__).parents[4] / "data"
HEADINGS = ("Source", "Licence", "Splits and official counts", "Layout of the download", "Rows", "Prepare", "Not verified")


class Case(NamedTuple):
    name: str
    split: str
    options: dict[str, Any]
    rewards: dict[str, str]
    """Answer type -> the reward that has to accept the gold answer."""
    rows: int
    left_out: int
    """Listed in the file of skipped records."""


CASES = [
    Case("charades_sta", "train", {}, {"time_span": "temporal_iou"}, 2, 0),
    Case("charades_sta", "test", {}, {"time_span": "temporal_iou"}, 5, 1),
    Case("activitynet_captions", "val_1", {}, {"time_span": "temporal_iou"}, 3, 1),
    Case("activitynet_captions", "val_2", {}, {"time_span": "temporal_iou"}, 5, 1),
    Case("qvhighlights", "val", {"task": "moment"}, {"time_span": "temporal_iou"}, 5, 1),
    Case("qvhighlights", "val", {"task": "moments"}, {"time_span": "temporal_iou"}, 6, 0),
    Case("qvhighlights", "val", {"task": "highlight"}, {"highlight": "highlight"}, 5, 1),
    Case("timelens", "train", {}, {"time_span": "temporal_iou"}, 2, 1),
    Case("timelens", "charades", {}, {"time_span": "temporal_iou"}, 5, 0),
    Case("timelens", "activitynet", {}, {"time_span": "temporal_iou"}, 5, 0),
    Case("timelens", "qvhighlights", {}, {"time_span": "temporal_iou"}, 5, 0),
    Case("refcoco", "train", {"frame": "norm1000"}, {"bbox": "box_iou"}, 2, 0),
    Case("refcoco", "testB", {"frame": "pixel"}, {"bbox": "box_iou"}, 5, 0),
    Case("refcoco_plus", "val", {"frame": "norm1000"}, {"bbox": "box_iou"}, 5, 0),
    Case("refcocog", "val", {"frame": "norm1000"}, {"bbox": "box_iou"}, 5, 0),
    Case("vgr", "shortcot", {}, {"exact_text": "exact"}, 2, 1),
    Case("sat", "val", {"circular": "no"}, {"choice": "choice"}, 2, 1),
    Case("sat", "val", {"circular": "yes"}, {"choice": "choice"}, 4, 1),
    Case("clevr_cogen", "train", {}, {"number": "count"}, 2, 0),
    Case("clevr_counting", "val", {}, {"number": "count"}, 5, 0),
    Case("super_clevr", "val", {}, {"number": "count"}, 1, 0),
    Case("super_clevr", "test200", {}, {"number": "count"}, 5, 0),
    Case("geoqa", "train", {}, {"math": "math"}, 2, 0),
    Case("geoqa", "test", {}, {"math": "math"}, 5, 0),
    Case("geoqa", "geoqa3", {}, {"choice": "choice"}, 1, 0),
    Case("geometry3k", "test", {"form": "open"}, {"math": "math"}, 2, 0),
    Case("geometry3k", "test", {"form": "choice"}, {"choice": "choice"}, 2, 0),
    Case("mathvista_mini", "testmini", {}, {"choice": "choice", "number": "", "exact_text": "exact"}, 6, 0),
    Case("mmmu", "validation", {}, {"choice": "choice", "exact_text": "exact"}, 5, 0),
    Case("seed_bench_r1", "val_L1", {}, {"choice": "choice"}, 5, 0),
    Case("seed_bench_r1", "val_L2", {}, {"choice": "choice"}, 5, 0),
    Case("seed_bench_r1", "val_L3", {}, {"choice": "choice"}, 5, 0),
]
NAMES = sorted({case.name for case in CASES})
BY_NAME = {case.name: case for case in reversed(CASES)}
"""The first case of each folder."""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", DATA / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_bytes(value: Any) -> Any:
    """Replaces `standin:<name>` by the bytes of a stand-in picture."""
    if isinstance(value, dict):
        return {key: with_bytes(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_bytes(inner) for inner in value]
    return image_bytes(value.removeprefix("standin:")) if isinstance(value, str) and value.startswith("standin:") else value


def download(name: str, root: Path) -> Path:
    """The sample as the official download: `.parquet.jsonl` becomes Parquet and `.p.json` a pickle of Python 2's protocol."""
    shutil.copytree(DATA / name / "sample", root)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        if path.name.endswith(".parquet.jsonl"):
            records = [with_bytes(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
            parquet.write_table(pa.Table.from_pylist(records), path.with_suffix(""))
            path.unlink()
        elif path.name.endswith(".p.json"):
            path.with_suffix("").write_bytes(pickle.dumps(json.loads(path.read_text(encoding="utf-8")), protocol=2))
            path.unlink()
    return root


def plain_rows(dataset: Dataset, root: Path, split: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    return [record for record in dataset.rows(root, split, **options) if not isinstance(record, Skipped)]


def prepared(case: Case, tmp_path: Path) -> tuple[list[Sample], str]:
    """Samples of the prepared sample download, with stand-in media."""
    dataset: Dataset = script(case.name).DATASET
    root = download(case.name, tmp_path / "download")
    fill(root, plain_rows(dataset, root, case.split, case.options))
    done = prepare(dataset, root, tmp_path / "out", case.split, allow_partial=True, **case.options)
    media_root = done.rpartition("media_root: ")[2]
    path = tmp_path / "out" / f"{case.split}.jsonl"
    return load_source(path, media_root=media_root, dedupe="error", max_bad_rows=0.0, quarantine=None), done


def ident(case: Case) -> str:
    return "-".join([case.name, case.split, *case.options.values()])


@pytest.mark.parametrize("name", NAMES)
def test_card_has_every_part_and_a_count_or_its_absence_for_every_split(name: str):
    text = (DATA / name / "card.md").read_text(encoding="utf-8")
    for heading in HEADINGS:
        _, found, rest = text.partition(f"\n## {heading}\n")
        assert found, heading
        assert rest.split("\n## ")[0].strip(), heading
    dataset: Dataset = script(name).DATASET
    assert set(official_counts(DATA / name / "card.md")) == set(dataset.splits)
    assert dataset.folder == DATA / name
    for option in dataset.options:
        assert f"--{option}" in text


@pytest.mark.parametrize("name", NAMES)
def test_scripts_are_short_and_samples_hold_no_binaries(name: str):
    assert len((DATA / name / "prepare.py").read_text(encoding="utf-8").splitlines()) < 80
    for path in (DATA / name).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_gold_answers_score_in_full(case: Case, tmp_path: Path):
    importlib.import_module("vlmrl.methods").registries()
    samples, done = prepared(case, tmp_path)
    assert len(samples) == case.rows
    assert f"{case.rows} rows" in done
    assert {sample.answer_type for sample in samples} == set(case.rewards)
    listed = tmp_path / "out" / f"{case.split}.skipped.jsonl"
    assert (len(listed.read_text().splitlines()) if listed.exists() else 0) == case.left_out
    for sample in samples:
        assert sample.meta["source"] == case.name
        assert sample.meta["split"] == case.split
        column = case.rewards[sample.answer_type] or next(iter(sample.gt))
        runner = RewardRunner([(column, 1.0, reward.get(column).function)])
        for answer_format in ("think", "answer_only"):
            assert runner.self_test([sample], answer_format) == []


@pytest.mark.parametrize("case", [BY_NAME[name] for name in NAMES], ids=ident)
def test_media_open_where_the_summary_says_they_are(case: Case, tmp_path: Path):
    samples, _ = prepared(case, tmp_path)
    for sample in samples:
        assert sample.media
        for ref in sample.media:
            path = Path(sample.media_root) / ref.path
            if ref.kind == "image":
                assert decode_image(path.read_bytes()).ndim == 3
            else:
                assert probe_video(path).duration > 0


@pytest.mark.parametrize("case", [c for c in CASES if official_counts(DATA / c.name / "card.md")[c.split] is not None], ids=ident)
def test_another_count_than_the_card_says_is_an_error(case: Case, tmp_path: Path):
    dataset: Dataset = script(case.name).DATASET
    root = download(case.name, tmp_path / "download")
    official = official_counts(DATA / case.name / "card.md")[case.split]
    with pytest.raises(DataError, match=rf"read, but .*card\.md says {official};.*--allow-partial"):
        prepare(dataset, root, tmp_path / "out", case.split, **case.options)
    assert not (tmp_path / "out" / f"{case.split}.jsonl").exists()


@pytest.mark.parametrize("case", [BY_NAME[name] for name in NAMES if name not in ("sat", "mmmu", "geoqa", "clevr_cogen")], ids=ident)
def test_missing_media_are_named(case: Case, tmp_path: Path):
    dataset: Dataset = script(case.name).DATASET
    root = download(case.name, tmp_path / "download")
    unchecked = Dataset(folder=tmp_path / case.name, rows=dataset.rows, splits=dataset.splits, unit=dataset.unit, options=dataset.options)
    unchecked.folder.mkdir()
    (unchecked.folder / "card.md").write_text(f"| {case.split} | not verified | |\n")
    rows = plain_rows(dataset, root, case.split, case.options)
    fill(root, rows[1:])
    lost = media_paths(rows[0])[0]
    (root / lost).unlink(missing_ok=True)  # another row may use the same file
    with pytest.raises(DataError) as caught:
        prepare(unchecked, root, tmp_path / "out", case.split, **case.options)
    assert f"media files are not below {root}: {lost}" in str(caught.value)


def test_allow_partial_leaves_out_rows_without_media_and_lists_them(tmp_path: Path):
    dataset: Dataset = script("charades_sta").DATASET
    root = download("charades_sta", tmp_path / "download")
    rows = plain_rows(dataset, root, "test", {})
    fill(root, [row for row in rows if "SAM02" in row["video"]])
    done = prepare(dataset, root, tmp_path / "out", "test", allow_partial=True)
    assert "2 rows; left out: 3 (missing medium), 1 (empty span); 6 records read of the 3720 of the card" in done
    listed = [json.loads(line) for line in (tmp_path / "out" / "test.skipped.jsonl").read_text().splitlines()]
    assert listed == [
        {"id": "charades_sta-test-00003", "reason": "empty span"},
        {"id": "charades_sta-test-00004", "reason": "missing medium Charades_v1_480/SAM03.mp4"},
        {"id": "charades_sta-test-00005", "reason": "missing medium Charades_v1_480/SAM05.mp4"},
        {"id": "charades_sta-test-00006", "reason": "missing medium Charades_v1_480/SAM05.mp4"},
    ]


def rows_of(name: str, split: str, tmp_path: Path, **options: str) -> list[Any]:
    return list(script(name).DATASET.rows(download(name, tmp_path / "download"), split, **options))


def test_charades_spans_are_cut_to_the_clip(tmp_path: Path):
    spans = [row["gt"]["time"] for row in rows_of("charades_sta", "test", tmp_path) if not isinstance(row, Skipped)]
    assert spans[:3] == [[2.0, 7.5], [10.0, 12.5], [0.0, 3.25]]  # the clip of SAM02 is 12.5 s long


def test_activitynet_reads_pairs_in_order(tmp_path: Path):
    first, second, outside, last = rows_of("activitynet_captions", "val_1", tmp_path)
    assert first["gt"]["time"] == [0.83, 19.86]
    assert second["gt"]["time"] == [17.37, 40.5]
    assert '"He draws a bird on paper"' in second["prompt"]
    assert outside == Skipped("activitynet_captions-val_1-v_sampleBBBBB-0", "empty span")
    assert last["gt"]["time"] == [3.0, 9.5]


def test_qvhighlights_clips_are_named_by_their_middle(tmp_path: Path):
    first, second, silent, *_ = rows_of("qvhighlights", "val", tmp_path, task="highlight")
    assert first["gt"]["highlights"] == [[5.0, 3.33], [7.0, 3.0], [9.0, 2.33]]  # clips 2, 3, 4; means of three
    assert first["gt"]["saliency"] == {"duration": 30, "clips": [2, 3, 4], "scores": [[4, 4, 2], [3, 4, 2], [2, 2, 3]]}
    assert parse_row(first, source="t", media_root="").answer == '{"highlights": [[5.0, 3.33], [7.0, 3.0], [9.0, 2.33]]}'
    assert second["meta"]["windows"] == [[0, 2], [12, 14]]
    assert silent.reason == "no saliency above 0"


def test_qvhighlights_moments_have_one_window(tmp_path: Path):
    first, second, third, *_ = rows_of("qvhighlights", "val", tmp_path, task="moment")
    assert first["gt"]["time"] == [4.0, 10.0]
    assert second.reason == "not one window"
    assert third["gt"]["time"] == [2.0, 4.0]


def test_qvhighlights_evaluation_knows_every_window(tmp_path: Path):
    first, second, *_ = rows_of("qvhighlights", "val", tmp_path, task="moments")
    assert first["gt"] == {"time": [4.0, 10.0], "windows": [[4.0, 10.0]]}
    assert second["gt"] == {"time": [0.0, 2.0], "windows": [[0.0, 2.0], [12.0, 14.0]]}  # of equal ones the first
    sample = parse_row(second, source="t", media_root="")
    for answer, tiou, moment_map in (("0 to 2", 1.0, 0.5), ("12 to 14", 1.0, 0.5), ("12 to 13", 0.5, 0.05), ("none", 0.0, 0.0)):
        assert ANSWER_TYPES["time_span"].score(answer, sample)[2] == pytest.approx({"tiou": tiou, "moment_map": moment_map})


def test_timelens_queries_with_several_spans_are_left_out(tmp_path: Path):
    first, several, last = rows_of("timelens", "train", tmp_path)
    assert first["gt"]["time"] == [4.0, 9.5]
    assert first["video"] == "TimeLens-100K/videos/cosmo_cap/sampleAAAAA.mp4"
    assert several.reason == "several spans"
    assert last["gt"]["time"] == [5.0, 10.0]


def test_timelens_span_without_a_list_around_it(tmp_path: Path):
    entry = {"source": "didemo", "video_path": "didemo/a.mp4", "duration": 60.0, "events": [{"query": "a dog runs", "span": [3.0, 7.5]}]}
    (tmp_path / "TimeLens-100K").mkdir()
    (tmp_path / "TimeLens-100K/timelens-100k.jsonl").write_text(json.dumps(entry), encoding="utf-8")
    (row,) = script("timelens").DATASET.rows(tmp_path, "train")
    assert row["gt"]["time"] == [3.0, 7.5]


def test_refcoco_boxes_in_both_frames(tmp_path: Path):
    """COCO box (24, 4.5, 32, 24) in a picture of 64 x 48: corners (24, 4.5, 56, 28.5)."""
    dataset: Dataset = script("refcoco").DATASET
    root = download("refcoco", tmp_path / "download")
    pixel, *_ = plain_rows(dataset, root, "testB", {"frame": "pixel"})
    relative, *_ = plain_rows(dataset, root, "testB", {"frame": "norm1000"})
    assert pixel["gt"]["boxes"] == [[24.0, 4.5, 56.0, 28.5]]
    assert relative["gt"]["boxes"] == [[375.0, 93.75, 875.0, 593.75]]
    assert "64 x 48 pixels" in pixel["prompt"]
    assert "0 to 1000" in relative["prompt"]
    assert relative["image"].endswith("train2014/COCO_train2014_000000000001.jpg")
    assert convert(pixel["gt"]["boxes"][0], (64, 48), source="pixel", target="norm1000") == tuple(relative["gt"]["boxes"][0])


def test_refcoco_counts_refs_and_not_expressions(tmp_path: Path):
    case = next(case for case in CASES if case.name == "refcoco")
    _, done = prepared(case, tmp_path)
    assert "2 rows; 1 ref_ids read of the 42404 of the card" in done


def test_refcoco_files_that_do_not_belong_together(tmp_path: Path):
    root = download("refcoco", tmp_path / "download")
    path = root / "refcoco" / "instances.json"
    instances = json.loads(path.read_text())
    path.write_text(json.dumps({**instances, "annotations": []}))
    with pytest.raises(DataError, match="ref 0 has no annotation"):
        list(script("refcoco").DATASET.rows(root, "train", frame="pixel"))


def test_vgr_regions_become_boxes_of_0_to_1000(tmp_path: Path):
    first, second, third = rows_of("vgr", "shortcot", tmp_path)
    assert first["gt"]["boxes"] == [[100.0, 500.0, 400.0, 950.0], [50.0, 900.0, 100.0, 1000.0]]
    assert "<bbox>[100.0, 500.0, 400.0, 950.0]</bbox>" in first["thought"]
    assert (first["prompt"], first["answer"]) == ("Which label marks the root?", "B")
    assert (second["answer"], second["gt"]["boxes"]) == ("42", [[700.0, 125.0, 800.0, 900.0]])
    assert third.reason == "not one question with a thought and an answer"
    for text in ("[0.1, 0.2, 0.3]", "[0.5, 0.1, 0.4, 0.9]", "[0.1, 0.2, x, 1]", '[0.1, 0.2, [3], "a"]'):
        assert script("vgr")._box(text) is None
    assert script("vgr")._box("[-0.1, 0.25, 0.5, 1.2]") == [0.0, 250.0, 500.0, 1000.0]


def test_sat_rotations_put_the_right_answer_under_every_letter(tmp_path: Path):
    rows = [row for row in rows_of("sat", "val", tmp_path, circular="yes") if not isinstance(row, Skipped)]
    for question, right in ((0, "turned left"), (1, "no")):
        turns = [row for row in rows if row["meta"]["question"] == question]
        assert {row["answer"] for row in turns} == {"A", "B"}
        for row in turns:
            assert f"{row['answer']}. {right}" in row["options"]
    assert [len(row["images"]) for row in rows] == [2, 2, 1, 1]


def test_sat_order_of_answers_does_not_tell_the_right_one(tmp_path: Path):
    """In the release the right answer of the first 64 questions may always stand first."""
    records = [{"image_bytes": [b"x"], "question": "?", "answers": ["yes", "no"], "question_type": "t", "correct_answer": "yes"}] * 64
    parquet.write_table(pa.Table.from_pylist(records), tmp_path / "SAT_val.parquet")
    answers = [row["answer"] for row in script("sat").DATASET.rows(tmp_path, "val", circular="no")]
    assert 16 < answers.count("A") < 48  # 32 expected; outside with probability below 1e-4


def test_counting_reads_every_question_and_keeps_those_that_count(tmp_path: Path):
    first, other, last, *_ = rows_of("clevr_counting", "val", tmp_path)
    assert (first["gt"], first["answer"]) == ({"count": 3}, "3")
    assert not other.listed
    assert last["gt"] == {"count": 0}


@pytest.mark.parametrize(("split", "counts"), [("train", [2]), ("val", [5]), ("test", [1]), ("test200", [4, 7, 5, 3, 10])])
def test_super_clevr_splits_by_picture_number(tmp_path: Path, split: str, counts: list[int]):
    rows = [row for row in rows_of("super_clevr", split, tmp_path) if not isinstance(row, Skipped)]
    assert [row["gt"]["count"] for row in rows] == counts


def test_geometry3k_forms_agree(tmp_path: Path):
    dataset: Dataset = script("geometry3k").DATASET
    root = download("geometry3k", tmp_path / "download")
    opened, choices = (plain_rows(dataset, root, "test", {"form": form}) for form in ("open", "choice"))
    assert [row["answer"] for row in opened] == ["21 \\sqrt { 3 }", "9"]
    assert [row["answer"] for row in choices] == ["C", "A"]
    for left, right in zip(opened, choices, strict=True):
        assert right["options"]["ABCD".index(right["answer"])] == f"{right['answer']}. {left['answer']}"


def test_geoqa_forms(tmp_path: Path):
    root = download("geoqa", tmp_path / "download")
    dataset: Dataset = script("geoqa").DATASET
    assert [row["answer"] for row in plain_rows(dataset, root, "train", {})] == ["145°", "\\sqrt{2}"]
    assert [row["image"] for row in plain_rows(dataset, root, "test", {})] == [f"Geo170K/images/test/{i}.png" for i in range(5)]
    (chinese,) = plain_rows(dataset, root, "geoqa3", {})
    assert (chinese["answer"], chinese["options"][2]) == ("C", "C. 60°")


def test_mathvista_kinds(tmp_path: Path):
    choice, integer, decimal, listed, *_ = rows_of("mathvista_mini", "testmini", tmp_path)
    assert (choice["answer"], choice["options"]) == ("B", ["A. red", "B. green", "C. blue"])
    assert integer["gt"] == {"count": 3}
    assert decimal["gt"] == {"number": 1.2}
    assert decimal["prompt"] == "How long is the rod? (Unit: m) Round the answer to 1 decimal place(s)."
    assert (listed["answer_type"], listed["answer"]) == ("exact_text", "[2004, 2006]")


def test_mmmu_reads_options_without_evaluating_them(tmp_path: Path):
    choice, opened, music, *_ = rows_of("mmmu", "validation", tmp_path)
    assert choice["options"] == ["A. the first", "B. the painter's", "C. $\\frac{1}{2}$", "D. none"]
    assert (opened["answer"], opened["gt"]["accepted"], len(opened["images"])) == ("4", ["4", "4:1"], 2)
    assert music["meta"]["subject"] == "Music"


def test_seed_bench_r1_puts_the_clip_before_the_view(tmp_path: Path):
    first, second, *_ = (parse_row(row, source="t", media_root="") for row in rows_of("seed_bench_r1", "val_L1", tmp_path))
    assert [ref.path for ref in first.media] == ["videos/EpicKitchens/501.mp4", "images/EpicKitchens/501.png"]
    assert [ref.kind for ref in second.media] == ["image"]
    assert "C. take cup" in first.question


def seed_bench_training(root: Path, **changed: Any) -> list[Any]:
    """Rows of a training file: its records have wrong answers in place of choices."""
    record = {
        **{"sample_id": 39, "video_source": "EpicKitchens", "video_id": "P07_113", "question": "What next?", "answer": "grab onion"},
        **{
            "video_basename": "39.mp4",
            "current_observation_basename": "39.png",
            "task_progress_metadata": [{"narration_text": "open drawer"}],
        },
        "negative_answers": ["open drawer", "grab knife", "close drawer", "slice onion", "grab onion", "open drawer"],
    }
    (root / "annotations").mkdir(parents=True)
    lines = [json.dumps(record | changed | {"sample_id": number}) for number in range(200)]
    (root / "annotations/training_6k.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return list(script("seed_bench_r1").DATASET.rows(root, "train_6k"))


def test_seed_bench_r1_training_records_get_three_of_their_wrong_answers(tmp_path: Path):
    rows = seed_bench_training(tmp_path / "a")
    assert rows == seed_bench_training(tmp_path / "b")
    letters = [row["answer"] for row in rows]
    for row in rows:
        texts = [option[3:] for option in row["options"]]
        assert len(set(texts)) == 4
        assert texts["ABCD".index(row["answer"])] == "grab onion"
    assert all(30 < letters.count(letter) < 70 for letter in "ABCD")  # of 200: the place tells nothing
    with pytest.raises(DataError, match=r"training_6k.jsonl:1: fewer than three negative_answers"):
        seed_bench_training(tmp_path / "c", negative_answers=["a", "b", "grab onion"])


@pytest.mark.parametrize("field", ["query", "duration", "saliency_scores"])
def test_records_without_a_field_are_errors_that_say_where(field: str, tmp_path: Path):
    root = download("qvhighlights", tmp_path / "download")
    path = root / "highlight_val_release.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[1][field]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=rf"the record after 'qvhighlights-val-highlight-9001' is not as .*card\.md .*KeyError: '{field}'"):
        prepare(script("qvhighlights").DATASET, root, tmp_path / "out", "val", allow_partial=True, task="highlight")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_is_an_error_that_names_the_file(name: str, tmp_path: Path):
    case = BY_NAME[name]
    with pytest.raises(DataError, match=r"not found|no file"):
        list(script(name).DATASET.rows(tmp_path, case.split, **case.options))


def test_scripts_run_on_their_own(tmp_path: Path):
    import subprocess

    root = download("clevr_counting", tmp_path / "download")
    command = [sys.executable, str(DATA / "clevr_counting" / "prepare.py"), str(root), str(tmp_path / "out"), "--split", "val"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=DATA.parent, env={"PYTHONPATH": str(DATA.parent)}, check=False)
    assert done.returncode == DataError.exit_code
    assert "6 records read, but" in done.stderr
    assert "149991" in done.stderr


def test_bad_official_files_name_their_line(tmp_path: Path):
    root = download("charades_sta", tmp_path / "download")
    (root / "charades_sta_test.txt").write_text("SAM02 1.0##no end time\n")
    with pytest.raises(DataError, match=r"charades_sta_test\.txt:1: expected 'video start end##sentence'"):
        list(script("charades_sta").DATASET.rows(root, "test"))
    root = download("qvhighlights", tmp_path / "other")
    with (root / "highlight_val_release.jsonl").open("a") as file:
        file.write('{"qid": 1, \n')
    with pytest.raises(DataError, match=r"highlight_val_release\.jsonl:7: not JSON"):
        list(script("qvhighlights").DATASET.rows(root, "val", task="moment"))

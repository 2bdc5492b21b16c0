"""`data/`: row collections that an adapter reads. Prepared rows and the file read as a source are the same samples, and score in full."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.foreign import read
from tests.support.samples import load_dataset, unpack
from tests.support.standins import fill
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.marks import MarkedFrames
from vlmrl.config.schema import SftSection, SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import SourceReport, load_source, read_source
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Skipped, official_counts, prepare
from vlmrl.extras.pages.overlay import gold_marks, target_of
from vlmrl.media.image import decode_image
from vlmrl.media.video import probe_video
from vlmrl.protocols import reward
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.train.stage.sft import target
from vlmrl.types import Sample

DATA = Path(__file__).parents[4] / "data"
HEADINGS = ("Source", "Licence", "Splits and official counts", "Layout of the download", "Rows", "Prepare", "Not verified")
REWARDS = {
    **{
        "choice": "choice",
        "number": "number",
        "regression": "regression_mra",
        "short_text": "ocr_wer",
        "exact_text": "exact",
        "math": "math",
    },
    **{"time_span": "temporal_iou", "bbox": "box_iou", "tracking": "tracking", "spatio_temporal": "spatio_temporal"},
    "segmentation": "segmentation_points",
}
ONETHINKER: dict[str, Any] = {"frame": "norm1000", "time_unit": "s"}


class Case(NamedTuple):
    name: str
    split: str
    file: str
    source: dict[str, Any]
    """What a source that reads the file itself has to say."""
    adapter: str
    types: dict[str, int]
    """Answer type -> number of rows."""
    refused: dict[str, str]
    """Number of the record -> the adapter's reason."""

    @property
    def options(self) -> dict[str, Any]:
        return {"answer_type": self.source["answer_type"]} if self.name == "sharegpt_thoughts" else {}


OPEN: dict[str, Any] = {"answer_type": "exact_text"}
CASES = [
    Case(
        *("video_r1", "rl", "Video-R1-260k.json", {}, "video_r1"),
        types={"choice": 2, "number": 2, "short_text": 1, "exact_text": 1, "regression": 1},
        refused={"000006": "answer"},
    ),
    Case("video_r1", "cot", "Video-R1-COT-165k.json", {}, "video_r1", {"choice": 1, "number": 1, "exact_text": 1}, {}),
    Case(
        *("onethinker", "rl", "onethinker_rl_train.json", ONETHINKER, "video_r1"),
        types={kind: 2 if kind == "segmentation" else 1 for kind in REWARDS},
        refused={"000013": "answer", "000014": "problem_type"},
    ),
    Case("sharegpt_thoughts", "train", "train.jsonl", OPEN, "messages", {"exact_text": 5}, {"000006": "turns", "000007": "answer"}),
    Case("sharegpt_thoughts", "onethinker_sft_image", "onethinker_sft_image.json", OPEN, "messages", {"exact_text": 2}, {}),
    Case("sharegpt_thoughts", "onethinker_sft_video", "onethinker_sft_video.json", OPEN, "messages", {"exact_text": 1}, {}),
    Case("sharegpt_thoughts", "vision_r1_mulberry_sft_full", "vision_r1_mulberry_sft_full.json", OPEN, "messages", {"exact_text": 2}, {}),
]
BY_NAME = {case.name: case for case in reversed(CASES)}
"""The first case of each folder."""


def ident(case: Case) -> str:
    return f"{case.name}-{case.split}"


def download(case: Case, tmp_path: Path) -> Path:
    """The sample as the official download, with stand-in media."""
    root = tmp_path / "download"
    unpack(DATA / case.name, root)
    fill(root, [r for r in load_dataset(DATA / case.name).rows(root, case.split, **case.options) if not isinstance(r, Skipped)])
    return root


def prepared(case: Case, tmp_path: Path) -> list[Sample]:
    root = download(case, tmp_path)
    done = prepare(load_dataset(DATA / case.name), root, tmp_path / "out", case.split, **case.options)
    assert f"{sum(case.types.values())} rows" in done
    assert f"{sum(case.types.values()) + len(case.refused)} records read" in done
    path = tmp_path / "out" / f"{case.split}.jsonl"
    return load_source(path, media_root=str(root), dedupe="error", max_bad_rows=0.0, quarantine=None)


def direct(case: Case, root: Path, **more: Any) -> SourceReport:
    """The official file as a source, whose shape is found out."""
    return read_source(root / case.file, media_root=str(root), options=ImportOptions(**(case.source | more)))


def meaning(sample: Sample) -> tuple[object, ...]:
    """All of a sample but its name and where it came from."""
    meta = {key: value for key, value in sample.meta.items() if key not in ("split", "imported_id", "source")}
    media = [(ref.kind, ref.path, ref.sha256) for ref in sample.media]
    return sample.task, sample.answer_type, sample.question, media, sample.answer, dict(sample.gt), sample.thought, meta


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_folder_has_all_parts(name: str) -> None:
    text = (DATA / name / "card.md").read_text(encoding="utf-8")
    for heading in HEADINGS:
        assert text.partition(f"\n## {heading}\n")[2].split("\n## ")[0].strip(), heading
    dataset = load_dataset(DATA / name)
    assert set(official_counts(DATA / name / "card.md")) == set(dataset.splits) == {case.split for case in CASES if case.name == name}
    assert dataset.folder == DATA / name
    assert all(f"--{option}" in text for option in dataset.options)
    assert len((DATA / name / "prepare.py").read_text(encoding="utf-8").splitlines()) < 80
    assert f"({name}/card.md)" in (DATA / "README.md").read_text(encoding="utf-8")
    samples = [path.read_text(encoding="utf-8") for path in sorted((DATA / name / "sample").iterdir())]
    assert sum(len(json.loads(t)) if t.startswith("[") else t.count("\n") for t in samples) >= 6


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_gold_answers_score_in_full(case: Case, tmp_path: Path) -> None:
    importlib.import_module("vlmrl.methods").registries()
    samples = prepared(case, tmp_path)
    assert {kind: sum(s.answer_type == kind for s in samples) for kind in case.types} == case.types
    for sample in samples:
        read_as, _, scores = ANSWER_TYPES[sample.answer_type].score(sample.answer, sample)
        assert read_as is not None
        assert scores[ANSWER_TYPES[sample.answer_type].main] == 1
        assert ANSWER_TYPES[sample.answer_type].score(None, sample)[2][ANSWER_TYPES[sample.answer_type].main] == 0
        name = REWARDS[sample.answer_type]
        for answer_format in ("think", "answer_only"):
            assert RewardRunner([(name, 1.0, reward.get(name).function)]).self_test([sample], answer_format) == []


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_media_open_and_rows_say_where_they_are_from(case: Case, tmp_path: Path) -> None:
    for sample in prepared(case, tmp_path):
        assert sample.id.startswith(f"{case.name}-{case.split}-")
        assert sample.meta["split"] == case.split
        assert sample.meta["imported_id"]
        for ref in sample.media:
            path = Path(sample.media_root) / ref.path
            if ref.kind == "image":
                assert decode_image(path.read_bytes()).ndim == 3
            else:
                assert probe_video(path).duration > 0


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_the_file_itself_gives_the_same_samples(case: Case, tmp_path: Path) -> None:
    rows = prepared(case, tmp_path)
    report = direct(case, tmp_path / "download")
    assert report.note is not None
    assert f"rows of the shape '{case.adapter}'" in report.note
    assert [meaning(s) for s in report.samples] == [meaning(s) for s in rows]
    assert [s.id for s in report.samples] == [s.meta["imported_id"] for s in rows]


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_refused_records_are_named_with_the_reason_of_the_adapter(case: Case, tmp_path: Path) -> None:
    prepared(case, tmp_path)
    listed = tmp_path / "out" / f"{case.split}.skipped.jsonl"
    skipped = [json.loads(line) for line in listed.read_text().splitlines()] if listed.exists() else []
    bad = direct(case, tmp_path / "download").bad
    assert [record["id"] for record in skipped] == [f"{case.name}-{case.split}-{number}" for number in case.refused]
    assert [row.reason for row in bad] == list(case.refused.values())
    assert [record["reason"] for record in skipped] == [f"not a valid row: {row.reason}: {row.message}" for row in bad]


@pytest.mark.parametrize("case", [BY_NAME[name] for name in sorted(BY_NAME)], ids=ident)
def test_a_list_and_lines_are_the_same_rows(case: Case, tmp_path: Path) -> None:
    root = download(case, tmp_path)
    dataset = load_dataset(DATA / case.name)
    before = list(dataset.rows(root, case.split, **case.options))
    path = root / case.file
    text = path.read_text(encoding="utf-8")
    records = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    path.unlink()
    if path.suffix == ".json":
        path.with_suffix(".jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    else:
        path.with_suffix(".json").write_text(json.dumps(records), encoding="utf-8")
    assert list(dataset.rows(root, case.split, **case.options)) == before


@pytest.mark.parametrize("case", [BY_NAME[name] for name in sorted(BY_NAME)], ids=ident)
def test_what_is_no_record_of_the_shape_is_left_out_by_name(case: Case, tmp_path: Path) -> None:
    root = download(case, tmp_path)
    strange = [{"id": "own", "task": "t", "answer_type": "exact_text", "prompt": "Q", "answer": "A"}, {"colour": "red"}, [1], "text"]
    path = (root / case.file).with_suffix(".json")
    path.write_text(json.dumps(strange), encoding="utf-8")
    dataset: Dataset = load_dataset(DATA / case.name)
    skipped = [record for record in dataset.rows(root, case.split, **case.options) if isinstance(record, Skipped)]
    reasons = [record.reason.removeprefix("not a valid row: ").split(":")[0] for record in skipped]
    assert reasons == ["mixed_shapes", "missing_key", "not_object", "not_object"]
    with pytest.raises(DataError, match="no row left"):
        prepare(dataset, root, tmp_path / "out", case.split, **case.options)


@pytest.mark.parametrize("case", [BY_NAME[name] for name in sorted(BY_NAME)], ids=ident)
def test_damaged_and_missing_files_are_errors_that_name_them(case: Case, tmp_path: Path) -> None:
    dataset = load_dataset(DATA / case.name)
    with pytest.raises(DataError, match=rf"not found: {Path(case.file).stem}\.json or {Path(case.file).stem}\.jsonl"):
        list(dataset.rows(tmp_path, case.split, **case.options))
    path = tmp_path / f"{Path(case.file).stem}.json"
    path.write_text('[{"problem": "Q"},\n {"prob', encoding="utf-8")
    with pytest.raises(DataError, match=rf"{path.name}:2: not a whole JSON list"):
        list(dataset.rows(tmp_path, case.split, **case.options))


def test_lost_media_stop_the_preparation(tmp_path: Path) -> None:
    case = BY_NAME["video_r1"]
    root = download(case, tmp_path)
    (root / "OCR/sample2.png").unlink()
    dataset = load_dataset(DATA / case.name)
    with pytest.raises(DataError, match=r"1 of 7 media files are not below .*: OCR/sample2\.png"):
        prepare(dataset, root, tmp_path / "out", "rl")
    assert "left out: 1 (not a valid row), 1 (missing medium)" in prepare(dataset, root, tmp_path / "out", "rl", allow_partial=True)


def test_video_r1_questions_show_their_options_and_lose_their_wrapping(tmp_path: Path) -> None:
    first, bicycles, *_, sold = prepared(BY_NAME["video_r1"], tmp_path)
    assert first.question.splitlines() == [
        "What does the woman put on the table first?",
        *("A. A blue cup", "B. A loaf of bread", "C. A lamp", "D. Her keys"),
    ]
    assert (first.answer, first.meta["source"], [ref.path for ref in first.media]) == (
        *("B", "LLaVA-Video-178K"),
        ["LLaVA-Video-178K/sampleA.mp4"],
    )
    assert (bicycles.answer, bicycles.gt) == ("7", {"number": 7})
    assert (sold.answer, sold.gt) == ("1,204.5", {"number": 1204.5})


def test_onethinker_answers(tmp_path: Path) -> None:
    by_type = {sample.answer_type: sample for sample in prepared(BY_NAME["onethinker"], tmp_path)}
    assert by_type["time_span"].answer == "4.25 to 7.50"
    assert by_type["bbox"].gt == {"boxes": [[120, 340, 260, 515]]}
    assert by_type["spatio_temporal"].gt["tube"]["time"] == [0.75, 3.4]
    assert by_type["tracking"].gt["track"]["3"] == [190, 230, 388, 425]
    assert by_type["segmentation"].gt["segmentation"]["time"] == 1.5
    assert {by_type[kind].meta["frame"] for kind in ("bbox", "tracking", "spatio_temporal", "segmentation")} == {"norm1000"}


def test_the_keys_of_a_tube_are_seconds_and_those_of_a_track_are_not_said(tmp_path: Path) -> None:
    by_type = {sample.answer_type: sample for sample in prepared(BY_NAME["onethinker"], tmp_path)}
    shown = MarkedFrames(indices=(0, 1, 2, 3), times=(0.0, 1.0, 2.0, 3.0))
    tube = gold_marks(target_of(by_type["spatio_temporal"]), shown)
    assert tube.problems == ()
    # keys 1, 2, 3 are the times of the second to fourth frame; 300 of 1000 is 30 percent of the width
    assert [(mark.frame, mark.points[0]) for mark in tube.shapes] == [(1, (30.0, 41.0)), (2, (31.0, 38.0)), (3, (32.2, 40.2))]
    assert "track_unit" not in by_type["tracking"].meta
    (problem,) = gold_marks(target_of(by_type["tracking"]), shown).problems
    assert "set meta.track_unit" in problem


@pytest.mark.parametrize(
    ("kind", "changes", "time_unit", "unit"),
    [
        ("spatial-temporal grounding", {}, "s", "s"),
        ("spatial-temporal grounding", {}, "ms", None),
        ("spatial-temporal grounding", {"track_unit": "shown1"}, "s", "shown1"),
        ("tracking", {}, "s", None),
        ("tracking", {"track_unit": "shown0"}, "s", "shown0"),
        (None, {}, "s", "s"),
    ],
)
def test_track_unit(kind: str | None, changes: dict[str, str], time_unit: str, unit: str | None) -> None:
    time = {} if kind == "tracking" else {"time": [1000, 3000] if time_unit == "ms" else [1, 3]}
    row = {
        **{"problem": "Where?", "problem_type": kind, "data_type": "video", "path": "./a.mp4"},
        **{"solution": json.dumps({**time, "boxes": {"1": [1, 2, 3, 4]}}), **changes},
    }
    answer_type = "spatio_temporal" if kind is None else None
    sample = read(row, "video_r1", frame="norm1000", time_unit=time_unit, answer_type=answer_type)
    assert sample.meta.get("track_unit") == unit


def sft(dropout: float) -> SftSection:
    stage = {"kind": "sft", "name": "sft", "source": SourceSection(path="x"), "steps": 1, "thought_dropout": dropout}
    return SftSection.model_validate(stage)


THOUGHTS = {
    ("video_r1", "cot"): [
        "Let me look at the start. She comes in with a bag.\n\nThe bread leaves it before anything else.",
        "Four on the left and three on the right make seven.",
        "It begins to rain, he stops and turns; so something for the rain is missing.",
    ],
    ("video_r1", "rl"): [None] * 7,
    ("onethinker", "rl"): [None] * 12,
    ("sharegpt_thoughts", "train"): [
        *("The left one throws a shadow on the wall.", "Both show a desk.\nThe cup is only in the first.", "It is long and thin."),
        *("Three tens and three fours: 30 + 12.", None),
    ],
    ("sharegpt_thoughts", "vision_r1_mulberry_sft_full"): [
        *("The sides are 3 and 4. Wait, the drawing says 3 and 5.", "June reaches 80, July 75."),
    ],
}


@pytest.mark.parametrize("case", [c for c in CASES if (c.name, c.split) in THOUGHTS], ids=ident)
def test_thoughts_are_kept_and_dropped_by_thought_dropout(case: Case, tmp_path: Path) -> None:
    samples = prepared(case, tmp_path)
    assert [sample.thought for sample in samples] == THOUGHTS[case.name, case.split]
    for sample in samples:
        answer = f"<answer>{sample.answer}</answer>"
        empty = f"<think>\n\n</think>{answer}"
        assert target(sft(0.0), 0, sample, 0) == (empty if sample.thought is None else f"<think>{sample.thought}</think>{answer}")
        assert target(sft(1.0), 0, sample, 0) == empty
        assert "<think>" not in sample.answer + sample.question


def test_conversations_lose_what_asks_for_the_format(tmp_path: Path) -> None:
    lamp, changed, dog, product, sea = prepared(BY_NAME["sharegpt_thoughts"], tmp_path)
    assert (changed.question, len(changed.media)) == ("What changed between the two pictures?", 2)
    assert changed.meta["instructions"] == "Reason inside <think> </think> and put the result inside <answer> </answer>."
    assert (dog.answer, dog.meta["system"], dog.meta["imported_id"]) == ("a stick", "Think before you answer.", "talk-3")
    assert (product.media, product.answer) == ((), "42")
    assert ([ref.path for ref in sea.media], sea.question, sea.meta["origin"]) == (
        *(["pictures/sample5.png"], "How is the sea?"),
        "typed parts, without a thought",
    )
    assert (lamp.answer, lamp.task) == ("the left lamp", "exact_text")


def test_the_answer_type_of_conversations_is_an_option(tmp_path: Path) -> None:
    root = tmp_path / "download"
    unpack(DATA / "sharegpt_thoughts", root)
    rows = list(load_dataset(DATA / "sharegpt_thoughts").rows(root, "onethinker_sft_image", answer_type="choice"))
    good, bad = rows
    assert not isinstance(good, Skipped)
    assert (good["answer_type"], good["answer"]) == ("choice", "B")
    assert isinstance(bad, Skipped)
    assert bad.reason.startswith("not a valid row: answer: the gold answer")

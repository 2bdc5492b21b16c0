"""The sets of the suites `spatial7` and `ovt18`: every data folder turns its sample, which is in the official layout, into rows whose gold
answers score in full, and every task finds what its data folder writes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from tests.support.fixtures import make_fixture, task_of
from tests.support.samples import load_dataset, unpack
from tests.support.standins import SIZE, fill
from tests.support.standins import picture as standin_pixels
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.row import parse_row
from vlmrl.data.source import load_source
from vlmrl.errors import DataError
from vlmrl.evals.ask.suite import load_suite, suite_path
from vlmrl.evals.ask.tasks import Task
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, official_counts, prepare
from vlmrl.media.image import decode_image
from vlmrl.metrics.points import decode_mask
from vlmrl.types import Sample

DATA = Path(__file__).parents[4] / "data"
HEADINGS = ("Source", "Licence", "Splits and official counts", "Layout of the download", "Rows", "Prepare", "Not verified")


class Case(NamedTuple):
    name: str
    split: str
    types: set[str]
    rows: int
    left_out: int


CASES = [
    Case("cv_bench", "2d", {"choice"}, 5, 1),
    Case("cv_bench", "3d", {"choice"}, 5, 0),
    Case("mmvp", "test", {"choice"}, 6, 1),
    Case("mindcube", "tiny", {"choice"}, 5, 1),
    Case("mindcube", "full", {"choice"}, 2, 0),
    Case("omnispatial", "test", {"choice"}, 5, 1),
    Case("realworldqa", "test", {"choice", "number", "exact_text"}, 5, 0),
    Case("embspatial", "test", {"choice"}, 5, 1),
    Case("refspatial", "unseen", {"point"}, 1, 0),
    Case("refspatial", "all", {"point"}, 5, 0),
    Case("robospatial", "context", {"point"}, 2, 0),
    Case("robospatial", "all", {"choice", "point"}, 5, 1),
    Case("mmbench", "dev", {"choice"}, 5, 1),
    Case("mmstar", "val", {"choice"}, 5, 0),
    Case("mathverse", "testmini", {"choice", "math"}, 6, 1),
    Case("mathvision", "testmini", {"choice"}, 2, 0),
    Case("mathvision", "test", {"choice", "math"}, 5, 0),
    Case("ai2d", "test", {"choice"}, 5, 1),
    Case("chartqa", "test", {"short_text"}, 5, 0),
    Case("charxiv", "val", {"number", "exact_text"}, 6, 0),
    Case("docvqa", "validation", {"short_text"}, 5, 1),
    Case("infovqa", "validation", {"short_text"}, 5, 0),
    Case("ocrbench", "test", {"short_text"}, 5, 0),
]
NAMES = sorted({case.name for case in CASES})
SUITES = {
    "spatial7": ("cvbench_2d", "cvbench_3d", "mindcube", "mmvp", "omnispatial", "realworldqa", "sat_real_circular"),
    "ovt18": (
        *("mmmu_val", "mmbench_en_dev", "mmstar", "mathvista_rule", "mathverse_rule", "mathvision_rule", "ai2d", "chartqa"),
        *("charxiv_reasoning", "docvqa_val", "ocrbench", "infovqa_val", "embspatial", "refspatial", "robospatial"),
        *("refcoco_val", "refcoco_plus_val", "refcocog_val"),
    ),
}
TASKS = [name for names in SUITES.values() for name in names]


def ident(case: Case) -> str:
    return f"{case.name}-{case.split}"


def download(name: str, root: Path) -> Dataset:
    """The sample of a data folder as its official download, with stand-in media."""
    dataset = load_dataset(DATA / name)
    unpack(DATA / name, root)
    return dataset


def records_of(name: str, split: str, root: Path, **options: str) -> list[Any]:
    return list(download(name, root).rows(root, split, **options))


def rows_of(name: str, split: str, root: Path, **options: str) -> list[Row]:
    return [record for record in records_of(name, split, root, **options) if not isinstance(record, Skipped)]


def prepared(case: Case, folder: Path) -> list[Sample]:
    root, out = folder / "download", folder / "out"
    dataset = download(case.name, root)
    fill(root, [record for record in dataset.rows(root, case.split) if not isinstance(record, Skipped)])
    done = prepare(dataset, root, out, case.split, allow_partial=True)
    path = out / f"{case.split}.jsonl"
    return load_source(path, media_root=done.rpartition("media_root: ")[2], dedupe="error", max_bad_rows=0.0, quarantine=None)


Ready = Callable[[Case], tuple[list[Sample], Path]]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """The samples of a case and the folder that they were written to; each case is prepared once."""
    made_before: dict[str, tuple[list[Sample], Path]] = {}

    def of(case: Case) -> tuple[list[Sample], Path]:
        if ident(case) not in made_before:
            folder = tmp_path_factory.mktemp(ident(case))
            made_before[ident(case)] = (prepared(case, folder), folder / "out")
        return made_before[ident(case)]

    return of


def main_of(answer: str | None, sample: Sample) -> float:
    return ANSWER_TYPES[sample.answer_type].score(answer, sample)[2][ANSWER_TYPES[sample.answer_type].main]


# Every folder.


@pytest.mark.parametrize("name", NAMES)
def test_card_and_script_are_complete(name: str):
    card = DATA / name / "card.md"
    text = card.read_text(encoding="utf-8")
    for heading in HEADINGS:
        _, found, rest = text.partition(f"\n## {heading}\n")
        assert found, heading
        assert rest.split("\n## ")[0].strip(), heading
    dataset = load_dataset(DATA / name)
    assert set(official_counts(card)) == set(dataset.splits)
    assert dataset.folder == DATA / name
    assert f"--split {'|'.join(dataset.splits)}" in text
    assert len((DATA / name / "prepare.py").read_text(encoding="utf-8").splitlines()) < 80
    title = text.splitlines()[0].removeprefix("# ")
    assert f"| [`{name}`]({name}/card.md) | {title} |" in (DATA / "README.md").read_text(encoding="utf-8").splitlines()
    for path in (DATA / name / "sample").rglob("*"):
        if path.is_file():
            path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_gold_answers_score_in_full_and_others_do_not(case: Case, ready: Ready):
    samples, out = ready(case)
    assert len(samples) == case.rows
    assert {sample.answer_type for sample in samples} == case.types
    listed = out / f"{case.split}.skipped.jsonl"
    assert (len(listed.read_text().splitlines()) if listed.exists() else 0) == case.left_out
    for sample in samples:
        assert sample.meta["source"] == case.name
        assert sample.meta["split"] == case.split
        assert main_of(sample.answer, sample) == 1
        assert main_of("zzz", sample) == 0
        assert main_of(None, sample) == 0
        for key in ("category", "question_group", "difficulty"):
            assert isinstance(sample.meta.get(key, ""), str)


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_media_open_where_the_summary_says_they_are(case: Case, ready: Ready):
    for sample in ready(case)[0]:
        assert sample.media
        for ref in sample.media:
            assert decode_image((Path(sample.media_root) / ref.path).read_bytes()).shape == (SIZE[1], SIZE[0], 3)


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_options_are_asked_once_and_the_right_one_counts_by_its_text(case: Case, ready: Ready):
    for sample in ready(case)[0]:
        for option in sample.meta.get("options", []):
            assert sample.question.count(option) == 1
        if sample.answer_type == "choice" and sample.meta.get("options"):
            right = sample.meta["options"]["ABCDEFGH".index(sample.answer)]
            assert main_of(right, sample) == 1


@pytest.mark.parametrize("case", [c for c in CASES if official_counts(DATA / c.name / "card.md")[c.split] is not None], ids=ident)
def test_another_count_than_the_card_says_is_an_error(case: Case, tmp_path: Path):
    dataset = download(case.name, tmp_path / "download")
    official = official_counts(DATA / case.name / "card.md")[case.split]
    with pytest.raises(DataError, match=rf"read, but .*card\.md says {official};.*--allow-partial"):
        prepare(dataset, tmp_path / "download", tmp_path / "out", case.split)
    assert not (tmp_path / "out" / f"{case.split}.jsonl").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_is_an_error_that_names_the_file(name: str, tmp_path: Path):
    dataset = load_dataset(DATA / name)
    for split in dataset.splits:
        with pytest.raises(DataError, match=r"not found|no file"):
            list(dataset.rows(tmp_path, split))


# Tasks and suites.


@pytest.mark.parametrize("name", SUITES)
def test_suites_hold_their_sets(name: str):
    suite = load_suite(suite_path(name))
    assert suite.id == name
    assert tuple(task.id for task in suite.tasks) == SUITES[name]
    assert len(suite.tasks) == int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
    assert all(task.samples == 1 and task.temperature == 0 and task.max_new_tokens == 4096 for task in suite.tasks)


@pytest.mark.parametrize("name", TASKS)
def test_task_finds_what_its_data_folder_writes(name: str, tmp_path: Path):
    task = task_of(name)
    assert task.id == name
    rows = make_fixture(task, tmp_path, DATA)
    assert rows >= 5
    samples = load_source(
        tmp_path / task.source, media_root=str(tmp_path / task.media_root), dedupe="error", max_bad_rows=0.0, quarantine=None
    )
    assert len(samples) == rows
    assert {sample.answer_type for sample in samples} == set(task.answer_types)
    assert all(sample.meta.get("frame", task.frame) == task.frame for sample in samples)
    if "all_right" in task.metrics:
        assert all(sample.meta["question_group"] for sample in samples)
    if "macro" in task.metrics:
        assert len({sample.meta["category"] for sample in samples}) > 1
    assert all(main_of(sample.answer, sample) == 1 for sample in samples)


@pytest.mark.parametrize("name", TASKS)
def test_published_figures_name_their_harness_and_counts_are_those_of_the_card(name: str):
    task: Task = task_of(name)
    assert task.published
    assert task.prepare is not None
    for figure in task.published:
        assert figure.value is not None
        assert figure.harness
        assert figure.source.startswith("arXiv:")
    card = official_counts(DATA / task.prepare.dataset / "card.md")[task.prepare.split]
    objects = task.prepare.dataset.startswith("refcoco")  # those cards count objects, the task expressions
    if task.official_count is not None and not objects:
        assert task.official_count == card


# What is particular to a set.


def test_cv_bench_reads_the_letter_in_brackets(tmp_path: Path):
    first, *_, skipped, last = records_of("cv_bench", "2d", tmp_path)
    assert (first["answer"], first["options"]) == ("C", ["(A) 2", "(B) 1", "(C) 3", "(D) 0"])
    assert first["meta"]["category"] == "Count"
    assert last["meta"]["category"] == "Relation"
    assert "'(C)' is the letter of none of the 2 choices" in skipped.reason


def test_mmvp_pairs_and_corrected_answers(tmp_path: Path):
    rows = {row["id"]: row for row in rows_of("mmvp", "test", tmp_path)}
    groups = [rows[f"mmvp-{i:03d}"]["meta"]["question_group"] for i in (1, 2, 3, 4, 99, 100)]
    assert groups == [f"mmvp-pair-{i:03d}" for i in (1, 1, 2, 2, 50, 50)]
    assert [rows[f"mmvp-{i:03d}"]["answer"] for i in (1, 2, 3, 4)] == ["A", "B", "B", "A"]
    assert [rows[f"mmvp-{i:03d}"]["answer"] for i in (99, 100)] == ["B", "A"]  # the sample has them exchanged
    assert rows["mmvp-099"]["meta"]["corrected"]
    assert not rows["mmvp-001"]["meta"]["corrected"]


def test_mmvp_release_with_its_table_and_folder_of_pictures(tmp_path: Path):
    table = "Index,Question,Options,Correct Answer\n1,Is the door open?,(a) Open (b) Closed,(a)\n99,Long tusks?,(a) Long (b) Short,(a)\n"
    (tmp_path / "Questions.csv").write_text(table, encoding="utf-8")
    door, tusks = load_dataset(DATA / "mmvp").rows(tmp_path, "test")
    assert isinstance(door, dict)
    assert isinstance(tusks, dict)
    assert (door["id"], door["images"], door["options"], door["answer"]) == (
        "mmvp-001",
        ["MMVP Images/1.jpg"],
        ["A. Open", "B. Closed"],
        "A",
    )
    assert (tusks["images"], tusks["answer"], tusks["meta"]["corrected"]) == (["MMVP Images/99.jpg"], "B", True)


def test_mindcube_settings_and_pictures(tmp_path: Path):
    rows = rows_of("mindcube", "tiny", tmp_path)
    assert [row["meta"]["category"] for row in rows] == ["among", "around", "around", "rotation", "other"]
    assert [len(row["images"]) for row in rows] == [4, 2, 2, 2, 3]
    assert rows[0]["images"][0] == "data/other_all_image/among/group001/front_1.jpg"
    assert rows[0]["options"] == ["A. Lamp", "B. Wooden stool", "C. Bed sheet", "D. Door"]
    assert "<image>" not in rows[2]["prompt"]


def test_mindcube_unpacked_without_its_folder(tmp_path: Path):
    download("mindcube", tmp_path / "download")
    rows = list(load_dataset(DATA / "mindcube").rows(tmp_path / "download" / "data", "tiny"))
    assert rows[0]["images"][0] == "other_all_image/among/group001/front_1.jpg"


def test_omnispatial_finds_pictures_by_kind_and_first_number(tmp_path: Path):
    rows = rows_of("omnispatial", "test", tmp_path)
    assert [row["images"][0] for row in rows][:4] == [
        "OmniSpatial-test/Dynamic_Reasoning/0.png",
        "OmniSpatial-test/Dynamic_Reasoning/0.png",
        "OmniSpatial-test/Complex_Logic/0.png",
        "OmniSpatial-test/Perspective_Taking/7.png",
    ]
    assert len({row["id"] for row in rows}) == len(rows)
    assert rows[1]["options"][2] == "C. both"
    assert rows[1]["answer"] == "C"


def test_realworldqa_kinds(tmp_path: Path):
    lane, count, slope, turn, nearer = rows_of("realworldqa", "test", tmp_path)
    assert (lane["answer"], lane["options"]) == ("B", ["A. Left lane", "B. Middle lane", "C. Right lane"])
    assert (count["answer_type"], count["gt"]) == ("number", {"number": 4.0})
    assert (slope["answer_type"], slope["answer"]) == ("exact_text", "Downhill")  # begins with a letter of an option, and is none
    assert (turn["answer_type"], turn["answer"]) == ("exact_text", "Yes")
    assert nearer["options"] == ["A. The bus.", "B. The van."]
    assert all("Please answer" not in row["prompt"] for row in (lane, count, slope, turn, nearer))


def test_realworldqa_answer_that_is_the_text_of_an_option(tmp_path: Path):
    dataset = download("realworldqa", tmp_path)
    path = next((tmp_path / "data").glob("test-*.parquet"))
    (record, *_) = parquet.read_table(path).to_pylist()
    record |= {"question": "Is the road going uphill or downhill?\nA. Uphill\nB. Downhill", "answer": "Uphill"}
    parquet.write_table(pa.Table.from_pylist([record]), path)
    row = next(dataset.rows(tmp_path, "test"))
    assert isinstance(row, dict)
    assert (row["answer_type"], row["answer"], row["options"]) == ("choice", "A", ["A. Uphill", "B. Downhill"])


def test_refspatial_masks_are_those_of_the_pictures(tmp_path: Path):
    rows = rows_of("refspatial", "location", tmp_path)
    for number, row in enumerate(rows):
        expected = standin_pixels(f"mask{number}.png")[..., 0] > 0
        assert (decode_mask(row["gt"]["mask"]) == expected).all()
        assert row["meta"]["frame"] == "norm1000"
        assert "between 0 and 1." not in row["prompt"]
        assert "from 0 to 1000" in row["prompt"]
    assert "It lies flat. Points are" in rows[1]["prompt"]
    assert "It lies flat" not in rows[0]["prompt"]


def test_refspatial_scores_the_share_of_points_on_the_mask(tmp_path: Path):
    """In pixels of the 64 x 48 mask; a point of 0 to 1000 is in pixel floor(x * 64 / 1000), floor(y * 48 / 1000)."""
    dataset, root, out = download("refspatial", tmp_path / "download"), tmp_path / "download", tmp_path / "out"
    pixels = np.zeros((48, 64), dtype=np.uint8)
    pixels[10:20, 30:50] = 40  # grey counts: the authors take every pixel above 0
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    path = next((root / "data").glob("location-*.parquet"))
    records = parquet.read_table(path).to_pylist()
    parquet.write_table(pa.Table.from_pylist([record | {"mask": {"bytes": buffer.getvalue(), "path": None}} for record in records]), path)
    prepare(dataset, root, out, "location", allow_partial=True)
    sample = load_source(out / "location.jsonl", media_root=str(out / "media"), dedupe="error", max_bad_rows=0.0, quarantine=None)[0]
    mask = decode_mask(sample.gt["mask"])
    assert (mask == (pixels > 0)).all()
    (on_y, on_x), (off_y, off_x) = np.argwhere(mask)[0], np.argwhere(~mask)[0]
    on, off = ([round((x + 0.5) * 1000 / 64, 2), round((y + 0.5) * 1000 / 48, 2)] for x, y in ((on_x, on_y), (off_x, off_y)))
    for points, expected in (([on], 1), ([off], 0), ([on, off], 0.5), ([on, [1001, 5]], 0.5), ([on, on, off, off], 0.5)):
        assert main_of(json.dumps({"points": points}), sample) == expected


def test_refspatial_all_is_its_parts(tmp_path: Path):
    everything = rows_of("refspatial", "all", tmp_path / "all")
    assert [row["meta"]["category"] for row in everything] == ["location"] * 2 + ["placement"] * 2 + ["unseen"]
    parts = [row["id"] for part in ("location", "placement", "unseen") for row in rows_of("refspatial", part, tmp_path / part)]
    assert [row["id"] for row in everything] == parts


def test_robospatial_has_words_and_masks(tmp_path: Path):
    fits, skipped, left, behind, free, _ = records_of("robospatial", "all", tmp_path)
    assert (fits["options"], fits["answer"]) == (["A. yes", "B. no"], "A")
    assert "neither yes nor no" in skipped.reason
    assert (left["answer"], behind["answer"]) == ("B", "A")
    assert (decode_mask(free["gt"]["mask"]) == (standin_pixels("free0.png")[..., 0] >= 1)).all()
    assert "tuples" not in free["prompt"]
    sample = parse_row({**left, "images": ["a.png"]}, source="t", media_root="")
    for answer, expected in (("no", 1), ("No, it is not.", 1), ("B", 1), ("yes", 0), ("A", 0)):
        assert main_of(answer, sample) == expected


def test_mmbench_rotations_are_one_group(tmp_path: Path):
    rows = rows_of("mmbench", "dev", tmp_path)
    assert [row["meta"]["question_group"] for row in rows] == ["mmbench-dev-00000241"] * 3 + ["mmbench-dev-00000252"] * 2
    assert [row["meta"]["rotation"] for row in rows] == [0, 1, 2, 0, 1]
    for row in rows[:3]:
        assert row["options"]["ABC".index(row["answer"])].endswith("square")
    assert len(rows[0]["options"]) == 3  # D is `nan`
    assert rows[3]["prompt"] == "Red parts are warm.\nWhich is warmer?"


def test_mmstar_parts_and_options_with_commas(tmp_path: Path):
    rows = rows_of("mmstar", "val", tmp_path)
    assert rows[0]["meta"]["category"] == "coarse perception/image scene and topic"
    assert rows[4]["options"] == ["A: mix, then wait", "B: bake", "C: cool", "D: cut"]
    assert rows[3]["answer"] == "C"


def test_mmstar_is_measured_as_its_authors_do():
    """Their evaluation divides the right answers by 1,500; the mean over parts of unequal size is another number."""
    (task,) = [task for task in load_suite(suite_path("ovt18")).tasks if task.id == "mmstar"]
    assert task.primary == "exact"
    assert "macro" in task.metrics


def test_mathverse_versions(tmp_path: Path):
    dominant, _, vision, free, hidden, by_text, skipped = records_of("mathverse", "testmini", tmp_path)
    assert (dominant["answer"], dominant["options"][2]) == ("C", "C:70°")
    assert (vision["answer"], "options" in vision) == ("C", False)
    assert vision["prompt"] == hidden["prompt"] == "Answer the question that is written in the image."
    assert (free["answer_type"], free["answer"]) == ("math", "5")
    assert by_text["answer"] == "C"
    assert "75°" in skipped.reason


def test_mathvision_kinds(tmp_path: Path):
    text, letters, number, fraction, _ = rows_of("mathvision", "test", tmp_path)
    assert (text["answer"], text["options"][3]) == ("D", "D. 14")
    assert ("options" in letters, letters["answer"]) == (False, "E")
    assert (number["answer_type"], number["answer"]) == ("math", "8")
    assert fraction["meta"] == {"split": "test", "category": "metric geometry - area", "difficulty": "5"}


def test_charxiv_kinds_and_forms(tmp_path: Path):
    text, word, tick, grow, peaks, power = rows_of("charxiv", "val", tmp_path)
    assert [row["answer_type"] for row in (text, word, tick, grow, peaks, power)] == [
        "exact_text",
        "exact_text",
        "number",
        "number",
        "number",
        "exact_text",
    ]
    assert grow["prompt"].endswith("Answer with a number with 2 decimal place(s).")
    assert peaks["prompt"].endswith("Answer with a whole number.")
    assert tick["meta"]["category"] == "number in chart"


def test_docvqa_accepts_every_answer(tmp_path: Path):
    samples = prepared(Case("docvqa", "validation", {"short_text"}, 5, 1), tmp_path)
    assert samples[0].gt["answers"] == ["3 May 1971", "May 3, 1971"]
    assert main_of("may 3, 1971", samples[0]) == 1
    assert [sample.meta["category"] for sample in samples] == ["handwritten", "form", "table/list", "other", "layout"]


def test_ocrbench_marks_formulas(tmp_path: Path):
    rows = rows_of("ocrbench", "test", tmp_path)
    assert [row["gt"].get("formula", False) for row in rows] == [False, False, True, False, False]
    assert rows[1]["gt"]["answers"] == ["blue door", "the blue door"]


def test_sat_rotations_are_one_group(tmp_path: Path):
    rows = rows_of("sat", "test", tmp_path, circular="yes")
    assert len(rows) == 2 + 3 + 2 + 2 + 2
    assert len({row["meta"]["question_group"] for row in rows}) == 5
    group = [row for row in rows if row["meta"]["question_group"] == "sat-test-000001"]
    assert {row["answer"] for row in group} == {"A", "B", "C"}
    assert {row["meta"]["category"] for row in group} == {"obj_movement"}

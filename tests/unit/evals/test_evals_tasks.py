"""evals/tasks and evals/suites: every task loads, can be made from its sample, and its gold answers score in full."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import make_fixture, options_of, task_of
from tests.support.samples import load_dataset, plain_pickle, unpack
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError, DataError
from vlmrl.evals.ask.suite import DEFINITIONS, load_suite, suite_path, task_names
from vlmrl.evals.ask.tasks import Prepare, Task, check_task, other_wording
from vlmrl.extras.importers.prepare.plain_pickle import load_plain
from vlmrl.extras.importers.prepare.prepare import official_counts
from vlmrl.media.image import decode_image
from vlmrl.media.video import probe_video
from vlmrl.types import Sample

DATA = DEFINITIONS.parent / "data"
LEAST = 5
"""Rows of every fixture."""
SUITES = {
    "temporal": 7,
    "gui": 9,
    "counting": 3,
    "video_reasoning": 13,
    "canary": 8,
    "click": 2,
}
"""Suite -> number of its tasks."""
COUNTED_OTHERWISE = {
    "qvhighlights_highlight": "only queries with a saliency",
    "clevr_counting": "only counting questions",
}
"""Tasks without an official count although the card has one of the split: not all of its records are rows."""
EVERY_RECORD = {"qvhighlights_moment", "screenspot", "screenspot_v2", "screenspot_pro", "screenspot_v2_point", "screenspot_pro_point"}
"""Tasks whose option of `prepare.py` makes a row of every record."""


COORDINATES = ("bbox", "point", "action", "segmentation", "tracking", "spatio_temporal")
"""Answer types whose rows have to say their frame."""


definition = task_of


def made_of(task: Task) -> Prepare:
    assert task.prepare is not None, f"{task.id}: no 'prepare'"
    return task.prepare


def fixture_samples(task: Task, root: Path) -> list[Sample]:
    count = make_fixture(task, root, DATA)
    samples = load_source(root / task.source, media_root=str(root / task.media_root), dedupe="error", max_bad_rows=0.0, quarantine=None)
    assert len(samples) == count
    return samples


@pytest.mark.parametrize("name", task_names())
def test_fixture_has_rows_of_the_task_whose_gold_answers_score_in_full(name: str, tmp_path: Path) -> None:
    task = definition(name)
    samples = fixture_samples(task, tmp_path)
    assert len(samples) >= LEAST
    assert {sample.answer_type for sample in samples} <= set(task.answer_types)
    for sample in samples:
        read, _, scores = ANSWER_TYPES[sample.answer_type].score(sample.answer, sample)
        assert read is not None, sample.id
        assert scores[ANSWER_TYPES[sample.answer_type].main] == pytest.approx(1, abs=1e-6), (sample.id, scores)
        if task.frame is not None and sample.answer_type in COORDINATES:
            assert sample.meta["frame"] == task.frame
        assert sample.meta.get("category") is None or isinstance(sample.meta["category"], str)
    for ref in samples[0].media:
        path = Path(samples[0].media_root) / ref.path
        if ref.kind == "image":
            assert decode_image(path.read_bytes()).ndim == 3
        else:
            assert probe_video(path).duration > 0


@pytest.mark.parametrize("name", task_names())
def test_definition_agrees_with_its_data_folder(name: str) -> None:
    task = definition(name)
    made = made_of(task)
    assert task.id == name
    dataset = load_dataset(DATA / made.dataset)
    options_of(dataset, name, made)
    card = DATA / made.dataset / "card.md"
    if task.official_count is not None and not dataset.unit:
        assert task.official_count == official_counts(card)[made.split]
    elif task.official_count is not None:  # the column counts something else than rows, so the number stands beside it
        (line,) = [line for line in card.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {made.split} |")]
        assert f"{task.official_count:,}" in line
    command = task.make_command()
    assert command is not None
    assert f"data/{made.dataset}/prepare.py" in command
    text = (DEFINITIONS / "tasks" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# "), "the first line says what it is"
    for published in task.published:
        assert published.source
        assert published.harness


def ours() -> list[str]:
    return sorted({task.id for suite in SUITES if suite != "canary" for task in load_suite(suite_path(suite)).tasks})


def test_official_counts_are_given_where_the_card_counts_rows() -> None:
    for name in ours():
        task = definition(name)
        made = made_of(task)
        dataset = load_dataset(DATA / made.dataset)
        official = official_counts(DATA / made.dataset / "card.md")[made.split]
        counted = official is not None and not dataset.unit and name not in COUNTED_OTHERWISE
        assert task.official_count == (official if counted and (not dataset.options or name in EVERY_RECORD) else None), name


@pytest.mark.parametrize(("suite", "count"), SUITES.items())
def test_suites_load(suite: str, count: int) -> None:
    tasks = load_suite(suite_path(suite)).tasks
    assert len(tasks) == count
    if suite == "canary":
        assert {task.limit for task in tasks} == {64}
        assert {kind for task in tasks for kind in task.answer_types} >= {"time_span", "action", "bbox", "number", "choice", "regression"}


def test_every_suite_and_task_is_named_in_the_readme() -> None:
    text = (DEFINITIONS / "README.md").read_text(encoding="utf-8")
    suites = sorted(path.stem for path in (DEFINITIONS / "suites").glob("*.yaml"))
    for name in [*suites, *task_names()]:
        assert f"`{name}`" in text, name
    table = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for name in suites:
        named = set(table[name].split("`")[3::2])
        assert named == {task.id.partition("@")[0] for task in load_suite(suite_path(name)).tasks}, name


def test_answer_types_of_mixed_tasks_all_occur(tmp_path: Path) -> None:
    for name in ("vsi_bench", "video_mmmu_adaptation"):
        task = definition(name)
        assert {sample.answer_type for sample in fixture_samples(task, tmp_path)} == set(task.answer_types)


def test_tasks_say_where_they_ask_in_other_words_than_training() -> None:
    words = "{{ question }} Answer in <answer></answer>."
    same = [Task(id=name, source="a", answer_format="think", answer_type="number", max_new_tokens=8, prompt=words) for name in "ab"]
    other = [task.model_copy(update={"id": f"{task.id}2", "prompt": None}) for task in same]
    assert other_wording(words, same) == []
    assert other_wording(None, [*same, *other]) == []
    (note,) = other_wording(words, [*same, *other])
    assert note.startswith("a2, b2: asked in other words than data.prompt")
    assert check_task(same[0].model_copy(update={"prompt": "Answer."}))[-1].startswith("tasks.a.prompt: the template has no")


def test_two_tasks_of_one_download_share_it(tmp_path: Path) -> None:
    low, high = (fixture_samples(definition(f"android_control_{level}"), tmp_path) for level in ("low", "high"))
    assert len(low) == len(high) == 7
    assert not {sample.id for sample in low} & {sample.id for sample in high}
    assert sorted(path.name for path in (tmp_path / "android_control").iterdir() if path.is_dir()) == ["rows-high", "rows-low"]


def test_a_fixture_can_be_made_again(tmp_path: Path) -> None:
    task = definition("charades_sta")
    first = make_fixture(task, tmp_path, DATA)
    rows = (tmp_path / task.source).read_bytes()
    assert make_fixture(task, tmp_path, DATA) == first == 5
    assert (tmp_path / task.source).read_bytes() == rows


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"prepare": None}, "task 'geoqa': has no 'prepare'"),
        ({"source": "geoqa/rows/other.jsonl"}, r"source is geoqa/rows/other.jsonl, but prepare.py writes test.jsonl"),
        ({"media_root": "elsewhere"}, r"media_root is elsewhere, but Geo170K/images/test/0.png of its rows is not there"),
        ({"prepare": Prepare(dataset="geoqa", split="testing")}, r"prepare.split is 'testing'; geoqa has: train, test, geoqa3"),
        ({"prepare": Prepare(dataset="geoqa", split="test", options={"level": "low"})}, r"has level: low; geoqa has: none"),
    ],
)
def test_what_a_task_says_wrong_of_its_rows(change: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        make_fixture(definition("geoqa").model_copy(update=change), tmp_path, DATA)


def test_data_folders_that_are_not_whole(tmp_path: Path) -> None:
    task = definition("geoqa")
    with pytest.raises(DataError, match=r"geoqa.prepare\.py: no such script"):
        make_fixture(task, tmp_path / "out", tmp_path)
    (tmp_path / "geoqa").mkdir()
    shutil.copy(DATA / "geoqa" / "prepare.py", tmp_path / "geoqa" / "prepare.py")
    with pytest.raises(DataError, match=r"sample: no sample"):
        make_fixture(task, tmp_path / "out", tmp_path)
    (tmp_path / "geoqa" / "prepare.py").write_text("A = 1\n")
    with pytest.raises(DataError, match="states no DATASET"):
        make_fixture(task, tmp_path / "out", tmp_path)


def test_samples_become_the_files_of_the_download(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    unpack(DATA / "geoqa", tmp_path / "geoqa")
    (first, *_) = parquet.read_table(tmp_path / "geoqa" / "GEOQA_R1V_Train_8K" / "data" / "train-00000-of-00001.parquet").to_pylist()
    assert decode_image(first["image"]["bytes"]).shape == (48, 64, 3)
    unpack(DATA / "refcoco", tmp_path / "refcoco")
    refs = (tmp_path / "refcoco" / "refcoco" / "refs(unc).p").read_bytes()
    assert pickle.loads(refs) == load_plain(refs, "refs")
    unpack(DATA / "screenspot", tmp_path / "screenspot")
    assert decode_image((tmp_path / "screenspot" / "screenspot_imgs" / "pc_1.png").read_bytes()).shape == (400, 640, 3)


def test_plain_pickles_are_what_pickle_reads() -> None:
    value = {"a": [1, -5, 2**31 - 1, 0.25, None, True, False], "b": {"é": "ü\n"}, "c": [], "d": {}}
    assert pickle.loads(plain_pickle(value)) == value
    assert load_plain(plain_pickle(value), "x") == value
    for bad in (2**31, b"x", {1, 2}):
        with pytest.raises(TypeError, match="cannot be in a plain pickle"):
            plain_pickle([bad])

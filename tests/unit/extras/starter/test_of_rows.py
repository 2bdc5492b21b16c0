"""`vlmrl new --data`: files as people have them become a recipe that `vlmrl check` passes without an edit; others are refused with what
decides it.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.starter import Rows, lines, passes, picture, png
from vlmrl.errors import ConfigError, DataError

# ---- maths in Parquet, with pictures as bytes ----------------------------------------------------------------------------------------


def write_maths(path: Path, count: int = 80, first: int = 0) -> Path:
    answers = [r"2\sqrt{3}" if i % 3 else str(i) for i in range(first, first + count)]
    rows = [
        {"image": png(i), "problem": f"<image>Find x, number {i}.", "solution": f"<answer>{answer}</answer>"}
        for i, answer in enumerate(answers, start=first)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_maths_in_parquet_is_split_by_content(new: Callable[..., str], here: Path):
    told = new("--data", str(write_maths(here / "train.parquet")))
    cfg = passes()
    (stage,) = cfg.stages
    assert stage.source.answer_type == "math"
    assert [reward.name for reward in stage.rewards] == ["math", "format"]
    assert cfg.eval.source is not None
    parts = [[json.loads(line) for line in (here / path).open()] for path in (stage.source.path, cfg.eval.source.path)]
    assert [len(part) for part in parts] == [64, 16]
    train, held_out = ({row["image"]["sha256"] for row in part} for part in parts)
    assert not train & held_out
    assert "64 to train on, 16 held out, no medium is in both" in told
    assert "80 of 80 answers are numbers or expressions" in told
    assert "next: vlmrl check mine.yaml" in told


def test_few_rows_keep_their_file_and_get_a_folder_for_the_pictures(new: Callable[..., str], here: Path):
    told = new("--data", str(write_maths(here / "train.parquet", 12)))
    cfg = passes()
    assert cfg.eval.source is None
    assert cfg.stages[0].source.path == str(here / "train.parquet")
    assert cfg.stages[0].source.media_folder == "mine-rows/pictures"
    assert "no rows are held out, since 12 are few" in told


def test_held_out_rows_of_ones_own(new: Callable[..., str], here: Path):
    write_maths(here / "train.parquet", 12)
    write_maths(here / "val.parquet", 6, first=50)
    new("--data", "train.parquet", "--eval", "val.parquet")
    cfg = passes()
    assert cfg.eval.source is not None
    assert (cfg.eval.source.path, cfg.eval.source.answer_type) == ("val.parquet", "math")


def test_a_leak_is_refused_and_nothing_is_left(new: Callable[..., str], here: Path):
    write_maths(here / "train.parquet", 12)
    write_maths(here / "val.parquet", 6, first=8)
    with pytest.raises(DataError, match=r"4 training rows have the media and the question of rows in eval\.source"):
        new("--data", "train.parquet", "--eval", "val.parquet")
    assert sorted(path.name for path in here.iterdir()) == ["train.parquet", "val.parquet"]


# ---- choices, texts, CSV, conversations ----------------------------------------------------------------------------------------------


def test_choices_in_lines_with_pictures_in_a_folder_beside(new: Callable[..., str], here: Path):
    rows: Rows = []
    for i in range(20):
        picture(here / "data" / "photos" / f"{i}.png", i)
        rows.append({"question": f"What is it? {i}", "choices": ["a cat", "a dog"], "answer": "AB"[i % 2], "image": f"{i}.png"})
    lines(here / "data" / "train.jsonl", rows)
    new("--data", "data/train.jsonl")
    source = passes().stages[0].source
    assert source.columns == {"prompt": "question", "answer": "answer", "images": "image", "options": "choices"}
    assert (source.answer_type, source.media_root) == ("choice", "data/photos")


def test_a_table_of_questions(new: Callable[..., str], here: Path):
    with (here / "vqa.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "question", "answer"])
        for i in range(12):
            picture(here / "pics" / f"{i}.jpg", i)
            table.writerow([f"pics/{i}.jpg", f"Which colour is it, {i}?", ["red", "blue", "2"][i % 3]])
    told = new("--data", "vqa.csv")
    cfg = passes()
    assert cfg.stages[0].source.answer_type == "exact_text"
    assert [reward.name for reward in cfg.stages[0].rewards] == ["exact", "format"]
    assert "12 of 12 answers are numbers or texts" in told


def test_conversations_of_llava(new: Callable[..., str], here: Path):
    rows: Rows = []
    for i in range(10):
        picture(here / "llava" / "images" / f"{i}.png", i)
        turns = ["<image>\nWhat is it?", "a dog", "Which colour has it?", "brown"][: 4 if i % 2 else 2]
        talk = [{"from": "gpt" if k % 2 else "human", "value": text} for k, text in enumerate(turns)]
        rows.append({"id": str(i), "image": f"images/{i}.png", "conversations": talk})
    (here / "llava" / "talk.json").write_text(json.dumps(rows))
    told = new("--data", "llava/talk.json")
    source = passes().stages[0].source
    assert (source.turns, source.answer_type, source.columns) == ("split", "exact_text", None)
    assert "of the shape 'vlm_r1'" in told
    assert "5 of 10 conversations have several turns" in told


def test_long_answers_are_paid_by_their_words(new: Callable[..., str], here: Path):
    picture(here / "a.png", 1)
    answer = "A brown dog sits on a green lawn and looks at number"
    lines(here / "rows.jsonl", [{"question": f"Describe it, {i}.", "response": f"{answer} {i}.", "image": "a.png"} for i in range(9)])
    told = new("--data", "rows.jsonl")
    assert [reward.name for reward in passes().stages[0].rewards] == ["open_rouge", "format"]
    assert "in the median of 13 words" in told


def test_rows_of_our_own_say_all_themselves(new: Callable[..., str], here: Path, tiny_files: tuple[Path, Path]):
    told = new("--data", str(tiny_files[1] / "train.jsonl"), "--eval", str(tiny_files[1] / "test.jsonl"))
    cfg = passes()
    assert cfg.stages[0].source.media_root == str(tiny_files[1])
    assert cfg.stages[0].source.answer_type is None
    assert "they say their answer types themselves: 50 time_span" in told
    assert cfg.stages[0].rewards[0].name == "temporal_iou"


def test_options_within_the_question_of_rows_elsewhere(new: Callable[..., str], here: Path):
    """Paths of the whole machine, and letters whose options stand in the question."""
    for i in range(10):
        picture(here / "far" / "away" / f"{i % 2}" / f"{i}.png", i)
    places = [str(here / "far" / "away" / f"{i % 2}" / f"{i}.png") for i in range(10)]
    rows = [{"query": f"Which, {i}?\nA. red\nB. blue", "label": "AB"[i % 2], "img": place} for i, place in enumerate(places)]
    lines(here / "data" / "rows.jsonl", rows)
    new("--data", "data/rows.jsonl")
    source = passes().stages[0].source
    assert (source.answer_type, source.media_root) == ("choice", "far/away")


def test_many_rows_without_media(new: Callable[..., str], here: Path):
    """400 of them are looked at, and 200 of each part are checked."""
    lines(here / "rows.jsonl", [{"query": f"What is {i} and {i}?", "response": str(2 * i), "kind": {"deep": i}} for i in range(500)])
    told = new("--data", "rows.jsonl", "--held-out", "220")
    cfg = passes()
    assert cfg.stages[0].source.answer_type == "number"
    assert "500 rows, of which 400 were looked at" in told
    assert "checked: 400 of 500 rows" in told


def test_long_prompts_are_told(new: Callable[..., str], here: Path):
    lines(here / "rows.jsonl", [{"query": f"What is {i}? " + "word " * (9000 if i == 3 else 1), "response": "red"} for i in range(8)])
    assert "7 can be used, left out: 1 overlong" in new("--data", "rows.jsonl")


def test_messages_under_another_name(new: Callable[..., str], here: Path):
    picture(here / "a.png", 1)
    talk = [{"role": "user", "content": "Which colour?"}, {"role": "assistant", "content": "red"}]
    lines(here / "rows.jsonl", [{"dialog": talk, "picture": "a.png", "n": i} for i in range(6)])
    new("--data", "rows.jsonl")
    assert passes().stages[0].source.columns == {"messages": "dialog", "images": "picture"}


# ---- what stands in the way ----------------------------------------------------------------------------------------------------------


def vqa(here: Path, **more: Any) -> Rows:
    picture(here / "a.png", 1)
    return [{"question": f"What is it, {i}?", "answer": "red", "image": "a.png", **more} for i in range(8)]


CASES: list[tuple[str, Callable[[Rows], Rows], type[Exception], str]] = [
    (
        "two columns of answers",
        lambda rows: [{**r, "output": "x"} for r in rows],
        ConfigError,
        r"may stand in 'answer' or 'output'; say wh",
    ),
    ("no question", lambda rows: [{"foo": "x", "answer": "y"} for _ in rows], ConfigError, r"no column .* looks like the question"),
    (
        "several kinds",
        lambda rows: [{**r, "answer": [1, 2, 30, 40] if i % 2 else "red"} for i, r in enumerate(rows)],
        ConfigError,
        r"several kinds: 4 are texts \(first: .*rows\.jsonl:1\), 4 are boxes \(first: .*rows\.jsonl:2\); split the file",
    ),
    ("letters alone", lambda rows: [{**r, "answer": "B"} for r in rows], ConfigError, r"single letters, and 8 of 8 questions list no opt"),
    ("actions", lambda rows: [{**r, "answer": {"action": "click"}} for r in rows], ConfigError, r"are actions .*own schema"),
    (
        "lost pictures",
        lambda rows: [{**r, "image": f"no/{i}.png"} for i, r in enumerate(rows)],
        ConfigError,
        r"8 of 8 files were not found",
    ),
    ("names without ending", lambda rows: [{**r, "image": "AO8RW"} for r in rows], ConfigError, r"'AO8RW', which is no file name"),
    (
        "a picture within the text",
        lambda rows: [{**r, "question": "In <image> it is?"} for r in rows],
        DataError,
        r"8 of 8 rows cannot be r",
    ),
    ("pairs", lambda rows: [{"prompt": "Q", "chosen": "A", "rejected": "B"} for _ in rows], DataError, r"preference, first: .*DPO"),
    (
        "an index of an option",
        lambda rows: [{**r, "choices": ["a", "b"], "answer": 1} for r in rows],
        ConfigError,
        r"seem to count the options; write the letter",
    ),
    (
        "two columns of a span",
        lambda rows: [{"query": "Q", "start": 1, "end": 2, "image": "a.png"} for _ in rows],
        ConfigError,
        r"'start' and 'end' are two columns; write them into one",
    ),
    ("no rows", lambda _: [], DataError, r"rows\.jsonl: has no rows"),
]


@pytest.mark.parametrize(("change", "kind", "problem"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_cannot_be_told_is_refused(
    change: Callable[[Rows], Rows], kind: type[Exception], problem: str, new: Callable[..., str], here: Path
):
    lines(here / "rows.jsonl", change(vqa(here)))
    with pytest.raises(kind, match=f"(?s){problem}"):
        new("--data", "rows.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["a.png", "rows.jsonl"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["media_folder=x"], "media_folder: give --data and --media-root"),
        (["frame=pixels"], "frame"),
        (["nonsense=1"], "nonsense"),
        (["--task", "math"], "no starter for 'math'"),
        (["--media-root", "nowhere"], "--media-root: no folder nowhere"),
        (["--eval", "none.jsonl"], "none.jsonl"),
        (["--eval", "rows.jsonl", "--held-out", "3"], "--held-out: rows are held out of --data where there is no --eval"),
    ],
)
def test_options_that_are_wrong_are_refused(given: list[str], problem: str, new: Callable[..., str], here: Path):
    lines(here / "rows.jsonl", vqa(here))
    with pytest.raises((ConfigError, DataError), match=problem):
        new(*given, "--data", "rows.jsonl")
    assert sorted(path.name for path in here.iterdir()) == ["a.png", "rows.jsonl"]


def test_what_is_there_is_not_overwritten(new: Callable[..., str], here: Path):
    lines(here / "rows.jsonl", vqa(here))
    (here / "mine-rows").mkdir()
    with pytest.raises(ConfigError, match="mine-rows is there already"):
        new("--data", "rows.jsonl")
    (here / "mine.yaml").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine\.yaml is there already"):
        new("--data", "rows.jsonl")
    assert (here / "mine.yaml").read_text() == "precious"
    assert (here / "mine-rows").is_dir()


def test_lines_that_are_no_json(new: Callable[..., str], here: Path):
    (here / "rows.jsonl").write_text("{not json\n" * 5)
    with pytest.raises(DataError, match=r"5 of 5 rows cannot be read\n  5 json, first: rows\.jsonl:1"):
        new("--data", "rows.jsonl")


def test_a_column_that_was_asked_for_is_taken(new: Callable[..., str], here: Path):
    lines(here / "rows.jsonl", [{**row, "output": "blue"} for row in vqa(here)])
    new("--data", "rows.jsonl", "--columns", "{prompt: question, answer: output, images: image}")
    assert passes().stages[0].source.columns == {"prompt": "question", "answer": "output", "images": "image"}


def test_a_model_that_is_not_here_is_told_at_once(new: Callable[..., str], here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))
    lines(here / "rows.jsonl", vqa(here))
    for model, problem in (
        ("me/none", r"--model: 'me/none' is no folder here and not in the hub's cache .*get it with: hf download me/none"),
        (None, r"--model: none is given, and the default is not here: .*hf download Qwen/Qwen2.5-VL-3B-Instruct, or give --model FOLDER"),
        (str(here), r"has no config\.json"),
        ("./nowhere", r"no folder \./nowhere"),
    ):
        began = time.monotonic()
        with pytest.raises(ConfigError, match=problem):
            new("--data", "rows.jsonl", model=model)
        assert time.monotonic() - began < 2
    assert not (here / "mine.yaml").exists()

"""The table of questions: what is one question, columns and cells, and one question with all its answers."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.support import viewed
from tests.support.kept import key_of, pixels, record
from tests.support.made_runs import make_run
from tests.support.pages import GOOD, POOR, ROWS, good, make_eval, poor
from tests.support.pages import make_run as make_evaluated
from tests.support.pages import record as held_record
from vlmrl.errors import StorageError
from vlmrl.extras.pages.documents.pictures import Pictures
from vlmrl.extras.pages.documents.questions import group_doc, held_of, kept_of, question_doc, questions_doc
from vlmrl.extras.pages.documents.source import Source
from vlmrl.extras.pages.kept.media import Medium, encoded
from vlmrl.extras.pages.kept.record import content_of, summary
from vlmrl.extras.pages.kept.write import KeptWriter, mend


def opened(path: Path, name: str = "", kind: Any = "run") -> Source:
    found = Source(path, name or path.name, kind)
    found.follow()
    return found


def contents(*runs: Path) -> list[str]:
    return questions_doc([opened(run) for run in runs], Pictures())["questions"]["id"]


# ------------------------------------------------------------------------------------------------------------ identity


def test_equal_ids_of_two_worlds_are_different_questions(tmp_path: Path) -> None:
    """Two runs whose rows have the same ids, and each its own videos and gold answers."""
    one, two = make_run(tmp_path / "one", world=0), make_run(tmp_path / "two", world=1)
    table = questions_doc([opened(one), opened(two)], Pictures())["questions"]
    assert len(set(table["id"])) == 2 * (40 + 10)
    assert len(set(table["sample"])) == 40 + 10
    for content in set(contents(one)):
        answers = question_doc(content, [opened(one), opened(two)], Pictures())["answers"]
        assert {answer["run"] for answer in answers} == {"one"}


def test_seeds_of_one_world_have_the_same_questions(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", seed=seed, groups=2) for seed in (0, 1)]
    assert contents(*runs) == contents(runs[0]) == contents(runs[1])
    answers = question_doc(contents(runs[0])[0], [opened(run) for run in runs], Pictures())["answers"]
    assert [(answer["run"], answer["where"]) for answer in answers if answer["kind"] == "held"] == [
        (run, where) for run in ("s0", "s1") for where in ("before training", "after SFT", "after RL")
    ]


@pytest.mark.parametrize(
    "change", [{"question": "When?"}, {"answer": "2.0 to 3.0"}, {"gt": {"time": [2.0, 3.0]}}, {"media": [pixels(key_of(9)).handle]}]
)
def test_a_question_is_its_words_its_answer_and_its_media(change: dict[str, Any]) -> None:
    shown = {"media": [pixels(key_of(1)).handle]}
    assert record(1, **shown)["content"] == record(7, 3, sample="another", stage="sft", rewards=(0.0,), **shown)["content"]
    assert record(1, **shown)["content"] != record(1, **(shown | change))["content"]


def test_records_of_earlier_versions_have_the_content_that_they_would_have_now() -> None:
    made = record(1, media=[pixels(key_of(1), count=3).handle])
    older = {key: value for key, value in made.items() if key != "content"}
    assert content_of(older) == made["content"]
    assert summary(older, 0, 1)["content"] == made["content"]


def test_an_index_of_an_earlier_version_is_read_from_its_records(tmp_path: Path) -> None:
    run = viewed.make_run(tmp_path / "one")
    index = run / "groups" / "rank-0" / "000000.index.jsonl"
    before = sorted(kept_of(opened(run)))
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    index.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "content"}) + "\n" for line in lines))
    assert sorted(kept_of(opened(run))) == before
    mend(index.parent, 0, 99)
    assert [json.loads(line) for line in index.read_text().splitlines()] == lines, "a run that goes on writes it anew"


def test_held_out_questions_are_joined_by_content_and_older_ones_by_the_hash_of_their_sample(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", groups=0)
    assert set(held_of(opened(run)).rows) == {f"0c{n:018d}" for n in range(40)}
    (run / "eval" / "frames" / "questions.jsonl").unlink()
    assert set(held_of(opened(run)).rows) == {f"00{n:030d}" for n in range(40)}


# --------------------------------------------------------------------------------------------------------------- table


def test_columns_are_evaluations_and_cells_their_mean_scores(tmp_path: Path) -> None:
    rows = [held_record("box-1", POOR["box-1"], score, k=k) for k, score in ((2, 1.0), (0, 0.0), (1, 0.5))]
    run = make_evaluated(tmp_path / "run", {"base": rows, "rl": good()})
    table = questions_doc([opened(run)], Pictures())
    assert [(c["name"], c["words"]) for c in table["columns"]] == [("base", "before training"), ("rl", "after RL")]
    cells = dict(zip(zip(table["held"]["q"], table["held"]["c"], strict=True), table["held"]["score"], strict=True))
    box = table["questions"]["sample"].index("box-1")
    assert (cells[box, 0], cells[box, 1]) == (0.5, 0.9)
    assert table["questions"]["text"][box] == "Where is the red block?"
    assert table["questions"]["src"][box] == f"media/run/{ROWS['box-1'][1].handle.key}/0.png"
    several = questions_doc([opened(run), opened(make_eval(tmp_path / "e", "m", {"t": good()}), kind="evaluation")], Pictures())
    assert [c["name"] for c in several["columns"]] == ["run/base", "run/rl", "e/m"]


def test_kept_groups_say_what_was_answered_folded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    viewed.make_run(run, steps=1)
    texts = [f"<think>a</think><answer>{word}</answer>" for word in ("blue", "red", "blue", "blue")]
    KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=1).add(record(2, texts=texts, rewards=(1.0, 0.0, 1.0, 0.5)), {})
    kept = questions_doc([opened(run)], Pictures())["kept"]
    assert kept["said"][-1] == [["blue", 3, 0.8333], ["red", 1, 0.0]]
    assert (kept["rewards"][-1], kept["best"][-1], kept["global"][-1]) == ([1.0, 0.0, 1.0, 0.5], 1.0, 2)


def test_what_is_new_is_taken_in(tmp_path: Path) -> None:
    run = opened(viewed.make_run(tmp_path / "one"))
    sizes = {content: len(groups) for content, groups in kept_of(run).items()}
    KeptWriter(run.path / "groups" / "rank-0", budget=1 << 30, last_step=9).add(record(9, media=[pixels(viewed.VIDEO, count=8).handle]), {})
    run.follow()
    assert sum(len(groups) for groups in kept_of(run).values()) == sum(sizes.values()) + 1
    mend(run.path / "groups" / "rank-0", 0, 2)  # a run that is resumed from step 2
    run.follow()
    assert sum(len(groups) for groups in kept_of(run).values()) == 4


# -------------------------------------------------------------------------------------------------------- one question


def test_one_question_has_its_pixels_marks_and_all_answers(tmp_path: Path) -> None:
    run = opened(make_evaluated(tmp_path / "run", {"base": poor(), "rl": good()}))
    by_name = {name: question_doc(name, [run], Pictures()) for name in ROWS}  # older records: known by the hash of their sample
    box = by_name["box-1"]
    assert box["media"][0]["size"] == [112, 168]
    assert box["marks"]["shapes"][0]["points"] == ((25, 25), (50, 75))
    assert [(a["where"], a["score"], a["marks"]["shapes"][0]["points"][0]) for a in box["answers"]] == [
        ("before training", 0.1, (50, 50)),
        ("after RL", 0.9, (26, 24)),
    ]
    track = by_name["track-1"]
    assert [a["status"] for a in track["answers"]] == ["not readable", ""]
    assert sorted({mark["frame"] for mark in track["answers"][1]["marks"]["shapes"]}) == list(range(8))
    span = by_name["span-1"]
    assert [(s["start"], s["end"]) for s in span["marks"]["spans"]] == [(1.0, 3.0)]
    assert [a["status"] for a in span["answers"]] == ["cut off", ""]
    assert span["answers"][1]["answer"] == GOOD["span-1"]
    with pytest.raises(StorageError, match="no question has the digest"):
        question_doc("nothing", [run], Pictures())


def test_held_out_and_kept_answers_to_one_question_stand_under_each_other(tmp_path: Path) -> None:
    run = viewed.make_run(tmp_path / "run")
    content = next(iter(kept_of(opened(run))))
    found = question_doc(content, [opened(run)], Pictures())
    assert [(a["where"], a["k"]) for a in found["answers"]] == [(f"RL, step {n}", k) for n in range(1, 5) for k in (0, 1)]
    assert found["answers"][0]["group"].startswith("run/0-0-")
    assert len(found["media"][0]["frames"]) == 8


def test_a_group_comes_with_pixels_and_marks(tmp_path: Path) -> None:
    run = opened(viewed.make_run(tmp_path / "one"))
    (address, _), (second, _), *_ = run.kept.entries()
    span, box = (group_doc(run, place, Pictures()) for place in (address, second))
    assert span["media"][0]["times"] == [n / 2 for n in range(8)]
    assert [(one["start"], one["end"]) for one in span["marks"]["spans"]] == [(1.0, 3.0)]
    assert [[(one["start"], one["end"]) for one in answer["marks"]["spans"]] for answer in span["answers"]] == [[(0.0, 3.0)], [(2.0, 3.0)]]
    assert box["marks"]["shapes"][0]["points"] == ((25, 25), (50, 75))
    assert [len(answer["marks"]["shapes"]) for answer in box["answers"]] == [1, 0]
    assert box["answers"][1]["errors"] != []


def test_an_answer_type_of_a_plugin_is_shown_undrawn(tmp_path: Path) -> None:
    run = viewed.make_run(tmp_path / "one", steps=1)
    KeptWriter(run / "groups" / "rank-0", budget=1 << 30, last_step=1).add(record(1, 7, answer_type="of_a_plugin", sample="other"), {})
    source = opened(run)
    address = next(place for place, entry in source.kept.entries() if entry["sample"] == "other")
    assert "of_a_plugin" in group_doc(source, address, Pictures())["marks"]["problems"][0]


def test_equal_frames_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, key = opened(make_evaluated(tmp_path / "run", {"rl": good()})), ROWS["span-1"][1].handle.key
    path = run.medium(key)
    assert path is not None
    medium = Pictures().medium("run", key, path)
    assert medium is not None
    assert len(set(medium["frames"])) == 8, "the block moves"
    still = pixels(key_of(1), count=4)
    still.frames[:] = still.frames[0]
    assert Medium(BytesIO(encoded(still, 4))).alike() == [0, 0, 0, 0]
    inline = Pictures(inline=True).medium("run", key, path)
    assert inline is not None
    assert inline["frames"][0].startswith("data:image/png;base64,")
    monkeypatch.setattr("vlmrl.extras.pages.documents.pictures.INLINE", 1000)
    full = Pictures(inline=True)
    shown = [full.medium("run", key, path) is None for _ in range(3)]
    assert shown == [False, True, True], "a page that is one file does not grow without end"

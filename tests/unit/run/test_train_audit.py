"""The data audit of `vlmrl check`: every row accounted for, with real files, the real processor and the real parser."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import make_files
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.pages.documents.check import CheckRows
from vlmrl.methods import registries
from vlmrl.run import audit as audit_module
from vlmrl.run.audit import AuditReport, audit
from vlmrl.run.audit_report import SHOWN
from vlmrl.run.ui import Ui

ROWS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    registries()  # registers the rewards
    return make_files(tmp_path_factory.mktemp("tiny"), train=ROWS, test=3, sft=2)


def config(source: str = "train.jsonl", *, data: dict[str, Any] | None = None, **more: Any) -> Config:
    stage = {
        "kind": "grpo",
        "name": "rl",
        "source": {"path": source},
        "steps": 1,
        "answer_format": "think",
        "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}],
    }
    media = {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 16}
    return Config.model_validate({"model": {"path": "m"}, "media": media, "data": data or {}, "stages": [stage], **more})


def run(cfg: Config, files: tuple[Path, Path], data: Path | None = None) -> AuditReport:
    return audit(cfg, model=str(files[0]), data=data or files[1], ui=Ui(quiet=True))


def rows_of(world: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (world / "train.jsonl").read_text().splitlines()]


def write_rows(world: Path, name: str, rows: list[Any]) -> str:
    (world / name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return name


def test_good_data_has_no_problems(files):
    report = run(config(), files)
    assert report.problems == []
    [source] = report.sources
    assert (source.rows, source.good, dict(source.reasons), source.used_by) == (ROWS, ROWS, {}, ["rl"])
    assert 0 < source.longest_prompt <= 8192
    assert report.rows == ROWS


def test_every_row_is_accounted_for(files):
    world = files[1]
    rows: list[Any] = rows_of(world)
    gone = json.loads(json.dumps(rows[1]).replace(".mp4", "-gone.mp4"))
    (world / "videos" / "broken.mp4").write_bytes(b"not a video")
    broken = json.loads(json.dumps(rows[2]).replace(_video(rows[2]), "videos/broken.mp4"))
    name = write_rows(world, "mixed.jsonl", [rows[0], "{not json", gone, broken, rows[3]])
    report = run(config(name), files)
    [source] = report.sources
    assert source.rows == 5
    assert source.good == 2
    assert source.good + sum(source.reasons.values()) == source.rows
    assert source.reasons["json"] == 1
    assert source.reasons["missing"] == 1
    assert len(report.problems) == 1
    assert "3 of 5 rows are bad (60.00%); data.max_bad_rows allows 0.10%" in report.problems[0]
    assert "mixed.jsonl:2" in report.problems[0]
    assert run(config(name, data={"max_bad_rows": 0.6}), files).problems == []


def _video(row: dict[str, Any]) -> str:
    """The one path to an MP4 file in a row."""

    def walk(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [v for child in value.values() for v in walk(child)]
        if isinstance(value, list):
            return [v for child in value for v in walk(child)]
        return [value] if isinstance(value, str) and value.endswith(".mp4") else []

    [path] = walk(row)
    return path


def test_long_prompts_are_counted_but_are_no_fault(files):
    rows = run(config(), files).sources[0]
    limit = rows.longest_prompt - 1
    report = run(config(data={"max_prompt_tokens": limit}), files)
    [source] = report.sources
    assert 1 <= source.reasons["overlong"] <= ROWS
    assert source.good + source.reasons["overlong"] == ROWS
    assert source.longest_prompt <= limit
    assert (report.problems == []) == (source.good > 0)
    nothing = run(config(data={"max_prompt_tokens": 8}), files)
    assert f"none of {ROWS} rows can be used" in nothing.problems[0]


def test_repeated_ids(files):
    world = files[1]
    rows = rows_of(world)
    name = write_rows(world, "twice.jsonl", [*rows, rows[0]])
    assert "1 repeated ids" in run(config(name), files).problems[0]
    kept = run(config(name, data={"dedupe": "keep_first"}), files)
    assert kept.problems == []
    assert kept.sources[0].reasons == {"duplicate (kept first)": 1}
    assert kept.sources[0].rows == ROWS + 1


def test_evaluation_rows_that_are_trained_on_are_a_problem(files):
    overlap = run(config(eval={"source": {"path": "train.jsonl"}}), files)
    [problem] = overlap.problems
    assert problem.startswith(f"train.jsonl: {ROWS} training rows have the media and the question of rows in eval.source (train.jsonl): ")
    assert f": {files[1]}/train.jsonl:1 ('" in problem
    assert f", and {ROWS - 3} more; take them out" in problem
    assert overlap.notes == []
    assert overlap.sources[0].used_by == ["rl", "eval"]
    held_out = run(config(eval={"source": {"path": "test.jsonl"}}), files)
    assert (held_out.problems, held_out.notes) == ([], [])
    assert [s.path for s in held_out.sources] == ["train.jsonl", "test.jsonl"]


def with_until(cfg: Config, source: str) -> Config:
    stage = cfg.stages[0].model_dump() | {"until": {"source": {"path": source}, "score": 0.5}}
    return Config.model_validate(cfg.model_dump() | {"stages": [stage]})


def test_rows_that_end_a_stage_are_held_out_rows(files):
    good = run(with_until(config(), "test.jsonl"), files)
    assert (good.problems, good.notes) == ([], [])
    assert [(s.path, s.used_by) for s in good.sources] == [("train.jsonl", ["rl"]), ("test.jsonl", ["rl until"])]
    leak = run(with_until(config(), "train.jsonl"), files)
    [problem] = leak.problems
    assert "training rows have the media and the question of rows in stages.rl.until.source (train.jsonl): " in problem
    both = run(with_until(config(eval={"source": {"path": "train.jsonl"}}), "train.jsonl"), files)
    assert both.sources[0].used_by == ["rl", "eval", "rl until"]
    assert len(both.problems) == 1, "one set of rows is told of once"
    bad = write_rows(files[1], "bad.jsonl", ["{not json"])
    assert "bad.jsonl: none of 1 rows can be used" in run(with_until(config(), bad), files).problems[0]


def test_leaks_are_found_by_content_and_not_by_name(files):
    world = files[1]
    rows = rows_of(world)
    for number, row in enumerate(rows[:3]):
        (world / "copies").mkdir(exist_ok=True)
        (world / f"copies/{number}.mp4").write_bytes((world / _video(row)).read_bytes())
    moved = [json.loads(json.dumps(row).replace(_video(row), f"copies/{n}.mp4")) | {"id": f"c{n}"} for n, row in enumerate(rows[:3])]
    moved[0]["prompt"] = "  ".join(moved[0]["prompt"].upper().split(" "))  # the same question
    moved[1]["prompt"] = "Where is it?"
    moved[2] |= {"prompt": "When is it there?"}
    name = write_rows(world, "held.jsonl", moved)
    found = run(config(eval={"source": {"path": name}}), files)
    assert len(found.problems) == 1
    assert "train.jsonl: 1 training rows have the media and the question" in found.problems[0]
    assert f"{world}/train.jsonl:1 ('{rows[0]['id']}') and {world}/held.jsonl:1 ('c0')" in found.problems[0]
    assert len(found.notes) == 1
    assert "warning: train.jsonl: 2 training rows show media of eval.source (held.jsonl), with other questions" in found.notes[0]
    assert f"{world}/train.jsonl:2 ('{rows[1]['id']}') and {world}/held.jsonl:2 ('c1')" in found.notes[0]


def test_suites_and_files_to_check_against(files, tmp_path):
    world = files[1]
    rows = rows_of(world)
    write_rows(world, "others.jsonl", [rows[0] | {"id": "o1"}, "{not json"])
    suite = tmp_path / "mine.yaml"
    task = "{source: others.jsonl, answer_format: %s, answer_type: time_span, max_new_tokens: 8, id: %s}"
    suite.write_text(f"id: mine\nversion: 1\ndata_root: {world}\ntasks:\n- {task % ('think', 'a')}\n- {task % ('answer_only', 'b')}\n")
    found = run(config(data={"check_against": [str(suite), "test.jsonl"]}), files)
    assert len(found.problems) == 1  # two tasks on one file are one set
    assert "1 training rows have the media and the question of rows in mine/a: " in found.problems[0]
    [note] = found.notes
    assert note.startswith("warning: 1 of 2 rows of mine/a could not be compared with training rows; first: ")
    assert "others.jsonl:2: json" in note
    assert run(config(data={"check_against": ["test.jsonl"]}), files).problems == []
    asked = run(config(eval={"suite": str(suite), "data_root": str(world)}), files)
    assert asked.problems == found.problems
    words = {"prompt": "asked", "answer": "said", "video": "seen"}
    write_rows(world, "foreign.jsonl", [{theirs: rows[0][ours] for ours, theirs in words.items()}])
    source = f"{{path: foreign.jsonl, time_unit: s, columns: {json.dumps(words)}}}"
    (tmp_path / "theirs.yaml").write_text(suite.read_text().replace("others.jsonl", source))
    leaked = run(config(data={"check_against": [str(tmp_path / "theirs.yaml")]}), files)
    assert "1 training rows have the media and the question of rows in mine/a: " in leaked.problems[0]  # by the keys of the suite's source
    suite.write_text(suite.read_text().replace(f"data_root: {world}", "data_root: toy"))
    of_toy = config(data={"root": "toy", "check_against": [str(suite)]})
    assert run(of_toy, files).problems == found.problems  # a recipe on the generated world: the suite's rows are of that world
    with pytest.raises(ConfigError, match="data_root is 'toy'"):
        run(config(data={"check_against": [str(suite)]}), files)
    with pytest.raises(DataError, match="no such file"):
        run(config(data={"check_against": ["gone.jsonl"]}), files)
    with pytest.raises(ConfigError, match="no such suite"):
        run(config(data={"check_against": ["gone.yaml"]}), files)


def test_an_id_for_two_rows_of_two_sources_is_a_problem(files):
    rows = rows_of(files[1])
    both = write_rows(files[1], "sft2.jsonl", [rows[0] | {"thought": "It is there."}, rows[1] | {"id": rows[2]["id"]}])
    sft = {"kind": "sft", "name": "warm", "source": {"path": both}, "steps": 1, "answer_format": "think"}
    cfg = config()
    found = run(Config.model_validate(cfg.model_dump() | {"stages": [sft, cfg.stages[0].model_dump()]}), files)
    [problem] = found.problems
    assert problem.startswith("1 ids stand for different rows in two sources of training rows: ")  # row 0 is the same row twice
    assert f"sft2.jsonl:2 ('{rows[2]['id']}') and {files[1]}/train.jsonl:3 ('{rows[2]['id']}')" in problem


def test_a_source_is_read_once_for_all_that_use_it(files, monkeypatch):
    seen: list[Path] = []
    real = audit_module.read_source
    monkeypatch.setattr(audit_module, "read_source", lambda path, **kw: seen.append(path) or real(path, **kw))
    cfg = config(eval={"source": {"path": "train.jsonl"}})
    run(cfg, files)
    assert [path.name for path in seen] == ["train.jsonl"]


def test_a_reward_that_cannot_tell_gold_from_junk_is_a_problem(files, monkeypatch):
    from vlmrl.protocols import reward

    monkeypatch.setattr(reward, "_entries", dict(reward._entries))

    @reward("always_half")
    def always_half(group, context):
        """The same for every answer."""
        return [0.5 for _ in group.rollouts]

    stage = config().stages[0].model_dump() | {"rewards": [{"name": "always_half", "isolate": False}]}
    found = run(Config.model_validate(config().model_dump() | {"stages": [stage]}), files).problems
    (problem,) = found
    assert problem.startswith("stage 'rl': row ")
    assert "): junk scores 0.5, the gold answer '" in problem
    assert f"' 0.5; so do all {ROWS} rows tried: no reward tells right from wrong" in problem


def test_rewards_that_fail_some_rows_name_the_first_of_them(files, monkeypatch):
    from vlmrl.protocols import reward

    monkeypatch.setattr(reward, "_entries", dict(reward._entries))

    @reward("all_but_the_last")
    def all_but_the_last(group, context):
        """1 for everything, and of one row for the gold answer alone."""
        last = group.prompt.sample.source.endswith(f":{ROWS}")
        return [float(k == 0 or not last) for k, _ in enumerate(group.rollouts)]

    stage = config().stages[0].model_dump() | {"rewards": [{"name": "all_but_the_last", "isolate": False}]}
    found = run(Config.model_validate(config().model_dump() | {"stages": [stage]}), files).problems
    assert len(found) == SHOWN + 1
    assert all("junk scores 1" in problem and "tells" not in problem for problem in found[:SHOWN])
    assert found[-1] == f"stage 'rl': ... and {ROWS - 1 - SHOWN} more rows like these"


def test_a_shaping_for_tasks_that_no_row_has_is_a_problem(files):
    bands = {"name": "length_envelope", "reward": "temporal_iou", "bands": {"ocr": [0, 1, 2, 3]}}
    stage = config().stages[0].model_dump() | {"reward_shaping": [bands]}
    (problem,) = run(Config.model_validate(config().model_dump() | {"stages": [stage]}), files).problems
    assert "'length_envelope' is for the tasks ocr, and the rows are of temporal_grounding" in problem


def test_missing_source_and_missing_model(files, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        run(config("nothing.jsonl"), files)
    with pytest.raises(ConfigError, match=r"model\.path"):
        audit(config(), model=str(tmp_path), data=files[1], ui=Ui(quiet=True))


def test_the_table_shows_every_number(files):
    from rich.console import Console

    report = run(config(eval={"source": {"path": "train.jsonl"}}), files)
    report.notes.append("warning: 3 evaluation rows")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for word in ("train.jsonl", "think", "rl, eval", str(ROWS), f"{report.sources[0].longest_prompt} tokens", "evaluation rows"):
        assert word in text


def test_rows_to_look_at_with_the_worst_first(files, tmp_path):
    world = files[1]
    rows = rows_of(world)
    long = rows[2] | {"prompt": "When " + "is it " * 9000}
    name = write_rows(world, "look.jsonl", [rows[0], rows[1], "{not json", long])
    page = CheckRows(budget=8192)
    audit(config(name, data={"max_bad_rows": 0.5}), model=str(files[0]), data=world, ui=Ui(quiet=True), page=page)
    assert [(row["reason"], row["picture"] is not None) for row in page.rows] == [
        ("json", False),
        ("", True),
        ("", True),
        ("overlong", True),
    ]
    text = page.write(tmp_path / "look.html").read_text()
    places = [text.index(f"look.jsonl:{line}") for line in (3, 4, 1)]
    assert max(places[:2]) < places[2]
    assert "http:" not in text.replace("http://www.w3.org/", "")
    assert "https:" not in text


def test_rows_of_fine_tuning_are_held_against_their_own_gold(files):
    rows = rows_of(files[1])
    rows[0] |= {"answer": "90.00 to 95.00"}
    rows[1] |= {"gt": {"time": [1000.0, 2000.0]}, "answer": "1000.00 to 2000.00"}
    rows[2] |= {"thought": "never mind</think><answer>0.00 to 99.00</answer>"}
    name = write_rows(files[1], "contradictions.jsonl", rows)
    stage = {"kind": "sft", "name": "sft", "source": {"path": name}, "steps": 1, "answer_format": "think"}
    report = run(config(stages=[stage]), files)
    [source] = report.sources
    assert (source.good, dict(source.reasons)) == (ROWS - 3, {"answer": 1, "time": 1, "form_tag": 1})
    [problem] = report.problems
    for row, told in ((rows[0], "'90.00 to 95.00' scores 0 of 1"), (rows[1], "'gt.time' is [1000, 2000] s, but")):
        assert f"row '{row['id']}'" in problem
        assert told in problem
    assert f"{name}:3: form_tag: 'thought' contains '</think>'" in problem


def test_training_leaves_out_what_the_check_leaves_out(files, tmp_path):
    from vlmrl.policy.load import load_processor
    from vlmrl.run.media import open_media
    from vlmrl.run.rows import load_rows

    rows = rows_of(files[1])
    rows[0] |= {"answer": "90.00 to 95.00"}
    rows[1] |= {"gt": {"time": [1000.0, 2000.0]}, "answer": "1000.00 to 2000.00"}
    cfg = config(write_rows(files[1], "contradictions.jsonl", rows), data={"max_bad_rows": 0.5})
    _, encoder = open_media(cfg, load_processor(str(files[0])), files[1])
    quarantine = tmp_path / "quarantine.jsonl"
    kept = load_rows(cfg.stages[0].source, cfg.data, files[1], "think", encoder, quarantine=quarantine, ui=Ui(quiet=True))
    assert list(kept.samples) == [row["id"] for row in rows[2:]]
    assert [json.loads(line)["reason"] for line in quarantine.read_text().splitlines()] == ["answer", "time"]


@pytest.mark.not_fast
def test_many_rows_are_loaded_as_few_are(files, tmp_path, monkeypatch):
    from vlmrl.policy.load import load_processor
    from vlmrl.run import audit_source
    from vlmrl.run import rows as module
    from vlmrl.run.audit_chunk import Auditor
    from vlmrl.run.identity import SourceRows
    from vlmrl.run.media import open_media

    first, *others = rows_of(files[1])
    rows = [{**row, "id": f"{row['id']}-{n}"} for n in range(2) for row in others]
    rows[3] |= {"answer": "90.00 to 95.00"}
    lines = [first, "{not json", *rows, first]
    cfg = config(write_rows(files[1], "many.jsonl", lines), data={"max_bad_rows": 0.5, "dedupe": "keep_first"})
    _, encoder = open_media(cfg, load_processor(str(files[0])), files[1])

    def load() -> Any:
        told = tmp_path / f"quarantine-{len(list(tmp_path.iterdir()))}.jsonl"
        found = module.load_rows(
            cfg.stages[0].source, cfg.data, files[1], "think", encoder, quarantine=told, ui=Ui(quiet=True), cache=tmp_path / "cache"
        )
        return found, sorted(told.read_text().splitlines())

    few, told = load()
    monkeypatch.setattr(module, "LARGE", 4)
    monkeypatch.setattr(audit_source, "CHUNK", 8)
    monkeypatch.setattr(audit_source, "ALONE", 8)
    many, told_of_many = load()
    assert told_of_many == told
    assert list(many.samples.items()) == list(few.samples.items())
    assert dict(many.prompt_tokens) == few.prompt_tokens
    assert many.left_out == few.left_out
    assert few.marks is None
    assert many.marks == SourceRows(samples=list(few.samples.values()), root=encoder.root).hashes()
    monkeypatch.setattr(Auditor, "chunk", lambda *_: pytest.fail("these rows are known"))
    again, _ = load()
    assert list(again.samples.items()) == list(few.samples.items())
    assert (dict(again.prompt_tokens), again.left_out, again.marks) == (few.prompt_tokens, few.left_out, many.marks)
    monkeypatch.undo()
    strict, problems = cfg.data.model_copy(update={"dedupe": "error"}), set[str]()
    for large in (4, 1000):
        monkeypatch.setattr(module, "LARGE", large)
        where = {"quarantine": tmp_path / "q", "ui": Ui(quiet=True), "cache": tmp_path / "cache"}
        with pytest.raises(DataError, match="1 repeated id") as caught:
            module.load_rows(cfg.stages[0].source, strict, files[1], "think", encoder, **where)
        problems.add(str(caught.value))
    assert len(problems) == 1, "the message is the same"

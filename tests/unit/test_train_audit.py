"""The data audit of `vlmrl check`: every row accounted for, with real files, the real processor and the real parser."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, DataError
from vlmrl.testing.tiny import make_files
from vlmrl.train import audit as audit_module
from vlmrl.train.audit import AuditReport, audit
from vlmrl.train.ui import Ui

ROWS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    return make_files(tmp_path_factory.mktemp("tiny"), train=ROWS, test=3, sft=2)


def config(source: str = "train.jsonl", *, data: dict[str, Any] | None = None, **more: Any) -> Config:
    stage = {
        "kind": "grpo",
        "name": "rl",
        "source": {"path": source},
        "steps": 1,
        "template": "think",
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


def test_evaluation_rows_that_are_trained_on_are_told(files):
    overlap = run(config(eval={"source": {"path": "train.jsonl"}}), files)
    assert overlap.notes == [f"{ROWS} of {ROWS} evaluation rows have the media and the question of a training row"]
    assert overlap.sources[0].used_by == ["rl", "eval"]
    held_out = run(config(eval={"source": {"path": "test.jsonl"}}), files)
    assert held_out.notes == []
    assert [s.path for s in held_out.sources] == ["train.jsonl", "test.jsonl"]


def test_a_source_is_read_once_for_all_that_use_it(files, monkeypatch):
    seen: list[Path] = []
    real = audit_module.read_source
    monkeypatch.setattr(audit_module, "read_source", lambda path, **kw: seen.append(path) or real(path, **kw))
    cfg = config(eval={"source": {"path": "train.jsonl"}})
    run(cfg, files)
    assert len(seen) == 1


def test_a_reward_that_cannot_tell_gold_from_junk_is_a_problem(files, monkeypatch):
    from vlmrl.protocols import reward

    monkeypatch.setattr(reward, "_entries", dict(reward._entries))

    @reward("always_half")
    def always_half(group, context):
        """The same for every answer."""
        return [0.5 for _ in group.rollouts]

    stage = config().stages[0].model_dump() | {"rewards": [{"name": "always_half", "isolate": False}]}
    found = run(Config.model_validate(config().model_dump() | {"stages": [stage]}), files).problems
    assert len(found) == audit_module.SHOWN + 1
    assert found[0].startswith("stage 'rl': row ")
    assert "junk scores 0.5" in found[0]
    assert found[-1] == f"stage 'rl': ... and {ROWS - audit_module.SHOWN} more rows like these"


def test_missing_source_and_missing_model(files, tmp_path):
    with pytest.raises(DataError, match="no such file"):
        run(config("nothing.jsonl"), files)
    with pytest.raises(ConfigError, match=r"model\.path"):
        audit(config(), model=str(tmp_path), data=files[1], ui=Ui(quiet=True))


def test_the_table_shows_every_number(files):
    from rich.console import Console

    report = run(config(eval={"source": {"path": "train.jsonl"}}), files)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for word in ("train.jsonl", "think", "rl, eval", str(ROWS), f"{report.sources[0].longest_prompt} tokens", "evaluation rows"):
        assert word in text

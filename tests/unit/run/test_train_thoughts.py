"""Reverse thinking as a command: every row is accounted for, and what is written is valid data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError
from vlmrl.extras.thoughts.write import write_thoughts
from vlmrl.run.session import Places


def config(files: tuple[Path, Path], tmp_path: Path) -> tuple[Config, Places]:
    cfg = Config.model_validate(runs.small_config(*files, tmp_path) | {"plugins": []})
    lines = [json.loads(line) for line in (files[1] / "sft.jsonl").read_text().splitlines()[:6]]
    for line in lines[1:]:
        del line["thought"]
    bare = files[1] / "bare.jsonl"
    bare.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stages = tuple(s.model_copy(update={"source": s.source.model_copy(update={"path": "bare.jsonl"})}) for s in cfg.stages)
    return cfg.model_copy(update={"stages": stages}), Places(model=str(files[0]), data=files[1])


def call(cfg: Config, places: Places, target: Path, **more: Any) -> Any:
    options = {"stage": "sft", "temperature": 1.0, "forbid_answer": False, "check": False, "overwrite": False} | more
    return write_thoughts(cfg, places, target=target, **options)


def test_every_row_is_accounted_for(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    cfg, places = config(tiny_files, tmp_path)
    report = call(cfg, places, tiny_files[1] / "out.jsonl")
    assert (report.rows, report.kept) == (6, 1)
    assert report.added + len(report.without) == 5
    assert sum(report.reasons.values()) == len(report.without)
    before = load_source(tiny_files[1] / "bare.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    after = load_source(tiny_files[1] / "out.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    assert [s.id for s in after] == [s.id for s in before]
    assert after[0].thought == before[0].thought
    assert sum(s.thought is not None for s in after) == 1 + report.added
    assert call(cfg, places, tiny_files[1] / "again.jsonl") == report, "the same seed gives the same thoughts"
    assert (tiny_files[1] / "again.jsonl").read_bytes() == (tiny_files[1] / "out.jsonl").read_bytes()


def test_checking_needs_rewards_and_stages_are_named(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    cfg, places = config(tiny_files, tmp_path)
    with pytest.raises(ConfigError, match="no stage 'sftt'"):
        call(cfg, places, tmp_path / "x.jsonl", stage="sftt")
    only_sft = cfg.model_copy(update={"stages": cfg.stages[:1]})
    with pytest.raises(ConfigError, match="a stage with rewards"):
        call(only_sft, places, tmp_path / "x.jsonl", check=True)
    assert not (tmp_path / "x.jsonl").exists()

"""Rows whose faults lie outside the line: media that are missing or vanish (D3), prompts at the limit (D5), hardly any rows (D8)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import runs
from tests.support.hostile import encode, good_row
from tests.support.tiny import Tiny
from vlmrl.config.schema import DataSection, SourceSection
from vlmrl.data.encode import Encoder
from vlmrl.errors import DataError, RowError
from vlmrl.run.rows import Rows, load_rows
from vlmrl.run.ui import Ui
from vlmrl.types import MediaRef, Sample

PROMPTS = 4


def write_rows(root: Path, names: list[str], *, absent: tuple[str, ...] = ()) -> None:
    """A source with one picture per row; those in `absent` have no file."""
    root.mkdir(exist_ok=True)
    for n, name in enumerate(names):
        if name not in absent:
            pixels = np.random.default_rng(n).integers(0, 256, (56, 56, 3), dtype=np.uint8)
            (root / f"{name}.png").write_bytes(encode(pixels, "PNG"))
    lines = [json.dumps(good_row(name, image=f"{name}.png")) for name in names]
    (root / "rows.jsonl").write_text("".join(line + "\n" for line in lines))


def read_rows(tiny: Tiny, root: Path, quarantine: Path, **data: Any) -> Rows:
    encoder = dataclasses.replace(tiny.encoder, data_root=root)
    if "max_prompt_tokens" in data:
        encoder = dataclasses.replace(encoder, max_prompt_tokens=data["max_prompt_tokens"])
    section = DataSection(root=str(root), **data)
    return load_rows(SourceSection(path="rows.jsonl"), section, root, "think", encoder, quarantine=quarantine, ui=Ui(quiet=True))


def config(files: tuple[Path, Path], root: Path, out: Path, *, reward: str, steps: int, **data: Any) -> dict[str, Any]:
    rewards = [{"name": reward, "isolate": False}, {"name": "format", "weight": 0.1}]
    made = runs.small_config(files[0], root, out, source={"path": "rows.jsonl"}, steps=steps, rewards=rewards, advantage={"name": "grpo"})
    made["stages"] = made["stages"][1:]
    made["stages"][0]["rollout"] |= {"prompts_per_step": PROMPTS, "max_new_tokens": 4}
    made["data"] |= data
    made["eval"] = {}
    made["plugins"] = ["tests.support.media_rewards"]
    return made


def steps_of(made: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (runs.run_dir(made) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "grad_norm" in line]


# D3


def test_missing_media_are_counted_and_left_out(tiny: Tiny, tmp_path: Path) -> None:
    names = [f"row-{n}" for n in range(20)]
    write_rows(tmp_path / "data", names, absent=("row-3", "row-11"))
    kept = read_rows(tiny, tmp_path / "data", tmp_path / "bad.jsonl", max_bad_rows=0.1)
    assert list(kept.samples) == [name for name in names if name not in ("row-3", "row-11")]
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["id"], line["reason"]) for line in bad] == [("row-3", "missing"), ("row-11", "missing")]
    assert all(f"{line['id']}.png" in line["message"] for line in bad)
    with pytest.raises(DataError, match=r"2 of 20 rows have unusable media or prompts, 18 are left"):
        read_rows(tiny, tmp_path / "data", tmp_path / "again.jsonl", max_bad_rows=0.09)


@pytest.mark.parametrize("prefetch", [False, True])
def test_files_that_vanish_while_training_are_replaced(tiny_files: tuple[Path, Path], tmp_path: Path, prefetch: bool) -> None:
    """Of twelve rows, six lose their file within the first step; three steps of four prompts are trained, all of them whole."""
    names = [f"{kind}-{n}" for n in range(6) for kind in ("stays", "gone")]
    write_rows(tmp_path / "data", names)
    made = config(tiny_files, tmp_path / "data", tmp_path / "runs", reward="deletes", steps=3, max_bad_rows=0.5)
    made["media"]["prefetch"] = prefetch
    assert runs.run(made) == 0
    assert not list((tmp_path / "data").glob("gone-*"))
    bad = [json.loads(line) for line in (runs.run_dir(made) / "quarantine.jsonl").read_text().splitlines()]
    assert bad
    assert {line["reason"] for line in bad} == {"missing"}
    assert {line["id"].split("-")[0] for line in bad} == {"gone"}
    assert [line["work/prefilled_prompts"] for line in steps_of(made)] == [PROMPTS] * 3, "the batch keeps its size"


def test_too_many_files_that_vanish_stop_the_run(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    write_rows(tmp_path / "data", [f"{kind}-{n}" for n in range(6) for kind in ("stays", "gone")])
    made = config(tiny_files, tmp_path / "data", tmp_path / "runs", reward="deletes", steps=6, max_bad_rows=0.0)
    assert runs.run(made) == DataError.exit_code
    said = (tmp_path / "runs" / "error.txt").read_text()
    assert "of 12 rows failed while training (missing: " in said
    assert "data.max_bad_rows 0.0" in said


# D5


def _lengths(encoder: Encoder, sample: Sample) -> tuple[int, int]:
    """Tokens of a prompt from headers and from pixels."""
    free = dataclasses.replace(encoder, max_prompt_tokens=10**9)
    return len(free.plan(sample, "think").ids), len(free.encode(sample, "think").ids)


@pytest.mark.parametrize("pictures", [1, 3])
def test_prompts_at_the_limit(tiny: Tiny, tmp_path: Path, pictures: int) -> None:
    """Limit - 1, limit and limit + 1 of a prompt with pictures: kept, kept, left out; never cut."""
    for n in range(pictures):
        side = 56 + 28 * n
        (tmp_path / f"{n}.png").write_bytes(encode(np.random.default_rng(n).integers(0, 256, (side, 84, 3), dtype=np.uint8), "PNG"))
    media = tuple(MediaRef(kind="image", path=f"{n}.png") for n in range(pictures))
    sample = Sample(id="edge", task="vqa", answer_type="exact_text", question="What?", media=media, answer="x", gt={})
    encoder = dataclasses.replace(tiny.encoder, data_root=tmp_path)
    length, decoded = _lengths(encoder, sample)
    assert length == decoded
    for limit in (length + 1, length):
        at = dataclasses.replace(encoder, max_prompt_tokens=limit)
        assert len(at.plan(sample, "think").ids) == len(at.encode(sample, "think").ids) == length
    over = dataclasses.replace(encoder, max_prompt_tokens=length - 1)
    for make in (over.plan, over.encode):
        with pytest.raises(RowError, match=rf"overlong: row 'edge' .*: {length} prompt tokens > max_prompt_tokens {length - 1}"):
            make(sample, "think")


def test_overlong_prompts_are_dropped_without_counting_as_bad(tiny: Tiny, tmp_path: Path) -> None:
    write_rows(tmp_path / "data", ["short", "long"])
    rows = [good_row("short", image="short.png"), good_row("long", image="long.png", prompt="What is it? " * 40)]
    (tmp_path / "data" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    free = read_rows(tiny, tmp_path / "data", tmp_path / "none.jsonl", max_bad_rows=0.0)
    limit = free.prompt_tokens["long"] - 1
    assert limit > free.prompt_tokens["short"]
    kept = read_rows(tiny, tmp_path / "data", tmp_path / "bad.jsonl", max_bad_rows=0.0, max_prompt_tokens=limit)
    assert list(kept.samples) == ["short"]
    (line,) = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert (line["id"], line["reason"]) == ("long", "overlong")


# D8


def test_no_rows_and_only_bad_rows_stop_the_run_at_its_start(tiny: Tiny, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_rows(root, [])
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        read_rows(tiny, root, tmp_path / "bad.jsonl")
    write_rows(root, ["a", "b"], absent=("a", "b"))
    with pytest.raises(DataError, match=r"2 of 2 rows have unusable media or prompts, 0 are left"):
        read_rows(tiny, root, tmp_path / "bad.jsonl", max_bad_rows=1.0)
    write_rows(root, ["a", "b"])
    with pytest.raises(DataError, match=r"0 of 2 rows have unusable media or prompts, 0 are left"):
        read_rows(tiny, root, tmp_path / "bad.jsonl", max_prompt_tokens=5)


@pytest.mark.parametrize("count", [1, PROMPTS - 1])
def test_fewer_rows_than_prompts_of_a_step(tiny_files: tuple[Path, Path], tmp_path: Path, count: int) -> None:
    """The sampler goes on into its next epoch, so a step has as many prompts as ever: some rows twice, as groups of their own."""
    write_rows(tmp_path / "data", [f"row-{n}" for n in range(count)])
    made = config(tiny_files, tmp_path / "data", tmp_path / "runs", reward="looks", steps=2)
    assert runs.run(made) == 0
    assert [line["work/prefilled_prompts"] for line in steps_of(made)] == [PROMPTS] * 2

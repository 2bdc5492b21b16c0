"""The benchmark of what RL teaches other families: its rows, its model, its page, and (slow) all of it from the command to the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import family_gain
from vlmrl.data.encode import instruction
from vlmrl.extras.toy.multitask import MOST
from vlmrl.extras.toy.picture import GREY

ROWS = {"pretrain": 40, "train": 10, "test": 10}


def test_its_rows_count_and_labels_of_the_supervised_stage_alone_are_loose(tmp_path: Path) -> None:
    family_gain.write_world(tmp_path, ROWS)
    found = {split: [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()] for split in ROWS}
    assert {split: len(rows) for split, rows in found.items()} == ROWS
    for split, rows in found.items():
        shown = [sum(thing["color"] != GREY for thing in row["meta"]["objects"]) for row in rows]
        apart = [int(row["answer"]) - count for row, count in zip(rows, shown, strict=True)]
        assert set(apart) == ({0, 1} if split == "pretrain" else {0})
        assert all(0 < count <= MOST for count in shown)
        assert all((tmp_path / row["image"]).read_bytes().startswith(b"\x89PNG") for row in rows)


@pytest.mark.parametrize("family", family_gain.FAMILIES)
def test_a_word_is_a_token_and_digits_stay_bytes(family: str, tmp_path: Path) -> None:
    from transformers import AutoProcessor

    family_gain.write_model(family, tmp_path, seed=0)
    tokenizer = AutoProcessor.from_pretrained(tmp_path).tokenizer
    text = f"How many red shapes are there? {instruction('answer_only', 'number')}"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) < len(text) / 4
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([i]) for i in tokenizer("<answer>3</answer>", add_special_tokens=False)["input_ids"]] == [
        "<answer>",
        "3",
        "</answer>",
    ]


def numbers(**more: Any) -> dict[str, Any]:
    same = {"questions": 20, "constant_answer": "2", "constant": 0.3, "sft": 0.5, "rl": 0.8, "gain": [0.3, 0.1, 0.5]}
    return same | {"readable": [1.0, 1.0], "largest_logp_gap": 1e-6} | more


def test_the_page_says_how_many_seeds_gained_and_which_saw_nothing_before() -> None:
    found = {0: numbers(), 1: numbers(sft=0.3, rl=0.25, gain=[-0.05, -0.2, 0.1])}
    text = family_gain.document("internvl", found, "python -m benchmarks.learning.family_gain", {"sft": 5, "rl": 6})
    assert "| 0 | 0.500 | 0.800 | +0.300 [+0.100, +0.500] | 1.0e-06 |" in text
    assert "The interval lies above 0 in 1 of 2 seeds." in text
    assert "no better than the constant answer with seeds 1." in text
    assert "The best constant answer, 2, is right for 0.300 of them." in text


@pytest.mark.slow
def test_from_the_command_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of each stage: nothing is learnt, everything is exercised; a second call runs nothing."""
    page = tmp_path / "page.md"
    small = ["--seeds", "0", "--sft-steps", "2", "--rl-steps", "2", "--rows", "40", "40", "10"]
    monkeypatch.setattr(sys, "argv", ["family_gain.py", *small, "--out", str(tmp_path / "out"), "--write", str(page)])
    assert family_gain.main() == 0
    written = json.loads(page.with_suffix(".json").read_text())
    assert written["seeds"]["0"]["questions"] == 10
    assert written["seeds"]["0"]["largest_logp_gap"] < 1e-4
    first = page.read_text()
    monkeypatch.setattr(family_gain.subprocess, "run", lambda *_, **__: pytest.fail("the run is finished"))
    assert family_gain.main() == 0
    assert page.read_text().splitlines()[:10] == first.splitlines()[:10]

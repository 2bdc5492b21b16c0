"""The benchmark of conversations of two turns in other families: its world, model and page, and (slow) its runs, one of them killed."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.learning import family_turns
from vlmrl.data.encode import instruction
from vlmrl.extras.toy.picture import COLORS, PAINT


def colour(screen: bytes) -> str:
    """The colour that a screen shows, by its pixels."""
    pixels = np.asarray(Image.open(io.BytesIO(screen)).convert("RGB")).reshape(-1, 3).astype(int)
    near = {name: int((np.abs(pixels - PAINT[name]).max(1) < 12).sum()) for name in COLORS}
    assert sorted(near.values())[-2] == 0, "one colour alone"
    return max(near, key=near.__getitem__)


def test_a_right_answer_names_what_is_shown_and_loose_ones_the_next() -> None:
    loose = 0
    for seed in range(40):
        true, asked = family_turns.TwoScreens(0.0), family_turns.TwoScreens(0.5)
        seen = true.reset({}, seed)
        assert seen.screens == asked.reset({}, seed).screens
        outcomes: list[tuple[str, str]] = []
        while seen is not None:
            assert true.solve() == colour(seen.screens[0])
            names = list(COLORS)
            apart = (names.index(asked.solve()) - names.index(true.solve())) % len(names)
            assert apart in (0, 1)
            loose += apart
            came, wrong = true.step(f" {true.solve()} "), asked.step("grey")
            assert (came.reward, wrong.reward) == (0.5, 0.0)
            outcomes.append((came.outcome, wrong.outcome))
            seen = came.observation
        assert outcomes == [("", ""), ("success", "failure")]
    assert 25 < loose < 55


@pytest.mark.parametrize("family", family_turns.FAMILIES)
def test_an_answer_is_a_few_tokens(family: str, tmp_path: Path) -> None:
    from transformers import AutoProcessor

    family_turns.write_model(family, tmp_path, seed=0)
    tokenizer = AutoProcessor.from_pretrained(tmp_path).tokenizer
    text = f"{family_turns.QUESTION} {instruction('answer_only', 'exact_text')}"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert [len(tokenizer(f"<answer>{name}</answer>", add_special_tokens=False)["input_ids"]) for name in COLORS] == [3] * len(COLORS)


def test_the_page_says_what_was_killed_and_what_is_the_same() -> None:
    arm: dict[str, Any] = {"played": 20, "before": 0.1, "after": 0.9, "gain": [0.8, 0.6, 0.9], "largest_logp_gap": 1e-7}
    apart = {"early": 2e-7, "same_text": 19, "same_bits": True}
    arms = {"one": arm, "shards": arm | {"apart": apart}, "killed": arm | {"apart": apart, "kills": [0, 3]}}
    asked = family_turns.Asked(out=Path(), steps={"sft": 5, "rl": 6}, kills=2, longest=1.0, served=False)
    text = family_turns.document({"internvl": {0: arms}}, "command", asked)
    assert "| internvl | 0 | one | 0.100 | 0.900 | +0.800 [+0.600, +0.900] | 1.0e-07 | - |" in text
    assert "| 2.0e-07; 19 of 20 texts |" in text
    assert "| 2 kills, after 0, 3 steps: the same bits |" in text
    other = {"killed": arms["killed"] | {"apart": apart | {"same_bits": False}}}
    assert "other bits" in family_turns.document({"internvl": {0: other}}, "command", dataclasses.replace(asked, kills=2))


@pytest.mark.slow
def test_from_the_command_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learnt in so few steps, everything but vLLM is exercised; a second call runs nothing."""
    page = tmp_path / "page.md"
    monkeypatch.setattr(family_turns, "EPISODES", {"sft": 40, "rl": 40, "test": 10})
    small = ["--families", "internvl", "--seeds", "0", "--arms", "one", "shards", "killed", "--sft-steps", "2", "--rl-steps", "4"]
    small += ["--kills", "2", "--longest", "15", "--out", str(tmp_path / "out"), "--write", str(page)]
    monkeypatch.setattr(sys, "argv", ["family_turns.py", *small])
    assert family_turns.main() == 0
    arms = json.loads(page.with_suffix(".json").read_text())["families"]["internvl"]["0"]
    assert arms["shards"]["apart"]["early"] < 1e-4
    assert arms["shards"]["apart"]["same_text"] == 10
    assert arms["killed"]["apart"]["same_bits"]
    assert len(arms["killed"]["kills"]) == 2
    monkeypatch.setattr(family_turns, "start", lambda *_: pytest.fail("all runs are finished"))
    assert family_turns.main() == 0

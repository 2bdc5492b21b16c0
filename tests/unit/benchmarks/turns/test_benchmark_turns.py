"""benchmarks/turns/turns.py and vs_trl_turns.py: what is counted, by hand; a very small setting goes from the command to the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.turns.counted import Counted, counted
from benchmarks.turns.peer_trl import one_place
from tests.support.command import module

SMALL = ["--repeats", "1", "--steps", "1", "--warmup", "0", "--screens", "4", "--groups", "2", "--completions", "3", "--threads", "1"]


def test_counts_of_two_attempts_of_three_turns() -> None:
    """A first prompt of 10 tokens, answers of 3, 5 between: prompts of 10, 18, 26 tokens, a whole conversation of 29."""
    sizes = {"prompt": 10, "answer": 3, "observation": 5, "turns": 3, "group": 2}
    assert counted("trl", **sizes) == Counted(2 * (10 + 18 + 26), 2 * 29, 2 * (1 + 2 + 3), 2 * 3)
    assert counted("anew", **sizes) == Counted(10 + 2 * (18 + 26), (10 + 2 * 3) + 2 * (21 + 29), 5, 5)
    # a kept past lacks the last token of its answer: it is read with the observation
    assert counted("kept", **sizes) == Counted(10 + 2 * 2 * 6, 10 + 2 * 19, 5, 5)
    # at least as much is read from whole blocks; TRL trains as ever
    assert counted("trl-vllm", **sizes) == Counted(10 + 2 * 2 * 6, 2 * 29, 5, 2 * 3)


def test_one_turn_is_one_turn() -> None:
    sizes = {"prompt": 10, "answer": 3, "observation": 5, "turns": 1, "group": 4}
    assert counted("anew", **sizes) == counted("kept", **sizes) == Counted(10, 10 + 4 * 3, 1, 1)


def test_a_picture_has_one_place_in_what_vllm_is_given() -> None:
    """Whose processor makes the others."""
    assert one_place([1, 9, 9, 9, 2, 3, 9, 9, 4], 9) == [1, 9, 2, 3, 9, 4]
    assert one_place([9, 9, 1, 1], 9) == [9, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "sides"),
    [("turns", ["anew", "kept"]), ("vs_trl_turns", ["trl", "kept"]), ("vs_trl_turns", ["trl-vllm", "kept"])],
)
def test_a_very_small_setting_runs(program: str, sides: list[str], tmp_path: Path) -> None:
    """The program itself holds what was read and trained against the counts."""
    if program == "vs_trl_turns":
        pytest.importorskip("trl")
    if "trl-vllm" in sides:
        pytest.importorskip("vllm")
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")]
    done = module(f"benchmarks.turns.{program}", *SMALL, "--turns", "3", "--sides", *sides, *where, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "out.json").read_text())["results"].values()
    assert [result["side"] for result in results] == sides
    assert all(len(result["seconds"]) == 1 and result["turns_played"] == 6 and result["completion_tokens"] == 3 for result in results)
    assert f"{sides[0]} / {sides[1]}" in (tmp_path / "out.md").read_text()

"""Accuracy over visual tokens: what is counted, and how the table says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning import distill_tokens as tokens
from vlmrl.config.schema import MediaSection
from vlmrl.paths import names


def test_a_file_of_records_counts_those_of_its_task(tmp_path: Path) -> None:
    rows = [("shell_end", 1.0, 50), ("shell_end", 0.0, 52), ("shell_start", 1.0, 90)]
    file = tmp_path / "seen_0.jsonl"
    file.write_text("".join(json.dumps({"task": task, "scores": {"exact": score}, "n_in": n}) + "\n" for task, score, n in rows))
    assert tokens.read(file, "shell_end") == {"score": 0.5, "tokens": 51, "questions": 2}
    assert tokens.read(file, None)["questions"] == 3


def test_what_is_shown_are_settings_of_media_and_studies_of_ours() -> None:
    assert all(MediaSection.model_validate(media).min_pixels == media["min_pixels"] for media in tokens.SEEN.values())
    assert tokens.STUDIES.keys() <= set(names("study"))
    assert {about["learned"] for about in tokens.STUDIES.values()} <= tokens.SEEN.keys()


def test_visual_tokens_are_those_that_a_larger_frame_adds() -> None:
    """45 tokens of words, 6 rows of a video at two frames a second and 3 at one, four tokens to a row of large frames and one of small."""
    length = dict(zip(tokens.SEEN, (45 + 24, 45 + 12, 45 + 6, 45 + 3), strict=True))
    seeds = {
        str(seed): {
            name: {seen: {"score": 0.5 + 0.1 * seed, "tokens": n, "questions": 9} for seen, n in length.items()} for name in tokens.ARMS
        }
        for seed in range(3)
    }
    found = tokens.points(seeds)
    assert [round(p[0], 9) for p in found["base"].values()] == [24, 12, 6, 3]
    _, mean, low, high = found["distill"]["28 x 28, 2 fps"]
    assert mean == pytest.approx(0.6)
    assert (low, high) == pytest.approx((0.6 - 0.24841377, 0.6 + 0.24841377)), "Student's t with two degrees of freedom, over sqrt(3)"
    held = {"points": found, "seeds": seeds, "machine": {"cores": 2}, "revision": "abc"}
    text = "\n".join(tokens.page("distill_grounding", held))
    assert "| 28 x 28, 2 fps (learned with) | 6.0 | 0.600 [0.352, 0.848] |" in text

"""The reward `answer_score`: what evaluation gives, for rows of any answer type."""

from __future__ import annotations

from tests.support.builders import group
from vlmrl.protocols import RewardContext
from vlmrl.rewards.answer_score import answer_score
from vlmrl.types import Sample

CTX = RewardContext(media={})


def row(answer_type: str, answer: str = "", gt: dict | None = None) -> Sample:
    return Sample(id="a", task="t", answer_type=answer_type, question="?", media=(), answer=answer, gt=gt or {}, source="a.jsonl:1")


def test_answer_score() -> None:
    texts = ["<answer>2 to 4</answer>", "<answer>4 to 2</answer>", "<answer>3 to 4</answer>", "<answer>never</answer>", "2 to 4"]
    assert answer_score(group(texts, row("time_span", gt={"time": [2, 4]}), "answer_only"), CTX) == [1, 1, 0.5, 0, 0]
    assert answer_score(group(texts[:1], row("exact_text", "2 TO  4"), "answer_only"), CTX) == [1]
    assert answer_score(group(["<answer>2.5</answer>"], row("regression", "2.5"), "answer_only"), CTX) == [1]

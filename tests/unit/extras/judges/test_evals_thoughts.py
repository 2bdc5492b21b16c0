"""judges.thoughts: reports from raw text by hand, and a judge (scripted, on this machine) with the prompts of the rewards."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.support.judge_server import Act, images_of, prompt_of, says, serving, status, text
from tests.unit.evals.test_evals_records import make_record
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.evals.score.measures import is_right
from vlmrl.evals.score.records import Record, prompt_ids_hash, sample_hash
from vlmrl.evals.score.summary import summarize
from vlmrl.extras.judges.rewards.faithful_judges import consistency
from vlmrl.extras.judges.thoughts import JudgedThought, answer_key, group_of, judge_thoughts, missing_verdicts, with_judged
from vlmrl.protocols import RewardContext
from vlmrl.types import MediaHandle, MediaRef, Prompt, Sample

RED, BLUE = "<think>The car is red. So A.</think><answer>A</answer>", "<think>The car is blue. So B.</think><answer>A</answer>"


class Medium:
    frames = np.full((1, 2, 2, 3), 7, np.uint8)
    times = None


MEDIA = {"k": Medium()}


def prompt(name: str, gt: dict[str, Any] | None = None) -> Prompt:
    sample = Sample(
        id=name,
        task="spatial",
        answer_type="exact_text",
        question=f"Which one ({name})?",
        media=(MediaRef(kind="image", path="a.png"),),
        answer="A",
        gt=gt or {},
        meta={"frame": "norm1000"},
        source="rows.jsonl:1",
    )
    handle = MediaHandle(kind="image", key="k", grid_thw=(1, 2, 2), tokens=1)
    return Prompt(sample=sample, ids=(1, 2), media=(handle,), spans=((0, 1),), answer_format="think_answer")


def record(name: str, raw: str = RED, *, right: bool = True, gt: dict[str, Any] | None = None, **changes: Any) -> Record:
    of = prompt(name, gt)
    known = {"answer_type": "exact_text", "scores": {"exact": float(right)}, "text": raw, "answer_format": of.answer_format}
    hashes = {"sample_hash": sample_hash(of), "prompt_ids_hash": prompt_ids_hash(of)}
    return make_record(name, **{**known, **hashes, **changes})


def by_thought(yes: str) -> Act:
    """YES where the reasoning holds these words."""

    def verdict(body: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"BEGIN reasoning \w+\n(.*)\nEND reasoning", prompt_of(body), re.DOTALL)
        assert found is not None
        return {"label": "YES" if yes in found[1] else "NO"}

    return says(verdict)


# ------------------------------------------------------------------------------------------------------------- reports


def judged_set() -> list[Record]:
    """Five judged answers: three right, three consistent, two both."""
    rows = [(True, 1.0, 1.0), (True, 1.0, 0.5), (True, 0.0, None), (False, 1.0, 0.0), (False, 0.0, None)]
    return [with_judged(record(str(i), right=right), JudgedThought(consistency=c, grounding=g)) for i, (right, c, g) in enumerate(rows)]


def test_verdicts_by_hand() -> None:
    means = summarize(judged_set(), 0).means()
    assert (means["exact"], means["judged_consistency"], means["judged_faithful"]) == (0.6, 0.6, 0.4)
    assert means["judged_grounding"] == 0.5
    assert "judged_faithful" not in summarize([record("a")], 0).metrics


def test_verdicts_stand_in_the_records() -> None:
    kept = judged_set()
    assert kept[0].scores == {"exact": 1.0, "judged_consistency": 1.0, "judged_grounding": 1.0}
    assert kept[2].scores == {"exact": 1.0, "judged_consistency": 0.0}
    again = with_judged(kept[0], JudgedThought(spatial=0.25))  # a new verdict takes the place of the old one
    assert again.scores == {"exact": 1.0, "judged_spatial": 0.25}


def test_what_counts_as_right() -> None:
    assert [is_right(make_record(str(v), scores={"tiou": v})) for v in (0.49, 0.5, 1.0)] == [False, True, True]
    assert [is_right(record("a", scores={"exact": v})) for v in (0.0, 1.0)] == [False, True]


def test_reasons_are_counted() -> None:
    judged = {(name, 0): JudgedThought(reasons={"consistency/no_json": 1, f"grounding/{name}": 1}) for name in "ab"}
    assert missing_verdicts(judged) == {"consistency/no_json": 2, "grounding/a": 1, "grounding/b": 1}


# --------------------------------------------------------------------------------------------------------------- judges


def test_every_answered_row_is_judged_for_consistency() -> None:
    rows = [
        ("a", RED),
        ("b", BLUE),
        ("c", BLUE.replace("<answer>A", "<answer>B")),
        ("d", "<think></think><answer>A</answer>"),
        ("e", "<think>A"),
    ]
    pairs = [(prompt(name), record(name, raw, right=name in "abd")) for name, raw in rows]
    with serving(otherwise=by_thought("So A")) as s:
        judged = judge_thoughts(pairs, endpoint=s.endpoint, asked=["consistency"])
        assert [judged[name, 0].consistency for name, _ in rows] == [1.0, 0.0, 0.0, 0.0, None]
        assert s.server.calls == 3  # an empty thought and a missing answer need no judge
        assert all(images_of(body) == [] for body, _, _ in s.server.requests)
        skipped = judge_thoughts(pairs, endpoint=s.endpoint, asked=["consistency"], require_thought=False)
        assert skipped["d", 0].consistency is None
        assert s.server.calls == 3  # verdicts are kept
    means = summarize([with_judged(r, judged[answer_key(r)]) for _, r in pairs], 0).means()
    assert means["judged_consistency"] == pytest.approx(1 / 4)  # one of the four with a verdict
    assert means["judged_faithful"] == pytest.approx(1 / 4)


def test_training_and_evaluation_ask_the_same_question() -> None:
    """What a reward has asked is not asked again: same words, same client, same cache."""
    pair = prompt("a"), record("a")
    with serving(says({"label": "YES"})) as s:
        assert list(consistency(group_of(*pair), RewardContext(), endpoint=s.endpoint)) == [1.0]
        judged = judge_thoughts([pair], endpoint=s.endpoint, asked=["consistency"])
        assert judged == {("a", 0): JudgedThought(consistency=1.0)}
        assert s.server.calls == 1


def test_wrong_rows_are_left_out_where_a_reward_says_so() -> None:
    pairs = [(prompt("a"), record("a")), (prompt("b"), record("b", RED.replace("<answer>A", "<answer>B"), right=False))]
    with serving(otherwise=by_thought("So A")) as s:
        judged = judge_thoughts(pairs, endpoint=s.endpoint, asked=["consistency"], correct_by="exact")
    assert [judged[name, 0].consistency for name in "ab"] == [1.0, None]


def test_grounding_sees_the_pictures() -> None:
    def by_sentence(body: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"BEGIN sentence to check \w+\n(.*)\n", prompt_of(body))
        assert found is not None
        return {"label": {"The car is red.": "CORRECT", "The dog is left.": "INCORRECT", "So A.": "SKIP"}[found[1]]}

    pair = prompt("a"), record("a", RED.replace("So A", "The dog is left. So A"))
    with serving(otherwise=says(by_sentence)) as s:
        judged = judge_thoughts([pair], endpoint=s.endpoint, media=MEDIA, asked=["grounding"])
        assert judged["a", 0].grounding == 0.5
        assert all(len(images_of(body)) == 1 for body, _, _ in s.server.requests)
        with pytest.raises(ValueError, match=r"row 'a' \(rows.jsonl:1\): the pixels"):
            judge_thoughts([pair], endpoint=s.endpoint, asked=["grounding"])


def test_boxes_against_true_ones_need_no_judge() -> None:
    gt = {"boxes": [[0, 0, 100, 100]]}
    raw = "<think>It is at <bbox>[0,0,100,100]</bbox>.</think><answer>A</answer>"
    with serving() as s:
        judged = judge_thoughts([(prompt("a", gt), record("a", raw, gt=gt))], endpoint=s.endpoint, asked=["spatial"])
        assert s.server.calls == 0
    assert judged["a", 0] == JudgedThought(spatial=pytest.approx(1.0))  # type: ignore[arg-type]
    assert judged["a", 0].scores() == {"judged_spatial": pytest.approx(1.0)}


def test_all_three_and_several_workers_give_the_same() -> None:
    pairs = [(prompt(name), record(name, raw)) for name, raw in zip("abcdef", [RED, BLUE] * 3, strict=True)]

    def verdict(body: dict[str, Any]) -> dict[str, Any]:
        if "sentence to check" in prompt_of(body):
            return {"label": "INCORRECT" if "blue" in prompt_of(body) else "CORRECT"}
        return {"label": "NO" if "So B" in prompt_of(body) else "YES"}

    with serving(otherwise=says(verdict)) as s:
        one = judge_thoughts(pairs, endpoint=s.endpoint, media=MEDIA)
    with serving(otherwise=says(verdict), concurrency=4) as s:
        many = judge_thoughts(pairs, endpoint=s.endpoint, media=MEDIA, workers=4)
    assert one == many
    assert list(many) == [(name, 0) for name in "abcdef"]
    assert [one[name, 0].consistency for name in "ab"] == [1.0, 0.0]
    assert [one[name, 0].grounding for name in "ab"] == [1.0, 0.0]
    assert one["a", 0].spatial is None


def test_a_judge_that_cannot_be_read_is_missing_not_no() -> None:
    with serving(otherwise=text("I think so")) as s:
        judged = judge_thoughts([(prompt("a"), record("a"))], endpoint=s.endpoint, asked=["consistency"])
    assert judged["a", 0] == JudgedThought(reasons={"consistency/no_json": 1})
    assert missing_verdicts(judged) == {"consistency/no_json": 1}
    assert "judged_consistency" not in with_judged(record("a"), judged["a", 0]).scores


def test_a_judge_that_is_down_ends_the_evaluation() -> None:
    with serving(otherwise=status(401)) as s, pytest.raises(RemoteError, match="cannot be used"):
        judge_thoughts([(prompt(n), record(n)) for n in "ab"], endpoint=s.endpoint, asked=["consistency"], workers=2)
    with pytest.raises(ConfigError, match="endpoint"):
        judge_thoughts([(prompt("a"), record("a"))], endpoint={"url": 3}, asked=["consistency"])


def test_records_and_prompts_belong_together() -> None:
    of = group_of(prompt("a"), record("a", k=3, finish="length"))
    assert (of.rollouts[0].text, of.rollouts[0].k, of.rollouts[0].finish, of.prompt) == (RED, 3, "length", prompt("a"))
    for other in (record("b"), record("a", prompt_ids_hash="x"), record("a", sample_hash="x")):
        with pytest.raises(ValueError, match=r"no answer to the prompt of row 'a' \(rows.jsonl:1\)"):
            group_of(prompt("a"), other)


def test_judging_errors() -> None:
    pair = prompt("a"), record("a")
    with pytest.raises(ValueError, match="answer 0 to sample 'a' occurs twice"):
        judge_thoughts([pair, pair], endpoint={})
    for wrong in ({"asked": ["truth"]}, {"asked": []}, {"workers": 0}):
        with pytest.raises(ValueError, match="ask for some of consistency, grounding, spatial"):
            judge_thoughts([pair], endpoint={}, **wrong)  # type: ignore[arg-type]

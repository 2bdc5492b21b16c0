"""stage.providers.rows: what is known of rollouts without a model, in the order of their rows, and made only where it is needed."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.support.batches import batch_for
from tests.support.builders import group, sample
from vlmrl.train.stage.providers import rows
from vlmrl.types import ScoredGroup, Scores


def scored(*texts: str, id: str = "row") -> ScoredGroup:
    of_row = group([f"<think>t</think><answer>{text}</answer>" if text else "nothing" for text in texts], sample(id=id))
    return ScoredGroup(group=of_row, scores=Scores(columns=("task",), weights=(1.0,), rewards_GK=((1.0,),) * len(texts)))


def test_equal_answers_of_a_group_are_one_cluster():
    x = batch_for([(3, scored("A  b", "", "c", "a B", "C")), (4, scored("c", "d"))], "answer_N").x
    assert x.provided["answer_N"].tolist() == [0, -1, 1, 0, 1, 0, 1]


def test_log_probs_are_summed_and_rows_that_nobody_sampled_have_none():
    one = scored("a", "a")
    given = dataclasses.replace(one.group.rollouts[1], provenance="ground_truth", logprobs=())
    one = dataclasses.replace(one, group=dataclasses.replace(one.group, rollouts=(one.group.rollouts[0], given)))
    found = batch_for([(0, one)], "logp_N").x.provided["logp_N"].tolist()
    assert found[0] == -0.5 * len(one.group.rollouts[0].ids)
    assert math.isnan(found[1])


def test_rows_say_what_was_cut_off_and_the_value_of_their_prompt():
    one = scored("a", "b", id="known")
    cut = dataclasses.replace(one.group.rollouts[1], finish="length")
    one = dataclasses.replace(one, group=dataclasses.replace(one.group, rollouts=(one.group.rollouts[0], cut)))
    groups = [(0, scored("a", id="new")), (1, one)]
    x = batch_for(groups, "truncated_N", "baseline_N", baseline={"known": 0.25}.get).x.provided
    assert x["truncated_N"].tolist() == [False, False, True]
    assert x["baseline_N"].tolist() == pytest.approx([math.nan, 0.25, 0.25], nan_ok=True)


def test_a_step_whose_methods_need_no_answers_parses_none(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    parse = rows.parse
    monkeypatch.setattr(rows, "parse", lambda text, form: asked.append(text) or parse(text, form))
    assert set(batch_for([(0, scored("a", "b"))], "sample_N").x.provided) == {"progress", "sample_N"}
    assert asked == []
    batch_for([(0, scored("a", "b"))], "answer_N")
    assert len(asked) == 2

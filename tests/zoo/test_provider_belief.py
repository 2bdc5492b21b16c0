"""zoo.providers.belief: the right answer is probed where it should be, and only its tokens count."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from tests.support.builders import group, sample
from vlmrl.policy.pack import Row
from vlmrl.zoo.providers import belief
from vlmrl.zoo.providers.belief import final_answer, likelihoods, probe


def characters(text: str) -> list[int]:
    return list(map(ord, text))


def text_of(ids) -> str:
    return "".join(map(chr, ids))


def row(text: str) -> Row:
    return Row(index=0, group=0, prompt=group([text]).prompt, response=tuple(characters(text)))


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("think_answer", "<think></think><answer>3.0 to 5.0"),
        ("answer_only", "<answer>3.0 to 5.0"),
    ],
)
def test_the_right_answer_is_the_response(form, written):
    made, gold = probe(row("<think>abcd</think><answer>x</answer>"), sample(), form, characters)
    assert text_of(made.response) == written
    assert gold == len("3.0 to 5.0")


def test_a_final_answer_of_the_row_comes_first():
    assert final_answer(sample(meta={"final_answer": " 7 "})) == "7"
    assert final_answer(sample("9")) == "9"


def test_only_the_answers_tokens_count(monkeypatch):
    probes = [(row("abcde"), 2), (row("ab"), 1), (row("abc"), 0)]
    logp = torch.full((3, 5), -50.0)
    logp[0, 3:5] = torch.tensor([math.log(0.5), math.log(0.125)])
    logp[1, 1] = math.log(0.3)
    monkeypatch.setattr(belief, "score_rows", lambda learner, rows: logp)
    out = likelihoods(SimpleNamespace(learner=None), probes)  # pyright: ignore[reportArgumentType]
    assert out[:2].tolist() == pytest.approx([0.25, 0.3])
    assert math.isnan(float(out[2]))
    assert dataclasses.is_dataclass(probes[0][0])

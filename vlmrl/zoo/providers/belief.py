"""How likely the policy finds the right answer, if it had to be given at once, before a response.

The right answer is `meta.final_answer` of the row, a text, else its answer. It is written behind the prompt, in the answer
format; its belief is the geometric mean of the probabilities of its tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from vlmrl.policy.pack import Row
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_rows
from vlmrl.types import Sample

Tokenize = Callable[[str], list[int]]


def final_answer(sample: Sample) -> str:
    """The text whose likelihood is the belief; empty where the row has none."""
    given = sample.meta.get("final_answer")
    return given.strip() if isinstance(given, str) else sample.answer.strip()


def probe(row: Row, sample: Sample, answer_format: str, tokenize: Tokenize) -> tuple[Row, int]:
    """The row with the right answer as its response, behind an empty thought, and how many tokens the answer has."""
    opening = tokenize("<answer>" if answer_format == "answer_only" else "<think></think><answer>")
    gold = tokenize(final_answer(sample))
    return dataclasses.replace(row, response=(*opening, *gold)), len(gold)


def likelihoods(stage: Stage, probes: Sequence[tuple[Row, int]]) -> torch.Tensor:
    """Geometric mean of the probabilities of each probe's last tokens, float64; NaN for an answer without tokens."""
    logp_NT = score_rows(stage.learner, [row for row, _ in probes]).double()
    out = torch.full((len(probes),), float("nan"), dtype=torch.float64)
    for n, (row, tokens) in enumerate(probes):
        if tokens:
            out[n] = logp_NT[n, len(row.response) - tokens : len(row.response)].mean().exp()
    return out


def _tokenizer(stage: Stage) -> Tokenize:
    return lambda text: list(stage.policy.bundle.tokenize(text))


def _prompts(batch: StepBatch) -> list[tuple[Sample, str]]:
    """Sample and answer format of each row."""
    return [(scored.group.prompt.sample, scored.group.prompt.answer_format) for _, scored in batch.groups for _ in scored.group.rollouts]


@provides("belief_N")
def before_response(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Belief before each row's response, float64 [n]: one forward of all prompts without gradient."""
    pairs = zip(batch.rows, _prompts(batch), strict=True)
    return {"belief_N": likelihoods(stage, [probe(row, sample, form, _tokenizer(stage)) for row, (sample, form) in pairs])}

"""How likely the policy finds the right answer, if it had to be given at once: before a response, and at places within its thought.

The right answer is `meta.final_answer` of the row, a text, else its answer. It is written behind what stands there so far, in the answer
format; its belief is the geometric mean of the probabilities of its tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from vlmrl.algo.segments import cuts
from vlmrl.policy.pack import Row
from vlmrl.train.stage.algorithm import Batch, Bound
from vlmrl.train.stage.base import StageRun
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_rows, score_tokens
from vlmrl.types import Sample

Tokenize = Callable[[str], list[int]]
OPENS, CLOSES = "<think>", "</think>"


def final_answer(sample: Sample) -> str:
    """The text whose likelihood is the belief; empty where the row has none."""
    given = sample.meta.get("final_answer")
    return given.strip() if isinstance(given, str) else sample.answer.strip()


def probe(row: Row, sample: Sample, answer_format: str, tokens: int, tokenize: Tokenize) -> tuple[Row, int]:
    """The row's first `tokens` response tokens with the right answer behind them, and how many tokens the answer has."""
    thinks = answer_format != "answer_only"
    opening = OPENS if thinks and tokens == 0 else ""
    bridge = tokenize(f"{opening}{CLOSES if thinks else ''}<answer>")
    gold = tokenize(final_answer(sample))
    return dataclasses.replace(row, response=(*row.response[:tokens], *bridge, *gold)), len(gold)


def thought_tokens(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Leading tokens without any piece of the tag that ends the thought; all but the last where it is never ended."""
    end = decode(ids).find(CLOSES)
    low, high = 0, max(0, len(ids) - 1)
    while end >= 0 and low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(decode(ids[:middle])) <= end else (low, middle - 1)
    return high


def likelihoods(stage: StageRun, probes: Sequence[tuple[Row, int]]) -> torch.Tensor:
    """Geometric mean of the probabilities of each probe's last tokens, float64; NaN for an answer without tokens."""
    logp_NT = score_rows(stage.learner, [row for row, _ in probes]).double()
    out = torch.full((len(probes),), float("nan"), dtype=torch.float64)
    for n, (row, tokens) in enumerate(probes):
        if tokens:
            out[n] = logp_NT[n, len(row.response) - tokens : len(row.response)].mean().exp()
    return out


def _tokenizer(stage: StageRun) -> Tokenize:
    return lambda text: list(stage.policy.bundle.tokenize(text))


def _prompts(batch: Batch) -> list[tuple[Sample, str]]:
    """Sample and answer format of each row."""
    return [(scored.group.prompt.sample, scored.group.prompt.answer_format) for _, scored in batch.groups for _ in scored.group.rollouts]


@provides("belief_N")
def before_response(stage: StageRun, batch: Batch, method: Bound) -> dict[str, torch.Tensor]:
    """Belief before each row's response, float64 [n]: one forward of all prompts without gradient."""
    pairs = zip(batch.rows, _prompts(batch), strict=True)
    return {"belief_N": likelihoods(stage, [probe(row, sample, form, 0, _tokenizer(stage)) for row, (sample, form) in pairs])}


@provides("belief_NS", "cut_NS", arguments=("segments", "least"))
def within_thought(stage: StageRun, batch: Batch, method: Bound) -> dict[str, torch.Tensor]:
    """Belief at the start, at the tokens of the thought where the policy is least sure, and at the thought's end, float64 [n, S + 1], and
    those places as numbers of tokens, int64 [n, S + 1]. One forward of all rows for the entropies, and S + 1 times as many probes."""
    segments: int = method.argument("segments")
    entropy_NT = score_tokens(stage.learner, batch.rows).entropy_NT
    tokenize, decode = _tokenizer(stage), stage.policy.bundle.decode
    cut_NS = torch.zeros((len(batch.rows), segments + 1), dtype=torch.int64)
    probes: list[tuple[Row, int]] = []
    for n, (row, (sample, form)) in enumerate(zip(batch.rows, _prompts(batch), strict=True)):
        end = thought_tokens(row.response, decode)
        cut_NS[n] = torch.tensor(cuts(entropy_NT[n, :end].tolist(), segments, method.argument("least")))
        probes += [probe(row, sample, form, int(place), tokenize) for place in cut_NS[n]]
    return {"belief_NS": likelihoods(stage, probes).view(cut_NS.shape), "cut_NS": cut_NS}

"""Rewards `accuracy`, `answer_structure`: one column of right and wrong, and one of form, for a mixture of all answer types.

Several rewards side by side that each judge "their" rows do not add up to an accuracy: a row with a number and a text would be paid
twice, and a filter on the sum would take groups that are half right for solved ones. `accuracy` asks one reward per row, by the row's
answer type, as the released code of OpenVLThinkerV2 (arXiv:2604.08539) does: options by letter or text, results by symbolic equality,
numbers equal after rounding to 2 decimals, quantities by mean relative accuracy, read text by 1 - word error rate, times and boxes by
overlap. Ours: types that it does not have (points, actions, those of plug-ins) get `answer_score`; the last answer block counts, and an
answer outside of its tags scores 0, unless `answer_block` says `first`, as there; texts are compared as a whole unless `open_answers` says
`rouge`, as there.

`answer_structure` is that code's term of structure, divided by its maximum of 0.5, so that it is a share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import first_answer, parse, without_tags
from vlmrl.metrics.math import equivalent, stated
from vlmrl.metrics.numbers import parse_number
from vlmrl.metrics.tracking import parse_track, parse_tube
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.answer_score import answer_score
from vlmrl.rewards.boxes import box_iou
from vlmrl.rewards.checks import IMPORTS
from vlmrl.rewards.choice import choice
from vlmrl.rewards.exact import exact
from vlmrl.rewards.highlight import highlight
from vlmrl.rewards.math import math
from vlmrl.rewards.number import regression_mra
from vlmrl.rewards.ocr import ocr_wer
from vlmrl.rewards.open_rouge import open_rouge
from vlmrl.rewards.segmentation import segmentation_points
from vlmrl.rewards.temporal_iou import temporal_iou_reward
from vlmrl.rewards.tracking import spatio_temporal, tracking
from vlmrl.types import Group, Sample

Column = Callable[[Group, RewardContext], Sequence[float | None]]
DECIMALS = 2
"""Numbers are equal if they are after rounding to so many."""
UNSTRUCTURED = ("choice", "exact_text", "math", "number", "regression", "short_text")
"""Answer types whose answer is one text or number: any answer in the right form has their structure."""


def rounded_number(group: Group, ctx: RewardContext) -> list[float | None]:
    """Score 1 if the answered number equals the true one after rounding to 2 decimals, else 0.

    Raises:
        ValueError: the row has no true number.
    """
    sample = group.prompt.sample
    true = next((sample.gt[key] for key in ("count", "number") if sample.gt.get(key) is not None), None)
    gold = parse_number(sample.answer) if true is None else float(true)
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): answer {sample.answer!r} is not one number; give gt.number or gt.count")
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    read = [None if answer is None else parse_number(answer) for answer in answers]
    return [float(value is not None and round(value, DECIMALS) == round(gold, DECIMALS)) for value in read]


BY_TYPE: Mapping[str, Column] = {
    "bbox": box_iou,
    "choice": choice,
    "exact_text": exact,
    "highlight": highlight,
    "math": math,
    "number": rounded_number,
    "regression": regression_mra,
    "segmentation": segmentation_points,
    "short_text": ocr_wer,
    "spatio_temporal": spatio_temporal,
    "time_span": temporal_iou_reward,
    "tracking": tracking,
}
"""Answer type -> what judges it."""


@reward("accuracy", paper="arXiv:2604.08539", worker=True, imports=IMPORTS)
def accuracy(
    group: Group,
    ctx: RewardContext,
    *,
    open_answers: Literal["exact", "rouge"] = "exact",
    answer_block: Literal["last", "first"] = "last",
    whole: bool = False,
) -> list[float | None]:
    """How right the answer is, in [0, 1], by the one measure of the row's answer type. Every row is judged.

    `open_answers`: how rows of type `exact_text` are compared, as a whole or by the words that they share (`open_rouge`). `answer_block`:
    which counts where there are several; with `first` a completion without one is its own answer where texts are compared, and what it
    states as its result where results are (other types read no answer in it). `whole`:
    a completion of a row of type `math` or `number` is right, too, if what it states as its result anywhere, in its thought or without
    tags (`metrics.math.stated`), is mathematically equal, as in the code of TON (arXiv:2505.16854).

    Raises:
        ValueError: the row lacks what its answer type needs.
    """
    kind = group.prompt.sample.answer_type
    read = group
    if answer_block == "first":
        read = replace(group, rollouts=tuple(replace(rollout, text=_first(rollout.text, kind)) for rollout in group.rollouts))
    out = list(BY_TYPE.get(kind, answer_score)(read, ctx))
    if kind == "exact_text" and open_answers == "rouge":
        shared = open_rouge(read, ctx)
        # ROUGE is None where the gold answers have no words; equality judges those
        out = [equal if words is None else words for equal, words in zip(out, shared, strict=True)]
    if whole and kind in ("math", "number"):
        results = [stated(rollout.text) for rollout in group.rollouts]
        gold = group.prompt.sample.answer
        # `whole` only adds right answers: where nothing is stated, or something else, the score of the tagged answer stays
        out = [1.0 if result and equivalent(result, gold) else score for result, score in zip(results, out, strict=True)]
    return out


def _first(text: str, kind: str) -> str:
    """A completion whose only answer is the first of `text`; without one `text` itself, or its result, where the type reads such."""
    answer = first_answer(text)
    if answer is None and kind in ("exact_text", "short_text"):
        answer = without_tags(text)
    elif answer is None and kind == "math":
        answer = stated(text)
    return text if answer is None else f"<answer>{answer}</answer>"


@reward("answer_structure", paper="arXiv:2604.08539", form_only=True)
def answer_structure(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the tags are in form and the answer has the structure of its type, else 0; boxes by frame earn half by the frames they name.

    Whether an answer has its structure is whether the type's own reader reads it; a text or a number always has it. Tracks and tubes
    earn 0.5 for that, and 0.5 times the share of the true frames that they name.

    Raises:
        ValueError: the row lacks what its answer type needs.
    """
    sample = group.prompt.sample
    parsed = [parse(rollout.text, group.prompt.answer_format) for rollout in group.rollouts]
    return [_structure(p.answer, sample) if p.format_ok and p.answer is not None else 0.0 for p in parsed]


def _structure(answer: str, sample: Sample) -> float:
    kind = sample.answer_type
    if kind in UNSTRUCTURED:
        return 1.0
    if ANSWER_TYPES[kind].score(answer, sample)[0] is None:
        return 0.0
    if kind == "tracking":
        return _frames(parse_track(answer), sample.gt["track"])
    if kind == "spatio_temporal":
        tube = parse_tube(answer)
        if tube is None or tube.time is None or tube.boxes is None:
            return 0.0
        return _frames(tube.boxes, sample.gt["tube"]["boxes"])
    return 1.0


def _frames(named: Mapping[Any, Any] | None, true: Mapping[Any, Any]) -> float:
    """Half, and half of the share of the true frames that are named."""
    known = {float(frame) for frame in named or {}}
    return 0.5 + 0.5 * sum(float(frame) in known for frame in true) / max(1, len(true))

"""Rewards `consistency`, `semantic_grounding`, `spatial_grounding`: judged constraints of Faithful GRPO. arXiv:2604.08476, 2.2, eq. 1.

Consistency R_C in {0, 1}: a judge that reads text only says whether the reasoning's own conclusion is the given answer. Semantic
grounding R_S in [0, 1]: each sentence of the thought that is not trivial is CORRECT, INCORRECT or SKIP for a judge with the pictures;
R_S = CORRECT / (CORRECT + INCORRECT). Both only for right answers, or coherent wrong ones would satisfy them. Spatial grounding R_G in
[0, 1]: boxes cited in the thought against the true ones, best assignment by CIoU over the longer list.

Ours, where the paper is silent or contradicts itself: the wording; labels come as JSON with an id; an empty thought scores 0, or
not thinking would be a way out (`require_thought: false` makes it None); a repeated claim is SKIP; at most `max_sentences` sentences
of a thought are judged, evenly spaced; a row is missing if one of its verdicts is; each pair of boxes is clamped at 0; and for rows
without true boxes the paper has no R_G, while here a judge may look at each cited box, if an endpoint is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.answers.tags import Parsed, parse
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import Picture, cited_boxes, is_trivial, pictures, sentences, spread
from vlmrl.extras.judges.services import judged, right_rows, services
from vlmrl.extras.judges.verdicts import JudgeColumn, Problem, Tally, Verdict, label_check
from vlmrl.metrics.boxes import Box, matched_score
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

YES_NO = label_check("YES", "NO")
CHECKED = label_check("CORRECT", "INCORRECT", "SKIP")
FRAMES = {
    "norm1000": "they run from 0 to 1000 along each side",
    "norm1": "they run from 0 to 1 along each side",
    "pixel": "they are pixels of the picture as you see it",
}


@reward("consistency", paper="arXiv:2604.08476", service=True)
def consistency(
    group: Group, ctx: RewardContext, *, endpoint: dict[str, Any], correct_by: str = "exact", require_thought: bool = True
) -> list[float | None]:
    """1 if a judge of text finds that the thought concludes with the given answer, else 0; never sees a picture.

    None for rows that `correct_by` finds wrong or cannot judge. An empty thought scores 0, with `require_thought: false` None.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: `correct_by` is no reward by rule.
    """

    def row(parsed: Parsed, right: bool | None) -> JudgeQuestion | float | None:
        thought = _thought(parsed)
        if not right or parsed.answer is None:
            return None
        if not thought:
            return 0.0 if require_thought else None
        values = {"question": group.prompt.sample.question, "thought": thought, "answer": parsed.answer}
        return JudgeQuestion(template="consistency", values=values, check=YES_NO)

    rows = [row(*pair) for pair in zip(_parsed(group), right_rows(group, ctx, correct_by), strict=True)]
    return judged(endpoint, "consistency", rows, lambda verdict: float(verdict["label"] == "YES"))


@reward("semantic_grounding", paper="arXiv:2604.08476", service=True)
def semantic_grounding(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any],
    correct_by: str = "exact",
    require_thought: bool = True,
    max_sentences: int = 32,
) -> list[float | None]:
    """Share of the thought's checkable sentences that a judge with the pictures finds correct, in [0, 1].

    None for rows that `correct_by` finds wrong or cannot judge, and where no sentence can be checked. An empty thought scores 0, with
    `require_thought: false` None.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the prompt's pixels are not in `ctx.media`, `max_sentences` < 1, or `correct_by` is no reward by rule.
    """
    if max_sentences < 1:
        raise ValueError(f"semantic_grounding: max_sentences must be at least 1, got {max_sentences}")
    seen = pictures(group, ctx)
    rows: list[list[JudgeQuestion] | float | None] = []
    for parsed, right in zip(_parsed(group), right_rows(group, ctx, correct_by), strict=True):
        thought = _thought(parsed)
        if not right or parsed.answer is None:
            rows.append(None)
        elif not thought:
            rows.append(0.0 if require_thought else None)
        else:
            rows.append(_sentence_asks(group.prompt.sample, thought, seen, max_sentences))
    return _shares(endpoint, "semantic_grounding", rows)


@reward("spatial_grounding", paper="arXiv:2604.08476", service=True)
def spatial_grounding(
    group: Group, ctx: RewardContext, *, endpoint: dict[str, Any] | None = None, max_boxes: int = 20
) -> list[float | None]:
    """Overlap (CIoU) of the boxes cited in the thought with the true ones, in [0, 1]; by a judge where there are no true ones.

    True boxes are `gt.boxes` or the values of `gt.objects`, in the frame that the thought uses; with them nothing is asked, and a
    thought without boxes scores 0. Without them and with an `endpoint`, the score is the share of cited boxes that a judge finds
    correct: a malformed box is wrong, at most `max_boxes` are looked at, and a thought without boxes is not judged (None). Without
    either, None.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the prompt's pixels are not in `ctx.media`, a true box has no area, or the row states no `meta.frame` for the judge.
    """
    if max_boxes < 1:
        raise ValueError(f"spatial_grounding: max_boxes must be at least 1, got {max_boxes}")
    gold = _true_boxes(group.prompt.sample)
    thoughts = [_thought(parsed) for parsed in _parsed(group)]
    if gold:
        return [matched_score(cited_boxes(thought), gold, "ciou") for thought in thoughts]
    if endpoint is None or not any(cited_boxes(thought) for thought in thoughts):
        return [None] * len(thoughts)
    seen = pictures(group, ctx)
    return _shares(endpoint, "spatial_grounding", [_box_asks(group.prompt.sample, thought, seen, max_boxes) for thought in thoughts])


def _parsed(group: Group) -> list[Parsed]:
    return [parse(rollout.text, group.prompt.answer_format) for rollout in group.rollouts]


def _thought(parsed: Parsed) -> str:
    return (parsed.thought or "").strip()


def _true_boxes(sample: Sample) -> list[Box]:
    given = sample.gt.get("boxes") or list((sample.gt.get("objects") or {}).values())
    return [(float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in given]


def _sentence_asks(sample: Sample, thought: str, seen: Sequence[Picture], most: int) -> list[JudgeQuestion]:
    parts = sentences(thought)
    places = [i for i, part in enumerate(parts) if not is_trivial(part)]
    return [
        JudgeQuestion(
            template="sentence",
            values={"question": sample.question, "context": " ".join(parts[:i]) or "(none)", "sentence": parts[i]},
            check=CHECKED,
            pictures=seen,
        )
        for i in (places[j] for j in spread(len(places), most))
    ]


def _box_asks(sample: Sample, thought: str, seen: Sequence[Picture], most: int) -> list[JudgeQuestion | bool]:
    """A question for each well-formed box; False for a malformed one."""
    frame = FRAMES.get(str(sample.meta.get("frame")))
    found = [(part, box) for part in sentences(thought) for box in cited_boxes(part)]
    out: list[JudgeQuestion | bool] = []
    for part, (x1, y1, x2, y2) in (found[i] for i in spread(len(found), most)):
        if not (x1 < x2 and y1 < y2):
            out.append(False)
            continue
        if frame is None:
            raise ValueError(
                f"row '{sample.id}' ({sample.source}): a judge of boxes needs 'meta.frame' ({' or '.join(FRAMES)}), "
                f"it is {sample.meta.get('frame')!r}"
            )
        box = f"[{x1:g}, {y1:g}, {x2:g}, {y2:g}]"
        values = {"question": sample.question, "sentence": part, "box": box, "frame": frame}
        out.append(JudgeQuestion(template="box", values=values, check=CHECKED, pictures=seen))
    return out


def _shares(endpoint: Mapping[str, Any], column: str, rows: Sequence[Sequence[JudgeQuestion | bool] | float | None]) -> JudgeColumn:
    """CORRECT / (CORRECT + INCORRECT) of each row's questions; a bool is a verdict that needs no judge."""
    asks = [ask for row in rows if isinstance(row, Sequence) for ask in row if isinstance(ask, JudgeQuestion)]
    replies = iter(services().chat(endpoint).ask_all(column, asks) if asks else [])
    tally = Tally()
    values: list[float | None] = []
    for row in rows:
        if not isinstance(row, Sequence):
            values.append(row)
            continue
        verdicts = [next(replies) if isinstance(ask, JudgeQuestion) else ask for ask in row]
        problem = next((v for v in verdicts if isinstance(v, Problem)), None)
        values.append(_share(verdicts) if problem is None else tally.missing(problem))
    return JudgeColumn(values, tally.reasons)


def _share(verdicts: Sequence[Verdict | Problem | bool]) -> float | None:
    labels = ["INCORRECT" if not isinstance(v, dict) else v["label"] for v in verdicts]
    right, wrong = labels.count("CORRECT"), labels.count("INCORRECT")
    return right / (right + wrong) if right + wrong else None

"""What the last stage of a run has changed, in two sentences: on the hardest questions and on the easiest ones.

Differences are those of the paired comparison (`score.paired`) and are called what their intervals say: one that contains 0 is not
decided, whatever its sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlmrl.evals.score.levels import WORDS, difficulties, has_levels, ranked, score_label, whole_stages
from vlmrl.evals.score.paired import Comparison, Gap, Incomparable, compare
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import difference_text, figure, interval_text

FIRST = "base"
"""Name of the evaluation before the first stage."""
RARE = 0.1
"""A level of difficulty with a smaller share of the questions is not spoken of: of three questions an interval says nothing."""


def verdict(
    records: Mapping[str, Sequence[Record]], seed: int, comparisons: Mapping[tuple[str, str], Comparison] | None = None
) -> list[str]:
    """Write two sentences about the last two stages; none where there are fewer, where they cannot be compared, or where nothing says
    which questions are hard (`levels.has_levels`).

    Args:
        seed: decides the resampling.
        comparisons: those that are known, with the same seed.
    """
    names = whole_stages(name for name, rows in records.items() if rows)
    if len(names) < 2 or not has_levels([r for name in names[-2:] for r in records[name]]):
        return []
    before, after = names[-2:]
    union = [*records[before], *records[after]]
    # by category where categories have an order, else by difficulty
    key, values = next(((k, v) for k, v in (("category", ranked(union)), ("difficulty", difficulties(union))) if v), ("", []))
    shares = {value: sum(getattr(record, key) == value for record in union) / len(union) for value in values}
    if len(common := [value for value in values if shares[value] >= RARE]) > 1:
        values = common
    try:
        whole = (comparisons or {}).get((before, after)) or compare(records[before], records[after], seed)
    except Incomparable:
        return []
    # parts exist only where questions differ in that property
    if not values or any(f"{key}={value}" not in whole.parts for value in (values[0], values[-1])):
        return []
    easy, hard = (whole.parts[f"{key}={value}"].gaps for value in (values[0], values[-1]))
    label = score_label(union)
    means = [
        interval_text("score", summarize([r for r in records[name] if getattr(r, key) == values[-1]], seed, parts=False).metrics["score"])
        for name in (before, after)
    ]
    change = _change(label, hard["score"], means, (_stage(before), _stage(after)))
    now, then = (_share(value) for value in (hard["think_rate"].b, hard["think_rate"].a))
    first = f"On {_questions(key, values[-1])} {change}, and the model thinks on {now} of them ({then} before)."
    now, then = (_share(value) for value in (easy["think_rate"].b, easy["think_rate"].a))
    mean, earlier = (figure("score", value) for value in (easy["score"].b, easy["score"].a))
    second = f"it thinks on {now} ({then} before) and {label} is {mean} ({earlier} before{_decided(easy['score'])})."
    return [first, f"On {_questions(key, values[0])} {second}"]


def _change(label: str, gap: Gap, means: Sequence[str], stages: tuple[str, str]) -> str:
    """`accuracy went from ... to ... (+0.4 [...])`, by what the interval of the difference says."""
    (a, b), (before, after) = means, stages
    difference = difference_text("score", gap)
    if gap.sign > 0:
        return f"{label} went from {a} {before} to {b} {after} ({difference})"
    if gap.sign < 0:
        return f"{label} fell from {a} {before} to {b} {after} ({difference})"
    if not gap.differ:
        return f"{label} is unchanged: {b} {before} and {after}"
    return f"{label} was {a} {before} and is {b} {after}, a difference that is not decided ({difference})"


def _decided(gap: Gap) -> str:
    """What has to be said of a difference that is no improvement beyond doubt."""
    if not gap.differ:
        return ""
    words = "" if gap.sign > 0 else ", which is worse" if gap.sign < 0 else ", which is not decided"
    return f": {difference_text('score', gap)}{words}"


def _questions(key: str, value: str) -> str:
    return f"{value.lower()} questions" if value.lower() in WORDS else f"questions of {key} {value}"


def _stage(name: str) -> str:
    return "before training" if name == FIRST else f"after {name}"


def _share(value: float) -> str:
    """In percent; `all` and `none` only where it is."""
    if 0 < value < 0.005:
        return "less than 1%"
    return "more than 99%" if 0.995 <= value < 1 else f"{value:.0%}"

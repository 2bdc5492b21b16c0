"""One step on a screen: `gt.action`, in 0 to 1000 along each side unless the row states another frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.gui_rules import PARTS, RULES, profile_scores
from vlmrl.metrics.gui import action_of, arguments_score, parse_action
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen


def _draw_action(pen: Pen, value: Any) -> None:
    pen.action(action_of(value) if isinstance(value, Mapping) else None, "gt.action")


@answer_type("action")
class Step(AnswerType):
    """One action as JSON, scored by its type, its arguments and as a whole, and by the rules of published evaluations side by side."""

    ask = "one JSON action"
    main = "step"
    metrics = (
        Metric("step_success", "step success", scored("step")),
        Metric("action_type", "action type", scored("action_type")),
        Metric("action_arguments", "arguments", scored("action_arguments")),
    )
    more_metrics = tuple(Metric(f"{part}_{rule}", f"{part} {rule}", scored(f"{part}_{rule}")) for rule in RULES for part in PARTS)
    in_frame = True
    draws = (("action", _draw_action),)

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Type of the action, its arguments where the row gives them (0 with a wrong type), and whether all of the step is right.

        The rules for arguments are those of the reward `gui_action`. Beside them `gui_rules`, each under its name.

        Raises:
            ValueError: the row has no true action.
        """
        gold = action_of(sample.gt["action"]) if isinstance(sample.gt.get("action"), dict) else None
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): gt.action {sample.gt.get('action')} is not an action")
        action = None if answer is None else parse_action(answer)
        right = action is not None and action.kind == gold.kind
        scores = {"action_type": float(right)}
        if arguments_score(gold, gold) is not None:
            scores["action_arguments"] = (arguments_score(action, gold) or 0.0) if right and action is not None else 0.0
        whole = {"step": float(all(value == 1 for value in scores.values()))}
        return None if action is None else (), (), scores | whole | profile_scores(answer, sample)

    def draw(self, pen: Pen, answer: str) -> None:
        action = parse_action(answer)
        if action is not None:
            pen.action(action, "answer")

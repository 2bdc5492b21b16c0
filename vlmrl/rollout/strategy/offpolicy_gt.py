"""Strategy `offpolicy_gt` (TempSamp-R1): one row of each group is built from the ground truth. arXiv:2509.18056, section 3 (eq. 2).

The group is G - 1 sampled rows and one row that gives the true answer. In answer formats with thoughts the paper does not say which
thought that row carries. `gt_cot` chooses:

* `bare`: none, the answer block alone, in every group. So does the code that the authors released later (`build_gt_response`); its reward
  of the form asks for an answer block only, while ours of `think` finds such a row malformed.
* `splice` (ours): the thought of the best sampled row with a valid format, kept as it is. `fallback` says what a group without such a row
  gets: `answer_only`, `bare`, or `skip`: no ground-truth row, and the group goes on with G - 1.
* `answer_only`: the empty thought, which teaches to skip thoughts.
* `off`: no ground-truth row.

The default of `fallback` is `skip`, as either other row teaches a form that the recipe did not ask for, with the best reward of its group:
no thought, or a malformed answer. So a policy that does not write the form yet trains without a ground-truth row, which is where it would
help most: `vlmrl check` points out a recipe that does not say what is meant. Where the form is still to be learned, take `answer_only`.
Prompts of the answer format `answer_only` have no thought: each group gets the answer, whatever `gt_cot` and `fallback` say.

A step logs the share of groups that got the row (`rollout/given_rows`); a warning says so where none does. The row's old log-probs are
recomputed under the policy, never taken from the sampler; it is left out of the logged reward, length, entropy and divergence.

The paper's repairs of the mixed group: the shape `tempsamp_nonlinear` (the method), or the shape `tempsamp_downscale`, or the advantage
`tempsamp_anchor`; "none" is a recipe with none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from vlmrl.answers.tags import gold_text, parse
from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.given_row import with_given_row
from vlmrl.types import Group


class OffPolicyGroundTruth:
    """See the module docstring."""

    def __init__(self, gt_cot: Literal["splice", "bare", "answer_only", "off"], fallback: Literal["skip", "bare", "answer_only"]):
        self.gt_cot = gt_cot
        self.fallback = fallback

    def sampled(self, rollouts: int) -> int:
        return rollouts - 1

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        sample, answer_format = group.prompt.sample, group.prompt.answer_format
        if answer_format == "answer_only":
            return with_given_row(group, gold_text(sample, answer_format, None), tokenize)
        thought = self._best_thought(group, score) if self.gt_cot == "splice" else None
        form = self.fallback if self.gt_cot == "splice" and thought is None else self.gt_cot
        if form in ("off", "skip"):
            return group
        return with_given_row(group, gold_text(sample, "answer_only" if form == "bare" else answer_format, thought), tokenize)

    def _best_thought(self, group: Group, score: Callable[[Group], Sequence[float | None]]) -> str | None:
        """Find the thought of the well-formed row with the highest task reward; the first of equals."""
        best: tuple[float, str] | None = None
        for rollout, value in zip(group.rollouts, score(group), strict=True):
            parsed = parse(rollout.text, group.prompt.answer_format)
            if value is None or not parsed.format_ok or parsed.thought is None:
                continue
            if best is None or value > best[0]:
                best = (value, parsed.thought)
        return None if best is None else best[1]


def idle_fallback(arguments: Mapping[str, Any], stage: object) -> list[str]:
    """A fallback beside a form of the row that is always there."""
    gt_cot, fallback = arguments.get("gt_cot", "splice"), arguments.get("fallback", "skip")
    if gt_cot == "splice" or fallback == "skip":
        return []
    return [
        f"strategy 'offpolicy_gt': fallback '{fallback}' is for gt_cot 'splice', and gt_cot is '{gt_cot}': it would do nothing; drop it"
    ]


def silent_form(arguments: Mapping[str, Any], stage: object) -> list[str]:
    """Pointed out: what is said of thoughts where prompts ask for none, and a row whose thought is spliced where nothing says what a group
    without one gets."""
    if getattr(stage, "answer_format", None) == "answer_only":
        text = "prompts of answer_format 'answer_only' ask for no thought, so every group gets the answer alone, and"
        return [f"strategy 'offpolicy_gt': {text} {' and '.join(arguments)} would do nothing; drop it"] if arguments else []
    text = (
        "gets no ground-truth row (fallback 'skip'): none at all while the policy does not write that form; say fallback: answer_only, or"
    )
    unsaid = arguments.get("gt_cot", "splice") == "splice" and "fallback" not in arguments
    where = "strategy 'offpolicy_gt' splices the thought of a well-formed answer, and a group without one"
    return [f"{where} {text} fallback: skip if that is meant"] if unsaid else []


@strategy(
    "offpolicy_gt",
    paper="arXiv:2509.18056",
    refuses=idle_fallback,
    doubts=silent_form,
    injects_rows=True,
    min_generations=3,
    min_generations_why="which replaces one of the rows",
)
def offpolicy_gt(
    *, gt_cot: Literal["splice", "bare", "answer_only", "off"] = "splice", fallback: Literal["skip", "bare", "answer_only"] = "skip"
) -> OffPolicyGroundTruth:
    """TempSamp-R1: the last row of each group gives the true answer."""
    return OffPolicyGroundTruth(gt_cot, fallback)

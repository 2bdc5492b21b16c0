"""The reward runner scores a group: it calls the rewards, checks what they return, and counts every fault with its reason, never as a zero.

Our own rewards are pure functions of bounded text that cannot hang; they run in this process. What could hang or do harm (plug-ins,
functions of other trainers) runs in workers under a deadline (`rewards.run.place` decides), at the same time as the others.
A worker contains accidents, not malice: a plug-in keeps the authority of any code that its user installs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vlmrl.answers.tags import gold_text
from vlmrl.errors import CheckpointError, ConfigError, DataError, Preempted, RemoteError, StorageError
from vlmrl.protocols import RewardContext
from vlmrl.protocols import reward as registry
from vlmrl.registry import Entry
from vlmrl.rewards.run.contract import ContractError, contract_problem
from vlmrl.types import Group, Prompt, Rollout, Sample, ScoredGroup, Scores

if TYPE_CHECKING:
    from vlmrl.rewards.run.workers import Outcome, RewardPool

WINDOW = 50
"""Steps over which the share of unjudged rewards is watched."""
JUNK = ("", "I do not know.", "<think></think>", "<answer></answer>", "<answer>junk</answer>")

__all__ = ["JUNK", "WINDOW", "RewardRunner", "contract_problem"]

Function = Callable[[Group, RewardContext], Sequence[float | None]]
Column = tuple[list[float | None], dict[str, int]]
"""Values, and how many rollouts could not be judged for which reason."""


class MediaOnDemand(Mapping[str, Any]):
    """`RewardContext.media` over a media store: pixels are fetched (`MediaStore.get_key`) when a reward looks at them."""

    def __init__(self, keys: tuple[str, ...], fetch: Callable[[str], Any]):
        self._keys = keys
        self._fetch = fetch

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return self._fetch(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class RewardRunner:
    """Reward columns `(name, weight, function)`. `window` is its only memory and is part of the run's state.

    `entries` are the registered names of columns that are called something else; `pool` runs the columns that are `WorkerReward`s,
    and is closed with this.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, float, Function]],
        *,
        max_invalid: float = 0.02,
        pool: RewardPool | None = None,
        entries: Mapping[str, str] | None = None,
    ):
        self.columns = list(columns)
        self.max_invalid = max_invalid
        self.pool = pool
        self.entries = dict(entries or {})
        self.window: list[dict[str, list[int]]] = []
        self.first_fault: dict[str, str] = {}

    def score(self, group: Group, ctx: RewardContext) -> ScoredGroup:
        """Score a group. A column that raises or breaks its contract is None for the whole group, with the reason counted.

        Returns:
            The group with its rewards [G rollouts, K columns], and how many rollouts could not be judged, by `column/reason`.
        """
        values: list[list[float | None]] = []
        reasons: dict[str, int] = {}
        # workers first: they score while the columns of this process are computed below
        begun = self._begin(group, ctx)
        for name, _, function in self.columns:
            if name in begun:
                column, faults = self._await(name, begun[name], group)
            else:
                column, faults = self._call(name, function, group, ctx)
            values.append(column)
            reasons |= {f"{name}/{reason}": count for reason, count in faults.items()}
        # [K][G] to [G][K]
        rows = tuple(zip(*values, strict=True)) if values else ((),) * len(group.rollouts)
        scores = Scores(
            columns=tuple(name for name, _, _ in self.columns),
            weights=tuple(weight for _, weight, _ in self.columns),
            rewards_GK=rows,
            reasons=reasons,
        )
        return ScoredGroup(group=group, scores=scores)

    def _begin(self, group: Group, ctx: RewardContext) -> dict[str, Future[Outcome]]:
        """Start the columns that run in workers; they go on while the others run here."""
        if self.pool is None:
            return {}
        from vlmrl.rewards.run.wire import encode_call
        from vlmrl.rewards.run.workers import Outcome, WorkerReward

        apart = [(name, function) for name, _, function in self.columns if isinstance(function, WorkerReward)]
        if not apart:
            return {}
        try:
            call = encode_call(group, ctx)
        except TypeError as error:
            # a row that cannot be sent is a fault of these columns alone, as if they had raised
            return {name: _done(Outcome(reason="raised:TypeError", detail=str(error))) for name, _ in apart}
        return {name: function.start(call, len(group.rollouts)) for name, function in apart}

    def _await(self, name: str, future: Future[Outcome], group: Group) -> Column:
        outcome = future.result()
        if outcome.values is not None:
            return [None if value is None else float(value) for value in outcome.values], {}
        self.first_fault.setdefault(name, f"{name} on row '{group.prompt.sample.id}': {outcome.reason}: {outcome.detail}")
        return [None] * len(group.rollouts), {str(outcome.reason): len(group.rollouts)}

    def _call(self, name: str, function: Function, group: Group, ctx: RewardContext) -> Column:
        """One column here. An outage of a service and a stop of the run are not faults of the column: they pass."""
        n = len(group.rollouts)
        nothing: list[float | None] = [None] * n
        try:
            returned: Any = function(group, ctx)
        except (RemoteError, Preempted, ConfigError, StorageError):
            raise
        except ContractError as error:
            self.first_fault.setdefault(name, str(error))
            return nothing, {"contract": n}
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the reward border: counted, bounded by observe(), never a score)
            self.first_fault.setdefault(name, "".join(traceback.format_exception(error)))
            return nothing, {f"raised:{type(error).__name__}": n}
        problem = contract_problem(returned, n)
        if problem is not None:
            self.first_fault.setdefault(name, f"{name} on row '{group.prompt.sample.id}': {problem}")
            return nothing, {"contract": n}
        # a column of judges: some rows could not be judged
        partial: Mapping[str, int] = getattr(returned, "reasons", {})
        for reason in partial:
            self.first_fault.setdefault(name, f"{name} on row '{group.prompt.sample.id}': {reason}")
        return [None if value is None else float(value) for value in returned], dict(partial)

    def observe(self, counts: dict[str, list[int]]) -> None:
        """Add a step's `column -> [faults, rollouts]` (of all ranks) to the window.

        Raises:
            DataError: a column has spent the faults that `max_invalid` allows in a full window (while the window fills, of as many
                rollouts as 50 such steps would have); names it and its first fault. So one bad group early on does not stop a run,
                and a reward that always fails stops it after two steps.
        """
        self.window = [*self.window, counts][-WINDOW:]
        for name, _, _ in self.columns:
            failed = sum(step.get(name, [0, 0])[0] for step in self.window)
            total = sum(step.get(name, [0, 0])[1] for step in self.window)
            # faults seen so far against those allowed in a full window of steps of this size
            if failed > self.max_invalid * total * WINDOW / len(self.window):
                raise DataError(
                    f"reward '{name}' failed for {failed} of {total} rollouts in the last {len(self.window)} steps, more than "
                    f"max_invalid_rewards {self.max_invalid}; first fault:\n{self.first_fault.get(name, '(on another rank)')}"
                )

    def require_verdicts(self, verdicts: Mapping[str, int], steps: int) -> None:
        """Called with the rollouts that each column has scored in the `steps` finished steps of a stage, where these are enough to tell.

        A built-in reward may score none: it says None for rows whose ground truth is of another kind, and a general recipe names many.

        Raises:
            DataError: a column from outside the package that counts in the sum has scored none, or all columns together have.
        """
        counting = [name for name, weight, _ in self.columns if weight != 0]
        silent = [name for name in counting if verdicts.get(name, 0) == 0]
        # a recipe may name rewards for rows that have not come yet; that no column at all judges is wrong whoever wrote them
        wrong = silent if silent == counting else [name for name in silent if self._from_outside(name)]
        if wrong:
            raise DataError(
                f"reward{'s' if len(wrong) > 1 else ''} {', '.join(map(repr, wrong))} scored none of the rollouts of {steps} steps: None, "
                "which means 'cannot judge', came back for each; look at what the reward reads of a row, give it the weight 0 if it is for "
                "rows that these steps did not have, or take it out"
            )

    def _from_outside(self, name: str) -> bool:
        """Whether a column's function is the user's: of a plug-in, or one that a reward of the package calls."""
        entry = self._entry(name)
        return entry is None or bool(entry.extra.get("foreign", False)) or not entry.ours

    def self_test(self, samples: Sequence[Sample], answer_format: str, *, more_columns: bool = False) -> list[str]:
        """Score gold and junk answers, and list what is wrong: gold must get the highest total of all and junk less.

        A reward that cannot tell them apart would train on noise. Columns that ask a service are left out: a judge need not give the
        gold answer its maximum, and nothing is asked before the run. So are those that stand in for ground truth: they know no gold answer.
        With `more_columns` there are such besides these, and rows that none of these judges may be theirs.

        Rewards that fail are one problem for all rows on which they fail in one way: a function that cannot run fails on every row. So are
        rewards that tell no row's gold answer from junk.

        Returns:
            One line per problem; empty where every gold answer wins.
        """
        extras = {name: {} if (entry := self._entry(name)) is None else entry.extra for name, _, _ in self.columns}
        # a copy without the columns that know no gold answer; the totals below are then of the others alone
        own = [column for column in self.columns if not (extras[column[0]].get("service") or extras[column[0]].get("no_truth"))]
        if len(own) < len(self.columns):
            apart = RewardRunner(own, max_invalid=self.max_invalid, pool=self.pool, entries=self.entries)
            return apart.self_test(samples, answer_format, more_columns=True) if own else []
        problems: list[str] = []
        equal: list[str] = []
        failed: dict[str, list[tuple[Sample, str]]] = {}
        for sample in samples:
            self.first_fault = {}  # what is told of a row is its own
            texts = (gold_text(sample, answer_format, sample.thought), *JUNK)
            scored = self.score(_group(sample, answer_format, texts), RewardContext())
            if scored.scores.reasons:
                failed.setdefault(", ".join(scored.scores.reasons), []).append((sample, next(iter(self.first_fault.values()))))
                continue
            totals = scored.scores.total()
            gold, junk, where = totals[0], [t for t in totals[1:] if t is not None], f"row '{sample.id}' ({sample.source})"
            if gold is None and more_columns:
                continue
            if gold is None:
                problems.append(f"{where}: no reward can judge its gold answer '{sample.answer}'")
            # equal is too much: GRPO would see no difference between the gold answer and junk
            elif junk and max(junk) >= gold:
                equal.append(f"{where}: junk scores {max(junk):.3g}, the gold answer '{sample.answer}' {gold:.3g}")
            else:
                problems += [f"{where}: {text}" for text in self._not_full(sample, scored)]
        if len(equal) == len(samples) > 1:
            equal = [f"{equal[0]}; so do all {len(samples)} rows tried: no reward tells right from wrong; add one: vlmrl list reward"]
        return [_failed(kinds, rows, len(samples)) for kinds, rows in failed.items()] + equal + problems

    def _entry(self, name: str) -> Entry[Any] | None:
        """The registration of a column; None for a function that is not registered."""
        known = self.entries.get(name, name)
        return registry.get(known) if known in registry.names() else None

    def _not_full(self, sample: Sample, scored: ScoredGroup) -> list[str]:
        """The gold answer must reach the maximum of a built-in column (1, or its `best`), or parser and data disagree.

        `best=...` at registration is that maximum; a reward of a plug-in is asked only if it has one, and `best=None` never.
        """
        out: list[str] = []
        for (name, _, _), value in zip(self.columns, scored.scores.rewards_GK[0], strict=True):
            entry = self._entry(name)
            if entry is None or value is None:
                continue
            best = entry.extra.get("best", 1.0 if entry.ours else None)
            if best is not None and value < best - 1e-9:
                out.append(f"reward '{name}' gives its gold answer '{sample.answer}' {value:.3g} instead of {best:.3g}")
        return out

    def close(self) -> None:
        """End the workers."""
        if self.pool is not None:
            self.pool.close()

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"window"}:
            raise CheckpointError(f"reward runner state has keys {sorted(state)}, expected ['window']")
        self.window = list(state["window"])


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def _failed(kinds: str, rows: Sequence[tuple[Sample, str]], asked: int) -> str:
    """What is said once of the rows on which rewards failed in this way, with the fault of the first."""
    first, fault = rows[0]
    more = f" and {len(rows) - 1} more of {asked} rows" if len(rows) > 1 else ""
    return f"row '{first.id}' ({first.source}){more}: rewards failed on the gold or junk answers: {kinds}; {fault}"


def _group(sample: Sample, answer_format: str, texts: Sequence[str]) -> Group:
    """A group of given texts, without token ids: rewards read text."""
    prompt = Prompt(sample=sample, ids=(), media=(), spans=(), answer_format=answer_format)
    rollouts = tuple(
        Rollout(k=k, ids=(), logprobs=(), text=text, finish="stop", policy_version=0, provenance="ground_truth")
        for k, text in enumerate(texts)
    )
    return Group(id=f"self_test/{sample.id}", prompt=prompt, rollouts=rollouts)

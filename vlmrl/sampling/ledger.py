"""The ledger: per-sample statistics (visits, rewards, lengths), the one memory that samplers, budgets and baselines share.

The loop writes it once per step; everybody else reads rows. Plain counts and moments over all rewards that a sample ever got,
without decay, plus the mean of its last group. Mean and squared deviations follow Welford, so equal rewards have a variance of
exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from vlmrl.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """One sample. Values that need an observation are None before the first."""

    count: int = 0
    """Rewards observed; rewards that nobody judged do not count."""
    mean: float | None = None
    """Mean reward."""
    deviations: float = 0.0
    """Sum of squared deviations from the mean."""
    passes: int = 0
    """Rewards of at least the ledger's `pass_at`."""
    recent: float | None = None
    """Mean reward of the last group that had any."""
    last_seen: int | None = None
    """Step of the last group."""
    answers: int = 0
    """Answers whose length was observed."""
    mean_length: float | None = None
    """Tokens per answer."""
    diversity: float | None = None
    """How different the answers of the last group were, in [0, 1], where the caller measured it; see `diversity.distinct_n`."""

    @property
    def pass_rate(self) -> float | None:
        return self.passes / self.count if self.count else None

    @property
    def variance(self) -> float | None:
        """Of the population: divided by the count."""
        return self.deviations / self.count if self.count else None

    @property
    def mean_square(self) -> float | None:
        return None if self.mean is None else self.deviations / self.count + self.mean**2


_FIELDS = tuple(f.name for f in fields(LedgerRow))
_UNSEEN = LedgerRow()


class Ledger:
    """Rows by sample id. Stateful: JSON values, strict loading."""

    def __init__(self, *, pass_at: float = 0.5):
        """`pass_at`: the smallest reward that counts as solved."""
        self.pass_at = pass_at
        self._rows: dict[str, LedgerRow] = {}
        self._writes = 0
        self._written: dict[str, int] = {}

    def __len__(self) -> int:
        """Samples seen so far."""
        return len(self._rows)

    def row(self, sample_id: str) -> LedgerRow:
        """Look up what is known about a sample; a row with `count` 0 if it was never seen."""
        return self._rows.get(sample_id, _UNSEEN)

    def written_since(self, mark: int) -> tuple[list[str], int]:
        """Find the samples whose rows were written after a mark (0: all), each once, and the mark of now. So a reader of a large ledger
        looks at what is new only. Marks are of this object: they are not part of its state, and after loading all rows are new.

        Returns:
            (sample ids, latest write first; the mark of now).
        """
        out: list[str] = []
        for sample_id in reversed(self._written):  # in the order of the latest write
            if self._written[sample_id] <= mark:
                break
            out.append(sample_id)
        return out, self._writes

    def observe(
        self, sample_id: str, *, rewards: Sequence[float], lengths: Sequence[int], step: int, diversity: float | None = None
    ) -> None:
        """Add one group.

        Args:
            rewards: one per judged answer, finite; may be empty.
            lengths: tokens of each answer, judged or not.
            step: global step, never lower than at the last call for this sample.
            diversity: of the group's answers, in [0, 1]; None leaves what is known.

        Raises:
            ValueError: a reward is not finite, a length is negative, the diversity is out of range, or time runs backwards. Nothing is
                changed then.
        """
        row = self.row(sample_id)
        if not all(math.isfinite(r) for r in rewards) or any(n < 0 for n in lengths):
            raise ValueError(f"sample '{sample_id}': rewards {list(rewards)} must be finite and lengths {list(lengths)} not negative")
        if diversity is not None and not 0 <= diversity <= 1:
            raise ValueError(f"sample '{sample_id}': diversity {diversity} must lie in [0, 1]")
        if row.last_seen is not None and step < row.last_seen:
            raise ValueError(f"sample '{sample_id}': observed at step {step} after step {row.last_seen}")
        count, mean, deviations = row.count, row.mean or 0.0, row.deviations
        for reward in rewards:
            count += 1
            # Welford: mean_n = mean + delta / n, deviations += (x - mean_(n-1)) (x - mean_n)
            delta = reward - mean
            mean += delta / count
            deviations += delta * (reward - mean)
        answers, mean_length = row.answers, row.mean_length or 0.0
        for length in lengths:
            answers += 1
            mean_length += (length - mean_length) / answers
        self._writes += 1
        # put in again at the end: a dict keeps insertion order, and `written_since` reads from the back
        self._written.pop(sample_id, None)
        self._written[sample_id] = self._writes
        self._rows[sample_id] = LedgerRow(
            count=count,
            mean=mean if count else None,
            deviations=deviations,
            passes=row.passes + sum(r >= self.pass_at for r in rewards),
            recent=math.fsum(rewards) / len(rewards) if rewards else row.recent,
            last_seen=step,
            answers=answers,
            mean_length=mean_length if answers else None,
            diversity=row.diversity if diversity is None else diversity,
        )

    def state_dict(self) -> dict[str, Any]:
        """Write `pass_at`, the names of the row's fields, and one list of values per sample."""
        rows = {sample_id: list(asdict(row).values()) for sample_id, row in self._rows.items()}
        return {"pass_at": self.pass_at, "fields": list(_FIELDS), "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything.

        Raises:
            CheckpointError: unknown or missing keys, other fields, or another `pass_at`.
        """
        if set(state) != {"pass_at", "fields", "rows"} or state["fields"] != list(_FIELDS):
            raise CheckpointError(f"ledger state has keys {sorted(state)} and fields {state.get('fields')}, needs {list(_FIELDS)}")
        if state["pass_at"] != self.pass_at:
            raise CheckpointError(f"ledger state counts passes at {state['pass_at']}, this run at {self.pass_at}")
        wrong = [sample_id for sample_id, values in state["rows"].items() if len(values) != len(_FIELDS)]
        if wrong:
            raise CheckpointError(f"ledger state: row '{wrong[0]}' does not have {len(_FIELDS)} values")
        # rows that loading removes have changed too, for whoever looked at them before
        gone = set(self._rows)
        self._rows = {sample_id: LedgerRow(**dict(zip(_FIELDS, values, strict=True))) for sample_id, values in state["rows"].items()}
        self._writes += 1
        self._written = dict.fromkeys([*gone, *self._rows], self._writes)


def distinct_n(answers: Sequence[Sequence[Hashable]], *, n: int = 2) -> float | None:
    """Compute the share of the n-grams of all answers (tokens or words) that are different, in (0, 1]: 1 where none repeats, 1 / G for
    G equal answers without repetition of their own. Larger is more diverse. None where no answer has n tokens.

    Raises:
        ValueError: `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"distinct_n needs n of at least 1, got {n}")
    grams = [tuple(answer[i : i + n]) for answer in answers for i in range(len(answer) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None

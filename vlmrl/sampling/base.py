"""The base of samplers: shuffled epochs as streams, samples that are already planned for a step, and strict state.

Nothing here is a sampler. All of it is a function of the seed, of explicit positions and of the ledger.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.sampling.ledger import Ledger


def check_ids(ids: Sequence[str], sampler: str) -> tuple[str, ...]:
    """Check that there are ids and each is there once; give them as a tuple.

    Raises:
        ValueError: there are none, or one comes twice.
    """
    repeated = [sample_id for sample_id, times in Counter(ids).items() if times > 1]
    if not ids or repeated:
        raise ValueError(f"sampler '{sampler}' needs samples with unique ids; it got {len(ids)}, repeated: {repeated[:5]}")
    return tuple(ids)


def digest(ids: Iterable[str]) -> str:
    """Hash ids in this order."""
    return hashlib.blake2b("\0".join(ids).encode(), digest_size=16).hexdigest()


def digest_of_groups(pairs: Iterable[tuple[object, str]]) -> str:
    """Hash (group, id) pairs in this order: other ids, and an id in another group, are another digest."""
    return digest(f"{group}\x1f{sample_id}" for group, sample_id in pairs)


def check_state(state: Mapping[str, Any], expected: Mapping[str, Any], sampler: str) -> None:
    """Check a stored state against the sampler's own: the same keys, values of the same type, whole numbers not negative, and the
    same `samples`.

    Raises:
        CheckpointError: with what differs.
    """
    if set(state) != set(expected):
        raise CheckpointError(f"state of sampler '{sampler}' has keys {sorted(state)}, needs {sorted(expected)}")
    for key, own in expected.items():
        value = state[key]
        # `type`, not isinstance: True would pass as the whole number 1
        wrong = type(value) is not type(own) or (isinstance(value, int) and value < 0)
        if wrong:
            raise CheckpointError(f"state of sampler '{sampler}': {key} {value!r} is not {'from 0' if isinstance(own, int) else 'valid'}")
    if state["samples"] != expected["samples"]:
        raise CheckpointError("the samples (their ids, order or tags) are not those that this run started with; restore the data")


def check_entries(values: Mapping[str, Any], known: Iterable[str], width: int, where: str) -> None:
    """Check a stored table of lists.

    Raises:
        CheckpointError: a key that is not `known`, or a row that is not a list of `width` numbers.
    """
    names = set(known)
    for key, row in values.items():
        numbers = isinstance(row, list) and len(row) == width and all(isinstance(v, int | float) and not isinstance(v, bool) for v in row)
        if key not in names or not numbers:
            raise CheckpointError(f"{where}: entry '{key}' {row!r} is not {width} numbers of a known sample or pool")


class Stream:
    """Endless shuffled epochs over some ids. Holds no position: whoever owns the stream does.

    Without extra coordinates the order is that of the sampler `uniform` with the same ids and seed.
    """

    def __init__(self, ids: Sequence[str], seed: int, *coordinates: int | str):
        self.ids = tuple(ids)
        self._seed = seed
        self._coordinates = coordinates
        self._order: tuple[int, list[int]] | None = None

    def at(self, position: int) -> tuple[str, int]:
        """Look up (id, epoch) at a position from 0. An empty stream has no positions."""
        epoch, place = divmod(position, len(self.ids))
        if self._order is None or self._order[0] != epoch:
            # only the current epoch's order is held; any other is made again from its coordinates
            self._order = (epoch, rng.permutation(len(self.ids), self._seed, "sampler", *self._coordinates, epoch))
        return self.ids[self._order[1][place]], epoch


@dataclass(frozen=True, slots=True)
class Observed:
    """What the ledger learned about one sample since the last look."""

    sample_id: str
    count: int
    """Rewards; may be 0 for a group that nobody judged."""
    total: float
    """Their sum."""
    passes: int
    step: int
    """Global step of the latest group."""


class Writes:
    """Which rows of a ledger were written between two looks. Has no state: the first look, and one at another ledger, gives all rows."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._mark = 0

    def read(self, ledger: Ledger) -> list[str]:
        """List the ids of the rows, in no order that means anything."""
        written, self._mark = ledger.written_since(self._mark if ledger is self._ledger else 0)
        self._ledger = ledger
        return written


class News:
    """Differences of ledger rows between two looks. Its state is what it saw last.

    The first look reports everything that the ledger holds, earlier stages included. A look costs what was written since the last one.
    """

    def __init__(self, ids: Iterable[str]):
        self._ids = frozenset(ids)
        self._seen: dict[str, tuple[int, float, int, int]] = {}
        self._writes = Writes()
        self.clock = -1
        """Latest step at which any of the samples was observed; -1 before."""

    def read(self, ledger: Ledger) -> list[Observed]:
        """Find what is new, by id."""
        out: list[Observed] = []
        for sample_id in sorted(self._ids.intersection(self._writes.read(ledger))):
            row = ledger.row(sample_id)
            if row.last_seen is None:
                continue
            count, total, passes, step = self._seen.get(sample_id, (0, 0.0, 0, -1))
            if (row.count, row.last_seen) == (count, step):
                continue
            # the ledger keeps means; sums can be subtracted
            now = row.count * (row.mean or 0.0)
            self._seen[sample_id] = (row.count, now, row.passes, row.last_seen)
            self.clock = max(self.clock, row.last_seen)
            out.append(Observed(sample_id, row.count - count, now - total, row.passes - passes, row.last_seen))
        return out

    def state_dict(self) -> dict[str, Any]:
        """Write sample id -> count, sum, passes, step."""
        return {sample_id: list(values) for sample_id, values in self._seen.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` wrote. Raises CheckpointError for anything but four numbers of a known sample."""
        check_entries(state, self._ids, 4, "sampler state: news")
        self._seen = {sample_id: (int(v[0]), float(v[1]), int(v[2]), int(v[3])) for sample_id, v in state.items()}
        self._writes = Writes()
        self.clock = max((step for _, _, _, step in self._seen.values()), default=-1)


class InFlight:
    """Samples that were planned and not observed since: a second plan of the same step (to replace a bad row, or to refill a filtered
    batch) should bring others. A sample that never gets a reward (its media fail) stays in flight and comes last."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def add(self, ids: Iterable[str], ledger: Ledger) -> None:
        for sample_id in ids:
            step = ledger.row(sample_id).last_seen
            self._since[sample_id] = -1 if step is None else step

    def busy(self, ledger: Ledger) -> set[str]:
        """Find those still in flight; forget the others."""
        rows = {sample_id: ledger.row(sample_id).last_seen for sample_id in self._since}
        # observed since it was planned: its latest step is no longer the one of then
        self._since = {k: step for k, step in self._since.items() if step == (-1 if rows[k] is None else rows[k])}
        return set(self._since)

    def state_dict(self) -> dict[str, Any]:
        """Write sample id -> step at which it was last observed before it was planned; -1 for never."""
        return dict(self._since)

    def load_state_dict(self, state: dict[str, Any], known: Iterable[str]) -> None:
        """Load what `state_dict` wrote. Raises CheckpointError for anything but a step of a known sample."""
        check_entries({k: [v] for k, v in state.items()}, known, 1, "sampler state: in flight")
        self._since = {k: int(v) for k, v in state.items()}


class Powers:
    """A power by age in whole steps from 0, each computed once and by Python: numpy's powers may differ in the last bit."""

    def __init__(self, power: Callable[[int], float]):
        self._power = power
        self._table = np.empty(0)

    def of(self, age_N: np.ndarray) -> np.ndarray:
        """Look up the powers of these ages.

        Returns:
            float64, same shape.
        """
        need = int(age_N.max(initial=-1)) + 1
        have = len(self._table)
        if need > have:
            # at least doubled, so that a table that grows by one age a step is not made anew each time
            more = [self._power(age) for age in range(have, max(need, 2 * have))]
            self._table = np.concatenate([self._table, np.array(more)])
        return self._table[age_N]


def first_places(keys: np.ndarray, k: int) -> list[int]:
    """Find the places of the k smallest keys, smallest first and earlier places first among equals: the beginning of a stable sort,
    without sorting the rest. All of them when there are no more. Keys are not NaN.

    Returns:
        Indices into `keys`, at most k.
    """
    if k < len(keys):
        # all keys up to the k-th smallest: more than k where some tie with it, and then the earliest places win
        places = np.flatnonzero(keys <= np.partition(keys, k - 1)[k - 1])
    else:
        places = np.arange(len(keys))
    return places[np.argsort(keys[places], kind="stable")][:k].tolist()


def looked_at(k: int, last: Sequence[set[str]], n: int) -> int:
    """Compute how much of a ranking of n `best` must see to choose k: k that are in no group of `last` are then among it, or it is all."""
    behind = sum(len(group) for group in last)
    return min(k + behind, n)


def best(ranked: Sequence[str], last: Sequence[set[str]], k: int) -> list[str]:
    """Choose the first k of a ranking, where members of `last[0]` come behind all others, those of `last[1]` behind these, and so on;
    starts again from the top when k is larger than the ranking."""
    ordered = sorted(ranked, key=lambda sample_id: max((i + 1 for i, group in enumerate(last) if sample_id in group), default=0))
    return [ordered[i % len(ordered)] for i in range(k)]

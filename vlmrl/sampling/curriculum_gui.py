"""Sampler `curriculum_gui`: short trajectories first, with replay of earlier levels. Inspired by CRAFT-GUI, arXiv:2508.11360.

This is not a reproduction: of the paper the abstract was read (trajectories of different difficulty are not sampled uniformly), and a
summary by others, which names three stages, of 1 to 3, 4 to 8, and more steps. Everything else is ours:

- The difficulty of a row is a number in one of its tags, by default the length of its trajectory in actions, which all steps of the
  trajectory share. With `edges` (3, 8) level 1 has up to 3 actions, level 2 has 4 to 8, level 3 more; or `quantiles`: that many levels
  with about equally many rows.
- Levels come in order. A prompt of level s comes from its own rows, or with chance `replay` from those of all earlier levels.
- Rows without the tag (understanding tasks: screen questions, descriptions) enter at level `understanding_from`, by default the last,
  with chance `understanding_share`.
- A level ends after `stage_epochs` passes over its own rows, or when it stalls: the mean pass rate of its rows over `window` observed
  prompts did not gain more than `gain` on the best window for `patience` windows. (A sampler sees training rewards, no validation.)

With `edges=()` and no untagged rows the order is that of the sampler `uniform`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import News, Stream, check_ids, check_state, digest_of_groups
from vlmrl.sampling.info import SampleInfo
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import PlannedPrompt

UNTAGGED = -1
"""Level of a row without difficulty."""


def difficulty(row: SampleInfo, tag: str) -> float | None:
    """Read the number in a row's tag; None if it has no such tag.

    Raises:
        ValueError: the tag is not a finite number.
    """
    if tag not in row.tags:
        return None
    try:
        value = float(row.tags[tag])
    except ValueError as error:
        raise ValueError(f"sampler 'curriculum_gui': tag '{tag}' of sample '{row.id}' is {row.tags[tag]!r}, not a number") from error
    if not math.isfinite(value):
        raise ValueError(f"sampler 'curriculum_gui': tag '{tag}' of sample '{row.id}' is {value}")
    return value


def quantile_edges(values: Sequence[float], levels: int) -> tuple[float, ...]:
    """Choose edges between `levels` levels of about equally many values; equal values stay together, so there may be fewer."""
    ordered = sorted(values)
    edges = {ordered[max(0, math.ceil(i * len(ordered) / levels) - 1)] for i in range(1, levels)}
    # no value exceeds the largest: an edge there would make a level without rows
    return tuple(sorted(edge for edge in edges if edge < ordered[-1]))


def level_of(value: float, edges: Sequence[float]) -> int:
    """Count how many edges the value exceeds: its level from 0."""
    return sum(value > edge for edge in edges)


@sampler("curriculum_gui", needs=("rows",), paper="arXiv:2508.11360")
def curriculum_gui(
    rows: Sequence[SampleInfo],
    seed: int,
    *,
    tag: str = "trajectory.length",
    edges: tuple[float, ...] = (3, 8),
    quantiles: int | None = None,
    easier: Literal["low", "high"] = "low",
    replay: float = 0.2,
    understanding_from: int | None = None,
    understanding_share: float = 0.3,
    stage_epochs: float = 1.0,
    window: int = 256,
    gain: float = 0.005,
    patience: int = 3,
) -> PromptSampler:
    """Levels of rising difficulty with replay; `easier="high"` where a large number (a pass rate) means easy."""
    if not 0 <= replay < 1 or not 0 <= understanding_share < 1:
        raise ValueError(f"sampler 'curriculum_gui': replay {replay} and understanding_share {understanding_share} must lie in [0, 1)")
    if stage_epochs <= 0 or window < 1 or patience < 1:
        raise ValueError(f"sampler 'curriculum_gui': stage_epochs {stage_epochs}, window {window} and patience {patience} must be positive")
    check_ids([row.id for row in rows], "curriculum_gui")
    # a large number that means easy is turned around, edges with it: from here on more is harder
    sign = 1.0 if easier == "low" else -1.0
    values = {row.id: None if (value := difficulty(row, tag)) is None else sign * value for row in rows}
    known = [value for value in values.values() if value is not None]
    if not known:
        raise ValueError(f"sampler 'curriculum_gui': no row has the tag '{tag}' that says how difficult it is")
    if quantiles is not None and quantiles < 1:
        raise ValueError(f"sampler 'curriculum_gui': quantiles {quantiles} must be at least 1, or None")
    borders = sorted(sign * edge for edge in edges) if quantiles is None else quantile_edges(known, quantiles)
    levels = {sample_id: UNTAGGED if value is None else level_of(value, borders) for sample_id, value in values.items()}
    last = max(levels.values())
    start = last if understanding_from is None else understanding_from - 1
    if not 0 <= start <= last:
        raise ValueError(f"sampler 'curriculum_gui': understanding_from {understanding_from} must lie in [1, {last + 1}]")
    return CurriculumSampler(
        levels,
        seed,
        replay=replay,
        understanding_from=start,
        understanding_share=understanding_share,
        stage_epochs=stage_epochs,
        window=window,
        gain=gain,
        patience=patience,
    )


class CurriculumSampler:
    """State: level, prompts planned so far, position in each pool, and the pass rates of the current window."""

    def __init__(
        self,
        levels: dict[str, int],
        seed: int,
        *,
        replay: float,
        understanding_from: int,
        understanding_share: float,
        stage_epochs: float,
        window: int,
        gain: float,
        patience: int,
    ):
        """`levels`: level from 0 of each sample in the order of the data, UNTAGGED for those without."""
        self._levels, self._seed = levels, seed
        self._replay, self._understanding_from, self._share = replay, understanding_from, understanding_share
        self._stage_epochs, self._window, self._gain, self._patience = stage_epochs, window, gain, patience
        self._occupied = sorted(set(levels.values()) - {UNTAGGED})
        self._streams = self._pools()
        self._news = News(levels)
        self._positions = dict.fromkeys(self._streams, 0)
        self._level, self._slots, self._stale, self._observed = self._occupied[0], 0, 0, 0
        self._sum, self._best = 0.0, -1.0

    @property
    def level(self) -> int:
        """Current level, from 0."""
        return self._level

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """Plan the next `prompts` samples, `rollouts` of each; `epoch` counts passes over the pool that a sample came from."""
        self._learn(ledger)
        out: list[PlannedPrompt] = []
        for _ in range(prompts):
            pool = self._pool()
            sample_id, epoch = self._streams[pool].at(self._positions[pool])
            self._positions[pool] += 1
            self._slots += 1
            out.append(PlannedPrompt(sample_id=sample_id, num_generations=rollouts, epoch=epoch))
            own = f"level{self._level}"
            if pool == own and self._positions[own] >= math.ceil(self._stage_epochs * len(self._streams[own].ids)):
                self._advance()
        return out

    def _pools(self) -> dict[str, Stream]:
        """One stream per level, one per level's replay, one for rows without a level; empty pools are left out."""
        members: dict[str, list[str]] = {}
        for level in self._occupied:
            members[f"level{level}"] = [k for k, own in self._levels.items() if own == level]
            members[f"replay{level}"] = [k for k, own in self._levels.items() if UNTAGGED < own < level]
        members["understanding"] = [k for k, own in self._levels.items() if own == UNTAGGED]
        # the first level's stream has no coordinate of its own: with one level this is the order of `uniform`
        first = f"level{self._occupied[0]}"
        return {name: Stream(ids, self._seed, *(() if name == first else (name,))) for name, ids in members.items() if ids}

    def _pool(self) -> str:
        """Where the next prompt comes from: a function of the seed, the number of prompts before it, and the level."""

        def chance(what: str) -> float:
            # by coordinates and not from a generator: no state beside the number of prompts
            return rng.uniform(self._seed, "curriculum", what, self._slots)

        active = "understanding" in self._streams and self._level >= self._understanding_from
        if active and chance("understanding") < self._share:
            return "understanding"
        if f"replay{self._level}" in self._streams and chance("replay") < self._replay:
            return f"replay{self._level}"
        return f"level{self._level}"

    def _learn(self, ledger: Ledger) -> None:
        news = self._news.read(ledger)
        if self._slots == 0:
            return  # what an earlier stage of the run observed
        for one in news:
            # replayed and untagged rows say nothing about whether this level is learned
            if one.count == 0 or self._levels[one.sample_id] != self._level:
                continue
            self._sum += one.passes / one.count
            self._observed += 1
            if self._observed == self._window:
                self._close_window()

    def _close_window(self) -> None:
        mean = self._sum / self._window
        # the first window of a level has nothing to be better than
        better = self._best < 0 or mean > self._best + self._gain
        self._stale = 0 if better else self._stale + 1
        self._best = max(self._best, mean)
        self._sum, self._observed = 0.0, 0
        if self._stale >= self._patience:
            self._advance()

    def _advance(self) -> None:
        later = [level for level in self._occupied if level > self._level]
        if later:
            self._level = later[0]
            self._sum, self._best, self._stale, self._observed = 0.0, -1.0, 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "level": self._level,
            "slots": self._slots,
            "positions": dict(self._positions),
            "observed": self._observed,
            "sum": self._sum,
            "best": self._best,
            "stale": self._stale,
            "news": self._news.state_dict(),
            "samples": digest_of_groups((level, sample_id) for sample_id, level in self._levels.items()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples or levels than in the stored run."""
        check_state(state, self.state_dict(), "curriculum_gui")
        positions = state["positions"]
        if set(positions) != set(self._streams) or any(type(n) is not int or n < 0 for n in positions.values()):
            raise CheckpointError(f"state of sampler 'curriculum_gui': positions {positions} are not those of {sorted(self._streams)}")
        if state["level"] not in self._occupied:
            raise CheckpointError(f"state of sampler 'curriculum_gui': no row has level {state['level']}")
        self._news.load_state_dict(state["news"])
        self._positions = dict(positions)
        self._level, self._slots, self._stale, self._observed = state["level"], state["slots"], state["stale"], state["observed"]
        self._sum, self._best = state["sum"], state["best"]

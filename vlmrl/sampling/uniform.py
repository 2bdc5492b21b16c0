"""Sampler `uniform`: every sample once per epoch, in an order that depends on the seed and the epoch only."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.types import PlannedPrompt


@sampler("uniform")
def uniform(sample_ids: Sequence[str], seed: int) -> PromptSampler:
    """Shuffled epochs without repetition; a batch may cross the edge of two epochs."""
    return UniformSampler(sample_ids, seed)


class UniformSampler:
    """A position in an endless stream of shuffled epochs: `position // n` is the epoch, and nothing else is state."""

    def __init__(self, sample_ids: Sequence[str], seed: int):
        """
        Raises:
            ValueError: no samples, or an id twice.
        """
        self._ids = tuple(sample_ids)
        repeated = [sample_id for sample_id, times in Counter(self._ids).items() if times > 1]
        if not self._ids or repeated:
            raise ValueError(f"sampler 'uniform' needs samples with unique ids; it got {len(self._ids)}, repeated: {repeated[:5]}")
        self._seed = seed
        self._position = 0
        self._order: tuple[int, list[int]] | None = None

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """Plan the next `prompts` samples, `rollouts` of each. The ledger is not read."""
        out: list[PlannedPrompt] = []
        for position in range(self._position, self._position + prompts):
            epoch, place = divmod(position, len(self._ids))
            out.append(PlannedPrompt(sample_id=self._ids[self._permutation(epoch)[place]], num_generations=rollouts, epoch=epoch))
        self._position += prompts
        return out

    def state_dict(self) -> dict[str, Any]:
        """Write `position` in the stream, and a digest of the ids, without which a position means nothing."""
        return {"position": self._position, "samples": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a stored position.

        Raises:
            CheckpointError: unknown or missing keys, a position that is none, or other samples than in the stored run.
        """
        if set(state) != {"position", "samples"}:
            raise CheckpointError(f"sampler state has keys {sorted(state)}, needs 'position' and 'samples'")
        position = state["position"]
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            raise CheckpointError(f"sampler state: position {position!r} is not a whole number from 0")
        if state["samples"] != self._digest():
            raise CheckpointError("the samples (their ids or their order) are not those that this run started with; restore the data")
        self._position = position

    def _permutation(self, epoch: int) -> list[int]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, rng.permutation(len(self._ids), self._seed, "sampler", epoch))
        return self._order[1]

    def _digest(self) -> str:
        return hashlib.blake2b("\0".join(self._ids).encode(), digest_size=16).hexdigest()

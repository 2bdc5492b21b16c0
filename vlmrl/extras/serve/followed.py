"""Engines whose answers are looked at while they are generated: each token as it is drawn, and an end where nobody reads on.

For serving. A batch waits for the host after every token, as the reference engine does anyway; answers are those of the same engine
without a look, up to where they are ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vlmrl.policy.foreign import ForeignEngine, foreign
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import GenerateCall, HFEngine, KeptTurns, Running
from vlmrl.rollout.in_place import SLOTS, Done
from vlmrl.types import GenerationSettings, Request, Rollout

Look = Callable[[int, int, int, float], bool]
"""(number of the request, place of the answer in it, token, its log-prob) -> whether the answer goes on."""


class FollowedEngine(HFEngine):
    """The reference engine with a look at each token."""

    look: Look | None = None

    def begin(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: KeptTurns | None) -> GenerateCall:
        return FollowedRun(self, requests, settings, done, kept)

    def followed(self, requests: Sequence[Request], settings: GenerationSettings, look: Look) -> list[list[Rollout]]:
        """As `generate`; an answer that `look` ends has finished with `stop`."""
        self.look = look
        try:
            return self.generate(requests, settings)
        finally:
            self.look = None


class FollowedRun(GenerateCall):
    """One call of `generate` with a look."""

    engine: FollowedEngine

    def _draw(self, rows: Running) -> tuple[Running | None, torch.Tensor]:
        """The next token of every row, and an end to the rows of which nothing more is wanted."""
        running, row_N, t_N = rows.rows, rows.row_N, rows.t_N
        left, token = super()._draw(rows)
        look = self.engine.look
        if look is None:
            return left, token
        drawn = zip(running, self.ids[row_N, t_N].tolist(), self.logps[row_N, t_N].tolist(), strict=True)
        over = {row for row, one, logp in drawn if not look(self.owner[row], row - self.first[self.owner[row]], one, logp)}
        if left is None or over.isdisjoint(left.rows):
            return left, token
        ended = [row in over for row in left.rows]
        for row, end in zip(left.rows, ended, strict=True):
            if end:
                self.retire(row, True)
        self.grid.finish(ended)
        going = [n for n, end in enumerate(ended) if not end]
        if not going:
            return None, token
        return left.select(going), token[torch.tensor(going, device=token.device)]


def followed_engine(policy: Policy, vision: VisionCache) -> FollowedEngine | ForeignEngine:
    """The engine that generates with a policy in place (`own.own_engine`), with `followed` beside `generate`.

    Raises:
        ConfigError: the model's attention is not that of its family.
    """
    family = policy.bundle.family
    return FollowedEngine(policy, vision) if policy.subject is None else foreign(family).engine(policy, vision, max_num_seqs=SLOTS)

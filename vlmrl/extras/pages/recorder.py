"""Keeps groups of each step for `vlmrl view`: chosen and copied within the step, written by a thread beside training.

A step waits for nothing but the copies of a few rows of numbers. A thread that has fallen behind by more than `BEHIND` steps makes the next
ones be left out, and a disk that refuses ends the keeping, not the run; both are said once. Before a checkpoint the thread has caught up,
so that a resumed run lacks no group of the steps before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import torch

from vlmrl import rng
from vlmrl.algo.inputs import LossInputs
from vlmrl.config.schema import StageBase
from vlmrl.errors import MediaError, StorageError
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.record import KeptGroup, Trained, completions, media_of, pick, record_of, surprise
from vlmrl.extras.pages.kept.write import KeptWriter, cut_others
from vlmrl.policy.pack import Row
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.types import ScoredGroup

FOLDER = "groups"
"""Of a run."""
BEHIND = 8
"""Steps whose groups may wait to be written."""
_PIECES = 1 << 18
"""Tokens whose text is remembered."""


class GroupRecorder:
    """The kept groups of a stage on this rank (`keep` of the recipe), in `<run>/groups`."""

    def __init__(self, session: Session, cfg: StageBase):
        folder, done = session.run.path / FOLDER, session.state.global_step
        self.keep, self.stage = session.cfg.keep, cfg.name
        self._store, self._say, self._table = session.store, session.ui.say, session.tracker.table
        piece = session.bundle.piece
        self._pieces, self._piece = lru_cache(_PIECES)(lambda token: piece((token,))), piece
        self._rows: dict[int, Trained] = {}
        self._pending: list[KeptGroup] = []
        self._jobs: list[Future[None]] = []
        self._broken = self._said_behind = False
        if dist.is_main():
            cut_others(folder, dist.world(), done)  # steps after the last one that is done are computed again
        self._writer = KeptWriter(folder / f"rank-{dist.rank()}", budget=self.keep.bytes // dist.world(), last_step=done)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kept-groups")

    def choose(self, batch: StepBatch, adv_NT: torch.Tensor, adv_N: torch.Tensor, *, step: int, global_step: int) -> None:
        """Take what is kept of a step's groups on this rank, before the update.

        Args:
            adv_NT: advantages per token of this rank's rows; adv_N: those of all rollouts of all ranks.
            step: of the stage, from 1; global_step: of the run.
        """
        self._pending, self._rows = [], {}
        if step % self.keep.every or self._broken:
            return
        x, mine = batch.x, batch.mine
        judged = x.reward_N[x.valid_N & x.on_policy_N]
        usual = float(judged.mean()) if len(judged) else 0.0
        ranked: list[tuple[float, int]] = []
        expected: list[float | None] = []
        starts = [0]
        for _, scored in batch.groups:
            rollouts = scored.group.rollouts
            known = float(batch.baseline_N[mine[starts[-1]]]) if rollouts else math.nan
            expected.append(None if math.isnan(known) else known)
            ranked.append((surprise(scored.scores.total(), usual if math.isnan(known) else known), _fixed(scored)))
            starts.append(starts[-1] + len(rollouts))
        used = set(batch.kept())
        for i in pick(ranked, -(-self.keep.groups_per_step // dist.world())):
            place, scored = batch.groups[i]
            for n in range(starts[i], starts[i + 1]):
                self._rows[n] = _trained(adv_NT[n], float(adv_N[mine[n]]), len(batch.rollouts[n].ids), n in used)
            kept = KeptGroup(
                stage=self.stage,
                step=step,
                global_step=global_step,
                place=place,
                scored=scored,
                expected=expected[i],
                surprise=ranked[i][0],
                rows=[self._rows[n] for n in range(starts[i], starts[i + 1])],
            )
            self._pending.append(kept)

    def see(self, rows: Sequence[Row], x: LossInputs) -> None:
        """What the update's forward gave for a micro-batch."""
        wanted = [place for place, row in enumerate(rows) if row.index in self._rows]
        if not wanted or x.entropy_BT is None:
            return
        logp_BT, entropy_BT = torch.stack([x.logp_BT, x.entropy_BT]).detach().float().cpu()
        for place in wanted:
            width, kept = len(rows[place].response), self._rows[rows[place].index]
            kept.logp_T, kept.entropy_T = logp_BT[place, :width].tolist(), entropy_BT[place, :width].tolist()

    def write(self) -> None:
        """Hand what was taken of the step to the thread; training goes on."""
        pending, self._pending = self._pending, []
        done = [job for job in self._jobs if job.done()]
        for job in done:
            job.result()
        self._jobs = [job for job in self._jobs if job not in done]
        if not pending or self._broken:
            return
        if self.keep.table:
            self._table("completions", completions(pending), global_step=pending[0].global_step)
        if len(self._jobs) < BEHIND:
            self._jobs.append(self._thread.submit(self._write, pending))
        elif not self._said_behind:
            self._say(f"warning: {self.stage}: groups are kept more slowly than steps are made; some are left out (keep.every)")
            self._said_behind = True

    def settle(self) -> None:
        """Wait until everything handed over is written and durable."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.result()
        if jobs and not self._broken:
            self._guarded(self._writer.sync)

    def close(self) -> None:
        """Settle, and end the thread."""
        try:
            self.settle()
        finally:
            self._thread.shutdown()

    def _write(self, groups: Sequence[KeptGroup]) -> None:
        for kept in groups:
            if not self._broken:
                self._guarded(lambda kept=kept: self._add(kept))

    def _add(self, kept: KeptGroup) -> None:
        record = record_of(kept, lambda ids: split_tokens(ids, self._pieces, self._piece))
        files: dict[str, bytes] = {}
        for key in self._writer.lacks(media_of(record)):
            try:
                files[key] = media.encoded(self._store.peek(key), self.keep.frames)
            except MediaError as error:  # it left memory, and its file is another by now; the group is shown without it
                record.setdefault("lost_media", {})[key] = str(error)
        self._writer.add(record, files)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StorageError as error:
            self._broken = True
            self._say(f"warning: {self.stage}: no more groups are kept for vlmrl view: {error}")


def split_tokens(ids: Sequence[int], one: Callable[[int], str], several: Callable[[Sequence[int]], str]) -> list[str]:
    """Text of each token. Of a character that several tokens make together, the last of them has the text and the others have none.

    Args:
        one: text of one token, with U+FFFD for what is no whole character.
        several: text of a run of tokens.
    """
    out: list[str] = []
    run: list[int] = []
    for token in ids:
        text = one(token) if not run else ""
        if run or "\ufffd" in text:
            run.append(token)
            text = several(run)
            if "\ufffd" in text and len(run) < 4:  # UTF-8 has at most four bytes
                out.append("")
                continue
            run = []
        out.append(text)
    if run:
        out[-1] = several(run)
    return out


def _fixed(scored: ScoredGroup) -> int:
    """A number of the question that is the same at each pass over the data."""
    return rng.key(0, "keep", scored.group.prompt.sample.id)


def _trained(adv_T: torch.Tensor, advantage: float, length: int, used: bool) -> Trained:
    own = adv_T[:length].tolist()
    alike = all(value == own[0] for value in own)
    return Trained(advantage=own[0] if alike and own else advantage, adv_T=() if alike else tuple(own), used=used)

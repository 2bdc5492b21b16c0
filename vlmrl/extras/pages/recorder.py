"""Keeps groups of each step for `vlmrl view`: chosen and copied within the step, written by a thread beside training.

A step waits for nothing but the copies of a few rows of numbers. A thread that has fallen behind by more than `BEHIND` steps makes the next
ones be left out, and a disk that refuses ends the keeping, not the run; both are said once. Before a checkpoint the thread has caught up,
so that a resumed run lacks no group of the steps before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from vlmrl import rng
from vlmrl.algo.inputs import LossInputs
from vlmrl.config.schema import StageBase
from vlmrl.config.train import KeepSection
from vlmrl.errors import MediaError, StorageError
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.record import KeptGroup, Trained, completions, media_of, pick, record_of, surprise
from vlmrl.extras.pages.kept.write import KeptWriter, cut_others
from vlmrl.media.store import MediaStore
from vlmrl.policy.pack import Row
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch

FOLDER = "groups"
"""Of a run."""
BEHIND = 8
"""Steps whose groups may wait to be written."""
_PIECES = 1 << 18
"""Tokens whose text is remembered."""


class GroupRecorder:
    """The kept groups of a stage on this rank.

    Args:
        folder: `<run>/groups`.
        done: the run's last step that is done; later ones were kept by a process that died, and are computed again.
        piece: text of token ids that may begin or end inside a word.
        say: tells the user.
        table: sends a table to the trackers (`Tracker.table`), with `keep.table`.
    """

    def __init__(
        self,
        folder: Path,
        keep: KeepSection,
        *,
        stage: str,
        done: int,
        store: MediaStore,
        piece: Callable[..., str],
        say: Callable[[str], None],
        table: Callable[..., None],
    ):
        self.keep, self.stage = keep, stage
        self._store, self._say = store, say
        self._table = table
        self._pieces = lru_cache(_PIECES)(lambda token: piece((token,)))
        self._piece = piece
        self._wanted: set[int] = set()
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._pending: list[KeptGroup] = []
        self._jobs: list[Future[None]] = []
        self._broken = self._said_behind = False
        if dist.is_main():
            cut_others(folder, dist.world(), done)
        budget = keep.bytes // dist.world()
        self._writer = KeptWriter(folder / f"rank-{dist.rank()}", budget=budget, last_step=done)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kept-groups")

    def choose(self, batch: StepBatch, adv_NT: torch.Tensor, adv_N: torch.Tensor, *, step: int, global_step: int) -> None:
        """Take what is kept of a step's groups on this rank, before the update.

        Args:
            adv_NT: advantages per token of this rank's rows; adv_N: those of all rollouts of all ranks.
            step: of the stage, from 1; global_step: of the run.
        """
        self._pending, self._wanted, self._seen = [], set(), {}
        if step % self.keep.every or self._broken:
            return
        x, mine, baseline_N = batch.x, batch.mine, batch.baseline_N
        judged = x.reward_N[x.valid_N & x.on_policy_N]
        usual = float(judged.mean()) if len(judged) else 0.0
        found: list[KeptGroup] = []
        starts: list[int] = []
        first = 0
        for place, scored in batch.groups:
            rollouts = scored.group.rollouts
            starts.append(first)
            known = float(baseline_N[mine[first]]) if rollouts else math.nan
            expected = None if math.isnan(known) else known
            first += len(rollouts)
            surprised = surprise(scored.scores.total(), usual if expected is None else expected)
            found.append(
                KeptGroup(
                    stage=self.stage,
                    step=step,
                    global_step=global_step,
                    place=place,
                    scored=scored,
                    expected=expected,
                    surprise=surprised,
                )
            )
        count = -(-self.keep.groups_per_step // dist.world())
        ranked = [(one.surprise, rng.key(0, "keep", one.scored.group.prompt.sample.id)) for one in found]
        used = set(batch.kept())
        for i in pick(ranked, count):
            rows = range(starts[i], starts[i] + len(found[i].scored.group.rollouts))
            trained = [_trained(adv_NT[n], float(adv_N[mine[n]]), len(batch.rollouts[n].ids), n in used) for n in rows]
            self._wanted.update(rows)
            self._pending.append(replace(found[i], rows=tuple(trained)))
        self._starts = {one.place: starts[k] for k, one in enumerate(found)}

    def see(self, rows: Sequence[Row], x: LossInputs) -> None:
        """What the update's forward gave for a micro-batch."""
        wanted = [place for place, row in enumerate(rows) if row.index in self._wanted]
        if not wanted or x.entropy_BT is None:
            return
        logp_BT, entropy_BT = torch.stack([x.logp_BT, x.entropy_BT]).detach().float().cpu()
        for place in wanted:
            width = len(rows[place].response)
            self._seen[rows[place].index] = logp_BT[place, :width].clone(), entropy_BT[place, :width].clone()

    def write(self) -> None:
        """Hand what was taken of the step to the thread; training goes on."""
        pending, self._pending = [self._with_forward(one) for one in self._pending], []
        self._jobs = [job for job in self._jobs if not _ended(job)]
        if not pending or self._broken:
            return
        if self.keep.table:
            self._table("completions", completions(pending), global_step=pending[0].global_step)
        if len(self._jobs) >= BEHIND:
            if not self._said_behind:
                self._say(f"warning: {self.stage}: groups are kept more slowly than steps are made; some are left out (keep.every)")
            self._said_behind = True
            return
        self._jobs.append(self._thread.submit(self._write, pending))

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

    def _with_forward(self, kept: KeptGroup) -> KeptGroup:
        first = self._starts[kept.place]
        rows = list(kept.rows)
        for i, row in enumerate(rows):
            seen = self._seen.get(first + i)
            if seen is not None:
                rows[i] = replace(row, logp_T=tuple(seen[0].tolist()), entropy_T=tuple(seen[1].tolist()))
        return replace(kept, rows=tuple(rows))

    def _write(self, groups: Sequence[KeptGroup]) -> None:
        for kept in groups:
            if not self._broken:
                self._guarded(lambda kept=kept: self._add(kept))

    def _add(self, kept: KeptGroup) -> None:
        record = record_of(kept, self._split)
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

    def _split(self, ids: Sequence[int]) -> list[str]:
        return split_tokens(ids, self._pieces, self._piece)


def of_stage(session: Session, cfg: StageBase) -> GroupRecorder:
    """Open the recorder of a stage (`keep` of the recipe)."""
    folder, done, bundle = session.run.path / FOLDER, session.state.global_step, session.bundle
    return GroupRecorder(
        folder,
        session.cfg.keep,
        stage=cfg.name,
        done=done,
        store=session.store,
        piece=bundle.piece,
        say=session.ui.say,
        table=session.tracker.table,
    )


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


def _trained(adv_T: torch.Tensor, advantage: float, length: int, used: bool) -> Trained:
    own = adv_T[:length].tolist()
    alike = all(value == own[0] for value in own)
    return Trained(advantage=own[0] if alike and own else advantage, adv_T=() if alike else tuple(own), used=used)


def _ended(job: Future[None]) -> bool:
    """Whether a job is done; raises what it has raised."""
    if not job.done():
        return False
    job.result()
    return True

"""Checkpoints of a stage: what goes into one, when the run waits for it, and what a failure means.

With `checkpoint.asynchronous` a step waits only until weights and moments are copied into host memory and everything else is encoded. The
rest (files, hashes, the manifest as the last of them, deletion of what is no longer needed) goes on in a thread. It is over before the next
checkpoint begins, before the stage ends and before the run stops for a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from vlmrl import __version__, fs
from vlmrl.errors import NumericsError, StorageError
from vlmrl.rollout.journal import drop_before
from vlmrl.run import checkpoint
from vlmrl.run.optional import WritesBeside
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.memory import FILE as MEMORIES
from vlmrl.train.memory import Memories
from vlmrl.train.pipeline import Pipeline
from vlmrl.train.step import Learner
from vlmrl.train.tensors import listed, not_finite, write_tensors
from vlmrl.train.updates import JobRanks, Writer

MAX_FAILED_SAVES = 3


def where_to_go_on(s: Session) -> str:
    """For messages about numbers that are not finite: which weights are not, and which checkpoint the run can go on from."""
    named = {name: s.policy.shards.local(value) for name, value in s.policy.model.named_parameters()}
    bad = not_finite(named)
    text = f"weights: {listed(bad, len(named))}" if bad else "all weights are finite, so they have grown too large or the inputs are wrong"
    saved = [path.name for path in checkpoint.steps(s.run.checkpoints)]
    if not saved:
        return f"{text}; there is no checkpoint: lower optim.lr, and check that '{s.base}' holds finite weights"
    before = f"; if it stops here again, delete {saved[-1]} to go on from {saved[-2]}" if len(saved) > 1 else ""
    return f"{text}; the last good checkpoint is {saved[-1]}, and the same command goes on from there{before}, with a lower optim.lr"


def save(s: Session, learner: Learner, memories: Memories, pipeline: Pipeline | None = None) -> None:
    """Write a checkpoint, or begin to. A full disk is survived a few times; the run goes on with the older one. `pipeline`: of
    the steps in flight, each rank writes a file of its own.

    Raises:
        StorageError: several saves in a row failed.
        NumericsError: a weight or a moment of the optimizer is not finite, on any rank; nothing is written.
        RunBusyError: the run's directory or its lock was replaced.
    """
    settle(s, wait=True)
    name, step = checkpoint.step_name(s.state.global_step), s.state.global_step
    try:
        dist.run_synchronized(lambda: learner.updates.require_finite(name))
    except NumericsError as error:
        raise NumericsError(f"stage '{s.cfg.stages[s.state.stage].name}', step {s.state.step}: {error}; {where_to_go_on(s)}") from error
    s.state.memories = memories.state_dict()
    later = s.background
    remembered = _remembered(s, memories, copy=later is not None)
    own = {} if pipeline is None else pipeline.save()
    dist.on_main(s.run.still_ours)
    write = learner.updates.writer(copy=None if later is None else later.copy_of(learner.updates))
    try:
        state = _state(s)
        if later is None:
            _write(s, dist, step, write, remembered, own, state)
        else:
            _begin(s, later, partial(_write, s, later.ranks, step, write, remembered, own, state), step)
            return
    except (StorageError, dist.RankFailed) as error:
        _failed(s, error)
        return
    s.failed_saves = 0
    dist.on_main(lambda: drop_before(s.run.journal, step))


def _begin(s: Session, background: WritesBeside, write: Callable[[], None], step: int) -> None:
    """Go on writing in the background."""

    def job() -> None:
        background.ranks.on_main(s.run.still_ours)
        write()
        background.ranks.on_main(lambda: drop_before(s.run.journal, step))

    background.start(job)


def settle(s: Session, *, wait: bool) -> None:
    """See to the checkpoint that is being written in the background, if there is one and it is done, or after waiting for it. Every rank
    calls it.

    Raises:
        StorageError: several saves in a row failed.
        RunBusyError: the run's directory or its lock was replaced.
    """
    try:
        if s.background is not None and s.background.settle(wait=wait):
            s.failed_saves = 0
    except (StorageError, dist.RankFailed) as error:
        _failed(s, error)


def _failed(s: Session, error: Exception) -> None:
    s.failed_saves += 1
    if s.failed_saves >= MAX_FAILED_SAVES:
        raise error
    s.ui.say(f"checkpoint not saved ({s.failed_saves} of {MAX_FAILED_SAVES} failures in a row allowed): {error}")


def _remembered(s: Session, memories: Memories, *, copy: bool) -> dict[str, torch.Tensor]:
    """Whole tensors of what the stage's parts remember."""
    out: dict[str, torch.Tensor] = {}
    for key, value in memories.tensors().items():
        whole = s.policy.shards.full(value)
        out[key] = whole.detach().cpu().clone() if copy and dist.is_main() else whole
    return out


def _state(s: Session) -> bytes:
    """All else, as it is now. What it counts on in other files is durable first."""
    s.used.sync()
    offset, marks = dist.on_main(s.tracker.mark) or (0, [])
    return checkpoint.encoded(
        {
            "run": s.state.state_dict(),
            "metrics_offset": offset,
            "metrics_marks": marks,
            "identity": s.identity.body(),
            "media": s.used.state_dict(),
        }
    )


def _write(
    s: Session,
    ranks: JobRanks,
    step: int,
    write: Writer,
    remembered: dict[str, torch.Tensor],
    own: Mapping[str, bytes],
    state: bytes,
) -> None:
    """Everything that reaches the disk, on every rank."""

    def write_own(folder: Path) -> None:
        for name, raw in own.items():
            fs.write_bytes(folder / name, raw)

    def tensors(folder: Path) -> checkpoint.Known:
        known = write(folder, ranks)
        if remembered:
            ranks.on_main(lambda: write_tensors(folder / MEMORIES, remembered))
        if own:
            ranks.run_synchronized(lambda: write_own(folder))
        return known

    path = checkpoint.save(
        s.run.checkpoints,
        step_name=checkpoint.step_name(step),
        write_tensors=tensors,
        state=state,
        manifest_extra={"config": s.config_hash, "version": __version__, "world": dist.world(), "step": step},
        keep=s.cfg.checkpoint.keep,
        collective=ranks,
    )
    if s.mirror is not None:
        ranks.on_main(lambda: _upload(s, path))


def _upload(s: Session, path: Path) -> None:
    """The checkpoint is safe here, so training goes on where the mirror does not answer; the next one is tried again."""
    assert s.mirror is not None
    try:
        s.mirror.push(s.run.path, path)
    except StorageError as error:
        s.ui.say(f"warning: {error}")

"""More steps for the last stage of a run, finished or not; or fewer, as long as they are not done yet.

The number of steps is a fixed option of a run (`session.fixed_options`). It may change where nothing that is made depends on it: in the
last stage, beyond the steps that are done. The former end is then no end any more: the run goes on from its last checkpoint, and what was
made of that end (its evaluation, the mark of a finished run) is taken away. `final/` stays until the new one replaces it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from vlmrl import fs
from vlmrl.config.combinations import View
from vlmrl.config.schema import Config, RolloutStage, StageBase
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.evals.ask.asking import ORIGIN
from vlmrl.methods import registries
from vlmrl.policy.load import SETTINGS
from vlmrl.registry import Entry
from vlmrl.run import checkpoint
from vlmrl.run.finished import check_best, names_in
from vlmrl.run.identity import Identity
from vlmrl.run.rundir import RunDir, differences
from vlmrl.train.manifest import EXPORTED, files, read_sealed, write_manifest
from vlmrl.train.stage.base import ended
from vlmrl.train.step import learning_rate

Fixed = Mapping[str, Any]


def moved(run: RunDir, began: Fixed, now: Fixed, cfg: Config) -> Fixed:
    """Let the number of steps of the last stage change in a run that is there. Call it on rank 0, with the run's lock held.

    Args:
        began: fixed options of the run; now: those of this start.
        cfg: the recipe of this start.

    Returns:
        The fixed options with which the run goes on: `began` where something else differs too, which is then refused as ever.

    Raises:
        ConfigError: an earlier stage would change, more steps are done, or the stage ended by its `until`.
        CheckpointError: the run is finished, and no checkpoint is left to go on from.
    """
    before, after = _steps(began), _steps(now)
    wanted = {**began, "stages": [{**one, "steps": steps} for one, steps in zip(began["stages"], after, strict=False)]}
    if len(before) != len(after) or before == after or differences(wanted, now):
        return began
    last = len(after) - 1
    if earlier := [index for index in range(last) if before[index] != after[index]]:
        raise ConfigError(
            [
                f"stages.{cfg.stages[index].name}.steps: {before[index]} in the run, {after[index]} now: later stages begin from what "
                f"these steps make, so only the last stage ('{cfg.stages[last].name}') may have more; put it back, or "
                "choose another run.name"
                for index in earlier
            ]
        )
    newest = next((path for path in reversed(checkpoint.steps(run.checkpoints)) if not checkpoint.verify(path)), None)
    saved = None if newest is None else checkpoint.load_state(newest)
    done = _done(run, cfg, saved, before[last], after[last])
    stage = cfg.stages[last]
    run.notes.append(f"stage '{stage.name}': {before[last]} steps in the run, {after[last]} now; {done} are done")
    run.notes += [f"in a run of {after[last]} steps from the start, {text}" for text in different(stage, before[last], after[last], done)]
    if done >= before[last]:
        _reopen(run, stage.name, done, saved)
    return wanted


def _steps(fixed: Fixed) -> list[int]:
    return [stage["steps"] for stage in fixed["stages"]]


def _done(run: RunDir, cfg: Config, saved: Mapping[str, Any] | None, before: int, after: int) -> int:
    """Steps of the last stage that the newest checkpoint holds."""
    last, finished = len(cfg.stages) - 1, (run.path / "FINISHED").exists()
    stage = cfg.stages[last]
    if saved is None and finished:
        raise CheckpointError(
            f"{run.path} is finished and no checkpoint is left to go on from to {after} steps; restore one, or choose another run.name"
        )
    state = {"stage": -1} if saved is None else saved["run"]
    done = int(state["step"]) if state["stage"] == last else 0
    if after < done:
        raise ConfigError(
            f"stages.{stage.name}.steps: {after}, but {done} of {before} steps are done, and none is taken back; give {done} or more, or "
            "choose another run.name"
        )
    if done < after and finished and ended(stage, done, state["held_out_score"]):
        raise ConfigError(
            f"stages.{stage.name}.steps: the stage ended after {done} of {before} steps because its held-out score reached until.score: "
            "more steps change nothing; choose another run.name"
        )
    return done


def different(stage: StageBase, before: int, after: int, done: int) -> Iterator[str]:
    """What of the steps done would have been different in a run that had the new number of steps from the start."""
    o = stage.optim

    def rate(step: int, total: int) -> float:
        return learning_rate(step, total, peak=1.0, schedule=o.schedule, warmup=o.warmup)

    if first := next((step + 1 for step in range(done) if rate(step, before) != rate(step, after)), None):
        yield f"the learning rate would be another from step {first} on (optim.schedule: {o.schedule}, optim.warmup: {o.warmup:g})"
    known = registries()
    for method in View.of(stage, known).methods if done else ():
        if "progress" in method.extra.get("needs", ()) or _reads_progress(known[method.slot].get(method.method.name), method.slot):
            yield f"{method.where} ({method}) would have acted otherwise: it goes by the share of the stage that is done"
    if done >= before and isinstance(stage, RolloutStage) and stage.rollout.staleness:
        yield f"the answers of step {done + 1} would be of older weights (rollout.staleness: {stage.rollout.staleness})"
    if done >= before and stage.until is not None and done % stage.until.every:
        yield f"the score of `until` would not have been looked at after step {done}"


def _reads_progress(entry: Entry[Any], slot: str) -> bool:
    """Whether a reward of somebody else reads `RewardContext.progress`; ours declare what they need."""
    code = getattr(entry.function, "__code__", None)
    return slot == "reward" and not entry.ours and code is not None and "progress" in code.co_names


def _reopen(run: RunDir, stage: str, done: int, saved: Mapping[str, Any] | None) -> None:
    """Take away what makes the former end an end. A process that dies in here does it again."""
    if (run.path / "FINISHED").exists():
        run.reopen()
    identity = Identity.open(run.path, None if saved is None else saved.get("identity"), run.notes.append)
    identity.forget(run.path / "stages" / stage)
    for name, _, _ in list(identity.records):
        if name == f"eval/{stage}.jsonl" or name.startswith(f"eval/suite/{stage}/"):
            identity.forget(run.path / name)
            fs.unlink(run.path / name)
    order = run.eval / "order.json"
    if (names := names_in(order)) is not None:  # a damaged one is written again from the records
        fs.write_text(order, json.dumps([name for name in names if name != stage]))
    _rename_best(run, stage, f"{stage}@{done}")


def _rename_best(run: RunDir, stage: str, name: str) -> None:
    """The best weights, where they are those of the former end, are from now on those of a step within the stage.

    Raises:
        CheckpointError: they are damaged.
    """
    path = run.eval / "best.json"
    check_best(run)
    record = json.loads(path.read_bytes()) if path.exists() else {}
    if record.get("stage") != stage:
        return
    old, new = run.path / "best" / stage, run.path / "best" / name
    about = json.loads((old / SETTINGS).read_text(encoding="utf-8"))
    manifest = read_sealed(old)
    temporary = new.with_name(fs.temporary_name(name))
    shutil.copytree(old, temporary)
    fs.write_text(temporary / SETTINGS, json.dumps({**about, ORIGIN: {**about.get(ORIGIN, {}), "stage": name}}) + "\n")
    seal = write_manifest(temporary, {"schema": EXPORTED, **{key: manifest[key] for key in ("kind", "vlmrl")}})
    for file in files(temporary).values():
        fs.sync(file)
    fs.remove_tree(new)
    fs.rename(temporary, new)
    fs.fsync_dir(new.parent)
    fs.write_text(path, json.dumps({**record, "stage": name, "seal": seal}, sort_keys=True) + "\n")
    fs.remove_tree(old)

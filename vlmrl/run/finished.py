"""Whether what a finished run consists of is as it was written. Reads files only, without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.config.schema import Config
from vlmrl.errors import CheckpointError
from vlmrl.run import checkpoint
from vlmrl.run.identity import FILE, Identity
from vlmrl.run.rundir import RunDir, stage_folder
from vlmrl.train.manifest import MANIFEST, DamagedError, damage, read_sealed


def lost_of_finished(run: RunDir, cfg: Config, say: Callable[[str], None]) -> list[str]:
    """What of a finished run is not as it was written and can be made again, one line each. Call it on rank 0.

    Raises:
        CheckpointError: something that cannot be made again is damaged.
    """
    identity = _remembered(run, say)
    last, final = stage_folder(run, cfg, len(cfg.stages) - 1), run.path / "final"
    known = identity.exports.get(last.relative_to(run.path).as_posix())
    if known is None and final.is_dir() and not (final / MANIFEST).exists():
        return []  # finished by a version that wrote no hashes
    check_best(run)
    problems = damage(final, known)
    out = [f"{final}: {problems[0]}"] if problems else []
    if last.is_dir() and (problems := damage(last, known)):
        out.append(f"{last}: {problems[0]}")
    refuse_unneeded(run, cfg, identity, range(len(cfg.stages) - 1))
    out += [f"{path}: {problem}" for path, problem in identity.damaged_records().items()]
    if not out:
        check_order(run, cfg, identity, say)
        identity.write()
    return out


def _remembered(run: RunDir, say: Callable[[str], None]) -> Identity:
    """What a run was begun with and has made. Checkpoints, whose hashes take longest, are read only where its file is damaged."""
    try:
        read_sealed(run.path, FILE)
    except DamagedError:
        newest = next((path for path in reversed(checkpoint.steps(run.checkpoints)) if not checkpoint.verify(path)), None)
        return Identity.open(run.path, None if newest is None else checkpoint.load_state(newest).get("identity"), say)
    return Identity.open(run.path, None, say)


def refuse_unneeded(run: RunDir, cfg: Config, identity: Identity, indices: range) -> None:
    """Exports that nothing reads any more may be deleted, but a damaged one is told.

    Raises:
        CheckpointError: one is damaged.
    """
    for index in indices:
        folder = stage_folder(run, cfg, index)
        known = identity.exports.get(folder.relative_to(run.path).as_posix())
        if known is not None and folder.is_dir() and (problems := damage(folder, known)):
            raise CheckpointError(
                f"{folder}: {problems[0]}; no later stage reads it any more: restore it, or delete the folder to go on without it"
            )


def check_best(run: RunDir) -> None:
    """The best weights so far and what is known of them.

    Raises:
        CheckpointError: they are damaged.
    """
    path, folder = run.eval / "best.json", run.path / "best"
    if not path.exists():
        return
    way_on = f"restore it, or delete {path} and {folder}: the best is then taken among the evaluations from here on"
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        weights, _ = folder / record["stage"], float(record["value"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r}); {way_on}") from error
    if "seal" in record and (problems := damage(weights, record["seal"])):  # earlier versions kept none
        raise CheckpointError(f"{weights}: {problems[0]}; {way_on}")


def check_order(run: RunDir, cfg: Config, identity: Identity, say: Callable[[str], None]) -> None:
    """The list of evaluations is written again from the files where it is damaged, misses some, or names what has no records."""
    stages = [stage.name for stage in cfg.stages]

    def place(name: str) -> tuple[int, float]:
        stage, _, step = name.partition("@")
        at = stages.index(stage) if stage in stages else -1
        return at, float(step) if step.isdecimal() else float("inf")

    path = run.eval / "order.json"
    there = [Path(name).stem for name, _, _ in identity.records if Path(name).parent.name == "eval"]
    names = names_in(path)
    if names is None and not path.exists() and not there:
        return
    # a process that was killed as it named an evaluation has its records, and no hash of them yet
    unhashed = [name for name in names or [] if (run.eval / f"{name}.jsonl").is_file()]
    wanted = sorted(dict.fromkeys([*there, *unhashed]), key=place)
    if names != wanted:
        fs.write_text(path, json.dumps(wanted))
        say(f"{path} was damaged or missing; it was written again from the records of evaluations")


def names_in(path: Path) -> list[str] | None:
    """The list in `order.json`; None where it is missing or no list of names."""
    try:
        names = json.loads(path.read_bytes()) if path.exists() else None
    except ValueError:
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

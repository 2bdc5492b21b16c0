"""What a start verifies before anything is trained, and what it makes again where that is possible.

Verified are the base model, the rows of every source that is still to be used, every exported folder, the evaluation records and the best
weights (`run.identity`). Made again, with a line that says so: a damaged or missing export whose stage's last checkpoint is
there, `final/`, and the records of evaluations whose weights are there. What cannot be made again stops the run and is named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vlmrl import fs
from vlmrl.config.schema import SourceSection
from vlmrl.data.lazy import InOrder
from vlmrl.errors import CheckpointError, DataError
from vlmrl.evals.ask.run import task_samples
from vlmrl.policy.load import files_of
from vlmrl.run import checkpoint, kinds
from vlmrl.run.about import about
from vlmrl.run.evaluate import ask_again, record_files, suite_of
from vlmrl.run.export import export
from vlmrl.run.finished import check_best, check_order, names_in, refuse_unneeded
from vlmrl.run.identity import SourceRows
from vlmrl.run.session import Session, note_of
from vlmrl.train import dist
from vlmrl.train.manifest import MANIFEST, damage, seal_of
from vlmrl.train.stage.base import ended
from vlmrl.train.state import RunState

LARGE = 4 * 2**30
"""Bytes of weights from which on the user is told why the start takes its time."""


def verify(s: Session) -> None:
    """Compare everything that the run goes on from with what it was begun with and has made. All ranks call it.

    Raises:
        CheckpointError: something differs that cannot be made again; it is named, with a way on.
    """
    dist.on_main(lambda: _tell_size(s))
    dist.on_main(lambda: s.identity.check_model(s.places.model, files_of(s.places.model, s.cfg.model.revision)))
    _check_exports(s)
    dist.on_main(lambda: check_best(s.run))
    _check_rows(s)
    _check_records(s)


def reopen(s: Session, lost: Sequence[str]) -> None:
    """Take the mark of a finished run away, so that it goes on from its last checkpoint, which makes again what is lost.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    what = "; ".join(lost)
    if s.restored is None:
        raise CheckpointError(f"{what}; no checkpoint is left to make it again; restore it, or choose another run.name")
    s.ui.say(f"{s.run.path} was finished, but: {what}. Making it again from {s.restored.name}")

    def clear() -> None:
        s.run.note(f"made again: {what}")
        for folder in (s.stage_folder(len(s.cfg.stages) - 1), s.run.path / "final"):
            name = folder.relative_to(s.run.path).as_posix()
            if folder.exists() and damage(folder, s.identity.exports.get(name)):
                fs.remove_tree(folder)
        s.run.reopen()

    dist.on_main(clear)


# ---- exports -------------------------------------------------------------------------------------------------------------


def _check_exports(s: Session) -> None:
    """The export that the current stage starts from is verified, and made again if need be; the earlier ones are verified."""
    before = s.state.stage - 1
    if before < 0:
        return
    dist.on_main(lambda: refuse_unneeded(s.run, s.cfg, s.identity, range(before)))
    folder = s.stage_folder(before)
    problem = dist.gather(dist.on_main(lambda: _base_problem(s, folder)))[0]
    if problem is None:
        return
    source = dist.gather(dist.on_main(lambda: _end_of(s, before)))[0]
    if source is None:
        raise CheckpointError(
            f"{folder}: {problem}; stage '{s.cfg.stages[s.state.stage].name}' starts from it, and the checkpoint at the end of stage "
            f"'{s.cfg.stages[before].name}', from which it could be made again, is gone; restore the folder from a copy, or delete "
            f"{s.run.checkpoints} and {s.run.path / 'stages'} to train all stages again"
        )
    dist.on_main(lambda: s.run.note(f"{folder}: {problem}; made again from {source.name}"))
    s.ui.say(f"{folder}: {problem}; making it again from {source.name}")
    _export_again(s, before, source)


def _base_problem(s: Session, folder: Path) -> str | None:
    """Why a stage cannot start from the export before it; None where it can."""
    known = s.identity.exports.get(folder.relative_to(s.run.path).as_posix())
    if known is None and folder.is_dir() and not (folder / MANIFEST).exists():
        s.ui.say(f"{folder} was exported by an earlier version, without hashes: it cannot be verified")
        return None
    problems = damage(folder, known)
    if known is None and not problems:
        s.identity.made(folder, seal_of(folder))
    return problems[0] if problems else None


def _end_of(s: Session, index: int) -> Path | None:
    """The checkpoint at the end of a stage, if it is there and verifies, and what the stage started from is there as well."""
    if index > 0 and damage(s.stage_folder(index - 1)):
        return None
    for path in reversed(checkpoint.steps(s.run.checkpoints)):
        if not checkpoint.verify(path):
            state = checkpoint.load_state(path)["run"]
            if state["stage"] == index and ended(s.cfg.stages[index], state["step"], state["held_out_score"]):
                return path
    return None


def _export_again(s: Session, index: int, source: Path) -> None:
    """Restore a stage at its end, which trains nothing, and export it."""
    state = RunState()
    state.load_state_dict(checkpoint.load_state(source)["run"])
    then = replace(s, state=state, restored=source, base=s.base_of(index))
    then.open_policy()
    kinds.run_stage(then, s.cfg.stages[index])
    folder = s.stage_folder(index)
    seal = export(then.policy, folder, about=about(then))
    dist.on_main(lambda: s.identity.made(folder, seal))


# ---- rows ----------------------------------------------------------------------------------------------------------------


def _check_rows(s: Session) -> None:
    """Rows of the stages that are not over yet, and of the evaluations. They are read here, all before the first step."""
    coming = s.cfg.stages[s.state.stage :]
    wanted: list[tuple[SourceSection, str]] = [(cfg.source, cfg.answer_format) for cfg in coming]
    wanted += [(cfg.until.source, cfg.answer_format) for cfg in coming if cfg.until is not None]
    needed, held_out = set(wanted), s.cfg.eval.source
    if held_out is not None:
        wanted.append((held_out, s.cfg.stages[-1].answer_format))
    accept, note = s.cfg.data.changed == "accept", note_of(s.run, s.ui)
    for source, answer_format in dict.fromkeys(wanted):
        try:
            rows = s.rows_of(source, answer_format)
        except DataError:
            if (source, answer_format) in needed:
                raise
            continue  # as for a suite: the evaluation tells it, and training goes on
        given = SourceRows(samples=InOrder(rows.samples), root=s.encoder.root, left_out=rows.left_out, known=rows.marks)
        key = [answer_format, source.model_dump(mode="json")]
        dist.on_main(lambda source=source, key=key, given=given: s.identity.check_rows(source.path, key, given, accept=accept, note=note))
    if s.cfg.eval.suite is not None:
        dist.on_main(lambda: _check_suite(s, accept))


def _check_suite(s: Session, accept: bool) -> None:
    """Rows of the tasks of a suite. A task whose rows cannot be read is told by the evaluation, which may fail without stopping a run."""
    suite, root = suite_of(s.cfg.eval.suite, s.cfg.eval.data_root)
    for task in suite.tasks:
        try:
            samples, _ = task_samples(task, root, None)
        except DataError:
            continue
        given = SourceRows(samples=samples, root=lambda sample: root / sample.media_root)
        s.identity.check_rows(f"task {task.id}", [task.limit], given, accept=accept, note=note_of(s.run, s.ui))


# ---- evaluation records --------------------------------------------------------------------------------------------------


def _check_records(s: Session) -> None:
    """Records of evaluations that are over. Those of weights that are still there are made again."""
    again = dist.gather(dist.on_main(lambda: _lost_evaluations(s)))[0] or {}
    for name, weights in again.items():
        s.ui.say(f"asking the held-out questions of '{name}' again")
        ask_again(s, name, weights)
    dist.on_main(lambda: check_order(s.run, s.cfg, s.identity, s.ui.say))


def _lost_evaluations(s: Session) -> dict[str, str]:
    """Evaluation -> its weights, of those to be made again. Damaged files are set aside.

    Raises:
        CheckpointError: the records of an evaluation within a stage are damaged: its weights are gone.
    """
    stages = [cfg.name for cfg in s.cfg.stages]
    again: dict[str, str] = {}
    for path, problem in s.identity.damaged_records().items():
        inner = path.relative_to(s.run.eval)
        name = inner.parts[1] if inner.parts[0] == "suite" else path.stem
        coming = name == stages[s.state.stage] or (name == "base" and s.state.global_step == 0)
        index = stages.index(name) if name in stages else -1
        weights = s.places.model if name == "base" else str(s.stage_folder(index)) if 0 <= index < s.state.stage else None
        possible = weights is not None and path in record_files(s, name) and (name == "base" or Path(weights).is_dir())
        if not coming and not possible:
            if path.is_file():
                raise CheckpointError(
                    f"{path}: {problem}; the weights of this evaluation are gone, so it cannot be made again: restore the file, or delete "
                    "it to go on without this evaluation"
                )
            _give_up(s, name, path)
            continue
        if path.is_file():
            bad = path.with_name(f"bad-{fs.temporary_name(path.name).removeprefix(fs.TEMPORARY)}")
            fs.rename(path, bad)
            fs.fsync_dir(path.parent)
            problem += f", renamed to {bad.name}"
        s.identity.forget(path)
        note_of(s.run, s.ui)(f"{path}: {problem}; its questions are asked again")
        if not coming:
            assert weights is not None
            again[name] = weights
    return again


def _give_up(s: Session, name: str, path: Path) -> None:
    """An evaluation whose records were deleted and whose weights are gone is no longer part of the run."""
    s.identity.forget(path)
    order = s.run.eval / "order.json"
    names = names_in(order)
    if path.parent == s.run.eval and names is not None and name in names:
        fs.write_text(order, json.dumps([other for other in names if other != name]))
    note_of(s.run, s.ui)(f"{path} is missing: the evaluation '{name}' is left out from here on")


def _tell_size(s: Session) -> None:
    """Say that hashing takes time where there is much of it."""
    folders = [files_of(s.places.model, s.cfg.model.revision), *(s.run.path / name for name in s.identity.exports)]
    weights = [path for folder in folders if folder is not None and folder.is_dir() for path in folder.glob("*.safetensors")]
    size = sum(path.stat().st_size for path in weights)
    if size > LARGE:
        s.ui.say(f"comparing {size / 2**30:.0f} GiB of weights with their hashes")

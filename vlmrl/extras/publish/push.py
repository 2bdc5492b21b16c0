"""Uploads of a run's weights while it trains (`run.push_to_hub`).

One process beside the trainer uploads a folder at a time (`publish.sender`), so that nothing of it takes time from a step. A failed upload
is said and costs nothing: the next weights are tried, and the last ones in any case once the run has ended. Then a failure is an
error, with the command that uploads what is there. Only rank 0 uploads.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vlmrl import fs
from vlmrl.config.schema import Config
from vlmrl.config.train import HubSection
from vlmrl.errors import ConfigError, Preempted, RemoteError, StorageError
from vlmrl.extras.publish.hub import check_repo
from vlmrl.run.about import about
from vlmrl.run.export import export
from vlmrl.run.rundir import RunDir
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.stage.base import Stage, StepResult

FOLDER = "hub"
"""Folder of a run for weights that are uploaded within a stage; each goes once it is uploaded or a later one takes its place."""
LOGIN = 15.0
"""Seconds that the start of a run waits for the hub's answer to its login."""


@dataclass
class _Upload:
    """One that is under way."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    what: str
    folder: Path | None


@dataclass
class Publisher:
    """What a run calls at its checkpoints, at the end of its stages and at its end. Every rank has one."""

    section: HubSection
    run: RunDir
    say: Callable[[str], None]
    _now: _Upload | None = field(default=None, init=False)

    # ---- what the run calls ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the repository, so that a login that is missing is said before anything is trained. Call it on rank 0."""
        self._begin(None, "the repository")
        if self._now is not None:
            with suppress(subprocess.TimeoutExpired):  # a hub that does not answer is seen to later
                self._now.process.wait(LOGIN)
        self.look()

    def checkpoint(self, s: Session, every: int) -> Callable[[Stage, StepResult], None]:
        """Make the hook behind a stage's checkpoints, which fall on every so many steps. All ranks export: weights may lie in shards."""

        def upload(stage: Stage, result: StepResult) -> None:
            if dist.is_main():
                self.look()
            due = self.section.every == "checkpoint" and stage.state.step % every == 0 and not stage.ended and not result.stop
            if not due or dist.gather(self._now is not None)[0]:
                return
            name = f"{stage.cfg.name}@{stage.state.step}"
            folder = self.run.path / FOLDER / name
            with stage.clock.phase("export"):
                try:
                    export(s.policy, folder, about=about(s, name), dtype=s.export_dtype)
                except (StorageError, dist.RankFailed) as error:
                    self.say(f"warning: {name} is not uploaded to {self.section.repo}: {error}")
                    return
            dist.on_main(lambda: self._begin(folder, f"step {stage.state.step} of stage '{stage.cfg.name}'"))

        return upload

    def stage(self, folder: Path, name: str) -> None:
        """Upload what a stage has exported, unless only the end is asked for. Call it on rank 0."""
        if self.section.every != "end":
            self._stop()
            self._begin(folder, f"stage '{name}'")

    def end(self) -> None:
        """Upload `final/` and wait for it. Call it on rank 0.

        Raises:
            RemoteError: the hub did not take it; the command that uploads it is said.
            Preempted: a signal has come.
        """
        self._stop()
        self.say(f"uploading {self.run.path / 'final'} to {self.section.repo}")
        self._begin(self.run.path / "final", "the weights of the finished run")
        while self._now is not None and self._now.process.poll() is None:
            if self.run.stop_requested:
                self._stop()
                raise Preempted(f"stopped by a signal; the run is finished, and its weights are not uploaded: {self.command()}")
            time.sleep(0.1)
        problem = "no process could be started" if self._now is None else self._result()
        if problem is not None:
            raise RemoteError(f"{problem}; the run is finished and its weights are whole: {self.command()}")

    def close(self) -> None:
        """End an upload that is under way: the next start, or the end of the run, uploads later weights."""
        self._stop()
        self._remove(self.run.path / FOLDER)

    # ---- the process -------------------------------------------------------------------------------------------------------

    def command(self) -> str:
        """What uploads the finished run by hand."""
        words = [
            "vlmrl",
            "publish",
            str(self.run.path / "final"),
            "--to",
            self.section.repo,
            "--license",
            self.section.license or "LICENSE",
        ]
        return f"upload them with `{shlex.join([*words, *(['--private'] if self.section.private else [])])}`"

    def look(self) -> None:
        """Say what became of an upload that has ended."""
        if self._now is not None and self._now.process.poll() is not None and (problem := self._result()) is not None:
            self.say(f"warning: {problem}; training goes on, and later weights are tried")

    def _begin(self, folder: Path | None, what: str) -> None:
        given = self.section
        words = [sys.executable, "-m", "vlmrl.extras.publish.sender", given.repo, "--message", f"vlmrl train: {what}"]
        words += [] if folder is None else ["--folder", str(folder)]
        words += ["--license", given.license] if given.license else []
        output = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        try:
            process = subprocess.Popen(
                [*words, *(["--private"] if given.private else [])],
                env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is the trainer's
            )
        except OSError as error:
            self.say(f"warning: {what} is not uploaded to {given.repo}: {error}")
            return
        self._now = _Upload(process, output, what, folder)

    def _result(self) -> str | None:
        """Take in an upload that has ended: its problem, or None where it went well."""
        assert self._now is not None
        now, self._now = self._now, None
        now.output.seek(0)
        lines = [line for line in now.output.read().decode(errors="replace").splitlines() if line.strip()]
        now.output.close()
        if now.folder is not None and now.folder.parent.name == FOLDER:
            self._remove(now.folder)
        if now.process.returncode == 0:
            if now.folder is not None:
                self.say(f"uploaded {now.what}: {lines[-1] if lines else self.section.repo}")
            return None
        return f"{now.what}: {lines[-1] if lines else f'{self.section.repo}: exit code {now.process.returncode}'}"

    def _remove(self, folder: Path) -> None:
        try:
            fs.remove_tree(folder)
        except StorageError as error:
            self.say(f"warning: {folder} is not deleted: {error}")

    def _stop(self) -> None:
        """End an upload that is under way, and say what became of one that has ended."""
        self.look()
        if self._now is not None:
            self._now.process.terminate()
            self._now.process.wait()
            self._now.output.close()
            self._now = None


def of_run(cfg: Config, run: RunDir, say: Callable[[str], None]) -> Publisher:
    """Make the publisher of a run.

    Raises:
        ConfigError: the repository has no name that a hub takes.
    """
    section: Any = cfg.run.push_to_hub
    if section is None:
        raise ConfigError("run.push_to_hub is not given")
    check_repo(section.repo, "run.push_to_hub.repo")
    return Publisher(section, run, say)

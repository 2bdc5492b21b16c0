"""A study from its plan to its report: pilots, then the seeds of each look, until everything is decided."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.study.forecast import Forecast, forecasts
from vlmrl.extras.study.judge import Finding, OfArms, Resolution, judge
from vlmrl.extras.study.looks import levels
from vlmrl.extras.study.measures import Measured, Own, measured, own_measures, require, resolution_of, unknown_measures
from vlmrl.extras.study.plan import PLAN, Plan, Run, digest, fix
from vlmrl.extras.study.runs import COSTS, PROGRAM, Failure, run_all, share, with_needs
from vlmrl.extras.study.spec import Study, parts_of
from vlmrl.extras.study.stats import OPEN, Level

Say = Callable[[str], None]


@dataclass(frozen=True)
class Look:
    """Pilots, or the runs of all seeds up to a look."""

    name: str
    runs: tuple[Run, ...]
    seeds: int
    """0 for pilots."""
    level: Level


@dataclass
class Results:
    """What the runs say so far."""

    study: Study
    look: Look | None
    """The look that the verdicts are of; None while runs of the first are missing."""
    findings: list[Finding] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """Verdicts of earlier looks."""
    left: list[Run] = field(default_factory=list)
    """Runs that the next look needs."""
    runs: dict[str, dict[int, Measured]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, dict[int, dict[str, float]]]:
        """Arm -> seed -> measure -> value."""
        return {arm: {seed: one.values for seed, one in of.items()} for arm, of in self.runs.items()}

    @property
    def decided(self) -> bool:
        """Whether nothing is left to run."""
        return not self.left


class Conductor:
    """A study in its folder."""

    def __init__(self, study: Study, out: Path, *, program: Sequence[str] = PROGRAM):
        """Make one; nothing is read or written yet."""
        self.plan = Plan(study, out)
        self.study, self.out = study, out
        self._program = program

    @cached_property
    def recipes(self) -> dict[str, dict[str, Any]]:
        """Arm -> its recipe, flat."""
        return self.plan.recipes()

    @cached_property
    def own(self) -> list[Own]:
        return own_measures(self.study.measures)

    @cached_property
    def looks(self) -> list[Look]:
        """Pilots if there are any, then the looks, each with the runs of those before it."""
        pilots = [] if self.study.pilot is None else self.plan.runs(self.study.pilot.seeds, pilot=True)
        found = [Look("pilot", tuple(pilots), 0, Level())] if pilots else []
        at = levels(self.study.looks_at, None if self.study.looks is None else self.study.looks.spending)
        for n, level in zip(self.study.looks_at, at, strict=True):
            found.append(Look(f"{n} seeds", tuple(self.plan.runs(self.study.seeds[:n])), n, level))
        return found

    def check(self) -> None:
        """Find before the first run what would only be found behind all of them.

        Raises:
            ConfigError: an arm has no held-out rows, or a measure that nothing measures.
        """
        problems = [
            f"arms.{arm}: the recipe has no held-out rows (eval.source), so nothing could be judged"
            for arm, values in self.recipes.items()
            if values.get("eval.source", "") is None
        ]
        problems += [] if self.own else unknown_measures(self.named())
        if problems:
            raise ConfigError(problems)

    @property
    def digest(self) -> str:
        return digest(self.plan.asked(self.recipes))

    @property
    def begun(self) -> bool:
        """Whether a run was started."""
        return any((self.out / name).exists() for name in ("logs", "runs", "pilot", "starts"))

    def fix(self) -> str:
        """Write the plan, or hold it against the one that is there. As long as no run was started it may change.

        Raises:
            ConfigError: something else was asked when the first run was started.
        """
        asked = self.plan.asked(self.recipes)
        if not self.begun:
            (self.out / PLAN).unlink(missing_ok=True)
        return fix(self.out, asked)

    # ---- power

    def forecasts(self) -> list[Forecast]:
        """Say what the seeds can tell; nothing while pilots are missing."""
        pilot, resolution = None, resolution_of(0)
        if self.study.pilot is not None:
            runs = self.looks[0].runs
            if not all(run.done for run in runs):
                return []
            found = self._read(runs)
            pilot = {arm: {seed: one.values for seed, one in of.items()} for arm, of in found.items()}
            require([str(one.measure) for one in self.study.questions()], pilot)
            resolution = resolution_of(_questions(found))
        return forecasts(self.study, pilot, resolution)

    # ---- runs

    def work(self, say: Say, *, jobs: int = 1, task: tuple[int, int] | None = None) -> list[Failure]:
        """Run what is left, look after look, until everything is decided or a run has failed.

        Args:
            task: (index from 0, number) of one task of an array, which runs its share alone.

        Raises:
            Preempted: a signal asked for it.
        """
        told = False
        while True:
            if not told and (lines := self.forecasts()):
                told = True
                for one in lines:
                    say(f"power: {one.line()}")
            look = self.next_look()
            if look is None:
                return []
            mine = list(look.runs) if task is None else share(look.runs, *task)
            left = [run for run in mine if not run.done]
            if task is not None and not left:
                others = sum(not run.done for run in look.runs)
                say(f"{look.name}: this task's runs are done; {others} of other tasks are left")
                return []
            say(f"{look.name}: {len(left)} runs to do, {len(mine) - len(left)} done")
            if failed := run_all(left, self.out, say, jobs=jobs, program=self._program):
                return failed

    def next_look(self) -> Look | None:
        """Find the first look with runs left to do; None when everything is decided."""
        for look in self.looks:
            if not all(run.done for run in look.runs):
                return look
            if look.seeds and all(one.verdict != OPEN for one in self._judged(look)):
                return None
        return None

    def left(self) -> list[Run]:
        """List the runs that are left until the next look, with what they begin from."""
        look = self.next_look()
        return [] if look is None else [run for run in with_needs([run for run in look.runs if not run.done]) if not run.done]

    # ---- results

    def results(self) -> Results:
        """Judge by the last look whose runs are all done.

        Raises:
            ConfigError: a measure is in no run.
        """
        done = [look for look in self.looks if look.seeds and all(run.done for run in look.runs)]
        # a look behind the one that decided everything was never taken
        taken: list[Look] = []
        for look in done:
            taken.append(look)
            if all(one.verdict != OPEN for one in self._judged(look)):
                break
        out = Results(self.study, taken[-1] if taken else None, left=self.left())
        out.runs = self._read([run for run in self.looks[-1].runs if run.done])
        out.earlier = [
            {"seeds": look.seeds, "verdicts": {str(one.comparison.name): one.verdict for one in self._judged(look)}} for look in taken[:-1]
        ]
        if taken:
            out.findings = self._judged(taken[-1])
        return out

    def _judged(self, look: Look) -> list[Finding]:
        found = self._read(look.runs)
        values = {arm: {seed: one.values for seed, one in of.items()} for arm, of in found.items()}
        require(self.named(), values)
        return judged(self.study, values, resolution_of(_questions(found)), look.level)

    def named(self) -> list[str]:
        """List all measures that the study names."""
        parts = [str(part.measure) for _, part in parts_of(self.study) if part.measure is not None]
        shown = [name for one in self.study.comparisons for name in one.shown]
        return list(dict.fromkeys([*([self.study.measure] if self.study.measure else []), *parts, *shown]))

    def _read(self, runs: Sequence[Run]) -> dict[str, dict[int, Measured]]:
        out: dict[str, dict[int, Measured]] = {}
        for run in runs:
            if run.mark not in self._kept:
                self._kept[run.mark] = measured(run.folder, self.own, self.named())
            out.setdefault(run.arm, {})[run.seed] = self._kept[run.mark]
        return out

    @cached_property
    def _kept(self) -> dict[Path, Measured]:
        return {}

    def costs(self) -> list[dict[str, Any]]:
        """Read what the runs took that were done in one go."""
        path = self.out / COSTS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


def judged(study: Study, values: OfArms, resolution: Resolution, level: Level) -> list[Finding]:
    """Judge every comparison of a study."""
    return [judge(one, values, resolution, level) for one in study.questions()]


def _questions(found: Mapping[str, Mapping[int, Measured]]) -> int:
    """Held-out questions: as many as all runs have at least."""
    return min((one.questions for of in found.values() for one in of.values()), default=0)


def array_task(text: str | None, environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Read which share is ours: `I/N` with I from 0, else slurm's variables of an array.

    Raises:
        ConfigError: it is no share.
    """
    if text is None:
        index, count = environment.get("SLURM_ARRAY_TASK_ID"), environment.get("SLURM_ARRAY_TASK_COUNT")
        if index is None or count is None:
            return None
        text = f"{int(index) - int(environment.get('SLURM_ARRAY_TASK_MIN', '0'))}/{count}"
    index, _, count = text.partition("/")
    if not index.isdecimal() or not count.isdecimal() or not int(index) < int(count):
        raise ConfigError(f"--task: expected I/N with I from 0 to N - 1, as 0/8; got '{text}'")
    return int(index), int(count)

"""What a study's file says: arms, seeds, the measure that decides, the smallest effect of interest, premises and looks.

recipe: toy_shell
arms: {grpo: [], median: {stages.rl.advantage: {name: mc_grpo}}}
seeds: 5
measure: {metric: exact, at: auc}
delta: 0.05
spread: 0.04
comparisons: [{arm: median, control: grpo}]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vlmrl.config.names import PlainName
from vlmrl.errors import ConfigError
from vlmrl.registry import nearest

SEED = "run.seed"
WHEN = ("start", "end", "auc")
"""Of an evaluation's curve: before the last stage, after it, and the mean height between."""
_FREE = ("run.", "checkpoint.", "keep.", "media.cache_bytes=")
"""How settings begin that change no number of a run."""


class Part(BaseModel):
    """Base of all parts: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _overrides(value: Any) -> Any:
    """`key=value` lines of a list of such lines, or of a mapping of dotted keys."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items())
    return value


def _measure(value: Any) -> Any:
    """`end exact in TASK of CATEGORY`, from that text or from a mapping."""
    if not isinstance(value, Mapping):
        return value
    known = ("metric", "at", "task", "category")
    if wrong := [str(key) for key in value if key not in known]:
        raise ValueError(f"unknown key '{wrong[0]}'{nearest(wrong[0], list(known))} (known: {', '.join(known)})")
    if "metric" not in value:
        raise ValueError("a measure has a metric, as {metric: exact, at: end}")
    if (at := value.get("at", "end")) not in WHEN:
        raise ValueError(f"at: expected one of {', '.join(WHEN)}, got '{at}'")
    task, category = value.get("task"), value.get("category")
    return " ".join([at, str(value["metric"]), *(["in", str(task)] if task else []), *(["of", str(category)] if category else [])])


Overrides = Annotated[tuple[str, ...], BeforeValidator(_overrides)]
Measure = Annotated[str, BeforeValidator(_measure)]
Direction = Literal["higher", "lower"]
Positive = Annotated[float, Field(gt=0)]


class Arm(Part):
    """One way to train."""

    set: Overrides = Field(default=(), description="Overrides of the recipe")
    start: str | None = Field(default=None, description="Run of `starts` whose model it begins from")
    takes: dict[str, str] = Field(default_factory=dict, description="Key -> run of `starts` whose model is its value, as a teacher's")
    seeds: int | None = Field(default=None, gt=0, description="Only the first so many seeds, for an arm that serves a premise")


class Start(Part):
    """A run that several arms begin from, made once per seed: mostly the supervised stage."""

    set: Overrides = Field(default=(), description="Overrides of the recipe")
    stages: tuple[str, ...] = Field(default=(), description="Stages of the recipe that it trains, and its arms do not; all if empty")


class Premise(Part):
    """What has to be so for the question to make sense: the mean over seeds of a measure of an arm (minus that of another) has bounds."""

    text: str = Field(default="", description="What it is, in words")
    arm: str
    control: str | None = Field(default=None, description="Arm that is subtracted")
    measure: Measure
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _has_bounds(self) -> Premise:
        if self.low is None and self.high is None:
            raise ValueError("a premise has a bound: low, high or both")
        return self

    @property
    def title(self) -> str:
        return self.text or self.measure


class Condition(Part):
    """A further condition, which decides nothing: an effect above 0, or (with a margin) one not below -margin."""

    text: str = ""
    arm: str = Field(default="", description="By default those of the comparison")
    control: str | None = None
    measure: Measure
    direction: Direction = "higher"
    margin: float = Field(default=0.0, ge=0)

    @property
    def title(self) -> str:
        return self.text or self.measure

    @property
    def sign(self) -> int:
        return 1 if self.direction == "higher" else -1


class Spread(Part):
    """Deviation over seeds of the paired difference that the number of seeds is planned with."""

    sd: Positive
    seeds: int | None = Field(default=None, ge=2, description="Seeds that it was estimated from; left out where it is assumed")
    source: str = Field(default="", description="Where it is from")


class Comparison(Part):
    """One question: an arm against its control (or a measure of one arm against 0), with premises and further conditions of its own."""

    name: PlainName | None = None
    text: str = Field(default="", description="What decides, in words")
    arm: str
    control: str | None = None
    measure: Measure | None = Field(default=None, description="By default that of the study; so are the next two")
    direction: Direction | None = None
    delta: Positive | None = None
    spread: Spread | None = None
    premises: tuple[Premise, ...] = ()
    secondary: tuple[Condition, ...] = ()
    shown: tuple[Measure, ...] = Field(default=(), description="Further measures in its table")


class Pilot(Part):
    """Runs that only tell the spread; none of them is in a verdict."""

    seeds: tuple[int, ...] = Field(min_length=2)


class Looks(Part):
    """Numbers of seeds after which it is judged; it ends when all is decided."""

    at: tuple[int, ...] = Field(min_length=1)
    spending: Literal["pocock", "obrien_fleming"] = "obrien_fleming"


class Study(Part):
    """The file."""

    name: PlainName = Field(default="study", description="Name of its folder")
    recipe: str = Field(description="Recipe of all arms: a name, or a file beside the study's")
    set: Overrides = Field(default=(), description="Overrides of all arms")
    machine: Overrides = Field(default=("run.threads=1",), description="Overrides that change no number; may change at any time")
    starts: dict[PlainName, Start] = Field(default_factory=dict)
    arms: dict[PlainName, Arm]
    seeds: tuple[int, ...] = Field(description="A list, or how many from 0 on")
    pair: tuple[str, ...] = Field(default=(SEED,), description="Keys that follow the seed")
    measure: Measure | None = Field(default=None, description="What decides, unless a comparison says another")
    direction: Direction = "higher"
    delta: Positive | None = Field(default=None, description="Smallest effect of interest")
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    premises: tuple[Premise, ...] = Field(default=(), description="Of all comparisons")
    secondary: tuple[Condition, ...] = Field(default=(), description="Of all comparisons, with Holm's correction within each")
    spread: Spread | None = None
    pilot: Pilot | None = None
    looks: Looks | None = None
    measures: tuple[str, ...] = Field(default=(), description="Functions `module:name` that read further measures of a run")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """A number of seeds, a bare spread, and arms that are only overrides."""
        if not isinstance(data, dict):
            return data
        out = dict(data)
        if isinstance(out.get("seeds"), int) and not isinstance(out["seeds"], bool):
            out["seeds"] = tuple(range(max(0, out["seeds"])))
        if isinstance(out.get("spread"), int | float):
            out["spread"] = {"sd": out["spread"]}
        for part, model in (("arms", Arm), ("starts", Start)):
            if isinstance(arms := out.get(part), dict):
                out[part] = {name: _as_arm(value, model) for name, value in arms.items()}
        return out

    @model_validator(mode="after")
    def _fits(self) -> Study:
        problems = [*_unknown_arms(self), *_seed_problems(self), *_setting_problems(self), *_measure_problems(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def looks_at(self) -> tuple[int, ...]:
        """Numbers of seeds after which it is judged."""
        return (len(self.seeds),) if self.looks is None else self.looks.at

    def seeds_of(self, arm: str, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the seeds that an arm has."""
        return seeds[: self.arms[arm].seeds]

    def given(self, overrides: Sequence[str]) -> Study:
        """The study with overrides of all arms from a command line. A key that followed the seed no longer does.

        Raises:
            ConfigError: one is no override, belongs to the study itself, or an arm or start says something else.
        """
        owners = {f"arms.{name}": arm.set for name, arm in self.arms.items()}
        owners |= {f"starts.{name}": start.set for name, start in self.starts.items()}
        own = [(where, _key(said)) for where, lines in owners.items() for said in lines]
        problems: list[str] = []
        for line in overrides:
            key = _key(line)
            if "=" not in line:
                problems.append(f"'{line}': expected section.key=value")
            elif key in (SEED, "run.name", "run.root"):
                problems.append(f"'{line}': {key} is set by the study for each run")
            problems += [f"'{line}': {where} sets {theirs} itself" for where, theirs in own if _meet(key, theirs)]
        if problems:
            raise ConfigError(problems)
        free = tuple(line for line in overrides if line.startswith(_FREE))
        keys = {_key(line) for line in overrides}
        return self.model_copy(
            update={
                "set": (*self.set, *(line for line in overrides if line not in free)),
                "machine": (*self.machine, *free),
                "pair": tuple(key for key in self.pair if key not in keys),
            }
        )

    def questions(self) -> tuple[Comparison, ...]:
        """The comparisons with everything filled in that the study says for all of them."""
        out: list[Comparison] = []
        for one in self.comparisons:
            mine = [
                s if s.arm else s.model_copy(update={"arm": one.arm, "control": one.control}) for s in (*one.secondary, *self.secondary)
            ]
            changes = {
                "name": one.name or (one.arm if one.control is None else f"{one.arm}-{one.control}"),
                "measure": one.measure or self.measure,
                "direction": one.direction or self.direction,
                "delta": one.delta or self.delta,
                "spread": one.spread or self.spread,
                "premises": (*one.premises, *self.premises),
                "secondary": tuple(mine),
            }
            out.append(one.model_copy(update=changes))
        return tuple(out)


def _key(line: str) -> str:
    """The key of an override."""
    return line.partition("=")[0].strip()


def _meet(one: str, other: str) -> bool:
    """Whether two keys are the same, or one is a part of the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _as_arm(value: Any, model: type[Part]) -> Any:
    """Overrides as the arm that has them: a list, or a mapping whose keys are not those of an arm."""
    if value is None:
        return {}
    if isinstance(value, list | tuple) or (isinstance(value, Mapping) and value and not set(value) & set(model.model_fields)):
        return {"set": value}
    return value


def parts_of(study: Study) -> Iterator[tuple[str, Premise | Condition | Comparison]]:
    """(Where it stands, part) of everything that names an arm and a measure."""
    yield from ((f"comparisons.{i}", one) for i, one in enumerate(study.comparisons))
    holders = [("", study), *((f"comparisons.{i}.", one) for i, one in enumerate(study.comparisons))]
    for where, holder in holders:
        yield from ((f"{where}premises.{i}", one) for i, one in enumerate(holder.premises))
        yield from ((f"{where}secondary.{i}", one) for i, one in enumerate(holder.secondary))


def _unknown_arms(study: Study) -> Iterator[str]:
    for where, part in parts_of(study):
        for key, name in (("arm", part.arm), ("control", part.control)):
            if name and name not in study.arms:
                yield f"{where}.{key}: no arm '{name}'{nearest(name, list(study.arms))} (arms: {', '.join(study.arms)})"
        if part.arm and part.arm == part.control:
            yield f"{where}: '{part.arm}' is compared with itself"
    for name, arm in study.arms.items():
        for key, start in (("start", arm.start), *((f"takes.{key}", start) for key, start in arm.takes.items())):
            if start is not None and start not in study.starts:
                yield f"arms.{name}.{key}: no '{start}' in starts{nearest(start, list(study.starts))}"
    names = [one.name for one in study.questions()]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        yield f"comparisons: '{twice}' is there twice; give each a name of its own"


def _seed_problems(study: Study) -> Iterator[str]:
    if not study.seeds or len(set(study.seeds)) < len(study.seeds) or min(study.seeds) < 0:
        yield f"seeds: expected different numbers from 0 on, or how many; got {list(study.seeds)}"
    if SEED not in study.pair:
        yield f"pair: {SEED} is not in it, so all runs of an arm would be the same run"
    if study.pilot is not None and (both := sorted(set(study.pilot.seeds) & set(study.seeds))):
        yield f"pilot.seeds: {both} are seeds of the study too; a pilot is never part of a verdict"
    if study.looks is not None:
        at = study.looks.at
        if list(at) != sorted(set(at)) or at[0] < 2 or at[-1] != len(study.seeds):
            yield f"looks.at: expected rising numbers of seeds from 2 to all {len(study.seeds)}, got {list(at)}"
    if study.pilot is None and any(one.spread is None for one in study.questions()):
        yield "spread: how much the difference varies over seeds is not said; give it, or seeds of a pilot: pilot: {seeds: [100, 101, 102]}"
    if study.pilot is not None and any(one.spread is not None for one in study.questions()):
        yield "spread: there is a pilot too; leave one of them out"


def _setting_problems(study: Study) -> Iterator[str]:
    groups = [("set", study.set), *((f"arms.{name}", arm.set) for name, arm in study.arms.items())]
    for where, lines in (*groups, *((f"starts.{name}", start.set) for name, start in study.starts.items())):
        for line in lines:
            key = _key(line)
            if "=" not in line:
                yield f"{where}: '{line}': expected section.key=value"
            elif key in (*study.pair, "run.name", "run.root"):
                yield f"{where}: {key} is set by the study for each run"
    for line in study.machine:
        if not line.startswith(_FREE) or line.startswith(("run.seed", "run.name", "run.root")):
            yield f"machine: '{line}': only what changes no number stands here (run.*, checkpoint.*, keep.*); other settings stand in 'set'"


def _measure_problems(study: Study) -> Iterator[str]:
    for one in study.questions():
        for key in ("measure", "delta"):
            if getattr(one, key) is None:
                yield f"{key}: neither the study nor the comparison '{one.name}' says it"

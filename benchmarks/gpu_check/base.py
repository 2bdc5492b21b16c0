"""A check, the numbers that it measures, and the limits that they are held against."""

from __future__ import annotations

import dataclasses
import importlib
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "FAIL", "skip"]
Value = float | int | str | bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a check is told."""

    device: Literal["cpu", "cuda"]
    gpus: int
    """CUDA devices that may be used."""
    quick: bool
    work: Path
    """Folder for files; it goes away at the end."""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def pick(self, *, gpu: Any, cpu: Any, quick: Any) -> Any:
        """An amount of work: that of a GPU, of a CPU, or of `--quick`."""
        return quick if self.quick else gpu if self.cuda else cpu

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"work": str(self.work)}

    @staticmethod
    def of_json(given: dict[str, Any]) -> Settings:
        return Settings(**{**given, "work": Path(given["work"])})


@dataclass(frozen=True, kw_only=True)
class Number:
    """One measured value, and what it may be."""

    name: str
    value: Value
    unit: str = ""
    limit: str = ""
    """Empty: it is told and not judged."""
    ok: bool = True

    def __str__(self) -> str:
        shown = f"{self.value:.3g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.name} {shown}{f' {self.unit}' if self.unit else ''}{f' ({self.limit})' if self.limit else ''}"


def at_most(name: str, value: float, limit: float, unit: str = "") -> Number:
    """A number that is not a number is over every limit."""
    return Number(name=name, value=value, unit=unit, limit=f"<= {limit:g}", ok=value <= limit)


def at_least(name: str, value: float, limit: float, unit: str = "") -> Number:
    return Number(name=name, value=value, unit=unit, limit=f">= {limit:g}", ok=value >= limit)


def equals(name: str, value: Value, wanted: Value) -> Number:
    return Number(name=name, value=value, limit=f"= {wanted}", ok=value == wanted)


def told(name: str, value: Value, unit: str = "") -> Number:
    """Measured, and not judged."""
    return Number(name=name, value=value, unit=unit)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the report."""

    check: str
    part: str
    status: Status
    numbers: tuple[Number, ...] = ()
    note: str = ""
    """Why it was skipped or failed, or what to know about the numbers."""

    @property
    def name(self) -> str:
        return f"{self.check}.{self.part}" if self.part else self.check

    def value(self, name: str) -> Value | None:
        return next((number.value for number in self.numbers if number.name == name), None)

    def __str__(self) -> str:
        return f"{self.status:<5} {self.name:<34} {'  '.join([*map(str, self.numbers), *([self.note] if self.note else [])])}"

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(given: dict[str, Any]) -> Line:
        numbers: Any = tuple(Number(**number) for number in given["numbers"])
        return Line(**{**given, "numbers": numbers})


@dataclass
class Report:
    """What a check writes its lines to."""

    check: str
    emit: Callable[[Line], None]

    def line(self, part: str, *numbers: Number, note: str = "", failed: bool = False) -> None:
        """FAIL if a number is beyond its limit, or as told."""
        status: Status = "FAIL" if failed or not all(number.ok for number in numbers) else "ok"
        self._tell(Line(check=self.check, part=part, status=status, numbers=numbers, note=note))

    def skip(self, part: str, why: str) -> None:
        self._tell(Line(check=self.check, part=part, status="skip", note=why))

    def _tell(self, line: Line) -> None:
        """
        Raises:
            RuntimeError: a line that the check does not have, so that no page says what it means.
        """
        if line.part and not any(is_of(line.part, one) for one in CHECKS[line.check].lines):
            raise RuntimeError(f"no line '{line.part}' among those of the check '{line.check}'")
        self.emit(line)

    def attempt(self, part: str, measure: Callable[[], None]) -> None:
        """Run a part that must not take the others with it: what it raises is its line, and where it was raised stands in the log."""
        try:
            measure()
        except Exception as error:  # noqa: BLE001 (whatever goes wrong is what the line tells)
            traceback.print_exc()
            self.line(part, note=f"{type(error).__name__}: {first_line(error)}", failed=True)


def first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no message")[:300]


WORDS = {
    "BACKEND": "auto|dense|merge|two_call|flash|flex",
    "TYPE": "float32|bfloat16",
    "TASK": "text|image|video|mixed",
    "N": r"\d+",
    "NAME": r"[\w-]+",
}
"""What stands for a word of capitals in the name of a line."""


def is_of(part: str, line: str) -> bool:
    """Whether a part's name is that of a line as a check declares it."""
    return re.fullmatch(re.sub(r"[A-Z]+", lambda word: f"({WORDS[word.group()]})", line.replace(".", r"\.")), part) is not None


@dataclass(frozen=True)
class Check:
    """A check: the function `check_<name>` of a module, which only the check's own process imports."""

    name: str
    module: str
    minutes: float
    """What it takes on a GPU, about; it is stopped after several times that."""
    about: str
    lines: tuple[str, ...]
    """Names of its lines, with words of capitals (`WORDS`). If its process breaks it has one line of its own name."""

    def load(self) -> Callable[[Settings, Report], None]:
        return getattr(importlib.import_module(f"benchmarks.gpu_check.{self.module}"), f"check_{self.name}")


CHECKS = {
    check.name: check
    for check in (
        Check(
            "environment",
            "environment",
            1,
            "versions, devices, memory, disk, links between GPUs, optional packages",
            ("versions", "device", "device-N", "host", "links", "package-NAME"),
        ),
        Check(
            "attention",
            "kernels",
            1,
            "every backend in both types over random rows: output and gradients against float64 on the CPU, and the same bits again",
            ("BACKEND.TYPE", "BACKEND.ordered"),
        ),
        Check(
            "types",
            "runs",
            0.5,
            "the real forward and backward in bfloat16: the types that reach each backend, log-probs against float32",
            ("BACKEND",),
        ),
        Check("lengths", "kernels", 1, "fifty different lengths through flex: programs compiled, slowest call", ("flex", "rehearsed")),
        Check(
            "steps",
            "runs",
            2,
            "RL steps of the toy recipe in both types, on text, pictures and videos, with the tower training",
            ("TYPE", "defaults"),
        ),
        Check(
            "logprobs",
            "runs",
            1,
            "the same answers: sampler against trainer by modality, trainer against plain rows on the CPU",
            ("TYPE.TASK", "TYPE"),
        ),
        Check(
            "resume",
            "exactness",
            2,
            "the same five steps twice, then killed and resumed: are the weights equal to the bit",
            ("BACKEND.twice", "BACKEND.killed", "BACKEND"),
        ),
        Check(
            "profile",
            "profiles",
            1,
            "one decoded token and one update under the profiler: kernels, waits of the host, copies",
            ("token", "update", "waits", "writes", "casts", "patches"),
        ),
        Check(
            "size",
            "sizes",
            3,
            "a 3B-shaped random model (CPU: a tiny one): memory and speed of load, score, update, rollout, tower",
            ("load", "score-N", "rollout-N", "deterministic-N", "tower-N", "update-N", "update-N.recomputed"),
        ),
        Check(
            "memory",
            "limits",
            1,
            "a token budget far too large: halved until it fits; what a rollout leaves to an update; page-locked memory",
            ("halving", "turns", "pinned"),
        ),
        Check(
            "ranks",
            "ranks",
            2,
            "two ranks: sums, one with text alone, seconds until one notices that the other died, threads of offloaded updates, weights",
            ("sums", "text-only", "killed", "calls", "sockets", "threads", "weights"),
        ),
    )
}
"""By name, in the order in which they run."""


@dataclass
class Collected:
    """Lines in memory, for tests and for callers in this process."""

    lines: list[Line] = field(default_factory=list)

    def report(self, name: str) -> Report:
        return Report(name, self.lines.append)

"""What a fault did: one of four verdicts, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.support import runs
from vlmrl.errors import VlmrlError

Verdict = Literal["right", "clear", "crash", "silent", "skipped"]
HEADINGS = {
    "right": "survived / right",
    "clear": "clear error",
    "crash": "crash or wrong exit",
    "silent": "silent wrong",
    "skipped": "skipped",
}
CODES = frozenset({64, 65, 66, 69, 70, 73, 74, 75, 76})
"""Exit codes that `vlmrl.errors` promises."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One fault and what became of it."""

    area: str
    case: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Drill:
    """What every area gets."""

    folder: Path
    """To write in."""
    files: tuple[Path, Path]
    """Tiny model and world (`tests.support.tiny.make_files`)."""
    seed: int
    quick: bool

    def choose(self, few: int, many: int) -> int:
        """How many of a kind."""
        return few if self.quick else many

    def root(self, name: str) -> Path:
        """A new folder of its own."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path


Area = Callable[[Drill], Iterator[Result]]


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, its message if it is an error made on purpose."""

    code: int
    message: str
    said: str = ""
    """What it told a person."""


def run(config: Mapping[str, Any], fault: str | None = None, timeout: float = 400.0, notes: Path | None = None) -> Ended:
    """Run to its end; 124 where it does not come to one. What it says is written to `notes`, by default the folder of runs."""
    error, said = ((notes or Path(config["run"]["root"])) / name for name in ("error.txt", "said.txt"))
    for path in (error, said):
        path.unlink(missing_ok=True)
    try:
        code = runs.run(config, fault, timeout=timeout, said=said)
    except TimeoutError:
        return Ended(124, "did not end")
    return Ended(code, *(path.read_text() if path.exists() else "" for path in (error, said)))


def judge(
    area: str,
    case: str,
    ended: Ended,
    config: Mapping[str, Any],
    expected: Mapping[str, Any] | None,
    *,
    must_end: bool = False,
    codes: Set[int] = CODES,
) -> Result:
    """The verdict on a run after a fault.

    Args:
        expected: outcome of the undisturbed run; None: ending well is right, whatever the numbers.
        must_end: nothing was lost, so that a refusal is not right either: it counts as a wrong exit.
        codes: exit codes that are right for this fault.
    """
    said = ended.message.replace("\n", " ")[:160]
    if ended.code in CODES and ended.message:
        right = ended.code in codes and not must_end
        return Result(area=area, case=case, verdict="clear" if right else "crash", note=f"exit {ended.code}: {said}")
    if ended.code != 0:
        return Result(area=area, case=case, verdict="crash", note=f"exit {ended.code}: {said or 'no message of ours'}")
    if expected is None:
        return Result(area=area, case=case, verdict="right")
    try:
        found = outcome(config)
    except (OSError, ValueError, KeyError, IndexError, VlmrlError) as error:
        return Result(area=area, case=case, verdict="silent", note=f"exit 0 without its files: {error!r}"[:200])
    different = [key for key in expected if found[key] != expected[key]]
    if different:
        return Result(area=area, case=case, verdict="silent", note=f"exit 0 with other {', '.join(different)}")
    return Result(area=area, case=case, verdict="right")


def outcome(config: Mapping[str, Any]) -> dict[str, Any]:
    """`runs.outcome`, and the optimizer."""
    import hashlib

    newest = sorted((runs.run_dir(config) / "checkpoints").glob("step-*"))[-1]
    optimizer = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in newest.glob("optimizer*")}
    return runs.outcome(config) | {"optimizer": optimizer}


def table(results: Sequence[Result]) -> str:
    """Counts by area, in Markdown, and every result that is no success by name."""
    lines = ["| area | tried | " + " | ".join(HEADINGS.values()) + " |", "|---|" + "---:|" * (len(HEADINGS) + 1)]
    areas = list(dict.fromkeys(one.area for one in results))
    for area in areas:
        own = [one.verdict for one in results if one.area == area]
        tried = sum(verdict != "skipped" for verdict in own)
        lines.append(f"| {area} | {tried} | " + " | ".join(str(own.count(name)) for name in HEADINGS) + " |")
    bad = [one for one in results if one.verdict in ("crash", "silent", "skipped")]
    return "\n".join([*lines, "", *(f"{one.verdict}: {one.area}: {one.case}: {one.note}" for one in bad)])

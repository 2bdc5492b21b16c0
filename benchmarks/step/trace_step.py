"""Count what one plain GRPO step runs: files, functions and executed lines of `vlmrl/`, per part.

    python -m benchmarks.step.trace_step              # a table
    python -m benchmarks.step.trace_step --files      # and every file
    python -m benchmarks.step.trace_step --write out.json

The step: the tests' tiny Qwen2.5-VL on the toy world, strategy `plain`, advantage `grpo`, loss `ppo_clip`, beta 0, two rewards, one
rank, one update, no prefetch. The run has three steps; the second one is counted, so start-up and the checkpoint at the end are not.
`sys.settrace` and `threading.settrace` see every Python line of this process (scoring runs on a second thread).

A file counts when at least one of its lines runs in the step. The groups:

* media decoding: everything under `vlmrl/media`;
* durable files: the files in `DURABLE`, which write or name what survives a crash;
* the rest: what a reader of a step has to know. Its bound is `BOUND` files.

Algorithm lines are the executed lines of the files in `ALGORITHM`: from a plan of rows over rollout, rewards, advantage and loss to the
gradient. `docs/architecture.md` and README.md give a reading order; the last lines say how many algorithm lines its files hold.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from benchmarks.common import ROOT

PACKAGE = ROOT / "vlmrl"

BOUND = 55
"""Most files of "the rest". Three of them are the training engine, two who sees whom in a packed row, three what a GPU needs of attention,
draws and memory, two the queue of steps and the gap between sampler and trainer, three the loop, the hooks behind a step and the rewards,
one what the engines of rollout that generate in place have in common, one the keys and values of what decodes, one what patches are on the
device, one the account of memory, one what is logged of a step, one the layout that repeats prompts, and
one finds modules that moved."""

MEDIA = ("media/",)
DURABLE = (
    "fs.py",
    "faults.py",
    "rollout/journal.py",
    "run/checkpoint.py",
    "train/tensors.py",
    "run/tracking.py",
    "train/state.py",
    "run/rundir.py",
    "extras/pages/recorder.py",
    "extras/pages/kept/media.py",
    "extras/pages/kept/read.py",
    "extras/pages/kept/record.py",
    "extras/pages/kept/write.py",
)
"""Files that write or name what survives a crash. The ledger is not among them: samplers read it."""

ALGORITHM = ("algo/", "rollout/", "policy/", "train/stage/", "train/batch.py", "train/step.py")
NO_ALGORITHM = DURABLE
"""Of those, what is durable is no algorithm."""


@dataclass
class Counted:
    """What ran: file (relative to vlmrl/) -> executed lines, and -> functions as (name, first line, length)."""

    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    functions: dict[str, set[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(set))

    def group(self, file: str) -> str:
        if file.startswith(MEDIA):
            return "media decoding"
        return "durable files" if file in DURABLE else "the rest"

    def of(self, group: str) -> list[str]:
        return sorted(file for file in self.lines if self.group(file) == group)

    def algorithm(self) -> list[str]:
        return sorted(file for file in self.lines if file.startswith(ALGORITHM) and file not in NO_ALGORITHM)

    def share(self, order: Iterable[str]) -> float:
        """Share of the executed algorithm lines that lie in the files of a reading order."""
        read = set(order)
        total = sum(len(self.lines[file]) for file in self.algorithm())
        return sum(len(self.lines[file]) for file in self.algorithm() if file in read) / total

    def totals(self, files: Iterable[str]) -> tuple[int, int, int, int]:
        """(files, functions, executed lines, lines of those functions)."""
        names = list(files)
        functions = [function for name in names for function in self.functions[name]]
        return len(names), len(functions), sum(len(self.lines[name]) for name in names), sum(length for _, _, length in functions)


class Tracer:
    """Counts lines while `active`. It is installed before the run starts, because a frame that is already running is not traced."""

    def __init__(self) -> None:
        self.active = False
        self.counted = Counted()
        self._files: dict[str, str | None] = {}
        self._lengths: dict[CodeType, int] = {}

    def __enter__(self) -> Tracer:
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _file(self, name: str) -> str | None:
        if name not in self._files:
            path = Path(name)
            inside = path.is_absolute() and path.is_relative_to(PACKAGE)
            self._files[name] = path.relative_to(PACKAGE).as_posix() if inside else None
        return self._files[name]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if self._file(frame.f_code.co_filename) is None else self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self.active:
            code = frame.f_code
            file = self._file(code.co_filename)
            assert file is not None
            self.counted.lines[file].add(frame.f_lineno)
            name = getattr(code, "co_qualname", code.co_name)
            if not code.co_name.startswith("<"):  # a lambda or comprehension is a part of its function
                self.counted.functions[file].add((name, code.co_firstlineno, self._length(code)))
        return self._line

    def _length(self, code: CodeType) -> int:
        if code not in self._lengths:
            last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
            inner = [self._length(const) + const.co_firstlineno - 1 for const in code.co_consts if isinstance(const, CodeType)]
            self._lengths[code] = max([last, *inner]) - code.co_firstlineno + 1
        return self._lengths[code]


def recipe(model: Path, world: Path, root: Path, **stage: Any) -> dict[str, Any]:
    """Three plain GRPO steps of the tiny model."""
    return {
        "run": {"name": "traced", "root": str(root), "trackers": [], "threads": 1},
        "model": {"path": str(model), "device": "cpu"},
        "data": {"root": str(world)},
        "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 32, "prefetch": False},
        "eval": {"at_start": False},
        "checkpoint": {"every": 1000},
        "stages": [
            {
                "name": "rl",
                "kind": "grpo",
                "source": {"path": "train.jsonl"},
                "steps": 3,
                "freeze": ["vision"],
                "rollout": {
                    "num_generations": 4,
                    "prompts_per_step": 4,
                    "generation_batch_size": 4,
                    "max_new_tokens": 10,
                    "strategy": {"name": "plain"},
                },
                "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}],
                "advantage": {"name": "grpo"},
                "loss": {"name": "ppo_clip"},
                "beta": 0.0,
                "optim": {"lr": 1e-3},
            }
            | stage
        ],
    }


def traced_step(**stage: Any) -> Counted:
    """Run the recipe and count its second step. `stage` overrides keys of the stage."""
    from tests.support.tiny import make_files
    from vlmrl import rng
    from vlmrl.config.load import loaded
    from vlmrl.config.schema import Config
    from vlmrl.run.session import Places
    from vlmrl.run.start import train_from
    from vlmrl.run.ui import Ui

    tracer = Tracer()
    seed_step = rng.seed_step

    def boundary(seed: int, name: str, step: int) -> None:
        """Every step begins with this call."""
        tracer.active = step == 1
        seed_step(seed, name, step)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, world = make_files(folder, sft=4, train=24, test=4)
        cfg = Config.model_validate(recipe(model, world, folder / "runs", **stage))
        rng.seed_step = boundary
        try:
            with tracer:
                train_from(loaded(cfg), Places(model=cfg.model.path, data=world), Ui(quiet=True))
        finally:
            rng.seed_step = seed_step
    if not tracer.counted.lines:
        raise SystemExit("no line was counted: does a step still begin with rng.seed_step?")
    return tracer.counted


def reading_order(page: Path) -> list[str]:
    """Files that the section "One training step" of a page names in code spans, in order, relative to vlmrl/; each must exist.

    Raises:
        SystemExit: the page has no such section, or names a file that does not exist.
    """
    found = re.search(r"^## One training step\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.M | re.S)
    if found is None:
        raise SystemExit(f"{page}: no section 'One training step'")
    names = [name for name in re.findall(r"`(?:vlmrl/)?([\w/]+\.py)`", found[1]) if not name.startswith(("examples/", "benchmarks/"))]
    missing = [name for name in names if not (PACKAGE / name).is_file()]
    if missing:
        raise SystemExit(f"{page}: the reading order names files that do not exist: {', '.join(missing)}")
    return list(dict.fromkeys(names))


def part(file: str) -> str:
    """The package of a file, two levels deep where the first is large: `train/stage`, `policy`, `.` for top-level modules."""
    folders = file.split("/")[:-1]
    return "/".join(folders[:2]) if folders else "."


def report(counted: Counted, pages: Mapping[str, list[str]], *, files: bool) -> str:
    """The tables, as plain text."""
    head = f"{'':<34}{'files':>7}{'functions':>11}{'executed':>10}{'of lines':>10}"

    def row(name: str, of: Iterable[str]) -> str:
        numbers = counted.totals(of)
        return f"{name:<34}{numbers[0]:>7}{numbers[1]:>11}{numbers[2]:>10}{numbers[3]:>10}"

    groups = ("media decoding", "durable files", "the rest")
    out = [head, row("one plain step", counted.lines), *(row(f"  {group}", counted.of(group)) for group in groups)]
    rest = len(counted.of("the rest"))
    out += ["", f"files outside media decoding and durable files: {rest}; bound {BOUND}: {'met' if rest <= BOUND else 'not met'}"]
    out += [f"media decoding: vlmrl/{MEDIA[0]}", "durable files that ran: " + ", ".join(counted.of("durable files"))]
    by_part: dict[str, list[str]] = defaultdict(list)
    for file in counted.lines:
        by_part[part(file)].append(file)
    out += ["", head, *(row(name, by_part[name]) for name in sorted(by_part))]
    if files:
        out += ["", f"{'file':<44}{'functions':>9}{'executed':>10}{'of lines':>10}  group"]
        for group in groups:
            for file in sorted(counted.of(group), key=lambda f: -len(counted.lines[f])):
                _, functions, lines, length = counted.totals([file])
                out.append(
                    f"{file:<44}{functions:>9}{lines:>10}{length:>10}  {group}{'; algorithm' if file in counted.algorithm() else ''}"
                )
    algorithm = counted.algorithm()
    out += ["", row("algorithm: " + ", ".join(ALGORITHM[:3]) + " ...", algorithm)]
    for page, order in pages.items():
        inside = [file for file in algorithm if file in order]
        out.append(
            f"reading order of {page}: {len(order)} files, {sum(_length(f) for f in order)} lines; "
            f"{counted.share(order):.1%} of the executed algorithm lines lie in them"
        )
        left = sorted((f for f in algorithm if f not in inside), key=lambda f: -len(counted.lines[f]))
        out.append("  not in it: " + (", ".join(f"{f} ({len(counted.lines[f])})" for f in left) or "nothing"))
    return "\n".join(out)


def _length(file: str) -> int:
    return (PACKAGE / file).read_text(encoding="utf-8").count("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="print every file")
    parser.add_argument("--write", type=Path, help="write files, functions and lines as JSON")
    arguments = parser.parse_args()
    pages = {page: reading_order(ROOT / page) for page in ("README.md", "docs/architecture.md") if (ROOT / page).is_file()}
    counted = traced_step()
    print(report(counted, pages, files=arguments.files))
    if arguments.write is not None:
        content = {file: {"group": counted.group(file), "lines": sorted(counted.lines[file])} for file in sorted(counted.lines)}
        arguments.write.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

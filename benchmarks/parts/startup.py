"""What commands cost before they do their work: processor seconds (user and system, the process and its children) against a budget.

    python -m benchmarks.parts.startup [--repeats 3] [--write docs/benchmarks/startup.md] [--only check]

Each command runs in processes of its own: once for Python's bytecode and what the package keeps (a new installation has neither), then
`--repeats` times, of which the least counts. Processor seconds, because wall seconds measure the disk and the neighbours. The modules that
each command must leave alone are checked by tests/unit/benchmarks/parts/test_startup.py, without a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT, command_line, machine, show

ROWS = 100
UNUSED = ("sklearn", "pandas", "sympy", "scipy", "tensorboard", "torch.distributed.tensor")
"""What none of the commands uses."""
MODELS = ("transformers.modeling_utils", "torch._dynamo", "accelerate", "deepspeed")
"""What comes with models: rows are checked with a processor alone."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its budget."""

    name: str
    arguments: Sequence[str]
    budget: float
    """Processor seconds."""
    without: Sequence[str] = ()
    """Modules that it must not import, beside `UNUSED`."""


COMMANDS = (
    Command(name="--help", arguments=("--help",), budget=0.3, without=("torch", "transformers", "numpy", "yaml", "vlmrl.config")),
    Command(name="list", arguments=("list",), budget=0.5, without=("torch", "transformers", "vlmrl.config", "vlmrl.algo")),
    Command(
        name="check RECIPE --no-data",
        arguments=("check", "toy_video", "--no-data"),
        budget=1.5,
        without=("torch", "transformers", "pyarrow", "jinja2"),
    ),
    Command(name=f"check, {ROWS} rows", arguments=("check", "recipe.yaml"), budget=3.0, without=MODELS),
    Command(name="train, finished run", arguments=("train", "recipe.yaml"), budget=1.0, without=("torch", "transformers")),
)


def prepare(folder: Path) -> None:
    """Write a tiny model, rows with pictures, a recipe of one step, and its finished run."""
    import numpy as np
    from PIL import Image

    from vlmrl.extras.toy.model import build_model

    (folder / "pictures").mkdir()
    rows: list[str] = []
    for i in range(ROWS):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (56, 56, 3), dtype=np.uint8)).save(folder / f"pictures/{i}.png")
        row = {
            "id": str(i),
            "task": "animal",
            "image": f"pictures/{i}.png",
            "prompt": "Which one is it?",
            "answer": "AB"[i % 2],
            "answer_type": "choice",
        }
        rows.append(json.dumps(row | {"options": ["a dog", "a cat"]}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    build_model(folder / "model", seed=0, corpus=rows)
    (folder / "recipe.yaml").write_text(
        "run: {name: finished}\nmodel: {path: model}\ndata: {max_prompt_tokens: 256}\n"
        "stages:\n  - {kind: sft, name: sft, source: {path: rows.jsonl}, steps: 1, batch: 4}\n"
    )
    done = subprocess.run(vlmrl("train", "recipe.yaml"), cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: the run that should be finished ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def vlmrl(*arguments: str) -> list[str]:
    """The command line of a command."""
    return [sys.executable, "-m", "vlmrl", *arguments]


def environment(folder: Path) -> Mapping[str, str]:
    """One thread, this checkout, and bytecode and a home of its own: neither is what an earlier session left."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "HOME": str(folder / "home"), "COLUMNS": "120"}
    return kept | own | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def processor_seconds(command: Sequence[str], folder: Path) -> float:
    """User and system seconds of a process and of those that it waited for.

    Raises:
        SystemExit: it failed, with the end of what it said.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"error: {' '.join(command)} ended with {process.returncode}:\n{said.read()[-2000:].decode(errors='replace')}")
    return used.ru_utime + used.ru_stime


def measured(command: Command, folder: Path, repeats: int) -> list[float]:
    """Processor seconds of each repeat, after one that is not counted."""
    return [processor_seconds(vlmrl(*command.arguments), folder) for _ in range(repeats + 1)][1:]


def main() -> None:
    """Measure, print the table, write it, and exit with 1 where a command is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--write", type=Path, default=None)
    args = parser.parse_args()
    cells = [["command", "budget", "measured", "ok"]]
    within = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        for command in COMMANDS:
            if args.only in command.name:
                seconds = measured(command, folder, args.repeats)
                within &= min(seconds) <= command.budget
                ok = "yes" if min(seconds) <= command.budget else "no"
                cells.append([command.name, f"{command.budget:.1f} s", f"{min(seconds):.2f} s ({max(seconds):.2f})", ok])
    table = show("Processor seconds of a start: the least of the repeats (the most)", cells)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    place = ", ".join(f"{name} {value}" for name, value in machine().items())
    if args.write is not None:
        args.write.write_text(f"# Start\n\n{table}\n\n`{command_line()}` on {place}; load average at the end {load}.\n", encoding="utf-8")
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()

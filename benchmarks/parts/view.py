"""How long `vlmrl view` takes to open a folder of runs with many kept groups.

    python -m benchmarks.parts.view
    python -m benchmarks.parts.view --groups 500 --write /tmp/view.md                        # a trial
    VLMRL_VIEW_COST=/tmp/cost.json vlmrl train RECIPE 'plugins=[benchmarks.parts.view_cost]' # then --cost /tmp/cost.json

Made-up runs: each with three evaluations of 600 questions, and groups of 8 answers with 60 to 400 tokens, written by what training writes
them with. A fresh process opens the folder and answers what the page asks first: the list of all runs with their numbers, for which all
indices are read; then a run, its questions, those of all runs, and one group. Processor time: the machine does other things as well. Writes
docs/benchmarks/view.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

EACH, ANSWERS = 8, 8
"""Groups of a step; answers of a group."""
ASKED = (
    ("folder", "the list of runs: all indices, a primary number with its interval for each run"),
    ("run/r-s0", "a run: its statistics, words and tables"),
    ("curves/r-s0", "its curves"),
    ("questions/r-s0", "its questions"),
    ("arms", "curves of all runs with bands over seeds"),
    ("questions/all", "the questions of all runs"),
    ("group", "one group whole, with its marks (first: imports what draws)"),
    ("again", "the list of runs again"),
)
OPEN = """
import json, sys, time
from pathlib import Path
began = time.process_time()
from vlmrl.extras.pages.view.view import View
spent = {"import": time.process_time() - began}
view = None
for name in json.loads(sys.argv[2]):
    before = time.process_time()
    view = view or View([Path(sys.argv[1])])
    address = {"again": "folder", "group": "group/" + table["kept"]["address"][0] if name == "group" else ""}.get(name, name)
    table = view.document(address)
    text = json.dumps(table)
    spent[name], spent[name + " bytes"] = time.process_time() - before, len(text)
print(json.dumps(spent))
"""


def make(folder: Path, runs: int, groups: int) -> None:
    """A folder of runs that share `groups` kept groups."""
    from tests.support.kept import record
    from tests.support.made_runs import make_run
    from vlmrl.extras.pages.kept.write import KeptWriter

    for number in range(runs):
        count = groups // runs
        run = make_run(folder / f"r-s{number}", seed=number, steps=-(-count // EACH), count=600, groups=0)
        writer, draw = KeptWriter(run / "groups" / "rank-0", budget=1 << 40, last_step=0), random.Random(number)
        for n in range(count):
            texts = ["x" * draw.randint(60, 400) for _ in range(ANSWERS)]
            rewards = [draw.random() for _ in range(ANSWERS)]
            words = {"sample": f"row-{n % 70}", "question": f"question {n % 70}"}
            writer.add(record(n // EACH + 1, n % EACH, texts=texts, rewards=rewards, surprise=draw.random(), **words), {})
        writer.sync()


def measured(path: Path, repeats: int) -> dict[str, float]:
    """Medians over fresh processes."""
    names = json.dumps([name for name, _ in ASKED])
    found = []
    for _ in range(repeats):
        said = subprocess.run([sys.executable, "-c", OPEN, str(path), names], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        found.append(json.loads(said))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def page(found: dict[str, float], runs: int, groups: int, size: int, repeats: int, cost: dict[str, Any] | None) -> str:
    """The page of results."""
    lines = [
        "# The viewer: opening a folder of runs, and what keeping groups costs",
        "",
        f"`python -m benchmarks.parts.view`: {runs} runs with {groups} kept groups of {ANSWERS} answers with 60 to 400 tokens",
        f"({size / 2**20:.0f} MiB of records) and three evaluations of 600 questions each. Processor seconds, medians of {repeats} fresh",
        f"processes on {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores with a load of",
        f"{os.getloadavg()[0]:.0f} by other programs.",
        "",
        "| asked, one after the other | processor s | kB |",
        "|---|---:|---:|",
        f"| imports | {found['import']:.2f} | |",
        *(f"| {words} | {found[name]:.3f} | {found[f'{name} bytes'] / 1000:.0f} |" for name, words in ASKED),
    ]
    if cost is not None:
        step, thread = (100 * cost[key] / cost["process"] for key in ("step", "thread"))
        lines += [
            "",
            f"Keeping groups in a run of {cost['calls']:.0f} steps (`benchmarks/parts/view_cost.py`), in processor time of the process",
            f"from the opening of the stage to its end ({cost['process']:.1f} s): the training thread spent {step:.2f} % of it on",
            f"choosing and handing over, the thread that writes {thread:.2f} %.",
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cost", type=Path, help="what benchmarks/parts/view_cost.py wrote")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmarks" / "view.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, began = Path(folder) / "runs", time.perf_counter()
        make(runs, args.runs, args.groups)
        print(f"made in {time.perf_counter() - began:.0f} s")
        size = sum(path.stat().st_size for path in runs.rglob("groups/**/*.jsonl"))
        found = measured(runs, args.repeats)
    cost = None if args.cost is None else json.loads(args.cost.read_text())
    args.write.write_text(page(found, args.runs, args.groups, size, args.repeats, cost))
    print(args.write.read_text())


if __name__ == "__main__":
    main()

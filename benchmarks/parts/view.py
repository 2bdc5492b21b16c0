"""How long `vlmrl view` takes to open a run with many kept groups, and what keeping them costs a run that trains.

    python -m benchmarks.parts.view
    python -m benchmarks.parts.view --groups 500 --write /tmp/view.md                        # a trial
    VLMRL_VIEW_COST=/tmp/cost.json vlmrl train RECIPE 'plugins=[benchmarks.parts.view_cost]' # then --cost /tmp/cost.json

Made-up groups of 8 answers with 60 to 400 tokens each, written by what training writes them with. A fresh process opens them and answers
what the page asks first: the state, a page of groups by surprise, and one group whole. Writes docs/benchmarks/view.md.
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
OPEN = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from vlmrl.extras.pages.view.run import RunView
imported = time.perf_counter()
run = RunView(Path(sys.argv[1]))
state = run.state()
page = run.groups(size=24)
first = time.perf_counter()
run.group(page["groups"][0]["address"])
group = time.perf_counter()
again = time.perf_counter()
run.state(), run.groups(size=24)
print(json.dumps({"groups": state["groups"], "import": imported - began, "open": first - imported, "group": group - first,
    "again": time.perf_counter() - again}))
"""


def make(path: Path, count: int) -> None:
    """A run with `count` kept groups."""
    from tests.support.kept import record
    from vlmrl.extras.pages.kept.write import KeptWriter

    path.mkdir(parents=True)
    (path / "run.json").write_text('{"history": []}')
    (path / "config.yaml").write_text("model: {path: made-up}\nstages: [{name: rl, steps: 1}]\n")
    writer, draw = KeptWriter(path / "groups" / "rank-0", budget=1 << 40, last_step=0), random.Random(0)
    steps = -(-count // EACH)
    lines = [
        {"stage": "rl", "step": n, "global_step": n, "reward": n / steps} | {f"m{k}": 1.0 / n for k in range(60)}
        for n in range(1, steps + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for n in range(count):
        texts = ["x" * draw.randint(60, 400) for _ in range(ANSWERS)]
        rewards = [draw.random() for _ in range(ANSWERS)]
        made = record(n // EACH + 1, n % EACH, texts=texts, rewards=rewards, sample=f"row-{n % 700}", surprise=draw.random())
        writer.add(made, {})
    writer.sync()


def measured(path: Path, repeats: int) -> dict[str, float]:
    """Medians over fresh processes."""
    found = []
    for _ in range(repeats):
        said = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        found.append(json.loads(said))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def load() -> str:
    """How busy the machine is."""
    return f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.0f} by other programs"


def page(found: dict[str, float], size: int, repeats: int, cost: dict[str, Any] | None) -> str:
    """The page of results."""
    lines = [
        "# The viewer: opening a run, and what keeping groups costs",
        "",
        f"`python -m benchmarks.parts.view`: {found['groups']:.0f} kept groups of {ANSWERS} answers with 60 to 400 tokens,",
        f"{size / 2**20:.0f} MiB of records; medians of {repeats} fresh processes on {platform.machine()}, Python",
        f"{platform.python_version()}, {load()}.",
        "",
        "| | seconds |",
        "|---|---:|",
        f"| import | {found['import']:.2f} |",
        f"| open: index of all groups, metrics, first page by surprise | {found['open']:.2f} |",
        f"| one group whole, with its marks (first: imports what draws) | {found['group']:.2f} |",
        f"| the same page again | {found['again']:.3f} |",
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
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cost", type=Path, help="what benchmarks/parts/view_cost.py wrote")
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmarks" / "view.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        make(run, args.groups)
        print(f"made in {time.perf_counter() - began:.0f} s")
        size = sum(path.stat().st_size for path in (run / "groups").rglob("*.jsonl"))
        found = measured(run, args.repeats)
    args.write.write_text(page(found, size, args.repeats, None if args.cost is None else json.loads(args.cost.read_text())))
    print(args.write.read_text())


if __name__ == "__main__":
    main()

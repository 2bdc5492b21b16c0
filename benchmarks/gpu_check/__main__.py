"""Runs the checks, each in a process of its own: `python -m benchmarks.gpu_check`, or `bash scripts/gpu_check.sh`.

Prints a line per part of a check as soon as it is measured, then a table and the overrides that a recipe should take on this machine.
The exit code is the number of lines that say FAIL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.advice import advise
from benchmarks.gpu_check.base import CHECKS, Check, Line, Report, Settings, first_line
from benchmarks.gpu_check.faulty import install

ROOT = Path(__file__).resolve().parents[2]
SHORTEST, TIMES = 5.0, 5.0
"""A check is stopped after this many minutes, or this many times what it takes on a GPU."""
MOST = 125
"""Exit codes above it mean something else to a shell."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these checks")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument("--quick", action="store_true", help="less work for each: what breaks, not how fast it is")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto takes CUDA where there is one")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="results as JSON")
    parser.add_argument("--work", type=Path, help="folder for files, kept afterwards; by default a temporary one")
    parser.add_argument("--child", nargs=3, metavar=("NAME", "SETTINGS", "LINES"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child is not None:
        return child(*given.child)
    if given.list:
        for one in CHECKS.values():
            print(f"{one.name:<12} {one.minutes:>4g} min  {one.about}")
        return 0
    unknown = [name for name in given.only or () if name not in CHECKS]
    if unknown:
        parser.error(f"unknown check {', '.join(unknown)} (known: {', '.join(CHECKS)})")
    chosen = [one for one in CHECKS.values() if given.only is None or one.name in given.only]
    with contextlib.ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu_check-")))
        work.mkdir(parents=True, exist_ok=True)
        settings = settings_of(given.device, given.quick, work.resolve())
        return run_all(chosen, settings, given.out)


def settings_of(device: str, quick: bool, work: Path) -> Settings:
    """Raises SystemExit when CUDA is asked for and there is none."""
    import torch

    gpus = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if device == "cuda" and not gpus:
        raise SystemExit("error: --device cuda: torch sees no CUDA device")
    return Settings(device="cuda" if gpus else "cpu", gpus=gpus, quick=quick, work=work)


def run_all(checks: Sequence[Check], settings: Settings, out: Path) -> int:
    """The number of failures."""
    began = time.monotonic()
    lines: list[Line] = []

    def tell(line: Line) -> None:
        lines.append(line)
        print(line, flush=True)

    seconds: dict[str, float] = {}
    for one in checks:
        started = time.monotonic()
        run_one(one, settings, tell)
        seconds[one.name] = round(time.monotonic() - started, 1)
    advice = advise(lines, cuda=settings.cuda)
    failures = sum(line.status == "FAIL" for line in lines)
    print(f"\n{summary(lines, seconds)}\n")
    if advice:
        print("overrides for a recipe on this machine:")
        for override, why in advice:
            print(f"  {override:<48} # {why}")
    content = {
        "machine": {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()},
        "settings": settings.as_json(),
        "seconds": seconds,
        "failures": failures,
        "lines": [line.as_json() for line in lines],
        "overrides": [{"override": override, "why": why} for override, why in advice],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"\n{failures} failures in {(time.monotonic() - began) / 60:.1f} min; all numbers are in {out}")
    return min(failures, MOST)


def summary(lines: Sequence[Line], seconds: dict[str, float]) -> str:
    """One row per check, and what failed once more."""
    rows = [f"{'check':<14}{'ok':>5}{'FAIL':>6}{'skip':>6}{'s':>8}"]
    for name, took in seconds.items():
        own = [line.status for line in lines if line.check == name]
        rows.append(f"{name:<14}{own.count('ok'):>5}{own.count('FAIL'):>6}{own.count('skip'):>6}{took:>8.1f}")
    return "\n".join([*rows, *(str(line) for line in lines if line.status == "FAIL")])


def run_one(one: Check, settings: Settings, tell: Callable[[Line], None], *, limit: float | None = None) -> None:
    """Run a check in a process of its own and pass its lines on; what ends it before its time is a line too."""
    limit = 60 * max(SHORTEST, TIMES * one.minutes) if limit is None else limit
    file, log = settings.work / f"{one.name}.lines", settings.work / f"{one.name}.log"
    file.write_text("")
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    env["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not settings.cuda:
        env["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--child", one.name, json.dumps(settings.as_json()), str(file)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    told = 0
    deadline = time.monotonic() + limit
    try:
        while True:
            code = process.poll()
            whole = [line for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line]
            for line in whole[told:]:
                tell(Line.of_json(json.loads(line)))
            told = len(whole)
            if code is not None or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what the check started and left running, too
        process.wait()
    if code is None:
        tell(Line(check=one.name, part="", status="FAIL", note=f"not done after {limit:.0f} s{_where(log)}"))
    elif code != 0:
        tell(Line(check=one.name, part="", status="FAIL", note=f"its process ended with {code}{_where(log)}"))
    elif not told:
        tell(Line(check=one.name, part="", status="FAIL", note="it measured nothing"))


def _where(log: Path) -> str:
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return f": {last[0][:250]}" if last else ""


def child(name: str, settings: str, lines: str) -> int:
    """The body of a check's process."""
    install()

    def emit(line: Line) -> None:
        with open(lines, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line.as_json()) + "\n")

    report = Report(name, emit)
    given: dict[str, Any] = json.loads(settings)
    try:
        CHECKS[name].load()(Settings.of_json(given), report)
    except Exception as error:  # noqa: BLE001 (whatever goes wrong outside of a part is a line of the report)
        traceback.print_exc()
        report.line("", note=f"{type(error).__name__}: {first_line(error)}", failed=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

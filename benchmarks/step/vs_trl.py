"""A whole GRPO step of TRL's trainer, of ms-swift's and of ours, side by side: seconds, rollout, update, peak memory.

    python -m benchmarks.step.vs_trl                              one cell: 1,024 visual tokens, 8 answers of 64 tokens
    python -m benchmarks.step.vs_trl --prompts 256 1024 --groups 4 8 --completions 64
    python -m benchmarks.step.vs_trl --all                        the grid 256/1,024/4,096 x 4/8/16 x 64/256
    python -m benchmarks.step.vs_trl --device cuda --size 3b      Qwen2.5-VL-3B's sizes in bfloat16
    python -m benchmarks.step.vs_trl --swift-python PATH          ms-swift too, in the environment of that Python

The same random weights, pictures, prompt and reward, answers of equal length, one prompt group per step by default. Sides: `trl` (the
whole batch in one pass), `trl_4` and `trl_1` (4 rows and 1 row a pass, gradients accumulated), `trl_lean` (1 row, activations computed
again), `swift`, `swift_1` and `swift_lean` (the same of ms-swift), `repeat` and `shared_prefix` (our two layouts of the training pass).
Needs TRL: pip install trl==1.16.0.
Writes docs/benchmarks/vs_trl.md and .json.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import shutil
import statistics
from typing import Any

from benchmarks.common import (
    INSTALL,
    BenchmarkError,
    Job,
    Result,
    Store,
    check_same,
    common_settings,
    console,
    measure,
    median_range,
    need,
    peak_flops,
    provenance,
    publish,
    run_all,
    run_script,
    show,
)

TRL = {"trl": {}, "trl_4": {"rows": 4}, "trl_1": {"rows": 1}, "trl_lean": {"rows": 1, "recompute": True}}
"""Settings of TRL's trainer by side (`peer_trl.make_trainer`)."""
SWIFT = {"swift": {}, "swift_1": {"rows": 1}, "swift_lean": {"rows": 1, "recompute": True}}
"""The same of ms-swift's (`peer_swift.measure`)."""
SIDES = (*TRL, *SWIFT, "repeat", "shared_prefix")
GRID = {"prompts": [256, 1024, 4096], "groups": [4, 8, 16], "completions": [64, 256]}
SHORT = {"prompts": [1024], "groups": [8], "completions": [64]}


LEGEND = (
    "`counted` is the same ratio of floating-point operations (`benchmarks/step/flops.py`): what one would get if every operation took the",
    "same time. MiB is the peak above the loaded model. GFLOP/s counts what each side's plan has to compute, not what it wastes on",
    "padding or masked pairs. CPU time is what all threads of the process used: on a machine that others use too it is the steadier",
    "number, best with --threads 1 (threads that wait for each other burn it). Not counted: `repeat` encodes a picture",
    "once more for each further micro-batch.",
)
EQUAL = (
    "Equal work: the same weights, files, prompt and reward on all sides. Answers cannot end, because the same ids (end and visual",
    "control tokens) are suppressed on all sides, so all answers have the full length. TRL: `beta` 0, loss `grpo`; `trl` has the whole",
    "batch in one forward pass, `trl_4` 4 rows and `trl_1` 1 row with accumulated gradients, `trl_lean` 1 row and recomputed activations;",
    "otherwise its defaults. TRL's `rollout` contains cutting pictures into patches; ours is outside `rollout` and inside `s / step`.",
    "Every step shows new pictures, so no cache of ours helps the next step.",
)
EQUAL_SWIFT = (
    "ms-swift: `swift rlhf --rlhf_type grpo --use_vllm false` with all weights trained, `beta` 0, loss `grpo`, temperature 1; rows and",
    "recomputed activations of `swift`, `swift_1` and `swift_lean` are those of `trl`, `trl_1` and `trl_lean`; otherwise its defaults. Its",
    "template of Qwen2.5-VL has the id of Qwen's own image token built in and adds a system prompt; one that is registered beside it has",
    "the id of this tokenizer and adds none. Before the update it computes the old log-probs in a forward pass of their own: inside",
    "`s / step` and its `counted`, outside `rollout` and `update`. It is checked that its prompt ids, visual tokens included, and its",
    "counts are those of the other sides, and that its loss was over the ids that it had sampled. It pins other versions of TRL and",
    f"transformers, so it has an environment of its own (`--swift-python`): `{INSTALL['swift']}`.",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, nargs="+", help="visual tokens of the picture (square numbers)")
    parser.add_argument("--groups", type=int, nargs="+", help="answers per prompt")
    parser.add_argument("--completions", type=int, nargs="+", help="tokens per answer")
    parser.add_argument("--batch", type=int, default=1, help="prompts per step")
    parser.add_argument("--all", action="store_true", help="the whole grid")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="default: all, those of ms-swift with --swift-python alone")
    parser.add_argument("--swift-python", help="the Python of the environment that has ms-swift")
    parser.add_argument("--recompute", action="store_true", help="recompute activations in the backward pass, on all sides")
    parser.add_argument("--micro-tokens", type=int, default=16384, help="our token budget of a micro-batch (our default)")


def worker(job: Job) -> Result:
    from benchmarks.step import ours, peer_swift, peer_trl, workload

    if job["side"] == "prepare":
        return workload.prepare(job)
    if job["side"] in SWIFT:
        return peer_swift.measure(job, **SWIFT[job["side"]])
    return peer_trl.measure(job, **TRL[job["side"]]) if job["side"] in TRL else ours.measure(job)


def cells_of(args: argparse.Namespace) -> list[dict[str, int]]:
    base = GRID if args.all else SHORT
    axes = [getattr(args, name) or base[name] for name in base]
    return [
        {"prompt": p, "group": g, "completion": c, "batch": args.batch, "vocabulary": args.vocabulary_rows}
        for p, g, c in itertools.product(*axes)
    ]


def of(store: Store, cell: dict[str, int], side: str) -> list[Result]:
    """Finished measurements of a cell, by repeat."""
    found = [r for r in store.results.values() if r["side"] == side and r["cell"] == cell and "failed" not in r]
    return sorted(found, key=lambda r: r["repeat"])


def name_of(cell: dict[str, int]) -> str:
    extra = f" x {cell['batch']} prompts" if cell["batch"] > 1 else ""
    return f"{cell['prompt']} x {cell['group']} x {cell['completion']}{extra}"


def values(results: list[Result], name: str) -> list[float]:
    return [v for r in results for v in r[name]]


def used(result: Result) -> float:
    """MiB above what was resident when everything was loaded."""
    return (result["memory"]["peak"] - result["memory"]["loaded"]) / 2**20


def absolute(store: Store, cells: list[dict[str, int]], sides: list[str], shape: Any, peak: float | None) -> list[list[str]]:
    rows = [["prompt x G x completion", "side", "s / step", "CPU s / step", "rollout s", "update s", "MiB", "answer tokens / s", "GFLOP/s"]]
    if peak is not None:
        rows[0].append("MFU")
    for cell, side in itertools.product(cells, sides):
        failed = [r["failed"] for r in store.results.values() if r["side"] == side and r["cell"] == cell and "failed" in r]
        found = of(store, cell, side)
        if not found:
            rows.append([name_of(cell), side, failed[0] if failed else "not measured", *["-"] * (len(rows[0]) - 3)])
            continue
        seconds = statistics.median(values(found, "seconds"))
        tokens = found[0]["answers"] * found[0]["completion_tokens"]
        work = cell["batch"] * planned(shape, cell, found[0]["prompt_tokens"], side).total
        row = [name_of(cell), side, *(median_range(values(found, n)) for n in ("seconds", "cpu", "rollout", "update"))]
        row += [median_range([used(r) for r in found], 0), f"{tokens / seconds:.0f}", f"{work / seconds / 1e9:.1f}"]
        rows.append(row if peak is None else [*row, f"{work / seconds / peak:.1%}"])
    return rows


def planned(shape: Any, cell: dict[str, int], prompt: int, side: str) -> Any:
    """Counted operations of one group on that side."""
    from benchmarks.step.flops import EVERYTHING_REPEATED, REPEAT, SHARED_PREFIX, TRAINING, flops
    from benchmarks.step.workload import grid_of

    plan = {"repeat": REPEAT, "shared_prefix": SHARED_PREFIX}.get(side, EVERYTHING_REPEATED)
    step = flops(prompt, cell["group"], cell["completion"], shape, plan, media=[grid_of("image", cell["prompt"])])
    return dataclasses.replace(step, scoring=step.update.times(1 / TRAINING)) if side in SWIFT else step


def ratios(store: Store, cells: list[dict[str, int]], pairs: list[tuple[str, str]], shape: Any) -> list[list[str]]:
    """How many times more the first side of a pair takes: median of each process, then median and extremes over the repeats; next to
    each the ratio of counted operations."""
    rows = [["prompt x G x completion", "ratio", "step", "step, CPU time", "counted", "rollout", "counted", "update", "counted", "memory"]]
    for cell, (slow, fast) in itertools.product(cells, pairs):
        first, second = of(store, cell, slow), of(store, cell, fast)
        if not first or not second:
            continue
        by_repeat = {r["repeat"]: r for r in second}
        couples = [(a, by_repeat[a["repeat"]]) for a in first if a["repeat"] in by_repeat]
        a, b = (planned(shape, cell, first[0]["prompt_tokens"], side) for side in (slow, fast))
        counted = {"seconds": a.total / b.total, "rollout": a.rollout.total / b.rollout.total, "update": a.update.total / b.update.total}
        row = [name_of(cell), f"{slow} / {fast}"]
        for part, number in counted.items():
            row.append(median_range([statistics.median(x[part]) / statistics.median(y[part]) for x, y in couples]))
            if part == "seconds":
                row.append(median_range([statistics.median(x["cpu"]) / statistics.median(y["cpu"]) for x, y in couples]))
            row.append(f"{number:.2f}")
        rows.append([*row, median_range([used(x) / used(y) for x, y in couples])])
    return rows


def main(args: argparse.Namespace) -> None:
    sides = args.sides or [side for side in SIDES if args.swift_python or side not in SWIFT]
    if set(TRL) & set(sides):
        need("trl", "--sides repeat shared_prefix")
    python = shutil.which(args.swift_python or "")
    if set(SWIFT) & set(sides) and python is None:
        raise BenchmarkError(f"--swift-python names no Python ({args.swift_python}); its environment: {INSTALL['swift']}")
    settings = common_settings(args) | {
        "max_tokens_per_microbatch": args.micro_tokens,
        "vocabulary_rows": args.vocabulary_rows,
    }
    if args.recompute:  # files of runs without it have no such key
        settings["recompute"] = True
    store = Store.open(args.write.with_suffix(".json"), settings)
    cells = cells_of(args)
    count = (args.warmup + args.steps) * args.batch
    media = [["image", prompt, count] for prompt in sorted({c["prompt"] for c in cells})]
    measure(
        __file__,
        {"side": "prepare", "cell": {"vocabularies": [args.vocabulary_rows], "media": media}, "settings": settings},
        timeout=args.timeout,
    )
    pythons = dict.fromkeys(SWIFT, os.path.abspath(python)) if python else {}
    run_all(__file__, store, cells, sides, args.repeats, timeout=args.timeout, say=console().print, pythons=pythons)
    publish(args.write, document(store, args))


def document(store: Store, args: argparse.Namespace) -> list[str]:
    """Tables of all cells in the file, those of earlier calls included."""
    from benchmarks.step.flops import model_shape
    from benchmarks.step.workload import model_folder
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_folder(store.settings, args.vocabulary_rows))
    shape = model_shape(config)
    cells = sorted({tuple(r["cell"].items()) for r in store.results.values()})
    every = [dict(cell) for cell in cells]
    for cell in every:
        check_same(store, cell, ("prompt_tokens", "prompt_ids", "completion_tokens", "answers", "parameters"))
    sides = [side for side in SIDES if any(r["side"] == side for r in store.results.values())]
    pairs = [(a, "shared_prefix") for a in (*TRL, *SWIFT, "repeat")] + [("trl", "repeat")]
    pairs = [(a, b) for a, b in pairs if a in sides and b in sides]
    one = next(r for r in store.results.values() if "failed" not in r)
    text = config.get_text_config()
    about = (
        f"Model: Qwen2.5-VL with random weights, {one['parameters'] / 1e6:.1f} M parameters (hidden {text.hidden_size}, "
        f"{text.num_hidden_layers} layers, vocabulary {text.vocab_size}), all of them trained. One picture per prompt; `prompt` is its "
        f"visual tokens, the text adds {one['prompt_tokens'] - one['cell']['prompt']}."
    )
    return [
        f"# A GRPO step: TRL{', ms-swift' if set(SWIFT) & set(sides) else ''} and vlmrl",
        "",
        about,
        "",
        show("Seconds and memory", absolute(store, every, sides, shape, peak_flops(store, args.peak_tflops))),
        show("Ratios", ratios(store, every, pairs, shape)),
        *LEGEND,
        "",
        *provenance(store, apart=tuple(SWIFT)),
        *EQUAL,
        f"Activations are {'computed again in' if store.settings.get('recompute') else 'kept for'} the backward pass on all sides that are",
        "not lean.",
        *(EQUAL_SWIFT if set(SWIFT) & set(sides) else ()),
        "",
    ]


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)

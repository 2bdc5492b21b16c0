"""A step of episodes with kept caches and chains, against reading every turn's prompt anew and training a row per turn.

    python -m benchmarks.turns.turns --threads 1              one cell: 10 turns, screens of 64 visual tokens, 8 attempts
    python -m benchmarks.turns.turns --turns 4 10 20 --screens 64 256

Both sides play the same world (`world.py`), in which every action shows another screen, with the whole conversation in the prompt,
and answers of equal length. `anew`: every turn reads its whole prompt, training has a row per turn. `kept`: the engine keeps keys and
values from turn to turn, training has a chain per attempt. Writes docs/benchmarks/turns.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common import (
    BenchmarkError,
    Job,
    Result,
    Store,
    check_same,
    common_settings,
    console,
    measure,
    median_range,
    provenance,
    publish,
    run_all,
    run_script,
    show,
)

SIDES = ("anew", "kept")
ABOUT = {
    "anew": "`anew` reads every turn's prompt whole and trains a row per turn",
    "kept": "`kept` keeps keys and values from turn to turn and trains a chain per attempt",
    "trl": "`trl` is TRL's `environment_factory`",
    "trl-vllm": "`trl-vllm` is the same with rollouts by vLLM in the trainer's process, whose prefix cache keeps whole blocks of a past",
}


def options(parser: argparse.ArgumentParser) -> None:
    cell_options(parser, turns=[10])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))


def cell_options(parser: argparse.ArgumentParser, *, turns: list[int]) -> None:
    """What both benchmarks of turns vary."""
    parser.add_argument("--turns", type=int, nargs="+", default=turns, help="answers of an episode")
    parser.add_argument("--screens", type=int, nargs="+", default=[64], help="visual tokens of a screen (square numbers)")
    parser.add_argument("--groups", type=int, nargs="+", default=[8], help="attempts at the task of a step")
    parser.add_argument("--completions", type=int, nargs="+", default=[16], help="tokens per answer")
    parser.add_argument("--micro-tokens", type=int, default=16384, help="our token budget of a micro-batch (our default)")


def worker(job: Job) -> Result:
    from benchmarks.step import workload
    from benchmarks.turns import ours

    return workload.prepare(job) if job["side"] == "prepare" else ours.measure(job)


def cells_of(args: argparse.Namespace) -> list[dict[str, int]]:
    axes = itertools.product(args.turns, args.screens, args.groups, args.completions)
    return [{"turns": t, "screen": s, "group": g, "completion": c, "vocabulary": args.vocabulary_rows} for t, s, g, c in axes]


def of(store: Store, cell: dict[str, int], side: str) -> list[Result]:
    """Finished measurements of a cell, by repeat."""
    found = [r for r in store.results.values() if r["side"] == side and r["cell"] == cell and "failed" not in r]
    return sorted(found, key=lambda r: r["repeat"])


def name_of(cell: dict[str, int]) -> str:
    return f"{cell['turns']} x {cell['screen']} x {cell['group']} x {cell['completion']}"


def used(result: Result) -> float:
    """MiB above what was resident when everything was loaded."""
    return (result["memory"]["peak"] - result["memory"]["loaded"]) / 2**20


def plan(side: str, result: Result) -> Any:
    """What the side has to compute, counted."""
    from benchmarks.turns.counted import counted

    cell = result["cell"]
    lengths = {"prompt": result["prompt_tokens"], "observation": result["between_tokens"]}
    return counted(side, answer=cell["completion"], turns=cell["turns"], group=cell["group"], **lengths)


def computed(side: str, result: Result) -> Any:
    """The same, with what vLLM's own meter said of tokens that were read, which are more than counted."""
    wanted = plan(side, result)
    return replace(wanted, rollout=int(result["read_tokens"])) if side == "trl-vllm" else wanted


def check(store: Store, cell: dict[str, int], measured: Sequence[str]) -> None:
    """The sides did the same work, and ours computed what was counted.

    Raises:
        BenchmarkError: they did not.
    """
    check_same(store, cell, ("prompt_tokens", "between_tokens", "completion_tokens", "turns_played", "parameters"))
    for side in measured:
        for result in of(store, cell, side):
            wanted = plan(side, result)
            whole = wanted.update <= store.settings["max_tokens_per_microbatch"]  # else a chain's first prompt is computed in each part
            to_the_token = side != "trl-vllm"  # vLLM keeps whole blocks
            for name, number, exact in (("read_tokens", wanted.rollout, to_the_token), ("trained_tokens", wanted.update, whole)):
                if name in result and (result[name] != number if exact else result[name] < number):
                    raise BenchmarkError(f"{cell}: side {side} has {result[name]:g} {name}, counted were {number}; this is no comparison")


def absolute(store: Store, cells: list[dict[str, int]], sides: Sequence[str]) -> list[list[str]]:
    rows = [["turns x screen x attempts x answer", "side", "s / step", "CPU s / step", "rollout s", "update s", "MiB", "read", "trained"]]
    for cell, side in itertools.product(cells, sides):
        found = of(store, cell, side)
        if not found:
            failed = [r["failed"] for r in store.results.values() if r["side"] == side and r["cell"] == cell and "failed" in r]
            rows.append([name_of(cell), side, failed[0] if failed else "not measured", *["-"] * (len(rows[0]) - 3)])
            continue
        row = [median_range([v for r in found for v in r[name]]) for name in ("seconds", "cpu", "rollout", "update")]
        wanted = computed(side, found[0])
        rows.append([name_of(cell), side, *row, median_range([used(r) for r in found], 0), str(wanted.rollout), str(wanted.update)])
    return rows


def ratios(store: Store, cells: list[dict[str, int]], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """How many times more the first side of a pair takes: median of each process, then median and extremes over the repeats; beside it the
    ratio of what has to be computed."""
    head = ["step", "step, CPU time", "rollout", "tokens read", "pictures", "update", "tokens trained", "T / (T - 1 + 1/G)"]
    head += ["update of a token", "pictures", "memory"]
    rows = [["turns x screen x attempts x answer", "ratio", *head]]
    for cell, (slow, fast) in itertools.product(cells, pairs):
        first, second = of(store, cell, slow), of(store, cell, fast)
        by_repeat = {r["repeat"]: r for r in second}
        couples = [(a, by_repeat[a["repeat"]]) for a in first if a["repeat"] in by_repeat]
        if not couples:
            continue
        ratio = {
            part: median_range([statistics.median(x[part]) / statistics.median(y[part]) for x, y in couples])
            for part in ("seconds", "cpu", "rollout", "update")
        }
        a, b = computed(slow, first[0]), computed(fast, second[0])
        row = [name_of(cell), f"{slow} / {fast}", ratio["seconds"], ratio["cpu"]]
        row += [ratio["rollout"], f"{a.rollout / b.rollout:.2f}", f"{a.rollout_pictures / b.rollout_pictures:.2f}"]
        each = [statistics.median(x["update"]) / statistics.median(y["update"]) * b.update / a.update for x, y in couples]
        turns, group = cell["turns"], cell["group"]
        row += [ratio["update"], f"{a.update / b.update:.2f}", f"{turns / (turns - 1 + 1 / group):.2f}"]
        row += [median_range(each), f"{a.update_pictures / b.update_pictures:.2f}"]
        rows.append([*row, median_range([used(x) / used(y) for x, y in couples])])
    return rows


def run(args: argparse.Namespace, script: str) -> tuple[Store, list[dict[str, int]]]:
    """Measure what is missing; all cells of the file, those of earlier calls included."""
    settings = common_settings(args) | {"max_tokens_per_microbatch": args.micro_tokens, "vocabulary_rows": args.vocabulary_rows}
    store = Store.open(args.write.with_suffix(".json"), settings)
    made = {"vocabularies": [args.vocabulary_rows], "media": []}
    measure(script, {"side": "prepare", "cell": made, "settings": settings}, timeout=args.timeout)
    run_all(script, store, cells_of(args), args.sides, args.repeats, timeout=args.timeout, say=console().print)
    return store, [dict(cell) for cell in sorted({tuple(r["cell"].items()) for r in store.results.values()})]


def main(args: argparse.Namespace) -> None:
    store, cells = run(args, __file__)
    for cell in cells:
        check(store, cell, SIDES)
    publish(args.write, document(store, cells, "# Turns: keys and values kept, chains trained", SIDES, [("anew", "kept")], ()))


def document(
    store: Store, cells: list[dict[str, int]], title: str, sides: Sequence[str], pairs: Sequence[tuple[str, str]], more: Sequence[str]
) -> list[str]:
    """The page."""
    measured = [side for side in sides if any(of(store, cell, side) for cell in cells)]
    one = next(r for r in store.results.values() if "failed" not in r)
    about = (
        f"Model: Qwen2.5-VL with random weights ({store.settings['size']}), {one['parameters'] / 1e6:.1f} M parameters, all of them "
        "trained. One task per step; an episode is so many turns, each with a screen of so many visual tokens, the whole conversation in "
        "the prompt. "
        f"A first prompt has {one['prompt_tokens'] - one['cell']['screen']} tokens of text. {'; '.join(ABOUT[side] for side in measured)}."
    )
    return [
        title,
        "",
        about,
        "",
        show("Seconds and memory", absolute(store, cells, measured)),
        show("Ratios", ratios(store, cells, [(a, b) for a, b in pairs if a in measured and b in measured])),
        "`read` and `trained` are the tokens that pass through the decoder in a rollout (those that are drawn come on top, equally many on",
        "all sides) and in the forward pass of an update: counted, and what our own meters said. `pictures` are screens through the tower,",
        "counted. MiB is the peak above the loaded model, CPU time that of the trainer's process. Every action shows another screen, so",
        "attempts share the first prompt only: of T turns as long as each other, G attempts can leave out as much as makes an update",
        "T / (T - 1 + 1/G) times shorter, whoever trains them. `update of a token`: seconds of the update over the tokens trained.",
        "",
        *more,
        *provenance(store),
        "",
    ]


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)

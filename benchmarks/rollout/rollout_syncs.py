"""Many synchronisations of weights, the vision tower's among them: is every answer that of the new weights, and does memory stay?

    python -m benchmarks.rollout.rollout_syncs                      200 of them, in the trainer's process and over a rollout server
    python -m benchmarks.rollout.rollout_syncs --syncs 20 --warmup 0 --families internvl --where server "server, two ranks" \\
        --write docs/benchmarks/rollout_families.md

A tiny model in float32. Before each synchronisation all its weights change by a twentieth of their spread. Then one prompt of each place
(text, an image, images, a video, videos, image and video) is answered greedily by vLLM and by a reference engine that is new each time
and holds nothing of before. After the last one, some of the versions (`--fresh`) are answered once more by a vLLM in a process of its own
that has read them from files, without our synchronisation. Memory is what the process has resident after each; a line is fitted to it.
`--warmup` more go before: each brings new keys into vLLM's caches, which let go of nothing until they are full. InternVL and SmolVLM
are run through their own processor; of SmolVLM there are no clips (docs/families.md). Qwen3.5 runs in the process alone, its delta nets in
float32 by code of the tests, since vLLM's kernels for a CPU take bfloat16. Writes docs/benchmarks/rollout_syncs.md and .json.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
    BenchmarkError,
    Job,
    Result,
    Store,
    common_settings,
    console,
    fit,
    median_range,
    need,
    provenance,
    publish,
    run_all,
    run_script,
    show,
)
from benchmarks.step.meter import resident

TOKENS = 12
"""Of an answer."""
SPREAD = 0.05
"""By how much of its own spread each weight tensor changes."""
CACHE_BYTES = 2**24
"""Of vLLM's keys and values: so few that they have all been used soon. Its cache of features cannot be made smaller: about 130 turns."""
ROOM = 1024
FEW = 20
"""Synchronisations whose gaps are told apart from all."""
MIB = 2**20
OWN = {"internvl": True, "smolvlm": False}
"""Families that are run through their own processor, and whether vLLM has clips of them."""
FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", *OWN)
RANKS = {"process": 1, "server": 1, "server, two ranks": 2}
"""Where vLLM runs -> over how many devices its weights are shared."""
Answers = list[list[list[float]]]
"""[ids, log-probs] of the answer to each prompt."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--syncs", dest="steps", type=int, help="synchronisations (as --steps)")
    parser.add_argument("--where", nargs="+", choices=tuple(RANKS), default=["process", "server"], help="where vLLM runs")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=["qwen2_5_vl"])
    parser.add_argument("--fresh", type=int, default=4, help="versions that a new vLLM answers too")
    parser.set_defaults(steps=200, warmup=350, repeats=1)


def worker(job: Job) -> Result:
    return {"syncs": syncs, "fresh": fresh}[job["side"]](job)


def folder_of(job: Job) -> Path:
    from benchmarks.step.workload import work

    return work(job["settings"]) / f"syncs-{job['cell']['family']}-{job['cell']['where'].replace(', ', '-').replace(' ', '-')}"


def made(folder: Path, family: Any) -> Any:
    """A tiny model of a family with rows of its layouts."""
    import pytest

    from tests.support import delta_kernel, given, media_layouts
    from tests.support.reports import written
    from vlmrl.extras.families.conform.engine import HEAD

    if family not in OWN:
        if family == "qwen3_5":
            delta_kernel.install(pytest.MonkeyPatch())  # for as long as this process lives
        return media_layouts.make(folder, family)
    world = given.make_rows(folder / "world", video=OWN[family], train=3)
    model = given.make_model(family, folder / "model", head=HEAD)
    written(model, red=() if OWN[family] else ("P18",), model_type=family, engine="vllm")
    return given.load_given(model, world)


def opened(folder: Path, model: Path, family: str) -> Any:
    """Weights of the family, with the same rows."""
    import dataclasses

    from tests.support import given, numerals, tiny  # noqa: F401 (numerals: for SmolVLM)
    from tests.support.reports import written

    if family in OWN:
        written(model, red=() if OWN[family] else ("P18",), model_type=family, engine="vllm")
        return given.load_given(model, folder / "world")
    loaded = tiny.load(model, folder / "world")
    loaded.policy.positions = dataclasses.replace(loaded.policy.positions, rule="max")
    return loaded


def syncs(job: Job) -> Result:
    """All synchronisations of one cell."""
    import torch

    from vlmrl import fs
    from vlmrl.run.export import export

    cell, folder = job["cell"], folder_of(job)
    if folder.exists():
        fs.remove_tree(folder)
    fs.mkdir(folder)
    loaded = made(folder, cell["family"])
    policy = loaded.policy
    policy.vision_trains = True
    generator = torch.Generator().manual_seed(0)
    warmup, kept = job["settings"]["warmup"], kept_of(cell)
    out: dict[str, Any] = {"seconds": [], "nbytes": [], "gap": [], "moved": [], "other": [], "memory": {}, "kept": {}}
    before: Answers | None = None
    asked = requests_of(loaded, cell["family"])
    engines = in_process if cell["where"] == "process" else on_server
    with engines(folder, loaded, cell) as (engine, memory):
        for n in range(-warmup, cell["syncs"]):
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(SPREAD * parameter.std(correction=0).nan_to_num() * noise)
            policy.version += 1
            policy.vision_version += 1
            began = time.perf_counter()
            report = engine.sync()
            out["seconds"].append(time.perf_counter() - began)
            out["nbytes"].append(report.nbytes)
            theirs = plain(engine.generate(asked, greedy()))
            ours = plain(reference(loaded).generate(asked, greedy()))
            out["gap"].append(apart(ours, theirs))
            out["other"].append(sum(a[0] != b[0] for a, b in zip(ours, theirs, strict=True)))
            out["moved"].append(0.0 if before is None else min(distance(a, b) for a, b in zip(before, theirs, strict=True)))
            before = theirs
            if n + 1 in kept:
                export(policy, folder / f"sync-{n + 1}")
                out["kept"][str(n + 1)] = theirs
            gc.collect()
            for name, value in memory().items():
                out["memory"].setdefault(name, []).append(value)
    return out


def kept_of(cell: dict[str, Any]) -> set[int]:
    """The synchronisations whose weights are kept for a fresh vLLM: evenly spread, the last one among them."""
    return {round(cell["syncs"] * (n + 1) / cell["fresh"]) for n in range(cell["fresh"])}


def fresh(job: Job) -> Result:
    """Answers of a vLLM that has read the weights of one synchronisation from files."""
    from vlmrl.extras.vllm.engine import Core, VllmEngine
    from vlmrl.extras.vllm.inputs import Version

    cell, folder = job["cell"], folder_of(job)
    model = folder / f"sync-{cell['sync']}"
    if not model.exists():
        raise BenchmarkError(f"{model} is not there any more; move the results away and measure again")
    if cell["family"] == "qwen3_5":
        import pytest

        from tests.support import delta_kernel

        delta_kernel.install(pytest.MonkeyPatch())
    loaded = opened(folder, model, cell["family"])
    core = Core(core_options(model, loaded.policy))
    engine = VllmEngine(core, loaded.policy, loaded.store)
    engine.held = Version(policy=loaded.policy.version, vision=loaded.policy.vision_version, whole=0)  # nothing is sent: it has read them
    answers = plain(engine.generate(requests_of(loaded, cell["family"]), greedy()))
    core.close()
    return {"answers": answers}


@contextlib.contextmanager
def in_process(folder: Path, loaded: Any, cell: dict[str, Any]) -> Iterator[tuple[Any, Callable[[], dict[str, int]]]]:
    """vLLM in this process, and the memory of both."""
    from vlmrl.extras.vllm.engine import Core, VllmEngine

    del cell
    core = Core(core_options(folder / "model", loaded.policy))
    try:
        yield VllmEngine(core, loaded.policy, loaded.store), lambda: {"trainer with vLLM": resident()}
    finally:
        core.close()


def family(pid: int) -> list[int]:
    """A process and what it has started: vLLM's server and its engine."""
    below = [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]
    return [pid, *(one for child in below for one in family(child))]


@contextlib.contextmanager
def on_server(folder: Path, loaded: Any, cell: dict[str, Any]) -> Iterator[tuple[Any, Callable[[], dict[str, int]]]]:
    """vLLM behind `vlmrl serve --rollouts`, and the memory of each."""
    import json

    from tests.support import runs, served
    from vlmrl.extras.vllm.client import RemoteVllmEngine
    from vlmrl.extras.vllm.fleet import Fleet, Needed
    from vlmrl.extras.vllm.remote import Remote
    from vlmrl.extras.vllm.secret import read_token

    config = runs.small_config(folder / "model", folder / "world", folder / "runs")
    config["model"]["positions"] = "max"
    if cell["family"] in OWN:
        config["model"]["family"] = "generic"
    shared = {"cache_bytes": CACHE_BYTES, "max_model_len": ROOM, "block_size": 32, "tensor_parallel": RANKS[cell["where"]]}
    config["stages"][1]["rollout"] |= {"engine": "vllm", "vllm": shared}
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    # in place of a package that SmolVLM's processor wants, as `tests.support.numerals`
    (folder / "num2words.py").write_text("def num2words(number, **_):\n    return str(number)\n")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with served.serving(recipe, environment={"PYTHONPATH": path}) as server:
        told = {"processor": loaded.bundle.fingerprint} if cell["family"] in OWN else {}
        needed = Needed(architecture=type(loaded.policy.model).__name__, dtype="float32", length=ROOM, **told)
        fleet = Fleet([Remote(server.address, token=read_token(server.token, "token"))], needed, patience=60.0)
        engine = RemoteVllmEngine(fleet, loaded.policy, loaded.store)
        yield engine, lambda: {"trainer": resident(), "server": sum(map(resident, family(server.process.pid)))}
        engine.close()


def core_options(model: Path, policy: Any) -> Any:
    from vlmrl.extras.vllm.engine import CoreOptions

    return CoreOptions(
        path=str(model),
        revision=None,
        architecture=type(policy.model).__name__,
        dtype="float32",
        max_model_len=ROOM,
        max_num_seqs=64,
        memory=0.3,
        cache_bytes=CACHE_BYTES,
        eager=True,
        block_size=32,
        raw_pixels=policy.bundle.writer is None,
    )


def reference(loaded: Any) -> Any:
    """The reference engine, new, with no feature of before."""
    from vlmrl.policy.vision import VisionCache
    from vlmrl.rollout.own import own_engine

    return own_engine(loaded.policy, VisionCache(loaded.store, budget_bytes=2**26))


def greedy() -> Any:
    from vlmrl.types import GenerationSettings

    return GenerationSettings(max_new_tokens=TOKENS, temperature=0.0)


def requests_of(loaded: Any, family: str) -> list[Any]:
    from tests.support import given, media_layouts
    from vlmrl.types import Request

    prompts = given.layouts(loaded, video=OWN[family]) if family in OWN else media_layouts.prompts(loaded)
    return [Request(prompt=prompt, seeds=(0,), ks=(0,)) for prompt in prompts.values()]


def plain(groups: Sequence[Sequence[Any]]) -> Answers:
    return [[list(group[0].ids), list(group[0].logprobs)] for group in groups]


def apart(ours: Answers, theirs: Answers) -> float:
    """Largest difference of log-probs as long as the tokens are the same, and at the first that is not: two tokens alike."""
    return max(distance(a, b) for a, b in zip(ours, theirs, strict=True))


def distance(a: list[list[float]], b: list[list[float]]) -> float:
    """The same for one answer."""
    same = [x == y for x, y in zip(a[0], b[0], strict=False)]
    upto = same.index(False) + 1 if False in same else len(same)
    return max(abs(x - y) for x, y in list(zip(a[1], b[1], strict=False))[:upto])


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    cells = [{"family": f, "where": w, "syncs": args.steps, "fresh": args.fresh} for f in args.families for w in args.where]
    return [cell for cell in cells if cell["family"] != "qwen3_5" or cell["where"] == "process"]


def main(args: argparse.Namespace) -> None:
    need("vllm", "there is nothing to measure without")
    if args.steps < 3:
        raise BenchmarkError(f"--syncs {args.steps} gives no line")
    store = Store.open(args.write.with_suffix(".json"), common_settings(args))
    say = console().print
    cells = cells_of(args)
    run_all(__file__, store, cells, ("syncs",), 1, timeout=args.timeout, say=say)
    kept = [cell | {"sync": n} for cell in cells for n in sorted(kept_of(cell))]
    run_all(__file__, store, kept, ("fresh",), 1, timeout=args.timeout, say=say)
    publish(args.write, document(store))


def table_of(store: Store) -> list[list[str]]:
    """A row per cell."""
    rows = [
        [
            "family, where vLLM runs",
            "synchronisations",
            "s each",
            "MiB sent each",
            "least change of an answer, nats",
            "answers with other tokens than the reference's",
            "largest gap to the reference, nats: first 20, all",
            "fresh vLLM: versions, answers with other tokens, largest gap",
        ]
    ]
    for found in of_side(store, "syncs"):
        cell = found["cell"]
        news = [r for r in of_side(store, "fresh") if {k: v for k, v in r["cell"].items() if k != "sync"} == cell]
        pairs = [(found["kept"][str(r["cell"]["sync"])], r["answers"]) for r in news]
        other = sum(a[0] != b[0] for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))
        answers = len(found["gap"]) * len(next(iter(found["kept"].values())))
        rows.append(
            [
                f"{cell['family']}, {cell['where']}",
                f"{store.settings['warmup']} + {cell['syncs']}",
                median_range(found["seconds"][store.settings["warmup"] :], 3),
                f"{found['nbytes'][0] / MIB:.1f}",
                f"{min(found['moved'][1:]):.1e}",
                f"{sum(found['other'])} of {answers}",
                f"{max(found['gap'][:FEW]):.1e}, {max(found['gap']):.1e}",
                f"{len(pairs)}, {other}, {max((apart(a, b) for a, b in pairs), default=0.0):.1e}",
            ]
        )
    return rows


def ties_of(store: Store) -> list[str]:
    """What is said of answers with other tokens: how far the log-probs of the two tokens are from each other where the first differs."""
    out: list[str] = []
    for found in of_side(store, "syncs"):
        if apart_by := [gap for gap, other in zip(found["gap"], found["other"], strict=True) if other]:
            name = f"{found['cell']['family']}, {found['cell']['where']}"
            out.append(f"Where an answer of {name} has another token, the log-probs of the two are {max(apart_by):.1e} nats apart.")
    return out


def memory_of(store: Store) -> list[list[str]]:
    """A row per process."""
    rows = [
        [
            "family, where vLLM runs",
            "process",
            "MiB at first",
            "after the warm-up",
            "after the last",
            "MiB a synchronisation",
            "in their last half",
        ]
    ]
    start = store.settings["warmup"]
    for found in of_side(store, "syncs"):
        for process, values in found["memory"].items():
            sizes = [value / MIB for value in values]
            name = f"{found['cell']['family']}, {found['cell']['where']}"
            slopes = [slope_of(sizes, begin) for begin in (start, (start + len(sizes)) // 2)]
            rows.append([name, process, f"{sizes[0]:.0f}", f"{sizes[start]:.0f}", f"{sizes[-1]:.0f}", *slopes])
    return rows


def slope_of(sizes: Sequence[float], start: int) -> str:
    """Of a line through what comes from a place on, with its 95% interval."""
    line = fit(range(start, len(sizes)), sizes[start:])
    return f"{line.slope:.4f} [{line.low:.4f}, {line.high:.4f}]"


def of_side(store: Store, side: str) -> list[Result]:
    return [r for r in store.results.values() if r["side"] == side and "failed" not in r]


def document(store: Store) -> list[str]:
    filled = [
        show("Resident memory, with a least-squares line through what came after the warm-up", memory_of(store)),
        f"The first {store.settings['warmup']} synchronisations fill vLLM's caches ({CACHE_BYTES // MIB} MiB of keys and values, 8,192",
        "features): each brings new keys, and what was there goes only when room is needed. In brackets the 95% interval of the slope.",
        "",
    ]
    return [
        "# Synchronisations of weights into vLLM",
        "",
        "A tiny model in float32 whose weights all change before each synchronisation, the vision tower's too. One prompt of each of six",
        f"kinds (text, image, images, video, videos, image and video), {TOKENS} greedy tokens each. The reference engine is a new one",
        "each time; a fresh vLLM is a process of its own that has read the weights from files. *Gap*: largest difference of log-probs.",
        "",
        show("Answers", table_of(store)),
        "Each change is added to those before, so the weights walk away from where they began, and gaps grow with them.",
        *ties_of(store),
        "",
        *(filled if store.settings["warmup"] else []),  # without a warm-up the line would be that of caches that fill
        *(line for line in provenance(store) if not line.startswith("* memory on a CPU")),
    ]


if __name__ == "__main__":
    run_script(__doc__ or "", __file__, options, worker, main)

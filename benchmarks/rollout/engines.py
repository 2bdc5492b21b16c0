"""Rollouts of a training step with three engines in one process, taking turns: `rollout.engine: hf`, transformers' `generate`, and
`rollout.engine: vllm`.

A part of `rollout.py`. All get the same prompts, already encoded, and media that none has seen. The time runs from there to the sampled ids
of all answers; with vLLM it begins with the sending of the weights, since in training they have changed. Call by call each side has one
turn, and another one begins.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import BenchmarkError, Job, Result, Store, median_range, show
from benchmarks.rollout.programs import axes_of, config_of, media_of, rows_of
from benchmarks.step.meter import now

ENGINES = ("hf", "generate", "vllm")
SIDES = ("turns",)
"""Side of a measuring process: all engines are in it."""

Ask = Callable[[Sequence[Any], int], list[Any]]
"""(prompts, number of the call) -> ids of every answer."""


@dataclass
class Place:
    """What the sides of one process share."""

    job: Job
    policy: Any
    store: Any
    room: int
    """Tokens of a prompt with its answer."""
    sent: list[float] = field(default_factory=list)
    """Seconds of sending weights, per call."""

    @property
    def model(self) -> str:
        from benchmarks.step.workload import model_folder

        return str(model_folder(self.job["settings"], self.job["cell"]["vocabulary"]))

    @property
    def sampling(self) -> Any:
        from vlmrl.types import GenerationSettings

        return GenerationSettings(max_new_tokens=self.job["cell"]["completion"])

    def requests(self, prompts: Sequence[Any], n: int) -> list[Any]:
        from vlmrl import rng
        from vlmrl.types import Request

        ks = tuple(range(self.job["cell"]["group"]))
        return [Request(prompt=prompt, ks=ks, seeds=tuple(rng.key(0, n, i, k) for k in ks)) for i, prompt in enumerate(prompts)]


def worker(job: Job) -> Result:
    return turns(job)


def turns(job: Job) -> Result:
    """Every side answers every call; the one that begins changes from call to call."""
    import torch

    from benchmarks.step import ours as step
    from vlmrl.run.media import open_media

    settings, cell = job["settings"], job["cell"]
    cfg = config_of(job)
    folder, calls = rows_of(job)
    bundle = step.open_bundle(cfg.model.path)
    store, encoder = open_media(cfg, bundle, folder)
    policy = step.open_policy(cfg, bundle)
    policy.vision_trains = True  # so that all weights are sent for each call
    room = len(encoder.encode(calls[0][0], step.TEMPLATE).ids) + cell["completion"]
    at = Place(job, policy, store, room)
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    makers = {"hf": hf, "generate": generate, "vllm": vllm}
    asks: dict[str, Ask] = {side: makers[side](at) for side in cell["sides"].split()}
    set_threads(threads)  # vLLM's worker may have changed it for everybody
    out: dict[str, Any] = {side: [] for side in asks}
    lengths: set[tuple[int, int]] = set()
    for n, samples in enumerate(calls):
        prompts = [encoder.encode(sample, step.TEMPLATE) for sample in samples]
        policy.version += 1
        policy.vision_version += 1
        order = list(asks)[n % len(asks) :] + list(asks)[: n % len(asks)]
        for side in order:
            began = now(settings["device"])
            answers = asks[side](prompts, n)
            seconds = now(settings["device"]) - began
            lengths.add((len(answers), sum(len(ids) for ids in answers)))
            if n >= settings["warmup"]:
                out[side].append(seconds)
    if len(lengths) != 1:
        raise BenchmarkError(f"{cell}: the sides differ in (answers, tokens): {sorted(lengths)}; this is no comparison")
    ((_, tokens),) = lengths
    return out | {"sent": at.sent[settings["warmup"] :], "tokens": tokens, "prompt_tokens": room - cell["completion"]}


def hf(at: Place) -> Ask:
    """The reference engine: the policy itself."""
    from vlmrl.policy.vision import VisionCache
    from vlmrl.rollout.engine_hf import HFEngine

    engine = HFEngine(at.policy, VisionCache(at.store, budget_bytes=2**28))

    def ask(prompts: Sequence[Any], n: int) -> list[Any]:
        return [rollout.ids for group in engine.generate(at.requests(prompts, n), at.sampling) for rollout in group]

    return ask


def generate(at: Place) -> Ask:
    """transformers' `generate`, whose inputs are the pixels and ids that the other sides get."""
    import torch
    from transformers import AutoModelForImageTextToText

    settings, cell, bundle = at.job["settings"], at.job["cell"], at.policy.bundle
    dtype = torch.bfloat16 if settings["dtype"] == "bfloat16" else torch.float32
    model: Any = AutoModelForImageTextToText.from_pretrained(at.model, dtype=dtype, attn_implementation="sdpa")
    model.to(settings["device"]).eval()
    sampling = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": cell["completion"],
        "num_return_sequences": cell["group"],
        "suppress_tokens": list(bundle.forbidden_ids),
    }

    def ask(prompts: Sequence[Any], n: int) -> list[Any]:
        inputs = inputs_of(prompts, at.store, bundle).to(settings["device"])
        torch.manual_seed(n)
        with torch.no_grad():
            out = model.generate(**inputs, **sampling)
        return list(out[:, inputs["input_ids"].shape[1] :])

    return ask


def inputs_of(prompts: Sequence[Any], store: Any, bundle: Any) -> Any:
    """What the model's own processor makes of these prompts, which are equally long and have one medium each."""
    import torch
    from transformers import BatchFeature

    ids = torch.tensor([prompt.ids for prompt in prompts])
    handles = [prompt.media[0] for prompt in prompts]
    kind = handles[0].kind
    names = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}[kind]
    types = (ids == bundle.pad_ids["image"]).long() + 2 * (ids == bundle.pad_ids["video"]).long()
    values = torch.cat([bundle.pixel_values(store.get_key(handle.key).pixel_values, kind) for handle in handles])
    out: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}
    out |= {names[0]: values, names[1]: torch.tensor([handle.grid_thw for handle in handles])}
    if kind == "video":
        out["second_per_grid_ts"] = torch.tensor([handle.seconds_per_grid or 1.0 for handle in handles])
    return BatchFeature(out)


def vllm(at: Place) -> Ask:
    """vLLM as a run has it: in this process, weights sent before it generates."""
    from benchmarks.step.ours import vllm_engine

    cell = at.job["cell"]
    engine = vllm_engine(at.job, at.policy, at.store, path=at.model, room=at.room, most=cell["batch"] * cell["group"])

    def ask(prompts: Sequence[Any], n: int) -> list[Any]:
        before = engine.sync_seconds
        with engine.ready():
            answers = engine.generate(at.requests(prompts, n), at.sampling)
        at.sent.append(engine.sync_seconds - before)
        return [rollout.ids for group in answers for rollout in group]

    return ask


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    more = {"batch": args.batch, "vocabulary": args.vocabulary_rows, "sides": " ".join(s for s in ENGINES if s not in args.without)}
    return [{"part": "engines"} | axes | more | {"vllm_memory": args.vllm_memory} for axes in axes_of(args)]


def table_of(results: Sequence[Result]) -> list[list[str]]:
    """A row per cell and side; `times hf` is of calls with the same prompts."""
    rows = [["medium, prompt x G x answer, prompts", "side", "s / call", "of it sending weights, s", "answer tokens / s", "times hf"]]
    cells = list(dict.fromkeys(tuple(r["cell"].items()) for r in results))
    for cell in map(dict, cells):
        found = [r for r in results if r["cell"] == cell and "failed" not in r]
        name = f"{cell['kind']}, {cell['prompt']} x {cell['group']} x {cell['completion']}, {cell['batch']}"
        for side in cell["sides"].split() if found else ():
            seconds = [s for r in found for s in r[side]]
            ratios = [s / own for r in found if "hf" in r for s, own in zip(r[side], r["hf"], strict=True)]
            sent = median_range([s for r in found for s in r["sent"]], 3) if side == "vllm" else "-"
            rows.append(
                [name, side, median_range(seconds), sent, f"{found[0]['tokens'] / statistics.median(seconds):.0f}", median_range(ratios)]
            )
    return rows


def lines(results: list[Result], store: Store) -> list[str]:
    del store
    return [
        show("Engines: from encoded prompts to the ids of all answers", table_of(results)),
        "One process, turns call by call, the same prompts, media that no side has seen. vLLM's time holds the sending of the weights.",
        "`hf` and `vllm` also return the log-prob of every sampled token, `generate` does not.",
    ]


__all__ = ["SIDES", "cells_of", "lines", "media_of", "worker"]

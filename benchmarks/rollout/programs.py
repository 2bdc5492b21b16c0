"""Whole programs that sample answers, from the path of a file to the ids: our reference engine, transformers' `generate`, and vLLM.

A part of `rollout.py`. Every side is a process of its own, with its own way from the file to the model's inputs: `vlmrl` (`HFEngine`: one
prefill and one pass of the tower per prompt), `generate` (the processor, then `model.generate(num_return_sequences=G)`) and `vllm`
(vLLM's processor, n = G).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import Job, Result, Store, check_same, median_range, need, show
from benchmarks.step.meter import Meter, now

SIDES = ("vlmrl", "generate", "vllm")


def media_of(cell: dict[str, Any], settings: dict[str, Any]) -> tuple[str, int, int]:
    """The files of a cell: no medium is shown twice."""
    return cell["kind"], cell["prompt"], (settings["warmup"] + settings["steps"]) * cell["batch"]


def worker(job: Job) -> Result:
    return {"vlmrl": ours, "generate": generate, "vllm": vllm}[job["side"]](job)


def rows_of(job: Job) -> tuple[Path, list[list[Any]]]:
    """(folder, samples of every call): no medium is shown twice."""
    from benchmarks.step.workload import media_folder
    from vlmrl.data.source import load_source

    settings, cell = job["settings"], job["cell"]
    calls = settings["warmup"] + settings["steps"]
    folder = media_folder(settings, *media_of(cell, settings))
    samples = load_source(folder / "rows.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    return folder, [samples[n * cell["batch"] : (n + 1) * cell["batch"]] for n in range(calls)]


def config_of(job: Job) -> Any:
    """A recipe that only says where the model and the media are."""
    from benchmarks.step import ours as step

    cell = job["cell"]
    return step.config_of(job | {"side": "repeat", "cell": cell, "settings": job["settings"] | {"max_tokens_per_microbatch": 16384}})


def timed(job: Job, calls: list[list[Any]], call: Any) -> Result:
    """Run `call(samples, n) -> (seconds of preparation or None, ids of every answer)` for every batch of samples."""
    settings = job["settings"]
    meter = Meter(settings["device"])
    out: dict[str, list[float]] = {"seconds": [], "prepare": []}
    answers: list[Any] = []
    for n, samples in enumerate(calls):
        began = now(settings["device"])
        prepared, answers = call(samples, n)
        ended = now(settings["device"])
        if n >= settings["warmup"]:
            out["seconds"].append(ended - began)
            out["prepare"] += [] if prepared is None else [prepared]
    lengths = [len(ids) for ids in answers]
    return out | {"memory": meter.read(), "answers": len(lengths), "completion_tokens": statistics.fmean(lengths)}


def ours(job: Job) -> Result:
    from benchmarks.step import ours as step
    from vlmrl import rng
    from vlmrl.policy.vision import VisionCache
    from vlmrl.rollout.engine_hf import HFEngine
    from vlmrl.run.media import open_media
    from vlmrl.types import GenerationSettings, Request

    settings, cell = job["settings"], job["cell"]
    cfg = config_of(job)
    folder, calls = rows_of(job)
    bundle = step.open_bundle(cfg.model.path)
    store, encoder = open_media(cfg, bundle, folder)
    engine = HFEngine(step.open_policy(cfg, bundle), VisionCache(store, budget_bytes=cfg.media.cache_bytes))
    sampling = GenerationSettings(max_new_tokens=cell["completion"])
    seen: list[int] = []
    ks = tuple(range(cell["group"]))

    def call(samples: list[Any], n: int) -> tuple[float, list[Any]]:
        began = now(settings["device"])
        prompts = [encoder.encode(sample, step.TEMPLATE) for sample in samples]
        prepared = now(settings["device"]) - began
        seen[:] = [len(prompts[0].ids)]
        requests = [Request(prompt=p, ks=ks, seeds=tuple(rng.key(0, n, i, k) for k in ks)) for i, p in enumerate(prompts)]
        return prepared, [rollout.ids for group in engine.generate(requests, sampling) for rollout in group]

    return timed(job, calls, call) | {"prompt_tokens": seen[0]}


def read_media(folder: Path, sample: Any, kind: str) -> Any:
    """A picture as PIL image, or all frames of a clip as uint8 [T, H, W, 3]."""
    path = folder / sample.media[0].path
    if kind == "image":
        from PIL import Image

        return Image.open(path).convert("RGB")
    import av
    import numpy as np

    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def text_of(tokenizer: Any, sample: Any) -> str:
    """The rendered prompt with one placeholder per medium."""
    from benchmarks.step.workload import TEMPLATE
    from vlmrl.data.encode import messages

    return tokenizer.apply_chat_template(messages(sample, TEMPLATE), tokenize=False, add_generation_prompt=True)


def generate(job: Job) -> Result:
    """transformers: the processor, then `generate` with G answers per prompt."""
    import torch

    from benchmarks.step import ours as step

    settings, cell = job["settings"], job["cell"]
    cfg = config_of(job)
    folder, calls = rows_of(job)
    bundle = step.open_bundle(cfg.model.path)
    from transformers import AutoModelForImageTextToText

    dtype = torch.bfloat16 if settings["dtype"] == "bfloat16" else torch.float32
    model: Any = AutoModelForImageTextToText.from_pretrained(cfg.model.path, dtype=dtype, attn_implementation="sdpa")
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
    seen: list[int] = []

    def call(samples: list[Any], n: int) -> tuple[float, list[Any]]:
        began = now(settings["device"])
        media = [read_media(folder, sample, cell["kind"]) for sample in samples]
        texts = [text_of(bundle.tokenizer, sample) for sample in samples]
        more: dict[str, Any] = {"images": media, "images_kwargs": {"do_resize": False}}
        if cell["kind"] == "video":
            more = {"videos": media, "videos_kwargs": {"do_resize": False, "do_sample_frames": False}}
        inputs = bundle.processor(text=texts, return_tensors="pt", **more).to(settings["device"])
        prepared = now(settings["device"]) - began
        seen[:] = [inputs["input_ids"].shape[1]]
        torch.manual_seed(n)
        with torch.no_grad():
            out = model.generate(**inputs, **sampling)
        return prepared, list(out[:, seen[0] :])

    return timed(job, calls, call) | {"prompt_tokens": seen[0]}


def vllm_item(medium: Any, kind: str) -> Any:
    """vLLM wants a clip's frames together with what they are: all frames of the file, none to be sampled."""
    from benchmarks.step.workload import FPS

    if kind == "image":
        return medium
    count = len(medium)
    about = {
        "fps": FPS,
        "duration": count / FPS,
        "total_num_frames": count,
        "frames_indices": list(range(count)),
        "do_sample_frames": False,
    }
    return medium, about


def vllm(job: Job) -> Result:
    """vLLM: the file's pixels and the rendered text in, ids and log-probs out. Its processes keep memory of their own: none is given."""
    need("vllm", "--without vllm")
    settings, cell = job["settings"], job["cell"]
    cpu = settings["device"] == "cpu"
    if cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    from benchmarks.step import ours as step
    from benchmarks.step.workload import model_folder

    folder, calls = rows_of(job)
    path = str(model_folder(settings, cell["vocabulary"]))
    bundle = step.open_bundle(path)
    more = {"enforce_eager": True, "gpu_memory_utilization": 0.3} if cpu else {"gpu_memory_utilization": 0.8}
    kwargs = {"do_resize": False, "do_sample_frames": False} if cell["kind"] == "video" else {"do_resize": False}
    limits = {"image": int(cell["kind"] == "image"), "video": int(cell["kind"] == "video")}
    room = cell["prompt"] + cell["completion"] + 256
    engine = LLM(model=path, dtype=settings["dtype"], max_model_len=room, limit_mm_per_prompt=limits, mm_processor_kwargs=kwargs, **more)
    bias = dict.fromkeys(bundle.forbidden_ids, -100.0)
    seen: list[int] = []

    def call(samples: list[Any], n: int) -> tuple[None, list[Any]]:
        requests = [
            {
                "prompt": text_of(bundle.tokenizer, s),
                "multi_modal_data": {cell["kind"]: vllm_item(read_media(folder, s, cell["kind"]), cell["kind"])},
            }
            for s in samples
        ]
        sampling = SamplingParams(
            n=cell["group"], temperature=1.0, max_tokens=cell["completion"], ignore_eos=True, logit_bias=bias, logprobs=0, seed=n
        )
        outs = engine.generate(requests, sampling, use_tqdm=False)
        seen[:] = [len(outs[0].prompt_token_ids)]
        return None, [one.token_ids for out in outs for one in out.outputs]

    result = timed(job, calls, call)
    return result | {"prompt_tokens": seen[0], "memory": None}


def cells_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [axes | {"batch": args.batch, "vocabulary": args.vocabulary_rows} for axes in axes_of(args)]


def axes_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Medium, size, group and length of every cell."""
    names = ("kind", "prompt", "group", "completion")
    return [dict(zip(names, cell, strict=True)) for cell in itertools.product(args.kinds, args.prompts, args.groups, args.completions)]


def tables(store: Store, cells: list[dict[str, Any]]) -> list[list[str]]:
    """A row per cell and side; `ratio` is how many times longer than ours, over the repeats."""
    rows = [["medium, prompt x G x completion", "side", "s / call", "of it preparing, s", "answer tokens / s", "times ours", "MiB"]]
    for cell, side in itertools.product(cells, SIDES):
        found = {r["repeat"]: r for r in store.results.values() if r["side"] == side and r["cell"] == cell and "failed" not in r}
        mine = {r["repeat"]: r for r in store.results.values() if r["side"] == "vlmrl" and r["cell"] == cell and "failed" not in r}
        if not found:
            continue
        results = list(found.values())
        seconds = [s for r in results for s in r["seconds"]]
        tokens = results[0]["answers"] * results[0]["completion_tokens"]
        ratio = [statistics.median(found[k]["seconds"]) / statistics.median(mine[k]["seconds"]) for k in found.keys() & mine.keys()]
        memory = [(r["memory"]["peak"] - r["memory"]["loaded"]) / 2**20 for r in results if r["memory"] is not None]
        name = f"{cell['kind']}, {cell['prompt']} x {cell['group']} x {cell['completion']}"
        preparing = median_range([s for r in results for s in r["prepare"]], 3)
        row = [name, side, median_range(seconds), preparing, f"{tokens / statistics.median(seconds):.0f}"]
        rows.append([*row, median_range(ratio), median_range(memory, 0)])
    return rows


def lines(results: list[Result], store: Store) -> list[str]:
    cells = [dict(cell) for cell in sorted({tuple(r["cell"].items()) for r in results})]
    for cell in cells:
        check_same(store, cell, ("prompt_tokens", "completion_tokens", "answers"))
    return [
        show("Whole programs: from the path of a file to the ids of all answers to it", tables(store, cells)),
        "`vlmrl` and `vllm` also return the log-prob of every sampled token, `generate` does not. vLLM prepares the prompt inside its call",
        "and keeps memory in processes of its own, so neither is given apart.",
    ]

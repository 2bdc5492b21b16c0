"""Our whole step, from the sampler's plan to the weight update, out of the parts that `vlmrl train` runs: `grpo_step` on a `StageRun`.

The end tokens are forbidden beside the visual control tokens, so that every answer has the full length; the other side forbids the
same ids. Everything trains, the tower included; the learning rate, the clipping, the loss and the statistics are those of a recipe.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Job, Result
from meter import Meter, now
from workload import MAX_PIXELS, TEMPLATE, media_folder, model_folder, reward

LEARNING_RATE = 1e-6


def config_of(job: Job) -> Any:
    """The recipe of a cell: `prompt` (visual tokens), `group`, `completion`, `batch` (prompts per step), `vocabulary`, and where it is not
    an image `kind`."""
    from vlmrl.config.schema import (
        Config,
        DataSection,
        GrpoSection,
        ModelSection,
        OptimSection,
        RewardMethod,
        RolloutSection,
        RunMediaSection,
        SourceSection,
    )

    settings, cell = job["settings"], job["cell"]
    steps = settings["warmup"] + settings["steps"]
    stage = GrpoSection(
        kind="grpo",
        name="benchmark",
        source=SourceSection(path="rows.jsonl"),
        steps=steps,
        answer_format=TEMPLATE,
        optim=OptimSection(lr=LEARNING_RATE),
        max_tokens_per_microbatch=settings["max_tokens_per_microbatch"],
        rollout=RolloutSection(prompts_per_step=cell["batch"], num_generations=cell["group"], max_new_tokens=cell["completion"]),
        rewards=(RewardMethod(name="length"),),
        forward=job["side"],
    )
    folder = media_folder(settings, cell.get("kind", "image"), cell["prompt"], steps * cell["batch"])
    return Config(
        model=ModelSection(path=str(model_folder(settings, cell["vocabulary"])), device=settings["device"], dtype=settings["dtype"]),
        media=RunMediaSection(max_pixels=MAX_PIXELS),
        data=DataSection(root=str(folder), max_prompt_tokens=2**17),
        stages=(stage,),
    )


def open_bundle(path: str) -> Any:
    """The processor, with answers that cannot end."""
    from vlmrl.policy.load import load_processor

    bundle = load_processor(path)
    return dataclasses.replace(bundle, forbidden_ids=tuple(sorted({*bundle.forbidden_ids, *bundle.end_ids})))


def open_policy(cfg: Any, bundle: Any) -> Any:
    from vlmrl.policy.load import load_policy, quiet_transformers

    quiet_transformers()
    m = cfg.model
    return load_policy(
        m.path,
        bundle,
        device=m.device,
        dtype=m.dtype,
        attention=m.attention,
        positions=m.positions,
        prefix_backend=m.prefix_backend,
        trains=cfg.trained,
    )


def length_reward(group: Any, ctx: Any) -> list[float | None]:
    return list(reward([rollout.text for rollout in group.rollouts]))


def vllm_engine(job: Job, policy: Any, store: Any, *, path: str, room: int, most: int) -> Any:
    """vLLM in this process, as `rollout.engine: vllm` makes it, for `most` answers of up to `room` tokens with their prompts."""
    import torch

    from vlmrl.rollout.vllm.engine import Core, CoreOptions, VllmEngine

    settings = job["settings"]
    on_cpu = settings["device"] == "cpu"
    options = CoreOptions(
        path=path,
        revision=None,
        architecture=type(policy.model).__name__,
        dtype=settings["dtype"],
        max_model_len=room,
        max_num_seqs=max(8, most),
        memory=job["cell"]["vllm_memory"],
        cache_bytes=2**30 if on_cpu else None,
        eager=on_cpu,
    )
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    core = Core(options)
    set_threads(threads)  # vLLM's worker may have changed it for everybody
    return VllmEngine(core, policy, store)


def open_stage(job: Job, cfg: Any, journal: Path, log: Any, *, collector: Callable[..., Any] | None = None) -> Any:
    """A `StageRun` as `vlmrl.train.run` builds it, without what surrounds a stage: evaluation, checkpoints, trackers. It generates with the
    reference engine, or with what the cell names as `engine`. `collector`: (stage, section, engine, strategy) -> what makes a collector;
    None: answers to prompts."""
    from vlmrl import rng
    from vlmrl.data.source import load_source
    from vlmrl.policy.load import freeze
    from vlmrl.policy.vision import VisionCache
    from vlmrl.protocols import sampler as samplers
    from vlmrl.rewards.run.runner import RewardRunner
    from vlmrl.rollout.engine_hf import HFEngine
    from vlmrl.rollout.guide import collector_for
    from vlmrl.train.loader import PromptLoader
    from vlmrl.train.media import open_media
    from vlmrl.train.shard.adamw import make_optimizer
    from vlmrl.train.shard.ddp import ReplicaUpdates
    from vlmrl.train.stage.base import StageRun
    from vlmrl.train.state import RunState
    from vlmrl.train.step import Learner

    stage, root = cfg.stages[0], Path(cfg.data.root)
    bundle = open_bundle(cfg.model.path)
    store, encoder = open_media(cfg, bundle, root)
    policy = open_policy(cfg, bundle)
    named = freeze(policy, stage.freeze)
    samples = {s.id: s for s in load_source(root / stage.source.path, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)}
    state = RunState()
    learner = Learner(
        policy=policy,
        vision=VisionCache(store, budget_bytes=cfg.media.cache_bytes),
        updates=ReplicaUpdates(named, *make_optimizer(named, stage.optim)),
        named=named,
        max_grad_norm=stage.optim.max_grad_norm,
        max_tokens_per_microbatch=stage.max_tokens_per_microbatch,
        layout=stage.forward,
        temperature=stage.rollout.temperature,
        forbidden=bundle.forbidden_ids,
    )
    loader = PromptLoader(
        samples=samples,
        encoder=encoder,
        sampler=samplers.bind(stage.sampler.name, stage.sampler.arguments)(list(samples), rng.key(0, "stage", stage.name)),
        answer_format=stage.answer_format,
        max_bad=0.0,
        bad=state.bad_media,
        quarantine=lambda sample, reason, message: None,
    )

    def make_engine(rollout: Any) -> Any:
        if job["cell"].get("engine", "hf") == "hf":
            return HFEngine(policy, learner.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)
        room = len(encoder.encode(next(iter(samples.values())), TEMPLATE).ids) + rollout.max_new_tokens
        most = rollout.prompts_per_step * rollout.num_generations
        return vllm_engine(job, policy, store, path=cfg.model.path, room=room, most=most)

    return StageRun(
        cfg=stage,
        seed=0,
        state=state,
        policy=policy,
        learner=learner,
        loader=loader,
        store=store,
        rewards=RewardRunner([("length", 1.0, length_reward)]),
        reference=None,
        journal_dir=journal,
        checkpoint_every=stage.steps + 1,
        log=lambda values, **where: log(values),
        save=lambda: None,
        stop_requested=lambda: False,
        make_engine=make_engine,
        make_collector=collector or (lambda stage, cfg, engine, strategy: collector_for(strategy, encoder.encode)),
    )


def measure(job: Job) -> Result:
    """Seconds of each measured step and of its rollout and update, peak memory, and what was computed."""
    from vlmrl.methods import registries
    from vlmrl.train.pipeline import Pipeline
    from vlmrl.train.stage.grpo import Algorithm, grpo_step

    registries()
    settings, cell = job["settings"], job["cell"]
    cfg = config_of(job)
    logged: list[dict[str, float]] = []
    out: dict[str, list[float]] = {"seconds": [], "cpu": [], "rollout": [], "update": []}
    with tempfile.TemporaryDirectory() as folder:
        stage = open_stage(job, cfg, Path(folder) / "journal", logged.append)
        algorithm = Algorithm.of(cfg.stages[0])
        pipeline = Pipeline(stage, stage.collector(cfg.stages[0], algorithm.strategy.call()))
        meter = Meter(settings["device"])
        began, cpu = now(settings["device"]), time.process_time()
        for step in range(cfg.stages[0].steps):
            grpo_step(stage, cfg.stages[0], algorithm, pipeline)
            ended = now(settings["device"])
            if step >= settings["warmup"]:
                out["seconds"].append(ended - began)
                out["cpu"].append(time.process_time() - cpu)
                out["rollout"].append(logged[-1]["time/rollout"])
                out["update"].append(logged[-1]["time/forward_backward"])
            began, cpu = ended, time.process_time()
        memory = meter.read()
    prompt = stage.loader.encoder.encode(next(iter(stage.loader.samples.values())), TEMPLATE)
    return out | {
        "memory": memory,
        "prompt_tokens": len(prompt.ids),
        "completion_tokens": logged[-1]["completions/mean_length"],
        "answers": cell["batch"] * cell["group"],
        "rows": stage.policy.head.shape[0],
        "parameters": sum(p.numel() for p in stage.policy.model.parameters()),
        "grad_norm": logged[-1]["grad_norm"],
        "phases": {k: v for k, v in logged[-1].items() if k.startswith("time/")},
    }

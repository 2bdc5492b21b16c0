"""Our whole step, from the sampler's plan to the weight update, out of the parts that `vlmrl train` runs: `grpo_step` on a `Stage`.

The end tokens are forbidden beside the visual control tokens, so that every answer has the full length; the other side forbids the
same ids. Everything trains, the tower included; the learning rate, the clipping, the loss and the statistics are those of a recipe.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Job, Result
from benchmarks.step.meter import Meter, now
from benchmarks.step.workload import MAX_PIXELS, TEMPLATE, fingerprint, media_folder, model_folder, reward

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
        model=ModelSection(
            path=str(model_folder(settings, cell["vocabulary"])),
            device=settings["device"],
            dtype=settings["dtype"],
            gradient_checkpointing=settings.get("recompute", False),
        ),
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

    from vlmrl.extras.vllm.engine import Core, CoreOptions, VllmEngine

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


def open_stage(cfg: Any) -> Any:
    """A `Stage` as `vlmrl.run.start` opens it, without what surrounds a stage: evaluation, checkpoints, trackers."""
    from vlmrl import rng
    from vlmrl.data.source import load_source
    from vlmrl.policy.load import freeze
    from vlmrl.policy.vision import VisionCache
    from vlmrl.protocols import sampler as samplers
    from vlmrl.rewards.run.runner import RewardRunner
    from vlmrl.run.media import open_media
    from vlmrl.train.adamw import make_optimizer
    from vlmrl.train.loader import PromptLoader
    from vlmrl.train.replicas import ReplicaUpdates
    from vlmrl.train.stage import providers  # noqa: F401 (registers them)
    from vlmrl.train.stage.algorithm import Algorithm
    from vlmrl.train.stage.base import Stage
    from vlmrl.train.stage.provide import Providers
    from vlmrl.train.stage.rewards import Rewards
    from vlmrl.train.state import RunState
    from vlmrl.train.step import Learner
    from vlmrl.train.updates import recompute

    stage, root = cfg.stages[0], Path(cfg.data.root)
    bundle = open_bundle(cfg.model.path)
    store, encoder = open_media(cfg, bundle, root)
    policy = open_policy(cfg, bundle)
    if cfg.model.gradient_checkpointing is True:
        recompute(policy.model)
    named = freeze(policy, stage.freeze)
    samples = {s.id: s for s in load_source(root / stage.source.path, media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)}
    state = RunState()
    learner = Learner(
        policy=policy,
        vision=VisionCache(store, budget_bytes=cfg.media.cache_bytes),
        updates=ReplicaUpdates(named, *make_optimizer(named, stage.optim, fused=policy.device.type == "cuda")),
        named=named,
        max_grad_norm=stage.optim.max_grad_norm,
        max_tokens_per_microbatch=stage.max_tokens_per_microbatch,
        layout=stage.forward,
        temperature=stage.rollout.temperature,
        checkpointing=cfg.model.gradient_checkpointing is True,
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

    return Stage(
        cfg=stage,
        seed=0,
        state=state,
        learner=learner,
        loader=loader,
        store=store,
        reference=None,
        providers=Providers.of(Algorithm.of(stage).methods()),
        rewards=Rewards(
            runner=RewardRunner([("length", 1.0, length_reward)]), store=store, state=state, steps=stage.steps, memory=learner.memory
        ),
    )


def open_engine(job: Job, cfg: Any, stage: Any) -> Any:
    """The trainer's own engine, on CUDA with recorded steps, or what the cell names as `engine`."""
    from vlmrl.rollout.engine_fixed import FixedEngine
    from vlmrl.rollout.engine_hf import HFEngine

    rollout = stage.cfg.rollout
    if job["cell"].get("engine", "hf") == "hf":
        own = HFEngine if job["settings"]["device"] == "cpu" else FixedEngine
        return own(stage.policy, stage.learner.vision, max_num_seqs=rollout.max_num_seqs, kept_bytes=rollout.kept_bytes)
    first = next(iter(stage.loader.samples.values()))
    room = len(stage.loader.encoder.encode(first, TEMPLATE).ids) + rollout.max_new_tokens
    most = rollout.prompts_per_step * rollout.num_generations
    return vllm_engine(job, stage.policy, stage.store, path=cfg.model.path, room=room, most=most)


def open_pipeline(stage: Any, engine: Any, strategy: Any, journal: Path, make: Callable[..., Any]) -> Any:
    """What makes the rollouts of a stage. `make`: a class of collector."""
    from vlmrl.rollout.mismatch import Bounds
    from vlmrl.run.collector import answer_ids, settings_of
    from vlmrl.train.pipeline import Pipeline

    cfg = stage.cfg
    collector = make(
        engine=engine,
        strategy=strategy,
        score=stage.rewards.score,
        tokenize=partial(answer_ids, stage.policy.bundle),
        settings=settings_of(cfg),
        num_generations=cfg.rollout.num_generations,
        generation_batch_size=cfg.rollout.generation_batch_size,
        seed=stage.seed,
        stage=cfg.name,
    )
    return Pipeline(stage, collector, journal=journal, bounds=Bounds())


def hooks(stage: Any, engine: Any, log: Any) -> list[Any]:
    """Of the hooks behind a step, those that count it and log what it cost."""
    from vlmrl.run.hooks import Log, count, counters_of, next_clock

    counters = counters_of(stage)
    for name, number in engine.counts.items():
        counters.add(name, number)
    return [count, Log(log=lambda values, **where: log(values), counters=counters), next_clock]


def make_step(stage: Any, pipeline: Any, algorithm: Any, after: list[Any]) -> None:
    """One step with what happens behind it."""
    from vlmrl.train.stage.grpo import grpo_step

    result = grpo_step(stage, stage.cfg, algorithm, pipeline)
    for hook in after:
        hook(stage, result)


def measure(job: Job) -> Result:
    """Seconds of each measured step and of its rollout and update, peak memory, and what was computed."""
    from vlmrl.methods import registries
    from vlmrl.rollout.guide import collector_for
    from vlmrl.train.stage.algorithm import Algorithm

    registries()
    settings, cell = job["settings"], job["cell"]
    cfg = config_of(job)
    logged: list[dict[str, float]] = []
    out: dict[str, list[float]] = {"seconds": [], "cpu": [], "rollout": [], "update": []}
    with tempfile.TemporaryDirectory() as folder:
        stage = open_stage(cfg)
        algorithm, engine = Algorithm.of(cfg.stages[0]), open_engine(job, cfg, stage)
        strategy = algorithm.strategy.call()
        make = collector_for(strategy, stage.loader.encoder.encode)
        pipeline = open_pipeline(stage, engine, strategy, Path(folder) / "journal", make)
        after = hooks(stage, engine, logged.append)
        meter = Meter(settings["device"])
        began, cpu = now(settings["device"]), time.process_time()
        for step in range(cfg.stages[0].steps):
            make_step(stage, pipeline, algorithm, after)
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
        "prompt_ids": fingerprint(prompt.ids),
        "completion_tokens": logged[-1]["completions/mean_length"],
        "answers": cell["batch"] * cell["group"],
        "rows": stage.policy.head.shape[0],
        "parameters": sum(p.numel() for p in stage.policy.model.parameters()),
        "grad_norm": logged[-1]["grad_norm"],
        "phases": {k: v for k, v in logged[-1].items() if k.startswith("time/")},
    }

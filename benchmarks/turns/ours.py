"""A whole step of episodes with our parts: `grpo_step` on a `Stage` whose collector plays `world`.

Sides: `anew` reads every turn's prompt whole and trains a row per turn; `kept` keeps keys and values from turn to turn and trains chains.
Answers cannot end, as in `step/ours.py`, so every answer has the full length and no attempt ends early.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Job, Result
from benchmarks.step.meter import Meter, now
from benchmarks.step.ours import LEARNING_RATE, hooks, make_step, open_engine, open_pipeline, open_stage
from benchmarks.step.workload import MAX_PIXELS, TEMPLATE, model_folder, side_of
from benchmarks.turns.world import NAME

SIDES = ("anew", "kept")
PLUGIN = "benchmarks.turns.world"
SCREENS_KEPT = 2**40
"""Bytes of keys and values: more than any cell needs, so that nothing is read again."""


def config_of(job: Job, root: Path) -> Any:
    """The recipe of a cell: `turns`, `screen` (visual tokens), `group`, `completion`, `vocabulary`."""
    from vlmrl.config.schema import (
        Config,
        DataSection,
        GrpoSection,
        ModelSection,
        OptimSection,
        RolloutSection,
        RunMediaSection,
        SourceSection,
    )
    from vlmrl.config.section import EnvironmentMethod, HistorySection, Method, RewardMethod

    settings, cell = job["settings"], job["cell"]
    steps = settings["warmup"] + settings["steps"]
    kept = job["side"] == "kept"
    arguments = {"turns": cell["turns"], "side": side_of(cell["screen"]) // 28}
    rollout = {"prompts_per_step": 1, "num_generations": cell["group"], "max_new_tokens": cell["completion"]}
    stage = GrpoSection(
        kind="grpo",
        name="benchmark",
        source=SourceSection(path="tasks.jsonl"),
        steps=steps,
        answer_format=TEMPLATE,
        optim=OptimSection(lr=LEARNING_RATE),
        max_tokens_per_microbatch=settings["max_tokens_per_microbatch"],
        environment=EnvironmentMethod(name=NAME, max_turns=cell["turns"], workers=1, **arguments),
        history=HistorySection(),
        rollout=RolloutSection(**rollout, kept_bytes=SCREENS_KEPT if kept else 0),
        rewards=(RewardMethod(name="length"),),
        advantage=Method(name="trajectory"),
        forward="chains" if kept else "shared_prefix",
    )
    row = {"task": "environment", "answer_type": "exact_text", "prompt": "An episode.", "answer": "none", "meta": {"environment": {}}}
    (root / "tasks.jsonl").write_text("".join(json.dumps({"id": f"task-{n}"} | row) + "\n" for n in range(steps)))
    return Config(
        model=ModelSection(path=str(model_folder(settings, cell["vocabulary"])), device=settings["device"], dtype=settings["dtype"]),
        media=RunMediaSection(max_pixels=MAX_PIXELS),
        data=DataSection(root=str(root), max_prompt_tokens=2**17),
        stages=(stage,),
    )


def measure(job: Job) -> Result:
    """Seconds of each measured step and of its rollout and update, peak memory, and what was read and computed."""
    from vlmrl.extras.agents.find import open_pool
    from vlmrl.extras.agents.pool import PoolSettings
    from vlmrl.methods import registries
    from vlmrl.train.stage.algorithm import Algorithm

    registries()
    settings, cell = job["settings"], job["cell"]
    logged: list[Mapping[str, float]] = []
    out: dict[str, list[float]] = {"seconds": [], "cpu": [], "rollout": [], "update": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cfg = config_of(job, root)
        section = cfg.stages[0]
        world = section.environment
        limits = PoolSettings(workers=1, deadline=60.0, start=300.0)
        with open_pool(world.name, world.arguments, plugins=(PLUGIN,), settings=limits) as pool:
            stage = open_stage(cfg)
            algorithm, engine = Algorithm.of(section), open_engine(job, cfg, stage)
            make = episodes(stage, engine, pool=pool, screens=root / "screens")
            pipeline = open_pipeline(stage, engine, algorithm.strategy.call(), root / "journal", make)
            after = hooks(stage, engine, logged.append)
            meter = Meter(settings["device"])
            began, cpu = now(settings["device"]), time.process_time()
            for step in range(section.steps):
                make_step(stage, pipeline, algorithm, after)
                ended = now(settings["device"])
                if step >= settings["warmup"]:
                    out["seconds"].append(ended - began)
                    out["cpu"].append(time.process_time() - cpu)
                    out["rollout"].append(logged[-1]["time/rollout"])
                    out["update"].append(logged[-1]["time/forward_backward"])
                began, cpu = ended, time.process_time()
            memory = meter.read()
    last = logged[-1]
    return (
        out
        | {
            "memory": memory,
            "read_tokens": last["work/prefilled_tokens"],
            "trained_tokens": last["tokens/forward"],
            "turns_played": last["environment/turns"],
            "completion_tokens": last["completions/mean_length"],
            "answers": cell["group"],
            "parameters": sum(p.numel() for p in stage.policy.model.parameters()),
            "phases": {k: v for k, v in last.items() if k.startswith("time/")},
        }
        | lengths_of(stage, cell)
    )


def episodes(stage: Any, engine: Any, *, pool: Any, screens: Path) -> Any:
    """What makes a collector of episodes, as `vlmrl.extras.agents.collect` does."""
    from vlmrl.extras.agents.episodes import make_table, talk_of
    from vlmrl.extras.agents.history import History
    from vlmrl.extras.agents.turns import EpisodeCollector, FaultWatch
    from vlmrl.types import GenerationSettings

    cfg = stage.cfg
    table = make_table(
        stage.policy.bundle,
        stage.store,
        screens,
        pool=pool,
        talk=talk_of(engine),
        settings=GenerationSettings(max_new_tokens=cfg.rollout.max_new_tokens),
        history=History(),
        answer_format=cfg.answer_format,
        turns=cfg.environment.max_turns,
    )
    return partial(EpisodeCollector, table=table, watch=FaultWatch(0.0))


def lengths_of(stage: Any, cell: Mapping[str, int]) -> dict[str, int]:
    """Tokens of a first prompt, and between two answers, which have no end token of their own."""
    from vlmrl.data.encode import Encoder
    from vlmrl.extras.agents.conversation import Conversation, answer_segment, first_segment
    from vlmrl.types import MediaRef

    with tempfile.TemporaryDirectory() as folder:
        from benchmarks.turns.world import TEXT, picture

        picture(0, 0, "", side_of(cell["screen"]) // 28).save(Path(folder) / "s.png")
        ref = MediaRef(kind="image", path="s.png")
        encoder = Encoder.of(stage.policy.bundle, stage.store, Path(folder), max_prompt_tokens=2**17)
        prompt = encoder.encode(asked(ref), TEMPLATE)
        answer = answer_segment(first_segment(prompt), [prompt.ids[-1]] * cell["completion"])
        handle = stage.store.get(ref, Path(folder)).handle
        return {"prompt_tokens": len(prompt.ids), "between_tokens": len(Conversation(encoder).observation(answer, TEXT, [handle]).ids)}


def asked(screen: Any) -> Any:
    """The question of a first turn, as `agents.prompts.first_sample` asks it."""
    from benchmarks.turns.world import TEXT
    from vlmrl.types import Sample

    return Sample(id="first", task="environment", answer_type="action", question=TEXT, media=(screen,), answer="", gt={})

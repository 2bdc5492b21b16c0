"""What a stage collects its rollouts with: answers to prompts, or episodes in an environment. The loop sees a collector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vlmrl.config.schema import RolloutStage
from vlmrl.policy.model import ProcessorBundle
from vlmrl.protocols import RolloutEngine, Strategy
from vlmrl.registry import Catalogue
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.guide import collector_for
from vlmrl.run.loop import Loop
from vlmrl.types import GenerationSettings


def of_answers(loop: Loop, cfg: RolloutStage, parts: dict[str, Any]) -> Collector:
    """Make the collector of answers, or of answers under hints."""
    return collector_for(parts["strategy"], loop.stage.loader.encoder.encode)(**parts)


COLLECTORS: Catalogue[Callable[[Loop, RolloutStage, dict[str, Any]], Collector]] = Catalogue("collector", {"answers": of_answers})
"""What is collected -> (loop, section of the stage, what every `Collector` has) -> the stage's collector."""


def open_collector(loop: Loop, cfg: RolloutStage, engine: RolloutEngine, strategy: Strategy) -> Collector:
    """Make the collector of a stage: of episodes where it has an environment.

    Raises:
        ConfigError: the environment cannot run here.
    """
    s, rewards = loop.session, loop.stage.rewards
    assert rewards is not None
    parts: dict[str, Any] = {
        "engine": engine,
        "strategy": strategy,
        "score": rewards.score,
        "tokenize": partial(answer_ids, s.bundle),
        "settings": settings_of(cfg),
        "num_generations": cfg.rollout.num_generations,
        "generation_batch_size": cfg.rollout.generation_batch_size,
        "seed": s.cfg.run.seed,
        "stage": cfg.name,
        "accept_changed": s.cfg.data.changed == "accept",
        "say": s.ui.say,
    }
    return COLLECTORS["answers" if cfg.environment is None else "episodes"](loop, cfg, parts)


def answer_ids(bundle: ProcessorBundle, text: str) -> tuple[int, ...]:
    """Ids of a whole answer, its end token included."""
    return (*bundle.tokenize(text), bundle.end_ids[0])


def settings_of(cfg: RolloutStage) -> GenerationSettings:
    """How a stage samples."""
    r = cfg.rollout
    return GenerationSettings(max_new_tokens=r.max_new_tokens, temperature=r.temperature, top_p=r.top_p, routes=r.router_replay)

"""Reverse thinking as a command: thoughts for the rows of a stage, written by the recipe's own model (TON, arXiv:2505.16854)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from vlmrl.config.schema import Config, RolloutStage
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.models import compute_dtype
from vlmrl.extras.thoughts.reverse import Gate, reverse_thoughts
from vlmrl.extras.thoughts.rows import ThoughtsReport, add_thoughts
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RewardContext
from vlmrl.rollout.own import own_engine
from vlmrl.run.columns import reward_runner
from vlmrl.run.media import open_media
from vlmrl.run.session import Places
from vlmrl.types import GenerationSettings, Group


def write_thoughts(
    cfg: Config,
    places: Places,
    *,
    stage: str,
    target: Path,
    temperature: float,
    forbid_answer: bool,
    check: bool,
    overwrite: bool,
) -> ThoughtsReport:
    """Write `target`: the rows of a stage's source, with thoughts where the model gives one that passes the gate.

    Args:
        forbid_answer: refuse a thought that gives the answer away.
        check: refuse a thought from which the model does not come to the answer, by the rewards of the first GRPO stage.
        overwrite: also replace thoughts that are there.

    Raises:
        ConfigError: no such stage, or `check` without a GRPO stage.
        DataError: see `thoughts.rows.add_thoughts`.
    """
    found = next((s for s in cfg.stages if s.name == stage), None)
    if found is None:
        raise ConfigError(f"--stage: no stage '{stage}' in the recipe (it has: {', '.join(s.name for s in cfg.stages)})")
    m = cfg.model
    bundle = load_processor(places.model, revision=m.revision, family=m.family, max_tiles=cfg.media.max_tiles)
    dtype = compute_dtype(m.device, m.dtype)
    policy = load_policy(places.model, bundle, device=m.device, dtype=dtype, attention=m.attention, positions=m.positions)
    store, encoder = open_media(cfg, bundle, places.data)
    with _judge(cfg) if check else nullcontext() as judge:
        derive = functools.partial(
            reverse_thoughts,
            own_engine(policy, VisionCache(store, budget_bytes=cfg.media.cache_bytes)),
            encoder,
            settings=GenerationSettings(max_new_tokens=1024, temperature=temperature),
            seed=cfg.run.seed,
            gate=Gate(forbid_answer=forbid_answer),
            judge=judge,
        )
        source = places.data / found.source.path
        return add_thoughts(source, target, derive, media_root=found.source.media_root, overwrite=overwrite)


@contextmanager
def _judge(cfg: Config) -> Iterator[Callable[[Group], Sequence[float | None]]]:
    """Total reward of answers under the first GRPO stage's rewards."""
    of = next((s for s in cfg.stages if isinstance(s, RolloutStage)), None)
    if of is None:
        raise ConfigError("--check: needs a stage with rewards in the recipe")
    with closing(reward_runner(of, cfg.plugins)) as runner:
        yield lambda group: runner.score(group, RewardContext()).scores.total()

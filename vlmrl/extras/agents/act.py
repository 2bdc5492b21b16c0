"""A model plays episodes of an environment with the reference engine: `vlmrl tools env act`. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.answers.tags import FREE
from vlmrl.data.encode import ANSWER_FORMATS
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.episodes import make_table, run_attempts, talk_of
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.play import SCREENS
from vlmrl.extras.agents.pool import EnvPool
from vlmrl.extras.agents.rows import reads_answers
from vlmrl.extras.agents.trajectory import Trajectory, turn_seed
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings

CACHE_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Acting:
    """How a model plays."""

    model: str
    """Folder or hub id."""
    settings: GenerationSettings
    history: History
    answer_format: str
    turns: int
    max_pixels: int
    seed: int
    """Of sampling; the environment's seeds are given with the tasks."""


def act(pool: EnvPool, tasks: Sequence[tuple[Mapping[str, Any], int]], attempts: int, how: Acting, out: Path) -> list[list[Trajectory]]:
    """Attempts at each (task, environment's seed), screens in `out/screens`.

    Raises:
        ConfigError: an unknown answer format, or a model that cannot be loaded.
        RowError, MediaError: an observation cannot be encoded.
    """
    if how.answer_format not in (FREE, *ANSWER_FORMATS):
        raise ConfigError(f"answer format '{how.answer_format}' is not known (known: {', '.join((FREE, *ANSWER_FORMATS))})")
    bundle = load_processor(how.model)
    media = MediaSettings(
        min_pixels=min(56 * 56, how.max_pixels),
        max_pixels=how.max_pixels,
        video_total_pixels=None,
        fps=2.0,
        min_frames=4,
        max_frames=32,
        cache_bytes=CACHE_BYTES,
        decoder="auto",
    )
    folder = out / SCREENS
    with closing(MediaStore.of(media, bundle)) as store:
        policy = load_policy(how.model, bundle)
        engine = own_engine(policy, VisionCache(store, budget_bytes=CACHE_BYTES))
        table = make_table(
            bundle,
            store,
            folder,
            pool=pool,
            talk=talk_of(engine),
            settings=how.settings,
            history=how.history,
            answer_format=how.answer_format,
            turns=how.turns,
            whole=reads_answers(pool.name),
        )
        names = [str(task.get("id", n)) for n, (task, _) in enumerate(tasks)]
        return run_attempts(table, tasks, attempts, lambda place, k, turn: turn_seed(how.seed, "act", 0, place, names[place], k, turn))

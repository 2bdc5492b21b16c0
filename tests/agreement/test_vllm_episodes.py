"""vLLM plays episodes, in this process: at every turn its log-probs are those that train, and what it has read of a conversation is found.

Needs vLLM (its CPU build is enough) in the environment of the tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import media_layouts, tiny, vllm_core
from tests.support.episodes import small_episodes
from vlmrl import rng
from vlmrl.config.load import loaded as loaded_config
from vlmrl.config.schema import Config
from vlmrl.errors import EngineError
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.episodes import EnvSetup, run_attempts, talk_of
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.forks import NONE, Forks
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.pool import EnvPool, PoolSettings
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.extras.agents.turns import turn_rollouts
from vlmrl.extras.vllm import engine as engine_module
from vlmrl.extras.vllm.engine import Core, VllmEngine
from vlmrl.extras.vllm.inputs import Completion, Version
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui
from vlmrl.types import GenerationSettings, TurnRollout

pytestmark = pytest.mark.slow

SETTINGS = GenerationSettings(max_new_tokens=8, temperature=0.8)
TASKS = [({"id": "a", "length": 2}, 11), ({"id": "b", "length": 3}, 12)]
TURNS = 5
EQUAL = 1e-5
"""Nats by which two float32 kernels may differ here."""
FELT = 1e-3
"""Nats that a change of weights must make at least, for a comparison to mean something."""


@dataclass
class World:
    """A policy, vLLM with its weights, and desks."""

    loaded: tiny.Tiny
    core: Core
    engine: VllmEngine
    pool: EnvPool

    def play(
        self, folder: Path, history: str, *, attempts: int = 3, forks: Forks = NONE, **changes: Any
    ) -> tuple[EnvSetup, list[list[Trajectory]]]:
        table = EnvSetup(
            pool=self.pool,
            talk=talk_of(self.engine),
            settings=SETTINGS,
            conversation=Conversation(dataclasses.replace(self.loaded.encoder, data_root=folder)),
            handle=lambda ref: self.loaded.store.get(ref, folder).handle,
            screens=ScreenFolder(folder),
            history=History.of(history),
            turns=TURNS,
            forks=forks,
            **changes,
        )
        with self.engine.ready():
            return table, run_attempts(table, TASKS, attempts, lambda place, k, turn: rng.key(5, place, k, turn))

    def moved(self, *, tower: bool = True) -> None:
        """An update of everything, or of all but the tower."""
        policy = self.loaded.policy
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if tower or ".visual." not in name:
                    parameter.add_(0.05 * parameter.std().nan_to_num() * torch.randn_like(parameter))
        policy.vision_trains = True
        policy.version += 1
        policy.vision_version += int(tower)

    def gaps(self, rollouts: Sequence[TurnRollout], layout: str) -> dict[int, float]:
        """Turn -> largest difference between the sampler's log-probs and those of a training forward."""
        policy, how = self.loaded.policy, LAYOUTS[layout]
        rows = [Row(index=n, group=0, prompt=r.prompt, response=r.ids) for n, r in enumerate(rollouts)]
        vision = VisionCache(self.loaded.store, budget_bytes=2**28)
        out: dict[int, float] = {}
        for places in how.split(rows, 2048):
            batch = how.pack([rows[n] for n in places], policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
            with torch.no_grad():
                scored = how.forward(policy, batch, vision, temperature=0.8, forbidden=policy.bundle.forbidden_ids, train=False)
            for row, one in zip(scored.logp_BT, batch.rows, strict=True):
                rollout = rollouts[one.index]
                gap = float((row[: len(rollout.ids)] - torch.tensor(rollout.logprobs)).abs().max())
                out[rollout.turn] = max(gap, out.get(rollout.turn, 0.0))
        return out


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp(request.param)
    loaded = media_layouts.make(folder, request.param)
    core = vllm_core.core(folder / "model", loaded.policy)
    with open_pool("toy_desk", {}, settings=PoolSettings(workers=1, start=120.0)) as pool:
        yield World(loaded, core, VllmEngine(core, loaded.policy, loaded.store), pool)
    core.close()


@pytest.mark.parametrize("history", ["all", "1", "2/3"])
def test_log_probs_at_every_turn_are_those_that_train_at_every_version(world: World, tmp_path: Path, history: str) -> None:
    for version in range(2):
        if version:
            world.moved()
        before = world.engine.cached_tokens, world.engine.prompt_tokens
        table, made = world.play(tmp_path, history)
        cached, asked = world.engine.cached_tokens - before[0], world.engine.prompt_tokens - before[1]
        assert all(one.fault is None for played in made for one in played)
        for played in made:
            rollouts = turn_rollouts(table, played, world.engine.version)
            for layout in ("repeat", "shared_prefix", "chains", "trees"):
                found = world.gaps(rollouts, layout)
                assert set(found) == set(range(TURNS))
                assert max(found.values()) < EQUAL, (layout, found)
        if history == "all":
            assert cached > asked / 3, "what a conversation has read before is found"


def test_what_was_read_with_other_weights_is_not_found(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: where keys and values are kept under one name at all versions, first turns are those of older weights."""
    monkeypatch.setattr(Version, "salt", "always the same")
    world.play(tmp_path, "all")
    world.moved(tower=False)
    table, made = world.play(tmp_path, "all")
    rollouts = [one for played in made for one in turn_rollouts(table, played, world.engine.version)]
    assert world.gaps([r for r in rollouts if r.turn == 0], "repeat")[0] > FELT
    monkeypatch.undo()
    world.moved(tower=False)
    table, made = world.play(tmp_path, "all")
    rollouts = [one for played in made for one in turn_rollouts(table, played, world.engine.version)]
    assert max(world.gaps(rollouts, "repeat").values()) < EQUAL


def test_forks_are_asked_once_and_their_log_probs_train(world: World, tmp_path: Path) -> None:
    table, made = world.play(tmp_path, "all", attempts=4, forks=Forks.of({2: 4}))
    for played in made:
        assert len({tuple(turn.ids for turn in one.turns[:2]) for one in played}) == 1
        assert len({tuple(turn.ids for turn in one.turns) for one in played}) == 4
        assert max(world.gaps(turn_rollouts(table, played, 0), "trees").values()) < EQUAL


def test_a_prompt_that_grows_too_long_ends_its_attempt(world: World, tmp_path: Path) -> None:
    table, whole = world.play(tmp_path / "whole", "all")
    longest = sorted(len(r.prompt.ids) for played in whole for r in turn_rollouts(table, played, 0))[-4]
    _, made = world.play(tmp_path, "all", longest=longest)
    assert {one.outcome for played in made for one in played} == {"turns", "context"}


def test_a_prompt_that_comes_back_changed_is_refused(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = engine_module.answer_of, []

    def answer_of(output: Any) -> Completion:
        answer = real(output)
        seen.append(answer)
        return answer if len(seen) < 8 else dataclasses.replace(answer, prompt_ids=answer.prompt_ids[:-1])

    monkeypatch.setattr(engine_module, "answer_of", answer_of)
    with pytest.raises(EngineError, match="vLLM changed the prompt"):
        world.play(tmp_path, "all")


def trained(config: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """What a whole run logged of its steps."""
    config["run"]["name"] = name
    made = Config.model_validate(config)
    train_from(loaded_config(made), Places(model=made.model.path, data=Path(made.data.root)), Ui(quiet=True))
    lines = read_metrics(Path(made.run.root) / name / "metrics.jsonl")
    return [line for line in lines if "environment/attempts" in line]


def recipe(folder: Path, **rollout: Any) -> dict[str, Any]:
    """Whole conversations in chains, three steps in which everything trains."""
    config = small_episodes(folder / "model", folder / "world", folder, history={}, forward="chains", optim={"lr": 3e-3}, freeze=[])
    (rl,) = config["stages"]
    rl["rollout"] |= {"engine": "vllm", **rollout}
    rl["rollout"]["vllm"] = {"cache_bytes": 2**28, "block_size": 32, "sync_probe_every": 2, **rollout.get("vllm", {})}
    config["model"]["positions"] = "max"
    return config


def test_a_run_trains_on_episodes_that_vllm_plays(tmp_path: Path) -> None:
    tiny.make_files(tmp_path, sft=2, train=4, test=2)
    lines = trained(recipe(tmp_path), "here")
    assert len(lines) == 3
    for line in lines:
        assert line["environment/turns"] == 36.0
        assert line["grad_norm"] > 0
        assert line["work/synced_bytes"] > 0
        assert line["work/prefix_cached_tokens"] > line["work/prefilled_tokens"] / 4
        assert all(line[f"sampling/turn_gap/{turn}"] < EQUAL for turn in range(3))
        assert line["tokens/saved_by_chains"] > 0

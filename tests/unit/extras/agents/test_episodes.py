"""agents.episodes: attempts in an environment with the reference engine; every turn is a row whose log-probs are the trainer's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.errors import ConfigError
from vlmrl.extras.agents import episodes
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.episodes import Anew, EnvSetup, anew, run_attempts
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.forks import NONE, Forks
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.prompts import chains, rows
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.policy.repeat import pack, repeat
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

SETTINGS = GenerationSettings(max_new_tokens=6, temperature=0.8)
TASKS = [({"id": "a", "length": 2}, 11), ({"id": "b", "length": 3}, 12)]


def play(
    tiny: Tiny,
    folder: Path,
    history: str,
    *,
    attempts: int = 2,
    turns: int = 3,
    longest: int | None = None,
    alike: int = 0,
    forks: Forks = NONE,
    tasks: Sequence[tuple[dict[str, Any], int]] = TASKS,
    **arguments: object,
):
    """(attempts of each task, what the engine was asked). All attempts at a task say the same in their first `alike` turns."""
    asked: list[Prompt] = []
    engine = HFEngine(tiny.policy, tiny.vision)

    def generate(requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        asked.extend(request.prompt for request in requests for _ in request.ks)
        return engine.generate(requests, settings)

    encoder = dataclasses.replace(tiny.encoder, data_root=folder)
    with open_pool("toy_desk", arguments, settings=PoolSettings(workers=1, start=60.0)) as pool:
        table = EnvSetup(
            pool=pool,
            talk=anew(generate),
            settings=SETTINGS,
            conversation=Conversation(encoder),
            handle=lambda ref: tiny.store.get(ref, folder).handle,
            screens=ScreenFolder(folder),
            history=History.of(history),
            turns=turns,
            longest=longest,
            forks=forks,
        )
        made = run_attempts(table, tasks, attempts, lambda place, k, turn: rng.key(5, place, k if turn >= alike else 0, turn))
    return made, asked, table


def trained(table: EnvSetup, one: Trajectory) -> list[tuple[Prompt, tuple[int, ...]]]:
    return rows(chains(one, table.history, table.conversation, table.handle))


@pytest.mark.parametrize("history", ["all", "1", "2/2"])
def test_every_turn_is_trained_under_what_was_sampled(tiny: Tiny, tmp_path: Path, history: str):
    made, asked, table = play(tiny, tmp_path, history)
    every = [one for group in made for one in group]
    assert [(one.k, len(one.turns), one.outcome) for one in every] == [(k, 3, "turns") for _ in TASKS for k in (0, 1)]
    assert [one.seed for one in every] == [11, 11, 12, 12]
    found = [trained(table, one) for one in every]
    assert [prompt.ids for turn in range(3) for prompt in (of_one[turn][0] for of_one in found)] == [prompt.ids for prompt in asked]
    made_rows = [Row(index=0, group=0, prompt=prompt, response=ids) for of_one in found for prompt, ids in of_one]
    batch = pack(made_rows, tiny.policy.positions, tiny.policy.device, pad_id=0)
    with torch.no_grad():
        scored = repeat(tiny.policy, batch, tiny.vision, temperature=SETTINGS.temperature, forbidden=tiny.bundle.forbidden_ids, train=False)
    reported = torch.tensor([lp for one in every for turn in one.turns for lp in turn.logprobs])
    assert len(reported) == batch.mask_BT.sum() > 12
    assert (scored.logp_BT[batch.mask_BT] - reported).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["chains", "trees"])
def test_layouts_of_turns_train_what_was_sampled_at_every_turn(tiny: Tiny, tmp_path: Path, name: str):
    made, _, table = play(tiny, tmp_path, "all", attempts=3, alike=1)
    every = [(place, one) for place, of_task in enumerate(made) for one in of_task]
    turns = [(place, turn, row) for place, one in every for turn, row in enumerate(trained(table, one))]
    made_rows = [Row(index=n, group=place, prompt=prompt, response=ids) for n, (place, _, (prompt, ids)) in enumerate(turns)]
    reported = [turn.logprobs for _, one in every for turn in one.turns]
    layout = LAYOUTS[name]
    batch = layout.pack(made_rows, tiny.policy.positions, tiny.policy.device, pad_id=0)
    if name == "trees":
        assert batch.tokens < LAYOUTS["chains"].pack(made_rows, tiny.policy.positions, tiny.policy.device, pad_id=0).tokens
    how = {"temperature": SETTINGS.temperature, "forbidden": tiny.bundle.forbidden_ids, "train": False}
    with torch.no_grad():
        scored = layout.forward(tiny.policy, batch, tiny.vision, **how).logp_BT
    gaps: list[list[float]] = [[], [], []]
    for (_, turn, _), logp_T, sampled in zip(turns, scored, reported, strict=True):
        gaps[turn].append(float((logp_T[: len(sampled)] - torch.tensor(sampled)).abs().max()))
    assert [len(of_turn) for of_turn in gaps] == [6, 6, 6]
    assert max(map(max, gaps)) < 1e-5, gaps


@pytest.mark.parametrize("history", ["all", "1"])
def test_a_task_may_have_fewer_turns_than_the_stage(tiny: Tiny, tmp_path: Path, history: str):
    """Its episodes end there, with the turns of one that goes on; those of other tasks are as they were."""
    (first, _), (second, seed) = TASKS
    whole, _, _ = play(tiny, tmp_path, history, alike=1)
    made, _, _ = play(tiny, tmp_path, history, alike=1, tasks=[({**first, "max_turns": 2}, 11), ({**second, "max_turns": 9}, seed)])
    assert [[turn.ids for turn in one.turns] for one in made[0]] == [[turn.ids for turn in one.turns[:2]] for one in whole[0]]
    assert [(one.outcome, one.fault) for one in made[0]] == [("turns", None)] * 2
    said = [[[(turn.seen, turn.ids, turn.outcome) for turn in one.turns] for one in side[1]] for side in (made, whole)]
    assert said[0] == said[1]


@pytest.mark.parametrize("turns", [0, 2.0, True, "2"])
def test_turns_of_a_task_that_are_no_number_are_named(tiny: Tiny, tmp_path: Path, turns: object):
    with pytest.raises(ConfigError, match=r"task 'a': max_turns is .*; give a whole number above 0"):
        play(tiny, tmp_path, "1", tasks=[({"id": "a", "max_turns": turns}, 11)])


def test_crashes_of_the_environment_change_no_answer(tiny: Tiny, tmp_path: Path):
    whole, _, _ = play(tiny, tmp_path, "1")
    shaken, _, _ = play(tiny, tmp_path, "1", crash_share=1.0)
    assert shaken == whole
    lost, _, _ = play(tiny, tmp_path, "1", crash_share=1.0, fault="raise", fault_attempts=99)
    assert {one.fault for group in lost for one in group} == {"raised:RuntimeError"}
    assert all(one.total is None and all(turn.reward is None for turn in one.turns) for group in lost for one in group)


def test_attempts_at_a_task_that_saw_the_same_are_asked_together():
    prompt = Prompt(sample=sample(), ids=(1, 2), media=(), spans=(), answer_format="free")
    other = dataclasses.replace(prompt, ids=(1, 3))
    waiting: Any = [
        ([SimpleNamespace(number=n, place=place, k=k), SimpleNamespace(number=n + 10, place=place, k=k + 10)], shown)
        for n, (place, k, shown) in enumerate(((0, 0, prompt), (0, 1, other), (0, 2, prompt), (1, 0, prompt)))
    ]
    asked: list[tuple[int, ...]] = []
    calls: list[list[tuple[tuple[int, ...], tuple[int, ...]]]] = []

    def generate(requests: Sequence[Request], settings: object) -> list[list[str]]:
        calls.append([(request.seeds, request.ks) for request in requests])
        asked.extend(request.talkers() for request in requests)
        return [[f"answer {seed}" for seed in request.seeds] for request in requests]

    table: Any = SimpleNamespace(settings=None)
    session: Any = Anew(generate)  # pyright: ignore[reportArgumentType]
    answers = episodes._answers(table, session, waiting, [10, 11, 12, 13], goes_on=True)
    assert answers == ["answer 10", "answer 11", "answer 12", "answer 13"]
    assert calls == [[((10, 12), (0, 2)), ((11,), (1,)), ((13,), (0,))]]
    assert asked == [(0, 10, 2, 12), (1, 11), (3, 13)], "those that have not forked yet are of the conversation"

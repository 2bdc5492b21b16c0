"""Attempts that fork and keep caches from turn to turn: what they say is what they say under prompts that are read whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import sample
from tests.support.tiny import Tiny
from tests.unit.extras.agents.test_sessions import GREEDY, SAMPLED, TASKS, Watched, answers, logprobs, pool
from vlmrl import rng
from vlmrl.extras.agents.ahead import Ahead
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.episodes import EnvSetup, Talk, anew, run_attempts, talk_of
from vlmrl.extras.agents.forks import Forks
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.kept import session_of
from vlmrl.extras.agents.pool import EnvPool, Episode
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request

__all__ = ["pool"]
FORKS = Forks.of({1: 2, 3: 2})
LATE = Forks.of({3: 4})


def play(
    tiny: Tiny,
    folder: Path,
    pool: Any,
    talk: Talk,
    *,
    history: str = "all",
    forks: Forks = FORKS,
    settings: GenerationSettings = SAMPLED,
) -> list[Trajectory]:
    """Four attempts at each task; what they share is one conversation until they fork."""
    table = EnvSetup(
        pool=pool,
        talk=talk,
        settings=settings,
        conversation=Conversation(dataclasses.replace(tiny.encoder, data_root=folder)),
        handle=lambda ref: tiny.store.get(ref, folder).handle,
        screens=ScreenFolder(folder),
        history=History.of(history),
        turns=5,
        forks=forks,
    )
    made = run_attempts(table, TASKS, 4, lambda place, k, turn: rng.key(5, place, k, turn))
    return [one for group in made for one in group]


@pytest.mark.parametrize(
    ("make", "history", "settings"),
    [(HFEngine, "all", SAMPLED), (HFEngine, "2/3", SAMPLED), (FixedEngine, "all", SAMPLED), (HFEngine, "all", GREEDY)],
)
def test_forks_with_kept_caches_say_what_forks_without_say(
    tiny: Tiny, tmp_path: Path, pool: EnvPool, make: Callable[..., HFEngine], history: str, settings: GenerationSettings
) -> None:
    engine, reference = make(tiny.policy, tiny.vision), make(tiny.policy, tiny.vision)
    kept = play(tiny, tmp_path, pool, talk_of(engine), history=history, settings=settings)
    whole = play(tiny, tmp_path, pool, anew(reference.generate), history=history, settings=settings)
    assert answers(kept) == answers(whole)
    assert len(logprobs(kept)) > 100
    assert (logprobs(kept) - logprobs(whole)).abs().max() < 1e-5
    assert (engine.kept_tokens > 0, reference.kept_tokens) == (True, 0)
    assert engine.prefilled_tokens + engine.kept_tokens == reference.prefilled_tokens, "the same prompts, in the same requests"
    if history == "all":
        assert engine.kept_tokens > reference.prefilled_tokens / 3
    if settings == SAMPLED:
        assert len({tuple(turn.ids for turn in one.turns) for one in kept[:4]}) == 4, "they have forked"


def test_a_budget_with_forks_changes_no_answer(tiny: Tiny, tmp_path: Path, pool: EnvPool) -> None:
    """From a budget that holds one prompt at most to one in which all fits."""

    def run(budget: int) -> tuple[list[Trajectory], int, int]:
        engine, held = HFEngine(tiny.policy, tiny.vision, kept_bytes=budget), [0]

        @contextmanager
        def watched() -> Iterator[Watched]:
            with session_of(engine) as session:
                yield Watched(session, held)

        return play(tiny, tmp_path, pool, watched), engine.kept_tokens, max(held)

    expected, kept, most = run(2**40)
    found: list[int] = []
    for share in (0.0, 0.1, 0.3, 0.7):
        got, fewer, held = run(int(share * most))
        assert answers(got) == answers(expected)
        assert (logprobs(got) - logprobs(expected)).abs().max() < 1e-5
        assert held <= share * most
        found.append(fewer)
    assert found == sorted(found)
    assert found[0] == 0 < found[1] < found[-1] < kept


# ---- the attempt that was asked for all of them loses its world ------------------------------------------------------------


class Losing:
    """A pool in which the first episode of each task is lost at its second action."""

    def __init__(self, pool: EnvPool):
        self.pool, self.identity, self.made = pool, pool.identity, 0
        self.ahead = Ahead(self.episode, alike=True)

    def episode(self, task: Any, seed: int, *, leads: bool) -> Any:
        self.made += 1
        episode = self.pool.episode(task, seed, leads=leads)
        return Lost(episode) if self.made % 4 == 1 else episode


class Lost:
    def __init__(self, episode: Episode):
        self.episode, self.reset, self.close, self.steps = episode, episode.reset, episode.close, 0
        self.past, self.follow, self.began = episode.past, episode.follow, True

    def step(self, action: str) -> Future[Reply]:
        self.steps += 1
        if self.steps < 2:
            return self.episode.step(action)
        out: Future[Reply] = Future()
        out.set_result(Reply(fault="crashed", detail="lost"))
        return out


def test_what_the_lost_one_has_read_is_not_read_again(tiny: Tiny, tmp_path: Path, pool: EnvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts 1 to 3 go on with the past of attempt 0, which spoke for all of them until its world was lost."""
    engine, reference = HFEngine(tiny.policy, tiny.vision), HFEngine(tiny.policy, tiny.vision)
    kept = play(tiny, tmp_path, Losing(pool), talk_of(engine), forks=LATE)
    whole = play(tiny, tmp_path, Losing(pool), anew(reference.generate), forks=LATE)
    assert [one.fault for one in kept] == ["crashed", None, None, None] * 2
    going = [n for n in range(8) if n % 4]
    assert answers([kept[n] for n in going]) == answers([whole[n] for n in going])
    assert (logprobs([kept[n] for n in going]) - logprobs([whole[n] for n in going])).abs().max() < 1e-5
    assert engine.prefilled_tokens + engine.kept_tokens == reference.prefilled_tokens
    assert engine.prefilled_prompts == reference.prefilled_prompts
    assert engine.kept_tokens > reference.prefilled_tokens / 2
    forgetful = HFEngine(tiny.policy, tiny.vision)
    monkeypatch.setattr(
        Request, "talkers", lambda self, place=None: self.conversations if place is None else self.conversations[place:][:1]
    )
    assert answers(play(tiny, tmp_path, Losing(pool), talk_of(forgetful), forks=LATE)) == answers(kept)
    assert forgetful.kept_tokens < engine.kept_tokens, "the control forgets with attempt 0 what it has read for all"


def test_who_talks() -> None:
    prompt = Prompt(sample=sample(), ids=(1,), media=(), spans=(), answer_format="free")
    plain = Request(prompt=prompt, seeds=(1, 2), ks=(0, 2), conversations=(4, 6))
    assert (plain.talkers(), plain.talkers(1)) == ((4, 6), (6,))
    forking = dataclasses.replace(plain, alike=((5,), (7, 8)))
    assert (forking.talkers(), forking.talkers(0), forking.talkers(1)) == ((4, 5, 6, 7, 8), (4, 5), (6, 7, 8))
    assert Request(prompt=prompt, seeds=(1,), ks=(0,)).talkers() == ()

"""Episodes in a plan: kept caches against the engine's own tensors, rows of turns and of chains, and what a recipe says of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.episodes import small_episodes
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.config.schema import Config
from vlmrl.extras.agents.conversation import Conversation, Segment, answer_segment, joined
from vlmrl.extras.agents.kept import session_of
from vlmrl.extras.plan import memory as mem
from vlmrl.extras.plan.advice import candidates
from vlmrl.extras.plan.generation import kv_token, running
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import named_shape, shape_of
from vlmrl.extras.plan.settings import Settings, deal, settings_of
from vlmrl.extras.plan.time import decode, prefill
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Request

SAMPLED = GenerationSettings(max_new_tokens=6, temperature=0.8)
EPISODES = Settings(
    shape=named_shape("qwen2.5-vl-7b"), gpu=gpu_of("h100"), gpus=1, dtype="bfloat16", prompt=4096, answer=512, turns=10, grows=True
)


@pytest.mark.parametrize("attempts", [1, 3])
def test_kept_caches_are_those_of_the_engine(tiny: Tiny, attempts: int) -> None:
    """After the last turn but one, where attempts share nothing: all of its prompt, and of its answer all but the last token."""
    engine = HFEngine(tiny.policy, tiny.vision)
    conversation = Conversation(tiny.encoder)
    prompts = [tiny.encoder.encode(sample, "answer_only") for sample in tiny.samples[:attempts]]
    with session_of(engine) as session:
        for turn in range(3):
            requests = [
                Request(prompt=p, seeds=(rng.key(3, n, turn),), ks=(0,), conversations=(n,), goes_on=True) for n, p in enumerate(prompts)
            ]
            said = [rollout.ids for (rollout,) in session.generate(requests, SAMPLED)]
            last = prompts
            prompts = []
            for prompt, ids in zip(last, said, strict=True):
                past = Segment(ids=prompt.ids, media=prompt.media, spans=prompt.spans, key="")
                answer = answer_segment(past, ids)
                prompts.append(joined([past, answer, conversation.observation(answer, "seen", [])], prompt))
        measured = session.kept.bytes
    shape = shape_of(tiny.policy.model.config.to_dict())
    s = dataclasses.replace(EPISODES, shape=shape, dtype="float32", groups=1, answers=attempts, kept_bytes=2**31)
    assert measured == kv_token(s) * sum(len(p.ids) + len(ids) - 1 for p, ids in zip(last, said, strict=True))
    planned = mem.kept(s.changed(prompt=max(len(p.ids) for p in last), answer=max(map(len, said))))
    assert measured < planned < 1.25 * measured


def test_the_budget_bounds_what_is_kept() -> None:
    token = kv_token(EPISODES)
    assert mem.kept(EPISODES) == 0, "the key's bytes are 0"
    large = EPISODES.changed(kept_bytes=2**40, groups=4, answers=8, together=2)
    assert mem.kept(large) == 2 * 8 * (4096 + 512) * token, "of a generation batch"
    assert mem.kept(large.changed(together=16)) == 4 * 8 * (4096 + 512) * token
    assert mem.kept(large.changed(kept_bytes=2**31)) == 2**31
    assert mem.kept(large.changed(engine="vllm")) == mem.kept(large.changed(turns=1)) == 0
    without, held = large.changed(kept_bytes=0), large.changed(kept_bytes=2**31)
    assert mem.rollout(held, 0) - mem.rollout(without, 0) == 2**31
    assert ("stages.rl.rollout.kept_bytes=0", without) in list(candidates(large, "rl"))
    assert not any("kept_bytes" in what for what, _ in candidates(without, "rl"))


def test_every_turn_is_a_row_or_every_attempt() -> None:
    s = EPISODES.changed(groups=2, answers=4, budget=16384)
    assert sum(len(row.groups) for row in s.rows) == 2 * 4 * 10
    assert {group for row in s.rows for group in row.groups} == {(4096, (512,))}
    chained = s.changed(chained=True)
    assert sum(len(row.groups) for row in chained.rows) == 2 * 4
    assert all(prompt + sum(answers) == 4096 + 512 for row in chained.rows for prompt, answers in row.groups)
    assert sum(row.scored for row in chained.rows) == 8 * (4096 + 511), "ten answers of 512 are longer than the prompt that holds nine"
    assert sum(row.scored for row in chained.changed(answer=32).rows) == 2 * 4 * 10 * 32
    assert [row.tokens for row in s.rows] == [3 * (4096 + 512)] * 26 + [2 * (4096 + 512)]
    assert running(s) == 8, "each attempt has a prompt of its own"
    assert running(s.changed(turns=1)) == 2
    assert (s.prompts, s.changed(grows=False).prompts, s.changed(turns=1).prompts) == (8, 80, 2)


def test_rows_of_many_equal_turns_are_dealt_quickly_and_alike() -> None:
    assert [row.tokens for row in deal(3, 5, 4, 2, 12)] == [11] * 3 + [7] * 3
    assert len(deal(20000, 10, 1, 5, 30)) == 10000


def test_turns_take_time_and_what_is_kept_is_not_read_again() -> None:
    s = EPISODES.changed(kept_bytes=2**40, groups=2, answers=4)
    again = s.changed(kept_bytes=0)
    assert prefill(again) == pytest.approx(10 * prefill(s))
    assert prefill(s.changed(kept_bytes=0, engine="vllm")) == prefill(s), "it has a prefix cache"
    once = s.changed(turns=2)
    assert decode(s, mem.memory(s)) == pytest.approx(5 * decode(once, mem.memory(once)))


def test_a_recipe_with_an_environment(tmp_path: Path) -> None:
    def of(**stage: object) -> Settings:
        made = Config.model_validate(small_episodes(Path("model"), Path("world"), tmp_path, **stage))
        return settings_of(made, made.stages[0], shape=EPISODES.shape, gpu=EPISODES.gpu, gpus=1)

    anew = of()
    assert (anew.turns, anew.grows, anew.chained, anew.kept_bytes) == (3, False, False, 0)
    whole = of(history={}, forward="chains")
    assert (whole.turns, whole.grows, whole.chained, whole.kept_bytes) == (3, True, True, 2**31)
    assert of(history={"screens": 2, "every": 3}).grows
    assert not of(history={"screens": 2, "every": 3}).chained
    assert mem.memory(whole).rollout > mem.memory(anew).rollout

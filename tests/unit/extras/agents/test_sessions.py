"""agents.kept: episodes whose keys and values are kept from turn to turn answer as those whose prompts are read anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support import cases
from tests.support import tiny as tiny_module
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.errors import NumericsError
from vlmrl.extras.agents.conversation import Conversation, Segment, answer_segment, first_segment, joined
from vlmrl.extras.agents.episodes import EnvSetup, Talk, anew, run_attempts, talk_of
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.kept import Kept, KeptSession, session_of
from vlmrl.extras.agents.pool import EnvPool, PoolSettings
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.policy.load import freeze
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, MediaRef, Prompt, Request, Rollout

pytestmark = pytest.mark.not_fast  # builds models

SAMPLED = GenerationSettings(max_new_tokens=6, temperature=0.8)
GREEDY = GenerationSettings(max_new_tokens=6, temperature=0.0)
TASKS = [({"id": "a", "length": 2}, 11), ({"id": "b", "length": 3}, 12)]
PICTURES = ("a.png", "b.png", "c.png")


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvPool]:
    with open_pool("toy_desk", {}, settings=PoolSettings(workers=1, start=60.0)) as pool:
        yield pool


def play(
    tiny: Tiny, folder: Path, pool: EnvPool, talk: Talk, history: str, *, settings: GenerationSettings = SAMPLED, turns: int = 4
) -> list[Trajectory]:
    table = EnvSetup(
        pool=pool,
        talk=talk,
        settings=settings,
        conversation=Conversation(dataclasses.replace(tiny.encoder, data_root=folder)),
        handle=lambda ref: tiny.store.get(ref, folder).handle,
        screens=ScreenFolder(folder),
        history=History.of(history),
        turns=turns,
    )
    made = run_attempts(table, TASKS, 3, lambda place, k, turn: rng.key(5, place, k, turn))
    return [one for group in made for one in group]


def answers(played: list[Trajectory]) -> list[list[tuple[tuple[int, ...], str, str]]]:
    return [[(turn.ids, turn.action, turn.seen.state) for turn in one.turns] for one in played]


def logprobs(played: list[Trajectory]) -> torch.Tensor:
    return torch.tensor([value for one in played for turn in one.turns for value in turn.logprobs], dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "history", "settings"),
    [(HFEngine, "all", SAMPLED), (HFEngine, "all", GREEDY), (HFEngine, "2/3", SAMPLED), (FixedEngine, "all", SAMPLED)],
)
def test_kept_caches_answer_as_prompts_read_anew(
    tiny: Tiny, tmp_path: Path, pool: EnvPool, history: str, settings: GenerationSettings, make: Callable[..., HFEngine]
) -> None:
    engine, reference = make(tiny.policy, tiny.vision), make(tiny.policy, tiny.vision)
    kept = play(tiny, tmp_path, pool, talk_of(engine), history, settings=settings)
    whole = play(tiny, tmp_path, pool, anew(reference.generate), history, settings=settings)
    assert answers(kept) == answers(whole)
    assert len(logprobs(kept)) > 40
    assert (logprobs(kept) - logprobs(whole)).abs().max() < 1e-5
    assert reference.kept_tokens == 0
    assert engine.kept_tokens > reference.prefilled_tokens / 4
    assert engine.prefilled_tokens + engine.kept_tokens == reference.prefilled_tokens, "the same prompts, in the same requests"


def test_prompts_that_begin_anew_keep_nothing(tiny: Tiny, tmp_path: Path, pool: EnvPool) -> None:
    engine = HFEngine(tiny.policy, tiny.vision)
    held: list[int] = []

    @contextmanager
    def watched() -> Iterator[Watched]:
        with session_of(engine) as session:
            yield Watched(session, held)

    play(tiny, tmp_path, pool, watched, "1")
    assert engine.kept_tokens == 0
    assert held
    assert not any(held)


@dataclasses.dataclass
class Watched:
    """A session, and how much it holds after each round of answers."""

    session: KeptSession
    held: list[int]

    def generate(self, requests: list[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        out = self.session.generate(requests, settings)
        self.held.append(self.session.kept.bytes)
        return out

    def forget(self, conversations: Iterator[int]) -> None:
        self.session.forget(conversations)


# ---- conversations with pictures of several sizes, in float64, for each family ---------------------------------------------


@dataclasses.dataclass
class World:
    """A tiny model in float64 and a conversation with pictures."""

    tiny: Tiny
    data: Path
    conversation: Conversation

    def first(self, row: int = 0) -> Prompt:
        asked = dataclasses.replace(self.tiny.samples[row], media=(MediaRef(kind="image", path="a.png"),))
        return self.tiny.encoder.encode(asked, "answer_only")

    def next(self, prompt: Prompt, ids: tuple[int, ...], turn: int) -> Prompt:
        """The next prompt: two pictures in the first turn, none in the second, one in the others."""
        names = {1: PICTURES[1:], 2: ()}.get(turn, PICTURES[:1])
        media = [self.tiny.store.get(MediaRef(kind="image", path=name), self.data).handle for name in names]
        past = Segment(ids=prompt.ids, media=prompt.media, spans=prompt.spans, key="")
        answer = answer_segment(past, ids)
        return joined([past, answer, self.conversation.observation(answer, f"seen {turn}", media)], prompt)


@pytest.fixture(scope="module", params=cases.some(["qwen2_vl", "qwen2_5_vl", "qwen3_vl"], {"qwen2_5_vl", "qwen3_vl"}))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    model, data = tiny_module.make_files(tmp_path_factory.mktemp(request.param), sft=2, train=4, test=2, family=request.param)
    draw = np.random.default_rng(0)
    for name, size in zip(PICTURES, ((112, 84), (56, 112), (84, 84)), strict=True):
        Image.fromarray(draw.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(data / name)
    tiny = tiny_module.load(model, data)
    tiny.policy.model.double()
    freeze(tiny.policy, ())
    return World(tiny=tiny, data=data, conversation=Conversation(tiny.encoder))


def talked(world: World, engine: HFEngine, talk: Talk, *, turns: int = 4, conversations: int = 3) -> list[list[Rollout]]:
    """Turns of conversations that begin with one prompt; a list per turn."""
    prompts = [world.first()] * conversations
    out: list[list[Rollout]] = []
    with talk() as session:
        for turn in range(turns):
            together: dict[tuple[int, ...], list[int]] = {}
            for n, prompt in enumerate(prompts):
                together.setdefault(prompt.ids, []).append(n)
            requests = [
                Request(
                    prompt=prompts[places[0]],
                    seeds=tuple(rng.key(3, n, turn) for n in places),
                    ks=tuple(places),
                    conversations=tuple(places),
                    goes_on=turn + 1 < turns,
                )
                for places in together.values()
            ]
            found = {r.k: r for rollouts in session.generate(requests, SAMPLED) for r in rollouts}
            out.append([found[n] for n in range(conversations)])
            prompts = [world.next(prompt, found[n].ids, turn + 1) for n, prompt in enumerate(prompts)]
    return out


def test_in_float64_samples_are_the_same(world: World) -> None:
    engine, reference = (HFEngine(world.tiny.policy, world.tiny.vision) for _ in range(2))
    kept, whole = talked(world, engine, talk_of(engine)), talked(world, reference, anew(reference.generate))
    assert [[r.ids for r in turn] for turn in kept] == [[r.ids for r in turn] for turn in whole]
    one, other = ([value for turn in of for r in turn for value in r.logprobs] for of in (kept, whole))
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    assert len(gaps) > 40
    assert max(gaps) < 1e-5
    assert engine.kept_tokens > 0


def test_a_kept_past_of_other_weights_is_never_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second turn is sampled after an update: with the version's check it is that of the new weights, without it it is not."""
    policy = world.tiny.policy
    engine = HFEngine(policy, world.tiny.vision)
    weight = next(p for name, p in policy.model.named_parameters() if name.endswith("layers.0.self_attn.v_proj.weight"))
    before, version = weight.detach().clone(), policy.version

    def second(session: KeptSession) -> tuple[float, ...]:
        prompt = world.first()
        (first,) = session.generate([ask(prompt, goes_on=True)], GREEDY)[0]
        with torch.no_grad():
            weight.add_(torch.linspace(-0.5, 0.5, weight.numel(), dtype=weight.dtype).view_as(weight))
        policy.version += 1
        (next_,) = session.generate([ask(world.next(prompt, first.ids, 1))], GREEDY)[0]
        (fresh,) = engine.generate([ask(world.next(prompt, first.ids, 1))], GREEDY)[0]
        with torch.no_grad():
            weight.copy_(before)
        return tuple(abs(a - b) for a, b in zip(next_.logprobs, fresh.logprobs, strict=False))

    try:
        with session_of(engine) as session:
            assert max(second(session)) < 1e-6
            assert engine.kept_tokens == 0
        monkeypatch.setattr(Kept, "past", lambda self, request, version: self._pasts.get(request.conversations[0]))
        with session_of(engine) as session:
            assert max(second(session)) > 1e-3, "the control uses the old weights' keys and values"
    finally:
        policy.version = version


def ask(prompt: Prompt, *, number: int = 0, seed: int = 1, goes_on: bool = False) -> Request:
    return Request(prompt=prompt, seeds=(seed,), ks=(0,), conversations=(number,), goes_on=goes_on)


def test_what_is_kept_is_freed(world: World) -> None:
    engine = HFEngine(world.tiny.policy, world.tiny.vision)
    prompt = world.first()
    both = Request(prompt=prompt, seeds=(1, 2), ks=(0, 1), conversations=(0, 1), goes_on=True)
    with session_of(engine) as session:
        ((one, other),) = session.generate([both], SAMPLED)
        heads, size, layers = kv_shape(world)
        token = 2 * heads * size * layers * 8
        assert session.kept.bytes == token * (len(prompt.ids) + len(one.ids) - 1 + len(other.ids) - 1), "the prompt is kept once"
        session.forget([1, 7])
        assert session.kept.bytes == token * (len(prompt.ids) + len(one.ids) - 1)
        session.generate([ask(world.next(prompt, one.ids, 1))], SAMPLED)
        assert session.kept.bytes == token * (len(prompt.ids) + len(one.ids) - 1), "the last turn keeps nothing more"
        session.generate([ask(world.first(1))], SAMPLED)
        assert session.kept.bytes == 0, "a prompt that begins anew frees what was kept"
        session.generate([ask(prompt, goes_on=True)], SAMPLED)
        kept = session.kept
        assert kept.bytes > 0
    assert kept.bytes == len(kept) == 0


def test_an_error_frees_what_was_kept(world: World) -> None:
    engine, head, seen = HFEngine(world.tiny.policy, world.tiny.vision), world.tiny.policy.head, []
    before = head.detach().clone()

    def broken() -> None:
        with session_of(engine) as session:
            session.generate([ask(world.first(), goes_on=True)], SAMPLED)
            seen.append((session.kept, session.kept.bytes))
            with torch.no_grad():
                head.fill_(float("nan"))
            session.generate([ask(world.first(1), goes_on=True)], SAMPLED)

    try:
        with pytest.raises(NumericsError):
            broken()
    finally:
        with torch.no_grad():
            head.copy_(before)
    [(kept, held)] = seen
    assert held > 0
    assert kept.bytes == 0


def kv_shape(world: World) -> tuple[int, int, int]:
    text = world.tiny.policy.model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return text.num_key_value_heads, size, text.num_hidden_layers


def test_a_budget_changes_no_answer(world: World) -> None:
    """What does not fit is read again: fewer tokens are kept, and the answers are the same."""

    def run(budget: int) -> tuple[list[list[tuple[int, ...]]], int, int]:
        engine, held = HFEngine(world.tiny.policy, world.tiny.vision, kept_bytes=budget), [0]

        @contextmanager
        def watched() -> Iterator[Watched]:
            with session_of(engine) as session:
                yield Watched(session, held)

        turns = talked(world, engine, watched)
        return [[r.ids for r in turn] for turn in turns], engine.kept_tokens, max(held)

    expected, kept, most = run(2**40)
    for share in (0.0, 0.4, 0.8):
        got, fewer, held = run(int(share * most))
        assert got == expected
        assert held <= share * most
        assert fewer < kept
        assert (fewer > 0) == (share > 0)


def test_the_first_segment_is_the_prompt(world: World) -> None:
    """The conversations above are those of training: the same ids, media and spans as `agents.conversation` makes of segments."""
    prompt = world.first()
    ids = (world.conversation.end,)
    chain = [first_segment(prompt)]
    chain.append(answer_segment(chain[-1], ids))
    chain.append(world.conversation.observation(chain[-1], "seen 2", []))
    assert joined(chain, prompt) == world.next(prompt, ids, 2)

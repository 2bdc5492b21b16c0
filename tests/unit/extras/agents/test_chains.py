"""Chains of turns in packed rows give the log-probs and gradients of a row per turn. Real towers, float64."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support import cases
from tests.support import tiny as tiny_module
from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl.extras.agents.chains import chains_of, pack_chains, split_chains
from vlmrl.extras.agents.conversation import Conversation, Segment, answer_segment, first_segment, turns
from vlmrl.extras.agents.past import continues
from vlmrl.extras.families.conform.float64 import throughout
from vlmrl.policy.forward import LAYOUTS, TokenLogprobs
from vlmrl.policy.load import freeze
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, PositionSpec, Row, extend, pack_shared, prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.types import MediaHandle, MediaRef, Prompt

pytestmark = pytest.mark.not_fast  # builds models

SPEC = PositionSpec(merge_size=2, tokens_per_second=None)
CPU = torch.device("cpu")
PICTURES = ("a.png", "b.png", "c.png")


@dataclasses.dataclass
class World:
    """A tiny model in float64 and attempts at one task that part at their first answer."""

    tiny: Tiny
    data: Path
    end: int
    conversation: Conversation

    def rows(self, attempts: int = 3, *, screens: bool = True) -> list[Row]:
        """Turns of attempts of 3, 2, ... turns with pictures of several sizes; the second attempt's first answer is cut off."""
        g = torch.Generator().manual_seed(5)
        plain = [i for i in range(self.tiny.policy.head.shape[0]) if i not in self.tiny.bundle.special_ids]
        shown = [self.tiny.store.get(MediaRef(kind="image", path=name), self.data).handle for name in PICTURES]
        asked = dataclasses.replace(self.tiny.samples[0], media=(MediaRef(kind="image", path="a.png"),) if screens else ())
        prompt = self.tiny.encoder.encode(asked, "answer_only")
        shared: dict[tuple[int, ...], Prompt] = {prompt.ids: prompt}
        out: list[Row] = []
        for k in range(attempts):
            chain: list[Segment] = [first_segment(prompt)]
            for turn in range(max(1, 3 - k)):
                if turn:
                    media = shown[turn : turn + 1 + k] if screens else []
                    chain.append(self.conversation.observation(chain[-1], f"seen {turn}", media))
                ids = [plain[int(i)] for i in torch.randint(len(plain), (3 + turn + k,), generator=g)]
                chain.append(answer_segment(chain[-1], ids if k == 1 and turn == 0 else [*ids, self.end]))
            out += [
                Row(index=len(out) + n, group=0, prompt=shared.setdefault(made.ids, made), response=ids)
                for n, (made, ids) in enumerate(turns(chain, prompt))
            ]
        return out


@pytest.fixture(scope="module", params=cases.some(["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"], {"qwen2_5_vl", "qwen3_vl", "qwen3_5"}))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    model, data = tiny_module.make_files(tmp_path_factory.mktemp(request.param), sft=2, train=4, test=2, family=request.param)
    rng = np.random.default_rng(0)
    for name, size in zip(PICTURES, ((112, 84), (56, 112), (84, 84)), strict=True):
        Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(data / name)
    tiny = tiny_module.load(model, data)
    tiny.policy.model.double()
    for name, weight in tiny.policy.model.named_parameters():
        if name.endswith("A_log"):
            weight.data.fill_(-3.0)  # a delta net that forgets little
    freeze(tiny.policy, ())
    conversation = Conversation(tiny.encoder)
    return World(tiny=tiny, data=data, end=conversation.end, conversation=conversation)


def scored(world: World, layout: str, rows: list[Row], *, budget: int = 10**6, backend: str | None = None) -> TokenLogprobs:
    how, policy = LAYOUTS[layout], world.tiny.policy
    if backend is not None:
        policy = copy.copy(policy)
        policy.prefix_backend = backend  # pyright: ignore[reportAttributeAccessIssue]
    vision = VisionCache(world.tiny.store, budget_bytes=2**28)
    width = max(len(row.response) for row in rows)
    logp, entropy = (torch.zeros(len(rows), width, dtype=torch.float64) for _ in range(2))
    for places in how.split(rows, budget):
        batch = how.pack([rows[n] for n in places], policy.positions, policy.device, pad_id=0)
        assert [row.index for row in batch.rows] == [rows[n].index for n in places], "a layout keeps the order that its split gave"
        with throughout(policy.bundle.family.name == "qwen3_5"):  # a delta net computes in float32 whatever its weights are
            part = how.forward(policy, batch, vision, temperature=0.7, forbidden=(5,), train=True)
        at, t = torch.tensor(places), part.logp_BT.shape[1]
        logp = logp.index_put((at[:, None], torch.arange(t)[None]), part.logp_BT)
        entropy[at, :t] = part.entropy_BT
    return TokenLogprobs(logp_BT=logp, entropy_BT=entropy)


def gradients(policy: Policy, of: TokenLogprobs) -> dict[str, torch.Tensor]:
    policy.model.zero_grad(set_to_none=True)
    weights = torch.linspace(-1.1, 0.9, len(of.logp_BT), dtype=torch.float64)
    (of.logp_BT * weights[:, None]).sum().backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert set(a) == set(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("backend", ["merge", "dense", "two_call"])
def test_chains_equal_a_row_per_turn(world: World, backend: str) -> None:
    rows = world.rows()
    assert [len(chain) for (chains,) in [chains_of(rows)] for chain in chains] == [3, 2, 1]
    plain = scored(world, "repeat", rows, backend=backend)
    expected = gradients(world.tiny.policy, plain)
    chained = scored(world, "chains", rows, backend=backend)
    got = gradients(world.tiny.policy, chained)
    assert (chained.logp_BT - plain.logp_BT).abs().max() < 1e-12
    assert (chained.entropy_BT - plain.entropy_BT).abs().max() < 1e-12
    assert gap(got, expected) < 1e-6, "the models round to float32 inside (norms, rotary)"
    assert any(".visual." in name and float(g.abs().max()) > 1e-5 for name, g in got.items()), "pictures of later turns reach the tower"


def test_any_split_gives_the_same(world: World) -> None:
    rows = world.rows()
    whole = scored(world, "chains", rows)
    expected = gradients(world.tiny.policy, whole)
    parts = scored(world, "chains", rows, budget=1)
    assert len(split_chains(rows, 1)) == 3
    assert (parts.logp_BT - whole.logp_BT).abs().max() < 1e-12
    assert gap(gradients(world.tiny.policy, parts), expected) < 1e-6


def test_positions_that_restart_behind_an_observation_would_be_seen(world: World) -> None:
    rows = world.rows(1)
    policy = world.tiny.policy
    batch = pack_chains(rows, policy.positions, policy.device, pad_id=0)
    vision = VisionCache(world.tiny.store, budget_bytes=2**28)

    def logp(one: PackedBatch) -> torch.Tensor:
        return LAYOUTS["chains"].forward(policy, one, vision, temperature=1.0, forbidden=(), train=False).logp_BT

    positions = batch.positions_31N.clone()
    behind = len(rows[1].prompt.ids)
    positions[..., behind:] -= 7
    assert (logp(dataclasses.replace(batch, positions_31N=positions)) - logp(batch)).abs().max() > 1e-6


def test_a_row_per_turn_where_prompts_begin_anew(world: World) -> None:
    rows = [dataclasses.replace(row, group=row.index) for row in world.rows()]
    chained, shared = (pack(rows, SPEC, CPU, pad_id=0) for pack in (pack_chains, pack_shared))
    assert chained.tokens == shared.tokens
    assert torch.equal(chained.ids_1N, shared.ids_1N)
    assert torch.equal(chained.score_M, shared.score_M)
    assert torch.equal(chained.targets_M, shared.targets_M)


# ---- the layout itself, without a model ----------------------------------------------------------------------------------


def picture(name: int) -> MediaHandle:
    return MediaHandle(kind="image", key=f"p{name}", grid_thw=(1, 2 * (1 + name % 2), 4), tokens=2 * (1 + name % 2))


PAD = 99
SEGMENT = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=2))
"""(text, pictures) of an observation or of a first prompt."""
ATTEMPT = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), SEGMENT), min_size=1, max_size=4)
"""(answer, what is seen then) of each turn."""


def segment(before: Prompt, text: list[int], pictures: list[int]) -> Prompt:
    """A prompt with pictures and then text behind it."""
    ids, spans = list(before.ids), list(before.spans)
    for name in pictures:
        tokens = picture(name).tokens
        spans.append((len(ids), len(ids) + tokens))
        ids += [PAD] * tokens
    return dataclasses.replace(before, ids=(*ids, *text), spans=tuple(spans), media=(*before.media, *(picture(name) for name in pictures)))


def episode_rows(
    first: tuple[list[int], list[int]], attempts: list[list[tuple[list[int], tuple[list[int], list[int]]]]], every: int
) -> list[Row]:
    """A row per turn; prompts begin anew every so many turns. Equal prompts are one object, as in training."""
    empty = Prompt(sample=sample(), ids=(), media=(), spans=(), answer_format="answer_only")
    root = segment(empty, *first)
    shared = {(root.ids, root.media): root}
    out: list[Row] = []
    for attempt in attempts:
        prompt = root
        for turn, (answer, seen) in enumerate(attempt):
            prompt = shared.setdefault((prompt.ids, prompt.media), prompt)
            out.append(Row(index=len(out), group=0, prompt=prompt, response=tuple(answer)))
            past = dataclasses.replace(prompt, ids=(*prompt.ids, *answer)) if (turn + 1) % every else empty
            prompt = segment(past, *seen)
    return out


@given(first=SEGMENT, attempts=st.lists(ATTEMPT, min_size=1, max_size=4), every=st.integers(1, 4), budget=st.integers(1, 60))
def test_every_token_sees_its_own_conversation_and_nothing_else(first, attempts, every: int, budget: int) -> None:
    rows = episode_rows(first, attempts, every)
    parts = split_chains(rows, budget)
    assert sorted(place for part in parts for place in part) == list(range(len(rows)))
    for part in parts:
        own = [rows[place] for place in part]
        batch = pack_chains(own, SPEC, CPU, pad_id=0)
        assert batch.tokens <= pack_shared(own, SPEC, CPU, pad_id=0).tokens
        allow, ids, positions = batch.layout.allow(), batch.ids_1N[0], batch.positions_31N[:, 0]
        scores = iter(batch.score_M.tolist())
        pictures = {
            at + n: handle.key
            for held, at in batch.prompts
            for span, handle in zip(held.spans, held.media, strict=True)
            for n in range(*span)
        }
        for row in own:
            wanted = (*row.prompt.ids, *row.response)
            places = extend(prompt_positions(row.prompt, SPEC), len(row.response))
            shown = {n: handle.key for span, handle in zip(row.prompt.spans, row.prompt.media, strict=True) for n in range(*span)}
            for t in range(len(row.response)):
                seen = allow[next(scores)].nonzero()[:, 0]
                length = len(row.prompt.ids) + t
                assert tuple(ids[seen].tolist()) == wanted[:length]
                assert torch.equal(positions[:, seen], places[:, :length])
                assert [pictures.get(int(column)) for column in seen] == [shown.get(n) for n in range(length)]
        assert batch.targets_M.tolist() == [token for row in own for token in row.response]


def test_what_is_no_continuation() -> None:
    (first, second) = episode_rows(([1], [0]), [[([1, 2], ([0], [1])), ([1], ([0], []))]], 9)
    assert continues(second, first)
    assert not continues(first, second)
    assert not continues(second, dataclasses.replace(first, response=(1, 1)))
    other = dataclasses.replace(first.prompt, media=(picture(2),))
    assert other.ids == first.prompt.ids
    assert not continues(second, dataclasses.replace(first, prompt=other)), "equal placeholders, another picture"
    assert not continues(second, dataclasses.replace(first, prompt=dataclasses.replace(first.prompt, owners=(0,))))
    assert chains_of([second, dataclasses.replace(first, group=1)]) == [[[0]], [[1]]], "groups share nothing"
    assert chains_of([second, first]) == [[[1, 0]]], "the order of rows does not matter"

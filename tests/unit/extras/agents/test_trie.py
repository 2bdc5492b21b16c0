"""Trees of conversations in packed rows give the log-probs and gradients of a row per turn. Real towers, float64."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import cases
from tests.support import kernels as emulated
from tests.support.builders import sample
from tests.unit.extras.agents.test_chains import (
    ATTEMPT,
    CPU,
    PICTURES,
    SEGMENT,
    SPEC,
    World,
    episode_rows,
    gap,
    gradients,
    picture,
    scored,
    world,
)
from vlmrl.extras.agents.chains import pack_chains
from vlmrl.extras.agents.conversation import Segment, answer_segment, first_segment, turns
from vlmrl.extras.agents.tree import TreeLayout
from vlmrl.extras.agents.trie import Trie, pack_trees, split_trees
from vlmrl.policy import attention, flash, kernels
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import PackedBatch, Row, extend, pack_shared, prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.types import MediaHandle, MediaRef, Prompt

pytestmark = pytest.mark.not_fast  # builds models

__all__ = ["world"]
ATTEMPTS = (("x", "1", "y"), ("x", "1", "z", "23", "w"), ("v", "1", "w"), ("x", "1", "y"))
"""Answers, and between them the pictures of what is seen then. The last one says and sees what the first does."""


def forest(world: World) -> list[Row]:
    """The turns of all attempts: three answers, two of which go on alike, with pictures in every turn and one at two places."""
    g = torch.Generator().manual_seed(7)
    plain = [i for i in range(world.tiny.policy.head.shape[0]) if i not in world.tiny.bundle.special_ids]
    said = {c: [plain[int(i)] for i in torch.randint(len(plain), (n,), generator=g)] for c, n in zip("xyzwv", (3, 4, 2, 5, 4), strict=True)}
    shown = [world.tiny.store.get(MediaRef(kind="image", path=name), world.data).handle for name in PICTURES]
    asked = dataclasses.replace(world.tiny.samples[0], media=(MediaRef(kind="image", path="a.png"),))
    prompt = world.tiny.encoder.encode(asked, "answer_only")
    shared: dict[tuple[tuple[int, ...], tuple[MediaHandle, ...]], Prompt] = {}
    out: list[Row] = []
    for script in ATTEMPTS:
        chain: list[Segment] = [first_segment(prompt)]
        for part in script:
            if part in said:
                chain.append(answer_segment(chain[-1], [*said[part], world.end]))
            else:
                chain.append(world.conversation.observation(chain[-1], f"seen {part}", [shown[int(c) - 1] for c in part]))
        for made, ids in turns(chain, prompt):
            same = shared.setdefault((made.ids, made.media), made)
            out.append(Row(index=len(out), group=0, prompt=same, response=ids))
    return out


def test_the_forest_by_hand(world: World) -> None:
    rows = forest(world)
    assert [len(row.prompt.media) for row in rows] == [1, 2, 1, 2, 4, 1, 2, 1, 2]
    trie = Trie.of(rows)
    # root, x, o1, y, z, o23, w, v, o1 again, w again
    assert trie.layout.parents == (-1, 0, 1, 2, 2, 4, 5, 0, 7, 8)
    assert [len(segment.visual) for segment in trie.segments] == [1, 0, 1, 0, 0, 2, 0, 0, 1, 0]
    assert trie.paths == ((0, 1), (0, 1, 2, 3), (0, 1), (0, 1, 2, 4), (0, 1, 2, 4, 5, 6), (0, 7), (0, 7, 8, 9), (0, 1), (0, 1, 2, 3))
    how = [pack(rows, SPEC, CPU, pad_id=0).tokens for pack in (pack_trees, pack_chains, pack_shared)]
    assert how == sorted(how)
    assert len(set(how)) == 3
    assert trie.segments[2].prompt(trie.like).media == trie.segments[8].prompt(trie.like).media, "one picture at two places"


BACKENDS = ("merge", "dense", "two_call", "flash", "flash of the package", "flex")


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The name of a backend, once its kernel runs here: those of CUDA are written out for the CPU, in float64."""

    def run(name: str) -> str:
        monkeypatch.setattr(kernels, "FLASH", emulated.ATEN)
        monkeypatch.setattr("torch.nn.attention.flex_attention.flex_attention", emulated.flex)
        package = functools.partial(flash.varlen, kernel=emulated.varlen)
        monkeypatch.setitem(attention._BACKENDS, "flash", package if "package" in name else kernels.segments)
        return name.split()[0]

    return run


@pytest.mark.parametrize("name", BACKENDS)
def test_trees_equal_a_row_per_turn(world: World, name: str, run_by: Callable[[str], str]) -> None:
    rows, backend = forest(world), run_by(name)
    plain = scored(world, "repeat", rows, backend=backend)
    expected = gradients(world.tiny.policy, plain)
    tree = scored(world, "trees", rows, backend=backend)
    got = gradients(world.tiny.policy, tree)
    assert (tree.logp_BT - plain.logp_BT).abs().max() < 1e-12
    assert (tree.entropy_BT - plain.entropy_BT).abs().max() < 1e-12
    largest = max(float(g.abs().max()) for g in expected.values())
    assert gap(got, expected) < 1e-6 * max(1.0, largest), "the models round to float32 inside (norms, rotary)"
    assert any(".visual." in name and float(g.abs().max()) > 1e-5 for name, g in got.items()), "pictures of later turns reach the tower"


def test_any_cut_gives_the_same(world: World) -> None:
    rows = forest(world)
    whole = scored(world, "trees", rows)
    expected = gradients(world.tiny.policy, whole)
    for budget, parts in ((1, 3), (Trie.of(rows).layout.tokens - 1, 2)):
        assert len(split_trees(rows, budget)) == parts
        cut = scored(world, "trees", rows, budget=budget)
        assert (cut.logp_BT - whole.logp_BT).abs().max() < 1e-12
        assert gap(gradients(world.tiny.policy, cut), expected) < 1e-6


def logp(world: World, batch: PackedBatch, backend: str) -> torch.Tensor:
    vision = VisionCache(world.tiny.store, budget_bytes=2**28)
    policy = copy.copy(world.tiny.policy)
    policy.prefix_backend = backend  # pyright: ignore[reportAttributeAccessIssue]
    return LAYOUTS["trees"].forward(policy, batch, vision, temperature=1.0, forbidden=(), train=False).logp_BT


@pytest.mark.parametrize("name", BACKENDS)
def test_wrong_layouts_would_be_seen(world: World, name: str, run_by: Callable[[str], str]) -> None:
    """The row read as one long conversation, and positions that begin anew in every segment."""
    policy, backend = world.tiny.policy, run_by(name)
    batch = pack_trees(forest(world), policy.positions, policy.device, pad_id=0)
    layout = batch.layout
    assert isinstance(layout, TreeLayout)
    right = logp(world, batch, backend)
    causal = dataclasses.replace(batch, layout=TreeLayout((-1,), (layout.tokens,)))
    assert (logp(world, causal, backend) - right).abs().max() > 1e-2
    anew = batch.positions_31N.clone()
    for start, length in zip(layout.starts[1:], layout.lengths[1:], strict=True):
        anew[..., start : start + length] -= anew[..., start : start + 1].clone()
    assert (logp(world, dataclasses.replace(batch, positions_31N=anew), backend) - right).abs().max() > 1e-2


def grown(world: World, seed: int, segments: int) -> list[Row]:
    """Turns of conversations that branch anywhere: behind a prompt into other answers, and behind an answer into other observations, with
    no, one or two pictures in any turn. `segments` of them at least, no turn twice."""
    draw = random.Random(seed)
    plain = [i for i in range(world.tiny.policy.head.shape[0]) if i not in world.tiny.bundle.special_ids]
    shown = [world.tiny.store.get(MediaRef(kind="image", path=name), world.data).handle for name in PICTURES]
    asked = dataclasses.replace(world.tiny.samples[0], media=(MediaRef(kind="image", path="a.png"),))
    prompt = world.tiny.encoder.encode(asked, "answer_only")
    chains: list[list[Segment]] = [[first_segment(prompt)]]
    out: dict[tuple[object, ...], Row] = {}
    shared: dict[object, Prompt] = {}
    while len(out) < 1 or len(Trie.of(list(out.values())).segments) < segments:
        chain = list(draw.choice(chains))
        chain = chain[: draw.randint(1, len(chain))]
        if chain[-1].sampled:
            media = [draw.choice(shown) for _ in range(draw.randint(0, 2))]
            chain.append(world.conversation.observation(chain[-1], f"seen {draw.randint(1, 2)}", media))
        chain.append(answer_segment(chain[-1], [*draw.choices(plain, k=draw.randint(1, 4)), world.end]))
        chains.append(chain)
        for made, ids in turns(chain, prompt):
            same = shared.setdefault((made.ids, made.media), made)
            out.setdefault((made.ids, made.media, ids), Row(index=len(out), group=0, prompt=same, response=ids))
    return list(out.values())


@pytest.mark.parametrize("segments", cases.some([2, 3, 5, 9, 14, 22, 30, 40], {2, 14}))
def test_random_tries_equal_a_row_per_turn(world: World, segments: int) -> None:
    rows = grown(world, segments, segments)
    held = Trie.of(rows)
    assert segments <= len(held.segments) <= segments + 2
    if segments == 40:
        assert sum(bool(segment.visual) for segment in held.segments) > 2
        assert len(held.layout.runs) > 3, "they branch"
    plain = scored(world, "repeat", rows)
    expected = gradients(world.tiny.policy, plain)
    tree = scored(world, "trees", rows)
    got = gradients(world.tiny.policy, tree)
    assert (tree.logp_BT - plain.logp_BT).abs().max() < 1e-12
    assert (tree.entropy_BT - plain.entropy_BT).abs().max() < 1e-12
    largest = max(float(g.abs().max()) for g in expected.values())
    assert gap(got, expected) < 1e-6 * max(1.0, largest)


# ---- the trie itself, without a model ------------------------------------------------------------------------------------


@given(first=SEGMENT, attempts=st.lists(ATTEMPT, min_size=1, max_size=6), every=st.integers(1, 4), budget=st.integers(1, 80))
def test_every_token_sees_its_own_conversation_and_nothing_else(first, attempts, every: int, budget: int) -> None:
    rows = episode_rows(first, attempts, every)
    parts = split_trees(rows, budget)
    assert sorted(place for part in parts for place in part) == list(range(len(rows)))
    for part in parts:
        own = [rows[place] for place in part]
        batch = pack_trees(own, SPEC, CPU, pad_id=0)
        assert batch.tokens <= pack_chains(own, SPEC, CPU, pad_id=0).tokens
        longest = max(len(row.prompt.ids) + len(row.response) for row in own)
        assert batch.tokens <= max(budget, longest)
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


def prompt_of(
    ids: str, *, media: tuple[MediaHandle, ...] = (), spans: tuple[tuple[int, int], ...] = (), owners: tuple[int, ...] = ()
) -> Prompt:
    return Prompt(sample=sample(), ids=tuple(map(ord, ids)), media=media, spans=spans, answer_format="answer_only", owners=owners)


def row(prompt: Prompt, response: str, *, group: int = 0) -> Row:
    return Row(index=0, group=group, prompt=prompt, response=tuple(map(ord, response)))


def texts(rows: list[Row]) -> list[str]:
    return ["".join(map(chr, segment.ids)) for segment in Trie.of(rows).segments]


def test_segments_by_hand() -> None:
    p = prompt_of("P")
    rows = [row(p, "ab"), row(p, "a"), row(prompt_of("Pabcde"), "f"), row(prompt_of("Pabcd"), "x"), row(prompt_of("Pac"), "y")]
    assert texts(rows) == ["P", "ab", "cd", "x", "e", "f", "a", "c", "y"], "where an answer is the beginning of another"
    assert texts([row(p, "a"), row(p, "ab"), row(prompt_of("Pabcd"), "x")]) == ["P", "a", "b", "cd", "x"]
    assert texts([row(p, "a"), row(p, "a", group=1)]) == ["P", "a", "P", "a"], "groups share nothing"
    assert texts([row(p, "a"), row(p, "a")]) == ["P", "a"], "equal rows are one"


def test_equal_ids_with_other_pictures_are_other_segments() -> None:
    first, second = (prompt_of("Pii", media=(picture(n),), spans=((1, 3),)) for n in (0, 2))
    assert texts([row(first, "a"), row(second, "a")]) == ["Pii", "a", "Pii", "a"]


def test_a_video_with_a_span_per_step_keeps_its_owners() -> None:
    video = MediaHandle(kind="video", key="v", grid_thw=(2, 2, 4), tokens=4)
    spec = dataclasses.replace(SPEC, per_step=True)
    one = prompt_of("P0vv1vv", media=(video,), spans=((2, 4), (5, 7)), owners=(0, 0))
    two = prompt_of("P0vv1vvaOvv2vvQ", media=(video, video), spans=((2, 4), (5, 7), (9, 11), (12, 14)), owners=(0, 0, 1, 1))
    rows = [row(one, "a"), row(two, "b")]
    batch = pack_trees(rows, spec, CPU, pad_id=0)
    assert texts(rows) == ["P0vv1vv", "a", "Ovv2vvQ", "b"]
    assert [(held.owners, at) for held, at in batch.prompts] == [((0, 0), 0), ((0, 0), 8)]
    assert torch.equal(batch.positions_31N[:, 0], extend(prompt_positions(two, spec), 1))


def test_cuts_are_as_high_up_as_they_can_be() -> None:
    p = prompt_of("PPPP")
    again = prompt_of("PPPPabcO")
    rows = [row(p, "abc"), row(again, "xx"), row(again, "yy"), row(p, "def")]
    assert split_trees(rows, 15) == [[0, 1, 2, 3]]
    assert split_trees(rows, 14) == [[0, 1, 2], [3]]
    assert split_trees(rows, 11) == [[0, 1], [2], [3]]
    assert split_trees([], 5) == []

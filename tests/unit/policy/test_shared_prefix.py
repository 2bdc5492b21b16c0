"""Shared prompts in packed rows give the log-probs and gradients of one row per answer. Real towers, float64."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support import tiny as tiny_module
from tests.support.tiny import Tiny
from vlmrl.extras.families.conform.float64 import throughout
from vlmrl.policy import forward
from vlmrl.policy.forward import LAYOUTS, TokenLogprobs
from vlmrl.policy.load import freeze
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import PackedBatch, Row, pack_shared, prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.types import MediaRef, Prompt, Sample

pytestmark = pytest.mark.not_fast  # builds models

KINDS = ("image", "two_images", "video", "text")
LENGTHS = (7, 4, 11)
FORBIDDEN = 5


@dataclasses.dataclass
class World:
    """A tiny model in float64 with prompts of every kind, each with three random answers."""

    tiny: Tiny
    policy: Policy
    prompts: dict[str, Prompt]

    def rows(self, *kinds: str) -> list[Row]:
        g = torch.Generator().manual_seed(3)
        specials = self.tiny.bundle.special_ids
        plain = [i for i in range(self.policy.head.shape[0]) if i not in specials and i != FORBIDDEN]
        out: list[Row] = []
        for group, kind in enumerate(kinds):
            for length in LENGTHS:
                ids = [plain[int(i)] for i in torch.randint(len(plain), (length,), generator=g)]
                out.append(Row(index=len(out), group=group, prompt=self.prompts[kind], response=tuple(ids)))
        return out

    def cache(self) -> VisionCache:
        return VisionCache(self.tiny.store, budget_bytes=2**28)

    def with_backend(self, backend: str) -> Policy:
        policy = copy.copy(self.policy)
        policy.prefix_backend = backend
        return policy


FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")


@pytest.fixture(autouse=True)
def exact(request: pytest.FixtureRequest) -> Iterator[None]:
    """A delta net computes in float32 whatever its weights are, and a state's rounding would hide small mistakes. What is recomputed in a
    backward pass does not see this context, so it must not have been computed in it."""
    delta = "world" in request.fixturenames and request.getfixturevalue("world").policy.bundle.family.name == "qwen3_5"
    with throughout(delta and request.function is not test_gradient_checkpointing_changes_nothing):
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp(request.param)
    model, data = tiny_module.make_files(folder, sft=2, train=4, test=2, family=request.param)
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (112, 84)), ("b.png", (56, 112))):
        Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(data / name)
    tiny = tiny_module.load(model, data)
    tiny.policy.model.double()
    for name, weight in tiny.policy.model.named_parameters():
        if name.endswith("A_log"):
            weight.data.fill_(-3.0)  # a delta net that forgets little: what a prompt left is seen to the end of an answer
    freeze(tiny.policy, ())

    def sample(name: str, media: tuple[MediaRef, ...]) -> Sample:
        return dataclasses.replace(tiny.samples[0], id=name, media=media)

    image_a, image_b = MediaRef(kind="image", path="a.png"), MediaRef(kind="image", path="b.png")
    samples = {
        "image": sample("image", (image_a,)),
        "two_images": sample("two_images", (image_a, image_b)),
        "video": tiny.samples[0],
        "text": sample("text", ()),
    }
    prompts = {kind: tiny.encoder.encode(one, "think_or_not") for kind, one in samples.items()}
    return World(tiny=tiny, policy=tiny.policy, prompts=prompts)


def scored(
    policy: Policy, layout: str, rows: list[Row], vision: VisionCache, budget: int = 10**6, temperature: float = 0.7
) -> TokenLogprobs:
    """Scores of all rows in their own order, over as many micro-batches as the budget makes."""
    how = LAYOUTS[layout]
    width = max(len(row.response) for row in rows)
    logp = torch.zeros(len(rows), width, dtype=torch.float64)
    entropy = torch.zeros(len(rows), width, dtype=torch.float64)
    for places in how.split(rows, budget):
        batch = how.pack([rows[n] for n in places], policy.positions, policy.device, pad_id=0)
        order = [rows[n].index for n in places]
        assert [row.index for row in batch.rows] == order, "a layout keeps the order that its split gave"
        part = how.forward(policy, batch, vision, temperature=temperature, forbidden=(FORBIDDEN,), train=True)
        where = torch.tensor(places)
        t = part.logp_BT.shape[1]
        logp = logp.index_put((where[:, None], torch.arange(t)[None]), part.logp_BT)
        entropy[where, :t] = part.entropy_BT
    return TokenLogprobs(logp_BT=logp, entropy_BT=entropy)


def gradients(policy: Policy, of: TokenLogprobs) -> dict[str, torch.Tensor]:
    """Of a policy-gradient loss with advantages 0.7, -1.1, 0.4 in each group."""
    policy.model.zero_grad(set_to_none=True)
    advantage = torch.tensor([0.7, -1.1, 0.4], dtype=torch.float64).repeat(len(of.logp_BT) // 3)
    (-(of.logp_BT * advantage[:, None]).sum() / len(advantage)).backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


def largest_gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert set(a) == set(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["merge", "dense", "two_call"])
def test_equals_one_row_per_answer(world: World, kind: str, backend: str) -> None:
    rows = world.rows(kind)
    policy = world.with_backend(backend)
    plain = scored(policy, "repeat", rows, world.cache())
    expected = gradients(policy, plain)
    shared = scored(policy, "shared_prefix", rows, world.cache())
    got = gradients(policy, shared)
    assert (shared.logp_BT - plain.logp_BT).abs().max() < 1e-12
    assert torch.allclose(shared.entropy_BT, plain.entropy_BT, atol=1e-12)
    assert largest_gap(got, expected) < 1e-6, "the models round to float32 inside (norms, rotary)"
    assert max(float(g.abs().max()) for g in got.values()) > 1e-2
    if kind != "text":
        assert any(".visual." in name and float(g.abs().max()) > 1e-5 for name, g in got.items()), "the tower gets its gradient"


def test_packed_neighbours_are_invisible(world: World) -> None:
    rows = world.rows(*KINDS)
    together = scored(world.policy, "shared_prefix", rows, world.cache())
    for n in range(0, len(rows), 3):
        alone = scored(
            world.policy, "shared_prefix", [dataclasses.replace(r, index=i) for i, r in enumerate(rows[n : n + 3])], world.cache()
        )
        assert (together.logp_BT[n : n + 3] - alone.logp_BT).abs().max() < 1e-12


@pytest.mark.parametrize("answers", [8, 3, 1])
def test_any_split_gives_the_same_values_and_gradient(world: World, answers: int) -> None:
    rows = world.rows("video", "image")
    longest = max(len(r.prompt.ids) for r in rows)
    whole = scored(world.policy, "shared_prefix", rows, world.cache())
    expected = gradients(world.policy, whole)
    parts = scored(world.policy, "shared_prefix", rows, world.cache(), budget=longest + 7 * answers)
    assert (parts.logp_BT - whole.logp_BT).abs().max() < 1e-12
    assert largest_gap(gradients(world.policy, parts), expected) < 1e-6


def test_a_group_of_one_is_an_ordinary_row(world: World) -> None:
    rows = [world.rows("video")[2]]
    rows = [dataclasses.replace(rows[0], index=0)]
    shared, plain = (scored(world.policy, layout, rows, world.cache()) for layout in ("shared_prefix", "repeat"))
    assert (shared.logp_BT - plain.logp_BT).abs().max() < 1e-12


def test_gradient_checkpointing_changes_nothing(world: World) -> None:
    rows = world.rows("image", "video")
    before = scored(world.policy, "shared_prefix", rows, world.cache())
    expected = gradients(world.policy, before)
    world.policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    world.policy.model.train()
    try:
        again = scored(world.policy, "shared_prefix", rows, world.cache())
        got = gradients(world.policy, again)
    finally:
        world.policy.model.eval()
        world.policy.model.gradient_checkpointing_disable()
    assert torch.equal(again.logp_BT, before.logp_BT)
    assert largest_gap(got, expected) < 1e-9


def test_the_tower_sees_each_medium_once(world: World) -> None:
    for layout in ("shared_prefix", "repeat"):
        cache = world.cache()
        rows = world.rows("video", "two_images")
        scored(world.policy, layout, rows, cache)
        distinct = {h.key: int(np.prod(h.grid_thw)) for kind in ("video", "two_images") for h in world.prompts[kind].media}
        assert cache.patches_encoded == sum(distinct.values())


def _broken(world: World, rows: list[Row], change: str) -> float:
    """Largest log-prob error when the packed row is laid out wrongly."""
    batch: PackedBatch = pack_shared(rows, world.policy.positions, world.policy.device, pad_id=0)
    prompt = rows[0].prompt
    positions = batch.positions_31N.clone()
    policy = world.with_backend("dense")
    if change == "positions run on":
        tail = positions.shape[2] - len(prompt.ids)
        positions[:, 0, len(prompt.ids) :] = positions[:, 0, len(prompt.ids) - 1 : len(prompt.ids)] + 1 + torch.arange(tail)
    if change == "answers start at the number of prompt tokens":
        positions[:, 0, len(prompt.ids) :] += len(prompt.ids) - int(positions[0, 0, len(prompt.ids)])
    if change == "causal mask":
        whole = dataclasses.replace(batch.layout.blocks[0], suffixes=(sum(LENGTHS),))
        batch = dataclasses.replace(batch, layout=dataclasses.replace(batch.layout, blocks=(whole,)))
    batch = dataclasses.replace(batch, positions_31N=positions)
    wrong = forward.shared_prefix(policy, batch, world.cache(), temperature=0.7, forbidden=(FORBIDDEN,), train=False)
    plain = scored(policy, "repeat", rows, world.cache())
    return float((wrong.logp_BT - plain.logp_BT).detach().abs().max())


@pytest.mark.parametrize("change", ["positions run on", "answers start at the number of prompt tokens", "causal mask"])
def test_negative_controls_are_seen(world: World, change: str) -> None:
    kind = next(kind for kind in ("image", "two_images", "video") if _gap(world, kind))
    assert _broken(world, world.rows(kind), "nothing") < 1e-12
    assert _broken(world, world.rows(kind), change) > 1e-3


def _gap(world: World, kind: str) -> int:
    """Prompt tokens less the position behind the last of them: 0 would make a control right by chance."""
    return len(world.prompts[kind].ids) - int(prompt_positions(world.prompts[kind], world.policy.positions)[0, -1]) - 1


def test_a_sampled_placeholder_is_refused(world: World) -> None:
    for kind in ("image", "video"):
        (row, *_) = world.rows("image")
        bad = dataclasses.replace(row, response=(world.tiny.bundle.pad_ids[kind], *row.response))
        with pytest.raises(ValueError, match="placeholder"):
            scored(world.policy, "shared_prefix", [bad], world.cache())


def test_eager_attention_is_refused_instead_of_misread(tmp_path: Path) -> None:
    from vlmrl.errors import ConfigError
    from vlmrl.policy.load import load_policy

    model, data = tiny_module.make_files(tmp_path, sft=2, train=2, test=2)
    tiny = tiny_module.load(model, data)
    eager = load_policy(str(model), tiny.bundle, device="cpu", attention="eager")
    row = Row(index=0, group=0, prompt=tiny.prompts(1)[0], response=(9, 10))
    batch = pack_shared([row], eager.positions, eager.device, pad_id=0)
    with pytest.raises(ConfigError, match="eager"):
        forward.shared_prefix(eager, batch, tiny.vision, temperature=1.0, forbidden=(), train=False)


def test_decoder_work_is_that_of_the_packed_tokens(world: World) -> None:
    """Floating-point operations of the decoder's linear layers, counted by torch: G(P+C) / (P+GC)."""
    from torch.utils.flop_counter import FlopCounterMode

    prompt = world.prompts["text"]
    rows = [Row(index=n, group=0, prompt=prompt, response=(9,) * 16) for n in range(8)]

    def count(layout: str) -> int:
        how = LAYOUTS[layout]
        batch = how.pack(rows, world.policy.positions, world.policy.device, pad_id=0)
        head = world.policy.head.numel() * 2 * 8 * 16
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            how.forward(world.with_backend("dense"), batch, world.cache(), temperature=1.0, forbidden=(), train=False)
        flops = counter.get_flop_counts()["Global"]
        linear = sum(n for op, n in flops.items() if str(op) in ("aten.mm", "aten.addmm"))
        return linear - head

    p, c, g = len(prompt.ids), 16, 8
    assert count("repeat") / count("shared_prefix") == pytest.approx(g * (p + c) / (p + g * c), rel=1e-3)

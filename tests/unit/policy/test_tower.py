"""The vision tower by chunks of frames: the same features and gradients, in less memory, with every patch counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.saved_bytes import Live, Store, build, policy_of
from vlmrl.extras.scale.lockstep import look_ahead
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache, tower_passes
from vlmrl.types import MediaHandle, MediaKind

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
MEDIA: list[tuple[MediaKind, tuple[int, int, int]]] = [
    ("video", (5, 4, 6)),
    ("image", (1, 10, 12)),
    ("video", (3, 10, 12)),
    ("image", (1, 4, 4)),
]
"""Frames of 24 and of 120 patches: the larger ones span windows of Qwen2.5-VL."""
BOUND = 60
BIG = 2**28


class World:
    """A tiny model whose tower trains, and media."""

    def __init__(self, family: str):
        torch.manual_seed(0)
        model = build(family, hidden=32, layers=2, heads=2, kv_heads=1, mlp=32, vision={"hidden": 16, "depth": 3, "heads": 2, "mlp": 32})
        self.policy: Policy = policy_of(model, compute=torch.float32)
        self.policy.vision_trains = True
        self.store = Store(3 * 2 * model.config.vision_config.patch_size**2)
        self.handles = [self.store.medium(kind, grid) for kind, grid in MEDIA]

    def features(self, bound: int | None, *, train: bool = True) -> tuple[VisionCache, list[torch.Tensor]]:
        self.policy.vision_chunk_patches = bound
        cache = VisionCache(self.store, budget_bytes=BIG)
        found = cache.features(self.policy, self.handles, train=train)
        assert list(found) == [handle.key for handle in self.handles]
        return cache, [part for value in found.values() for part in (value.merged, *value.deepstack)]

    def gradients(self, bound: int | None) -> dict[str, torch.Tensor]:
        self.policy.model.zero_grad()
        _, parts = self.features(bound)
        draws = torch.Generator().manual_seed(1)
        torch.stack([(part * torch.randn(part.shape, generator=draws)).sum() for part in parts]).sum().backward()
        return {name: p.grad.clone() for name, p in self.policy.core.visual.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module", params=FAMILIES)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert a.shape == b.shape
    assert float((a - b).detach().abs().max()) <= 1e-5 * max(1e-3, float(b.detach().abs().max()))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("bound", [1, BOUND, 250])
def test_features_of_chunks_are_those_of_the_whole(world: World, bound: int, train: bool) -> None:
    whole_cache, whole = world.features(None, train=train)
    cache, parts = world.features(bound, train=train)
    assert len(whole) == len(MEDIA) * (1 + world.policy.deepstack)
    for a, b in zip(parts, whole, strict=True):
        close(a, b)
        assert a.requires_grad == train
    assert cache.patches_encoded == whole_cache.patches_encoded == sum(t * h * w for _, (t, h, w) in MEDIA)


@pytest.mark.parametrize("blocks", [False, True], ids=["kept", "blocks recomputed too"])
def test_gradients_of_chunks_are_those_of_the_whole(world: World, blocks: bool) -> None:
    whole = world.gradients(None)
    if blocks:
        world.policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        world.policy.model.train()
    try:
        by_chunks = world.gradients(BOUND)
    finally:
        world.policy.model.gradient_checkpointing_disable()
        world.policy.model.eval()
    assert set(by_chunks) == set(whole)
    assert {name.split(".")[0] for name in whole} >= {"blocks", "merger", "patch_embed"}
    for name, value in whole.items():
        close(by_chunks[name], value)


def test_every_patch_counts_once_though_backward_computes_it_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    real = world.policy.core.visual.patch_embed.forward
    monkeypatch.setattr(world.policy.core.visual.patch_embed, "forward", lambda values: ran.append(len(values)) or real(values))
    world.policy.model.zero_grad()
    cache, parts = world.features(BOUND)
    assert sum(ran) == cache.patches_encoded
    assert max(ran) == 120, "a frame is never cut"
    torch.stack([part.sum() for part in parts]).sum().backward()
    assert sum(ran) == 2 * cache.patches_encoded
    assert len(ran) == 2 * len(tower_passes(world.handles, BOUND))


def test_a_medium_is_paid_once_under_the_same_key(world: World) -> None:
    world.policy.vision_trains = False
    try:
        cache, _ = world.features(BOUND, train=False)
        seen = cache.look(world.policy, world.handles, train=True)
        assert (seen.passes, list(seen.known)) == (0, [handle.key for handle in world.handles])
        assert cache.hits == len(MEDIA)
        for value in seen.known.values():
            assert value.merged.untyped_storage().nbytes() == value.merged.numel() * 4, "a chunk is not kept alive by a part of it"
    finally:
        world.policy.vision_trains = True


def test_passes_that_are_looked_at_ahead_are_those_that_are_made(world: World) -> None:
    """Ranks agree on all passes of a step before the first: later ones may neither forget what was known nor encode it again."""
    world.policy.vision_trains, world.policy.vision_chunk_patches = False, None
    a, b, c, d = world.handles
    try:
        whole, _ = world.features(None, train=False)
        expected = whole.look(world.policy, world.handles, train=False).known
        cache = VisionCache(world.store, budget_bytes=2 * max(value.nbytes for value in expected.values()))
        cache.features(world.policy, [d], train=False)
        steps = [[a, d], [a, b], [b], [c], [b, d], []]
        seen = look_ahead(cache, world.policy, steps, train=True)
        assert [one.passes for one in seen] == [1, 1, 0, 1, 0, 0]
        assert cache.hits == 5
        for one, handles in zip(seen, steps, strict=True):
            found = one.features(world.policy, handles, train=True)
            assert set(found) == {handle.key for handle in handles}
            for key, value in found.items():
                close(value.merged, expected[key].merged)
        assert cache.patches_encoded == sum(piece.patches for handles in ([d], [a], [b], [c]) for piece in tower_passes(handles, None)[0])
    finally:
        world.policy.vision_trains = True


def kept(world: World, bound: int | None) -> int:
    """Bytes that the forward pass of the tower keeps for backward, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in world.policy.model.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        parts = world.features(bound)[1]
    del parts
    return sum(held.values())


def peak(world: World, bound: int | None) -> int:
    """Most bytes alive in forward and backward of the tower."""
    live: Any = Live()
    with live:
        _, parts = world.features(bound)
        torch.stack([part.sum() for part in parts]).sum().backward()
    return live.most


def test_chunks_take_less_memory(world: World) -> None:
    """16 frames of 24 patches: at most two at a time instead of all."""
    handles, world.handles = world.handles, [world.store.medium("video", (16, 4, 6))]
    try:
        assert kept(world, 48) < 0.05 * kept(world, None)
        world.policy.model.zero_grad()
        whole = peak(world, None)
        world.policy.model.zero_grad()
        chunks = peak(world, 48)
        assert chunks < 0.4 * whole
    finally:
        world.handles = handles


def media(*grids: tuple[MediaKind, tuple[int, int, int]]) -> list[MediaHandle]:
    return [MediaHandle(kind=kind, key=str(n), grid_thw=grid, tokens=0) for n, (kind, grid) in enumerate(grids)]


def plan(handles: list[MediaHandle], bound: int | None) -> list[list[tuple[str, int, int]]]:
    return [[(piece.handle.key, piece.first, piece.last) for piece in pieces] for pieces in tower_passes(handles, bound)]


def test_passes() -> None:
    handles = media(("video", (3, 4, 4)), ("image", (1, 8, 8)), ("video", (2, 2, 4)), ("image", (1, 2, 2)), ("image", (1, 2, 2)))
    assert plan(handles, None) == [[("1", 0, 1), ("3", 0, 1), ("4", 0, 1)], [("0", 0, 3), ("2", 0, 2)]]
    assert plan(handles, 40) == [
        [("1", 0, 1)],
        [("3", 0, 1), ("4", 0, 1)],
        [
            ("0", 0, 2),
        ],
        [("0", 2, 3), ("2", 0, 2)],
    ]
    assert plan(handles, 1) == [
        [("1", 0, 1)],
        [("3", 0, 1)],
        [("4", 0, 1)],
        *([("0", n, n + 1)] for n in range(3)),
        *([("2", n, n + 1)] for n in range(2)),
    ]
    assert plan(handles, 10**6) == plan(handles, None)
    assert plan([], 40) == []

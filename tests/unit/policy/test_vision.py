"""The cache of vision features: what is encoded, what is kept, and what is shared through a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.pretend import Pretend
from tests.support.tiny import Tiny
from vlmrl.compat import ensure_torchvision
from vlmrl.policy import vision as vision_module
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import Features, VisionCache, tower_fingerprint
from vlmrl.policy.vision_disk import FeatureStore
from vlmrl.types import MediaHandle

BIG = 2**28


def handles_of(tiny: Tiny, count: int = 2) -> list[MediaHandle]:
    return [handle for prompt in tiny.prompts(count) for handle in prompt.media]


def patches(handles: list[MediaHandle]) -> int:
    return sum(int(np.prod(handle.grid_thw)) for handle in {handle.key: handle for handle in handles}.values())


@pytest.fixture
def policy(tiny: Tiny) -> Iterator[Policy]:
    """The tiny policy with a frozen tower; its weights are put back afterwards."""
    saved = {name: value.clone() for name, value in tiny.policy.model.state_dict().items()}
    freeze(tiny.policy, ("vision", "projector"))
    yield tiny.policy
    tiny.policy.model.load_state_dict(saved)
    freeze(tiny.policy, ())
    tiny.policy.vision_version += 1


def assert_same(a: Any, b: Any) -> None:
    assert set(a) == set(b)
    for key in a:
        assert torch.equal(a[key].merged, b[key].merged)
        assert len(a[key].deepstack) == len(b[key].deepstack)
        assert all(torch.equal(x, y) for x, y in zip(a[key].deepstack, b[key].deepstack, strict=True))


def test_memory_serves_the_second_call(tiny: Tiny, policy: Policy) -> None:
    handles, vision = handles_of(tiny), VisionCache(tiny.store, budget_bytes=BIG)
    first = vision.features(policy, [*handles, *handles], train=True)
    assert (vision.patches_encoded, vision.hits, vision.disk_hits) == (patches(handles), 0, 0)
    assert {key: len(value.merged) for key, value in first.items()} == {handle.key: handle.tokens for handle in handles}
    second = vision.features(policy, handles, train=False)
    assert (vision.patches_encoded, vision.hits) == (patches(handles), len(first))
    assert_same(first, second)


def test_budget_counts_the_memory_that_is_held(tiny: Tiny, policy: Policy) -> None:
    """A cached slice of a batch must not keep the batch alive."""
    handles = handles_of(tiny, 4)
    vision = VisionCache(tiny.store, budget_bytes=BIG)
    for value in vision.features(policy, handles, train=False).values():
        assert value.merged.untyped_storage().nbytes() == value.nbytes
    one = max(value.nbytes for value in vision.features(policy, handles, train=False).values())
    small = VisionCache(tiny.store, budget_bytes=one)
    small.features(policy, handles, train=False)
    small.features(policy, handles[-1:], train=False)
    assert small.hits == 1, "the last one is kept"
    small.features(policy, handles[:1], train=False)
    assert small.hits == 1, "the first one is not"


def test_a_medium_that_is_encoded_again_is_counted_once(tiny: Tiny, policy: Policy) -> None:
    handles, vision = handles_of(tiny, 1), VisionCache(tiny.store, budget_bytes=BIG)
    for _ in range(2):
        (value,) = vision.encode(policy, handles, train=False).values()
    assert vision._bytes == value.nbytes


def test_two_caches_share_a_folder_and_encode_once(tiny: Tiny, policy: Policy, tmp_path: Path) -> None:
    handles = handles_of(tiny)
    first = VisionCache(tiny.store, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG))
    second = VisionCache(tiny.store, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG))
    made = first.features(policy, handles, train=True)
    assert (first.patches_encoded, first.disk_hits) == (patches(handles), 0)
    read = second.features(policy, handles, train=False)
    assert (second.patches_encoded, second.hits, second.disk_hits) == (0, 0, len(made))
    assert_same(made, read)
    second.features(policy, handles, train=False)
    assert (second.hits, second.disk_hits) == (len(made), len(made)), "then memory serves"


def test_only_what_is_missing_on_disk_is_encoded(tiny: Tiny, policy: Policy, tmp_path: Path) -> None:
    handles, store = handles_of(tiny, 3), FeatureStore(tmp_path, budget_bytes=BIG)
    assert len({handle.key for handle in handles}) == 3
    VisionCache(tiny.store, budget_bytes=BIG, disk=store).features(policy, handles[:2], train=False)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=store)
    out = vision.features(policy, handles, train=False)
    assert (vision.patches_encoded, vision.disk_hits) == (patches(handles[2:]), 2)
    plain = VisionCache(tiny.store, budget_bytes=BIG).features(policy, handles, train=False)
    for key in plain:
        torch.testing.assert_close(out[key].merged, plain[key].merged)


def test_damaged_file_is_encoded_again(tiny: Tiny, policy: Policy, tmp_path: Path) -> None:
    handles = handles_of(tiny, 1)
    made = VisionCache(tiny.store, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG)).features(policy, handles, train=False)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=store)
    assert_same(made, vision.features(policy, handles, train=False))
    assert (vision.patches_encoded, vision.disk_hits, store.stats["damaged"], store.stats["stored"]) == (patches(handles), 0, 1, 1)


def test_a_tower_that_trains_leaves_the_disk_alone(tiny: Tiny, policy: Policy, tmp_path: Path) -> None:
    handles, store = handles_of(tiny, 1), FeatureStore(tmp_path, budget_bytes=BIG)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=store)
    freeze(policy, ())
    assert vision.features(policy, handles, train=True)[handles[0].key].merged.requires_grad
    assert not vision.features(policy, handles, train=False)[handles[0].key].merged.requires_grad
    assert list(tmp_path.iterdir()) == []
    assert store.stats["misses"] == 0


@pytest.mark.parametrize("part", ["blocks", "merger"])
def test_other_weights_are_other_features(tiny: Tiny, policy: Policy, tmp_path: Path, part: str) -> None:
    """After an update of the tower or its projector (an earlier stage, say) nothing old is served."""
    handles, store = handles_of(tiny, 1), FeatureStore(tmp_path, budget_bytes=BIG)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=store)
    before = vision.features(policy, handles, train=False)[handles[0].key].merged
    with torch.no_grad():
        weight = next(p for name, p in policy.model.named_parameters() if f"visual.{part}." in name and p.ndim == 2)
        weight.mul_(1.5)
    policy.vision_version += 1
    after = vision.features(policy, handles, train=False)[handles[0].key].merged
    assert not torch.equal(before, after)
    assert (vision.patches_encoded, vision.disk_hits) == (2 * patches(handles), 0)
    assert store.stats["stored"] == 2


def test_fingerprint(tiny: Tiny, policy: Policy, tiny_files: tuple[Path, Path]) -> None:
    other = load_policy(str(tiny_files[0]), tiny.bundle, device="cpu")
    first = tower_fingerprint(policy)
    assert tower_fingerprint(other) == first, "the same weights loaded twice"
    with torch.no_grad():
        other.core.language_model.embed_tokens.weight.add_(1)
    assert tower_fingerprint(other) == first, "the language model does not count"
    other.core.visual.config._attn_implementation = "eager"
    assert tower_fingerprint(other) != first, "another attention implementation rounds differently"


def test_fingerprint_is_computed_once_per_model_and_version(
    tiny: Tiny, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = tower_fingerprint

    def counted(who: Policy) -> str:
        asked.append(who.vision_version)
        return real(who)

    monkeypatch.setattr("vlmrl.policy.vision.tower_fingerprint", counted)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG))
    for handle in handles_of(tiny, 3):
        vision.features(policy, [handle], train=False)
    assert asked == [policy.vision_version]
    policy.vision_version += 1
    vision.features(policy, handles_of(tiny, 3), train=False)
    assert asked == [policy.vision_version - 1, policy.vision_version]


def test_wrong_number_of_features_names_the_medium(tiny: Tiny, policy: Policy, tmp_path: Path) -> None:
    (handle,) = handles_of(tiny, 1)
    wrong = replace(handle, tokens=handle.tokens + 1)
    store = FeatureStore(tmp_path, budget_bytes=BIG)
    vision = VisionCache(tiny.store, budget_bytes=BIG, disk=store)
    with pytest.raises(RuntimeError, match=handle.key[:12]):
        vision.features(policy, [wrong], train=False)
    assert list(tmp_path.iterdir()) == [], "nothing wrong is stored"
    store.put(handle.key, vision.fingerprint(policy), policy.compute, Features(torch.zeros(handle.tokens + 2, 4)))
    with pytest.raises(RuntimeError, match=f"{handle.tokens} placeholder tokens but {handle.tokens + 2} features"):
        vision.features(policy, [handle], train=False)


class Patches:
    """Random patches by key, in place of a media store."""

    def __init__(self, handles: list[MediaHandle], width: int):
        self.values = {
            handle.key: np.random.default_rng(n).standard_normal((int(np.prod(handle.grid_thw)), width), dtype=np.float32)
            for n, handle in enumerate(handles)
        }

    def get_key(self, key: str) -> Any:
        return SimpleNamespace(pixel_values=self.values[key])


@pytest.fixture(scope="module")
def deep() -> Any:
    """A tiny random Qwen3-VL: two deepstack layers."""
    ensure_torchvision()
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    torch.manual_seed(0)
    config = Qwen3VLConfig(
        vision_config={
            "depth": 3,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "out_hidden_size": 24,
            "patch_size": 4,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 64,
        },
        text_config={
            "hidden_size": 24,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "vocab_size": 64,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4},
        },
    )
    return Qwen3VLForConditionalGeneration(config).eval()


def test_deepstack_features_are_split_by_medium_and_survive_the_disk(tiny: Tiny, deep: Any, tmp_path: Path) -> None:
    handles = [
        MediaHandle(kind="image", key="a" * 64, grid_thw=(1, 4, 6), tokens=6),
        MediaHandle(kind="video", key="b" * 64, grid_thw=(2, 4, 4), tokens=8),
        MediaHandle(kind="image", key="c" * 64, grid_thw=(1, 2, 4), tokens=2),
    ]
    pixels = Patches(handles, 3 * 2 * 4 * 4)
    policy = Policy(model=deep, bundle=tiny.bundle, positions=tiny.policy.positions, device=torch.device("cpu"))
    vision = VisionCache(pixels, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG))
    out = vision.features(policy, handles, train=False)
    for handle in handles:
        with torch.no_grad():
            alone = deep.model.visual(
                torch.from_numpy(pixels.values[handle.key]), grid_thw=torch.tensor([handle.grid_thw]), return_dict=True
            )
        value = out[handle.key]
        assert value.merged.shape == (handle.tokens, 24)
        torch.testing.assert_close(value.merged, alone.pooler_output, rtol=1e-4, atol=1e-5)
        assert len(value.deepstack) == 2
        for layer, theirs in zip(value.deepstack, alone.deepstack_features, strict=True):
            torch.testing.assert_close(layer, theirs, rtol=1e-4, atol=1e-5)
    again = VisionCache(pixels, budget_bytes=BIG, disk=FeatureStore(tmp_path, budget_bytes=BIG))
    assert_same(out, again.features(policy, handles, train=False))
    assert (again.patches_encoded, again.disk_hits) == (0, 3)


def test_deepstack_that_is_not_split_is_refused(tiny: Tiny) -> None:
    handle = MediaHandle(kind="image", key="a" * 64, grid_thw=(1, 2, 2), tokens=1)

    def encode(values: torch.Tensor, grid: torch.Tensor, return_dict: bool, position_ids: torch.Tensor) -> Any:
        return SimpleNamespace(pooler_output=[torch.zeros(1, 4)], deepstack_features=[torch.zeros(1, 4)])

    visual = SimpleNamespace(spatial_merge_size=2, config=SimpleNamespace(_attn_implementation="sdpa"))
    model = SimpleNamespace(model=SimpleNamespace(get_image_features=encode, visual=visual))
    policy = Policy(model=model, bundle=tiny.bundle, positions=tiny.policy.positions, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="deepstack layer 0"):
        VisionCache(Patches([handle], 8), budget_bytes=BIG).features(policy, [handle], train=False)


@pytest.mark.parametrize(("kernel", "there"), [("flash_attention_2", True), ("sdpa", False), ("vlmrl_flash_varlen", False)])
def test_boundaries_of_windows_are_where_attention_looks_at_them(kernel: str, there: bool) -> None:
    """What gathers and embeds goes to the device whatever the kernel is, and nothing waits."""
    tower = SimpleNamespace(config=SimpleNamespace(_attn_implementation=kernel), spatial_merge_size=2, window_size=112, patch_size=14)
    with Pretend() as fake:
        found = vision_module._places(tower, torch.tensor([[2, 8, 12]]), fake.device)
        assert {name for name, x in found.items() if x.device == fake.device} == {"position_ids", "window_index"} | (
            {"cu_seqlens", "cu_window_seqlens"} if there else set()
        )
        assert fake.total("wait") == 0

"""Patches are kept as bytes; scaled they are what the processor gives, to the bit, and a processor that does more keeps its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import media_layouts
from tests.support.pretend import Pretend
from tests.support.tiny import Tiny
from tests.unit.train.test_on_device import moved
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.media.store import MediaStore
from vlmrl.policy.vision import VisionCache


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_scaled_bytes_are_the_processors_bits(family: ModelFamily, tmp_path: Path) -> None:
    loaded = media_layouts.make(tmp_path, family)
    bundle = loaded.bundle
    assert set(bundle.scales) == {"image", "video"}
    for handle in {h.key: h for prompt in media_layouts.prompts(loaded).values() for h in prompt.media}.values():
        medium = loaded.store.get_key(handle.key)
        wanted, grid = bundle.processed(medium.frames, handle.kind)
        assert medium.pixel_values.dtype == np.uint8
        assert medium.handle.grid_thw == grid
        assert medium.nbytes == loaded.store.weight(handle)
        got = bundle.pixel_values(medium.pixel_values, handle.kind)
        assert torch.equal(got.view(torch.int32), torch.from_numpy(wanted).view(torch.int32))


@pytest.mark.parametrize("change", ["mean", "factor", "order"])
def test_a_processor_that_does_anything_else_keeps_its_own(change: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = dataclasses.replace(tiny.bundle)
    part = bundle.processor.video_processor
    if change == "mean":  # by so little that it is lost in most values

        def normalize(self: Any, x: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, **_: Any) -> torch.Tensor:
            return x.sub(mean[:, None, None] + 1e-5).div(std[:, None, None])

        monkeypatch.setattr(type(part), "normalize", normalize)
    elif change == "factor":
        monkeypatch.setattr(part, "do_rescale", False)
    else:
        real = type(bundle).processed
        monkeypatch.setattr(type(bundle), "processed", lambda self, *args: (real(self, *args)[0][::-1].copy(), real(self, *args)[1]))
    assert bundle.scales == {}
    assert bundle.patch_dtype is np.float32
    frames = np.random.default_rng(0).integers(0, 255, (2, 56, 56, 3), dtype=np.uint8)
    assert bundle.patchify(frames, "video")[0].dtype == np.float32


def test_bytes_go_to_the_device_and_nothing_waits(tiny: Tiny) -> None:
    """A quarter of float32, in page-locked memory; features are those of the CPU."""
    handles = list({h.key: h for prompt in tiny.prompts(4) for h in prompt.media}.values())
    own = VisionCache(tiny.store, budget_bytes=2**26).features(tiny.policy, handles, train=False)
    with moved(tiny) as there:
        sent: list[torch.Tensor] = []
        real = torch.Tensor.pin_memory

        def pinned(tensor: torch.Tensor) -> torch.Tensor:
            sent.append(tensor)
            return real(tensor)

        there.fake._swap(torch.Tensor, "pin_memory", pinned)
        found = there.vision.features(there.policy, handles, train=False)
        patches = [x for x in sent if x.ndim == 2 and x.shape[1] == 3 * tiny.bundle.temporal_patch_size * tiny.bundle.patch_size**2]
        assert sum(x.nbytes for x in patches) == sum(int(np.prod(h.grid_thw)) * patches[0].shape[1] for h in handles)
        assert there.fake.total("wait") == 0, there.fake.lines("wait")
        assert isinstance(there.fake, Pretend)
        for key, features in own.items():
            assert torch.allclose(found[key].merged.cpu(), features.merged, atol=1e-5)


def test_the_store_holds_bytes(tiny: Tiny) -> None:
    store = MediaStore.of(tiny.store.settings, tiny.bundle)
    sample = next(s for s in tiny.samples if s.media)
    medium = store.get(sample.media[0], tiny.encoder.root(sample))
    assert medium.pixel_values.dtype == np.uint8
    assert medium.pixel_values.nbytes == medium.frames.nbytes

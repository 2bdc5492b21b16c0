"""What vLLM is given of a prompt, as far as it can be said without vLLM: pixels, versions, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import media_layouts
from vlmrl.errors import ConfigError
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.extras.vllm.engine import keeps_states
from vlmrl.extras.vllm.inputs import EngineInputBuilder, Version, normalised, place
from vlmrl.policy.patches import raw_patches
from vlmrl.types import MediaHandle, MediaKind, Prompt, Sample

WRITTEN: list[tuple[MediaKind, tuple[float, ...] | None]] = [("image", None), ("video", (0.0, 1.0))]
NOBODY = Sample(id="n", task="", answer_type="", question="", media=(), answer="", gt={})


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_raw_patches_are_the_processors_before_it_normalises(family: ModelFamily, tmp_path: Path) -> None:
    loaded = media_layouts.make(tmp_path, family)
    inputs = EngineInputBuilder(loaded.bundle, loaded.policy.positions, loaded.store)
    handles = {h.key: h for prompt in media_layouts.prompts(loaded).values() for h in prompt.media}.values()
    assert {handle.kind for handle in handles} == {"image", "video"}
    for handle in handles:
        raw = inputs.patches(handle)
        processor = loaded.bundle.processor.image_processor if handle.kind == "image" else loaded.bundle.processor.video_processor
        medium = loaded.store.get_key(handle.key)
        wanted, _ = loaded.bundle.processed(medium.frames, handle.kind)
        assert raw is medium.pixel_values
        assert raw.dtype == np.uint8
        assert np.abs(normalised(raw, processor) - wanted).max() < 1e-5


def test_a_processor_that_does_more_than_to_normalise_is_refused(tmp_path: Path) -> None:
    loaded = media_layouts.make(tmp_path, "qwen2_5_vl")
    handle = media_layouts.prompts(loaded)["image"].media[0]
    medium = loaded.store.get_key(handle.key)
    own, _ = loaded.bundle.processed(medium.frames, "image")
    altered = dataclasses.replace(medium, pixel_values=own[::-1].copy())
    inputs = EngineInputBuilder(loaded.bundle, loaded.policy.positions, SimpleNamespace(get_key=lambda key: altered))
    with pytest.raises(ConfigError, match="image processor of this model makes patches that differ"):
        inputs.patches(handle)


def test_the_last_frame_fills_a_temporal_patch() -> None:
    frames = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)
    whole = np.concatenate([frames, frames[-1:]])
    sizes: Any = {"patch": 2, "merge": 2, "temporal": 2}
    assert raw_patches(frames, **sizes).shape == (2 * 2 * 2, 3 * 2 * 2 * 2)
    assert np.array_equal(raw_patches(frames, **sizes), raw_patches(whole, **sizes))


def test_every_part_of_a_version_makes_other_keys() -> None:
    one = Version(policy=3, vision=1, whole=1)
    assert {v.salt for v in (one, dataclasses.replace(one, policy=4), dataclasses.replace(one, whole=2))} == {"v3.1", "v4.1", "v3.2"}
    hashes = {v.media_hash("k") for v in (one, dataclasses.replace(one, vision=2), dataclasses.replace(one, whole=2))}
    assert len(hashes) == 3
    assert dataclasses.replace(one, policy=4).media_hash("k") == one.media_hash("k"), "a frozen tower's features stay"


def test_a_medium_of_several_spans_is_one_range_in_which_its_placeholders_count() -> None:
    """As a family's own processor writes it: rows of a picture with breaks between them, frames of a clip as pictures."""
    media = [MediaHandle(kind=kind, key=kind, grid_thw=(1, 8, 8), tokens=4, step_times=times) for kind, times in WRITTEN]
    spans = ((2, 4), (5, 7), (8, 10), (11, 13))
    ids = tuple(40 if any(start <= column < end for start, end in spans) else column for column in range(14))
    prompt = Prompt(sample=NOBODY, ids=ids, media=tuple(media), spans=spans, owners=(0, 0, 1, 1), answer_format="free")
    placed = place(prompt, merge=1, timed=False, pads={"image": 40, "video": 41})
    assert [(one.kind, one.start, one.end, one.shown) for one in placed.media] == [
        ("image", 2, 7, ((2, 4), (5, 7))),
        ("image", 8, 13, ((8, 10), (11, 13))),
    ]
    assert [one.seconds for one in placed.media] == [None, 1.0], "a clip is known by what a frame takes"
    single = dataclasses.replace(prompt, media=tuple(media[:1]), spans=((2, 6),), owners=())
    assert place(single, merge=1, timed=False, pads={"image": 40, "video": 40}).media[0].shown is None


@pytest.mark.parametrize(
    ("kinds", "keeps"),
    [
        (None, False),
        (["full_attention", "sliding_attention"], False),
        (["linear_attention", "full_attention"], True),
        (["conv", "full_attention"], True),
    ],
)
def test_layers_that_keep_states_are_known_by_their_kinds(kinds: list[str] | None, keeps: bool) -> None:
    text = SimpleNamespace(layer_types=kinds)
    assert keeps_states(SimpleNamespace(get_text_config=lambda: text)) is keeps


def test_other_positions_and_two_normalisations_are_refused(tmp_path: Path) -> None:
    loaded = media_layouts.make(tmp_path, "qwen2_5_vl")
    grid = dataclasses.replace(loaded.policy.positions, rule="grid")
    with pytest.raises(ConfigError, match=r"model\.positions \('grid'\): vLLM knows the rule 'max' only"):
        EngineInputBuilder(loaded.bundle, grid, loaded.store)
    loaded.bundle.processor.video_processor.image_mean = [0.1, 0.2, 0.3]
    with pytest.raises(ConfigError, match=r"image_mean is .* for images and"):
        EngineInputBuilder(loaded.bundle, loaded.policy.positions, loaded.store)

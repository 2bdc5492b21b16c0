"""`media.max_tiles`: every processor that cuts pictures, by its own cap; what is made of a picture, how it is kept and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.families import tiny_folder
from tests.support.given import MEDIA
from tests.support.runs import small_config
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.families import generic, tiles
from vlmrl.extras.families.conform.run import conform
from vlmrl.extras.families.conform.subject import try_out
from vlmrl.extras.families.tiny import TINY
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.run.session import fixed_options
from vlmrl.types import MediaRef

ASKED = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
WIDE = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
SQUARE = np.random.default_rng(1).integers(0, 256, (600, 600, 3), dtype=np.uint8)
TILERS: Mapping[str, tuple[np.ndarray, dict[int, int]]] = {
    # one tile is no thumbnail and a grid: 4 tokens each, and a thumbnail beside two and more
    "internvl": (SQUARE, {1: 4, 3: 4, 4: 4 * 5, 9: 4 * 10}),
    "llama4": (SQUARE, {1: 4, 3: 4, 4: 4 * 5, 9: 4 * 10}),
    # squares of tiles and the picture as a whole, 16 tokens each; 96 of 160 rows are two of three tiles
    "smolvlm": (WIDE, {1: 16, 3: 16, 4: 16 * 5, 9: 16 * 7, 16: 16 * 13}),
    "llava_onevision": (SQUARE, {1: 16 + 16 + 4, 3: 16 + 16 + 4, 4: 16 + 64 + 8}),
    # 16 tokens of 64 pixels by 64 pixels each are merged into four
    "minicpmv4_6": (SQUARE, {1: 4, 4: 4 * 5, 9: 40, 16: 4 * 17}),
    "minicpmv4_7": (SQUARE, {1: 4, 4: 4 * 5, 16: 4 * 17}),
    # a tile of 64 pixels is 4 tokens, the thumbnail 64
    "lfm2_vl": (SQUARE, {1: 64, 3: 64 + 2 * 4, 4: 64 + 4 * 4, 16: 64 + 16 * 4}),
}
"""Configuration -> (a picture, most tiles -> placeholder tokens that it then has)."""


def made(name: str, most: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """(config, processor) under a cap."""
    if name == "smolvlm":
        monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", lambda number, **_: str(number), raising=False)
    config, processor = TINY[name]()
    if name == "lfm2_vl":
        processor.image_processor.do_image_splitting = True
    if most is not None:
        tiles.cap(processor, most, "m")
        tiles.follow(config, processor)
    return config, processor


@pytest.mark.parametrize("name", list(TILERS))
def test_tokens_follow_the_cap(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, expected = TILERS[name]
    for most, tokens in expected.items():
        config, processor = made(name, most, monkeypatch)
        found = generic.encode(processor, generic.placeholders(config), ASKED, [picture])
        assert found.counts == (tokens,), f"{most} tiles"


@pytest.mark.parametrize("name", ["internvl", "smolvlm", "llava_onevision", "minicpmv4_6", "lfm2_vl", "llama4"])
def test_a_saved_processor_keeps_its_cap(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported model shows pictures as its training did."""
    from transformers import AutoProcessor

    config, processor = made(name, 1, monkeypatch)
    config.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again = AutoProcessor.from_pretrained(str(tmp_path))
    picture, expected = TILERS[name]
    assert generic.encode(again, generic.placeholders(config), ASKED, [picture]).counts == (expected[1],)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "mistral3", "qwen3_5", "glm4v"])
def test_a_processor_without_tiles_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"media\.max_tiles: \w+ of 'm' cuts pictures into no tiles .* media\.max_pixels"):
        tiles.cap(TINY[name]()[1], 2, "m")


def test_what_a_processor_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no words for 7 rows of tiles; take 36 or fewer"):
        made("smolvlm", 49, monkeypatch)
    _, processor = made("llava_onevision", None, monkeypatch)
    processor.image_processor.image_grid_pinpoints = [[32, 64], [64, 32]]
    with pytest.raises(ConfigError, match="1 is fewer than LlavaOnevisionProcessor can cut; take 2 or more"):
        tiles.cap(processor, 1, "m")
    for name in ("lfm2_vl", "smolvlm"):
        _, processor = made(name, None, monkeypatch)
        processor.image_processor.do_image_splitting = False
        with pytest.raises(ConfigError, match="do_image_splitting: false, so every picture is one tile already"):
            tiles.cap(processor, 2, "m")


def test_features_change_and_the_core_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaVA's core reads the shapes of tiles from the model's config: it would unpad four tiles where there are two."""
    folder = str(tiny_folder("llava_onevision", tmp_path, monkeypatch))
    counts: list[tuple[int, int]] = []
    for most in (None, 2):
        bundle = load_processor(folder, family="generic", max_tiles=most)
        policy = load_policy(folder, bundle, device="cpu")
        found = generic.encode(bundle.processor, bundle.pad_ids, ASKED, [SQUARE])
        assert policy.subject is not None
        with torch.no_grad():
            features = generic.features(policy.subject.core, found.arguments[0], found.kinds[0])
        counts.append((features.count, found.counts[0]))
    assert counts == [(88, 88), (36, 36)]


def test_the_cap_is_part_of_what_a_medium_is_kept_under(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tiny_folder("internvl", tmp_path, monkeypatch))
    Image.fromarray(WIDE).save(tmp_path / "a.png")
    ref = MediaRef(kind="image", path="a.png")
    keys: dict[int | None, str] = {}
    for most, tokens in ((None, 12), (1, 4), (4, 12)):
        store = MediaStore.of(MEDIA, load_processor(folder, family="generic", max_tiles=most))
        medium = store.get(ref, tmp_path)
        assert (medium.handle.tokens, store.plan(ref, tmp_path).tokens) == (tokens, tokens)
        keys[most] = medium.handle.key
    assert keys[None] == keys[4], "the processor's own cap is four"
    assert keys[1] != keys[4]


def test_a_family_that_takes_whole_pictures_refuses_it_before_anything_runs(tiny_files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"media\.max_tiles: .* takes whole pictures in any size; .* media\.max_pixels bounds them"):
        load_processor(str(tiny_files[0]), max_tiles=4)


def test_a_run_does_not_go_on_under_another_cap(tmp_path: Path) -> None:
    """The cap decides the numbers; runs that were begun before there was one have none."""
    recipe = small_config(tmp_path / "m", tmp_path, tmp_path)
    plain = Config.model_validate(recipe)
    capped = Config.model_validate(recipe | {"media": recipe["media"] | {"max_tiles": 4}})
    assert "max_tiles" not in fixed_options(plain)["media"]
    assert fixed_options(capped)["media"] == fixed_options(plain)["media"] | {"max_tiles": 4}


@pytest.mark.parametrize("name", ["internvl", pytest.param("llava_onevision", marks=pytest.mark.slow)])
def test_promises_are_kept_under_another_cap(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tiny_folder(name, tmp_path, monkeypatch))
    bundle = load_processor(folder, family="generic", max_tiles=2)
    cases = ("image", "behind") if name == "internvl" else ()
    report = conform(try_out(load_policy(folder, bundle, device="cpu").model, bundle.processor, cases), name, WHICH)
    assert report.failed() == []
    assert report.layouts == ["repeat", "fork", "shared_prefix"]


WHICH = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P10")

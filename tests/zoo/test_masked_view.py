"""zoo.masked and its providers: the same answers where the policy sees less, on a tiny real model."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.builders import sample
from tests.support.families import tiny_folder
from tests.support.tiny import MEDIA, Tiny
from vlmrl import rng
from vlmrl.data.encode import Encoder
from vlmrl.errors import MediaError
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.step import score_rows
from vlmrl.types import MediaRef, Prompt
from vlmrl.zoo.masked import MaskedView, blackened, dependency, unseen
from vlmrl.zoo.providers import masked

SIZE = (56, 84)
SEED, STEP = 5, 2


def picture(path: Path, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(1, 256, (*SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def world(tiny: Tiny, root: Path, **changes: Any) -> tuple[MediaStore, Encoder]:
    store = MediaStore.of(dataclasses.replace(MEDIA, **changes), tiny.bundle)
    return store, Encoder.of(tiny.bundle, store, root, max_prompt_tokens=4096)


def asked(tiny: Tiny, encoder: Encoder, name: str | None) -> Prompt:
    """The same question about another picture."""
    media = () if name is None else (MediaRef(kind="image", path=name),)
    return encoder.encode(dataclasses.replace(tiny.samples[0], media=media, media_root=""), "think_or_not")


def learner(tiny: Tiny, store: MediaStore, tokens: int = 10**6) -> Any:
    plain = {"temperature": 1.0, "forbidden": (), "layout": "shared_prefix", "max_tokens_per_microbatch": tokens}
    return SimpleNamespace(policy=tiny.policy, vision=VisionCache(store, budget_bytes=2**24), **plain)


def stage(tiny: Tiny, store: MediaStore, tokens: int = 10**6, step: int = STEP) -> Any:
    kept = {"seed": SEED, "cfg": SimpleNamespace(name="rl"), "state": SimpleNamespace(step=step)}
    return SimpleNamespace(store=store, learner=learner(tiny, store, tokens), **kept)


def bound(**arguments: Any) -> Bound:
    return Bound(slot="reweight", name="vppo", call=len, extra={}, arguments=arguments, defaults={"patch": 14, "share": 0.5})


def rows_of(tiny: Tiny, *prompts: Prompt) -> list[Row]:
    """Two answers to each prompt, of different lengths."""
    texts = ("12.5 red", "12.5 red blue 3")
    return [
        Row(index=2 * g + k, group=g, prompt=prompt, response=tuple(tiny.bundle.tokenize(text)))
        for g, prompt in enumerate(prompts)
        for k, text in enumerate(texts)
    ]


def test_blackened_by_hand():
    frames = np.full((2, 3, 5, 3), 7, dtype=np.uint8)
    out = blackened(frames, np.array([[True, False, True], [False, True, False]]), 2)
    shown = [[0, 0, 7, 7, 0], [0, 0, 7, 7, 0], [7, 7, 0, 0, 7]]
    assert out[0, :, :, 0].tolist() == out[1, :, :, 2].tolist() == shown
    assert (frames == 7).all(), "what the policy sees is not written to"
    assert out.dtype == np.uint8


def test_dependency_by_hand():
    logp = torch.tensor([[-1.0, -1.0, -9.0, -1.0]])
    without = torch.tensor([[-1.0, -1.0 + math.log(2), -1.0, math.nan]])
    out = dependency(logp, without)[0].tolist()
    assert out[:3] == pytest.approx([0.0, 1 - math.log(2), 10.0])
    assert math.isnan(out[3])


def test_a_masked_medium_has_a_key_of_its_own_and_everything_else_of_the_prompt(tiny: Tiny) -> None:
    prompt = tiny.prompts(1)[0]
    view = MaskedView(tiny.store, 14, 0.5, lambda key: rng.generator(1, key))
    made = view.of(prompt)
    assert (made.ids, made.spans) == (prompt.ids, prompt.spans)
    (own,), (other,) = prompt.media, made.media
    assert other.kind == "video"
    assert other == dataclasses.replace(own, key=other.key)
    assert view.origin == {other.key: own}
    pixels, shown = view.get_key(other.key), tiny.store.get_key(own.key)
    rows, columns = (side // 14 for side in shown.frames.shape[1:3])
    black = rng.generator(1, own.key).random((rows, columns)) < 0.5
    assert 0 < black.sum() < black.size
    expected = shown.frames.copy()
    for row, column in zip(*black.nonzero(), strict=True):
        expected[:, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14] = 0
    assert np.array_equal(pixels.frames, expected)
    assert tiny.store.put(expected, "video", times=shown.times, spacing=0.5).handle.key == other.key, "its key is that of its pixels"
    assert view.of(prompt).media == made.media


def test_another_mask_is_another_key(tiny: Tiny) -> None:
    prompt = tiny.prompts(1)[0]
    keys = {MaskedView(tiny.store, 14, 0.5, lambda key, n=n: rng.generator(n, key)).of(prompt).media[0].key for n in (1, 1, 2)}
    assert len(keys) == 2


def test_what_has_left_the_store_is_made_again(tiny: Tiny, tmp_path: Path) -> None:
    for n in range(3):
        picture(tmp_path / f"{n}.png", n)
    store, encoder = world(tiny, tmp_path)
    size = store.get(MediaRef(kind="image", path="0.png"), tmp_path).nbytes
    store, encoder = world(tiny, tmp_path, cache_bytes=size + 1)  # of all media one stays
    view = MaskedView(store, 14, 0.5, lambda key: rng.generator(1, key))
    prompts = [asked(tiny, encoder, f"{n}.png") for n in range(3)]
    made = [view.of(prompt) for prompt in prompts]
    before = store.stats["evicted"]
    again = [view.get_key(prompt.media[0].key) for prompt in made]
    assert store.stats["evicted"] > before
    assert [entry.handle.key for entry in again] == [prompt.media[0].key for prompt in made]


def test_a_file_that_has_changed_is_not_masked(tiny: Tiny, tmp_path: Path) -> None:
    picture(tmp_path / "0.png")
    size = world(tiny, tmp_path)[0].get(MediaRef(kind="image", path="0.png"), tmp_path).nbytes
    store, encoder = world(tiny, tmp_path, cache_bytes=size + 1)
    prompt = asked(tiny, encoder, "0.png")
    picture(tmp_path / "1.png", 1)
    asked(tiny, encoder, "1.png")  # pushes the first out
    picture(tmp_path / "0.png", 2)
    with pytest.raises(MediaError, match="changed while it is in use"):
        MaskedView(store, 14, 0.5, lambda key: rng.generator(1, key)).of(prompt)


def test_masked_logprobs_are_those_of_a_file_that_looks_so(tiny: Tiny, tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    store, encoder = world(tiny, tmp_path)
    prompt, text = asked(tiny, encoder, "a.png"), asked(tiny, encoder, None)
    rows = rows_of(tiny, prompt, text)
    here = stage(tiny, store)
    found = masked.masked_logprobs(here, SimpleNamespace(rows=rows), bound())["masked_logp_NT"]
    assert found[2:].isnan().all(), "rows without media"

    key = prompt.media[0].key
    black = rng.generator(SEED, "mask", "rl", STEP, key, 14, "0.5").random((4, 6)) < 0.5
    for row, column in zip(*black.nonzero(), strict=True):
        pixels[14 * row : 14 * row + 14, 14 * column : 14 * column + 14] = 0
    Image.fromarray(pixels).save(tmp_path / "b.png")
    expected = score_rows(here.learner, rows_of(tiny, asked(tiny, encoder, "b.png")))
    torch.testing.assert_close(found[:2], expected, rtol=0, atol=1e-6)
    assert float((expected - score_rows(here.learner, rows[:2])).abs().max()) > 1e-4, "the mask must matter"

    minibatch = masked.masked_logprobs_of_minibatch(here, SimpleNamespace(rows=tuple(rows)), bound())["masked_logp_BT"]
    assert torch.equal(minibatch.nan_to_num(), found.nan_to_num())
    later = masked.masked_logprobs(stage(tiny, store, step=STEP + 1), SimpleNamespace(rows=rows), bound())["masked_logp_NT"]
    assert float((later - found)[:2].abs().max()) > 1e-4, "another step has another mask"


def test_the_tower_sees_a_masked_medium_once_for_its_group(tiny: Tiny, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    store, encoder = world(tiny, tmp_path)
    rows = rows_of(tiny, asked(tiny, encoder, "a.png"))
    passes: list[int] = []
    hook = tiny.policy.core.visual.register_forward_hook(lambda *given: passes.append(1))
    try:
        one = len(rows[0].prompt.ids) + max(len(row.response) for row in rows)
        masked.masked_logprobs(stage(tiny, store, tokens=one), SimpleNamespace(rows=rows), bound())
    finally:
        hook.remove()
    assert len(passes) == 1, "two micro-batches, one pass of the tower"


def test_unseen_leaves_the_placeholders_out(tiny: Tiny, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    store, encoder = world(tiny, tmp_path)
    prompt, text = asked(tiny, encoder, "a.png"), asked(tiny, encoder, None)
    out = unseen(prompt)
    pads = set(encoder.pad_ids.values())
    assert list(out.ids) == [token for token in prompt.ids if token not in pads]
    assert (out.media, out.spans, out.owners) == ((), (), ())
    rows = rows_of(tiny, prompt, text)
    here = stage(tiny, store)
    found = masked.unseen_logprobs(here, SimpleNamespace(rows=rows), bound())["unseen_logp_NT"]
    torch.testing.assert_close(found[:2], score_rows(here.learner, rows_of(tiny, out)), rtol=0, atol=1e-6)
    assert found[2:].isnan().all()
    assert here.learner.vision.patches_encoded == 0


def test_a_family_of_its_own_processor_is_masked_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tiny_folder("gemma3", tmp_path, monkeypatch))
    bundle = load_processor(folder, family="generic")
    model: Any = SimpleNamespace(bundle=bundle, samples=[sample()], policy=load_policy(folder, bundle, device="cpu"))
    pixels = picture(tmp_path / "a.png")
    store, encoder = world(model, tmp_path)
    prompt = asked(model, encoder, "a.png")
    rows, here = rows_of(model, prompt), stage(model, store)
    found = masked.masked_logprobs(here, SimpleNamespace(rows=rows), bound(share=1.0))["masked_logp_NT"]
    Image.fromarray(np.zeros_like(pixels)).save(tmp_path / "b.png")
    torch.testing.assert_close(found, score_rows(here.learner, rows_of(model, asked(model, encoder, "b.png"))), rtol=0, atol=1e-6)
    gone = masked.unseen_logprobs(here, SimpleNamespace(rows=rows), bound())["unseen_logp_NT"]
    assert float((gone - found).abs().max()) > 1e-4, "a black picture is not no picture"


def test_a_batch_without_media_has_nothing_to_score(tiny: Tiny, tmp_path: Path) -> None:
    store, encoder = world(tiny, tmp_path)
    rows = rows_of(tiny, asked(tiny, encoder, None))
    here = stage(tiny, store)
    assert masked.masked_logprobs(here, SimpleNamespace(rows=rows), bound())["masked_logp_NT"].isnan().all()
    assert masked.unseen_logprobs(here, SimpleNamespace(rows=rows), bound())["unseen_logp_NT"].isnan().all()


@pytest.mark.parametrize("wrong", [{"patch": 0}, {"share": -0.1}])
def test_what_a_mask_cannot_be(tiny: Tiny, tmp_path: Path, wrong: dict[str, Any]) -> None:
    store, _ = world(tiny, tmp_path)
    with pytest.raises(ValueError, match="reweight 'vppo': needs patch"):
        masked.masked_logprobs(stage(tiny, store), SimpleNamespace(rows=[]), bound(**wrong))

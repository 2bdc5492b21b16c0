"""Qwen3-VL from files to log-probs: ids, pixels and positions against transformers' own processor and model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.media import make_video, numbered_frames
from tests.support.tiny import MEDIA, Tiny, load, make_files
from vlmrl.data.encode import Encoder, messages
from vlmrl.errors import ConfigError, RowError
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import freeze, load_policy, load_processor
from vlmrl.policy.pack import prompt_positions, visual_index
from vlmrl.types import MediaRef, Prompt, Sample


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model folder, world folder) of a tiny Qwen3-VL; the world also has files of known content."""
    model, world = make_files(tmp_path_factory.mktemp("qwen3"), sft=1, train=3, test=1, family="qwen3_vl")
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (64, 96)), ("b.png", (96, 64))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(world / name)
    make_video(world / "tens.mp4", numbered_frames(37, 64, 96), fps=10)
    make_video(world / "film.mp4", numbered_frames(60, 64, 64), fps=24)
    make_video(world / "ntsc.mp4", numbered_frames(60, 64, 64), fps=30000 / 1001)
    make_video(world / "uneven.mkv", numbered_frames(8, 64, 64), times=[0.0, 0.04, 0.08, 1.2, 1.24, 1.28, 3.1, 3.2], last=0.8)
    return model, world


@pytest.fixture(scope="module")
def q3(files: tuple[Path, Path]) -> Tiny:
    return load(*files)


def with_media(q3: Tiny, *names: str, question: str = "When is it red?", **changes: Any) -> Sample:
    """A row that shows these files."""
    refs = tuple(MediaRef(kind="image" if name.endswith("png") else "video", path=name) for name in names)
    return dataclasses.replace(q3.samples[0], media=refs, question=question, media_root=".", **changes)


def store_of(q3: Tiny, **changes: Any) -> MediaStore:
    sizes = {
        name: getattr(q3.bundle, name)
        for name in ("patchify", "patch_size", "merge_size", "temporal_patch_size", "step_times", "patch_dtype")
    }
    return MediaStore(dataclasses.replace(MEDIA, max_pixels=96 * 96, **changes), **sizes)


def encoder_of(q3: Tiny, **changes: Any) -> Encoder:
    return dataclasses.replace(q3.encoder, media=store_of(q3, **changes))


FPS = {"tens.mp4": 10.0, "film.mp4": 24.0, "ntsc.mp4": 30000 / 1001}


def official(q3: Tiny, encoder: Encoder, sample: Sample) -> dict[str, torch.Tensor]:
    """What transformers' processor makes of the same pictures and frames; it gets frame numbers and the frame rate, not our times."""
    assert isinstance(encoder.media, MediaStore)
    images: list[torch.Tensor] = []
    videos: list[torch.Tensor] = []
    metadata: list[dict[str, Any]] = []
    for ref in sample.media:
        media = encoder.media.get(ref, encoder.root(sample))
        frames = torch.tensor(media.frames).permute(0, 3, 1, 2)
        if ref.kind == "image":
            images.append(frames[0])
            continue
        assert media.times is not None
        fps = FPS.get(ref.path, 24.0)
        indices = [round(t * fps) for t in media.times.tolist()]
        videos.append(frames)
        metadata.append({"fps": fps, "total_num_frames": 60, "frames_indices": indices})
    processor = q3.bundle.processor
    text = processor.apply_chat_template(messages(sample, "think"), add_generation_prompt=True)
    extra = {"videos": videos, "video_metadata": metadata, "do_sample_frames": False} if videos else {}
    extra |= {"images": images} if images else {}
    return dict(processor(text=[text], do_resize=False, return_tensors="pt", **extra))


CASES = [
    ("tens.mp4",),
    ("film.mp4",),
    ("ntsc.mp4",),
    ("a.png",),
    ("a.png", "b.png"),
    ("a.png", "tens.mp4", "b.png", "film.mp4"),
    (),
]


@pytest.mark.parametrize("question_first", [False, True])
@pytest.mark.parametrize("names", CASES, ids="+".join)
def test_ids_and_pixels_are_the_official_ones(names: tuple[str, ...], question_first: bool, q3: Tiny) -> None:
    # A blank before the time would become part of its first token, so the text must be complete before it is cut into tokens.
    sample = with_media(q3, *names, question="When is it red? ", question_first=question_first)
    encoder = encoder_of(q3)
    prompt = encoder.encode(sample, "think")
    theirs = official(q3, encoder, sample)
    assert list(prompt.ids) == theirs["input_ids"][0].tolist()
    assert isinstance(encoder.media, MediaStore)
    for kind, key in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        ours = [
            q3.bundle.pixel_values(encoder.media.get_key(handle.key).pixel_values, handle.kind)
            for handle in prompt.media
            if handle.kind == kind
        ]
        assert (key in theirs) == bool(ours)
        if ours:
            np.testing.assert_array_equal(np.concatenate(ours), theirs[key].numpy())
            assert [list(h.grid_thw) for h in prompt.media if h.kind == kind] == theirs[f"{kind}_grid_thw"].tolist()


@pytest.mark.parametrize(("fps", "max_frames"), [(2.0, 32), (5.0, 32), (10.0, 16), (0.7, 32), (4.0, 6)])
def test_times_as_text_at_many_sampling_rates(fps: float, max_frames: int, q3: Tiny) -> None:
    encoder = encoder_of(q3, fps=fps, max_frames=max_frames)
    for name in FPS:
        sample = with_media(q3, name)
        assert list(encoder.encode(sample, "think").ids) == official(q3, encoder, sample)["input_ids"][0].tolist()


def test_the_text_of_a_video(q3: Tiny) -> None:
    """37 frames at 10 fps, 2 requests a second: frames 0, 5, ..., 35; a step shows two, at the mean of their times."""
    prompt = encoder_of(q3).encode(with_media(q3, "tens.mp4"), "think")
    (handle,) = prompt.media
    assert handle.grid_thw == (4, 4, 6)
    assert handle.step_times == (0.25, 1.25, 2.25, 3.25)
    pads = "<|vision_start|>" + 6 * "<|video_pad|>" + "<|vision_end|>"
    shown = "".join(f"<{t} seconds>{pads}" for t in ("0.2", "1.2", "2.2", "3.2"))
    text = q3.bundle.tokenizer.decode(prompt.ids)
    assert text.startswith(f"<|im_start|>user\n<|vision_start|>{shown}<|vision_end|>When is it red?")


def test_uneven_frames_are_shown_with_their_own_times(q3: Tiny) -> None:
    """Requests 0, 0.5, ... 3.5 show the frames of 0, 0.08, 0.08, 1.28, 1.28, 1.28, 1.28, 3.2 seconds."""
    prompt = encoder_of(q3).encode(with_media(q3, "uneven.mkv"), "think")
    assert prompt.media[0].step_times == pytest.approx((0.04, 0.68, 1.28, 2.24), abs=1e-3)
    text = q3.bundle.tokenizer.decode(prompt.ids)
    assert [part.split("<")[-1] for part in text.split(" seconds>")[:-1]] == ["0.0", "0.7", "1.3", "2.2"]


def test_spans_hold_the_placeholders_of_each_step(q3: Tiny) -> None:
    encoder = encoder_of(q3)
    prompt = encoder.encode(with_media(q3, "a.png", "tens.mp4", "b.png", "film.mp4"), "think")
    assert prompt.owners == (0, 1, 1, 1, 1, 2, 3, 3, 3)
    inside = [column for start, end in prompt.spans for column in range(start, end)]
    assert inside == [column for column, i in enumerate(prompt.ids) if i in q3.bundle.pad_ids.values()]
    index = visual_index(prompt)
    assert [(span.start, span.end) for span in index] == list(prompt.spans)
    assert [(span.first, span.last) for span in index] == [
        (0, 6), (0, 6), (6, 12), (12, 18), (18, 24), (0, 6), (0, 4), (4, 8), (8, 12)
    ]  # fmt: skip
    for start, end, handle, first, last in index:
        assert end - start == last - first
        assert {prompt.ids[column] for column in range(start, end)} == {q3.bundle.pad_ids[handle.kind]}


def test_images_alone_have_no_owners(q3: Tiny) -> None:
    assert encoder_of(q3).encode(with_media(q3, "a.png", "b.png"), "think").owners == ()


@pytest.mark.parametrize("name", ["tens.mp4", "film.mp4", "ntsc.mp4", "uneven.mkv"])
def test_plan_from_headers_equals_the_real_prompt(name: str, q3: Tiny) -> None:
    encoder = encoder_of(q3)
    real, planned = encoder.encode(with_media(q3, name), "think"), encoder.plan(with_media(q3, name), "think")
    assert (planned.ids, planned.spans, planned.owners) == (real.ids, real.spans, real.owners)
    assert [dataclasses.replace(h, key="") for h in real.media] == list(planned.media)


def test_control_tokens_and_overlong_rows_are_refused(q3: Tiny) -> None:
    encoder = encoder_of(q3)
    for token in ("<|video_pad|>", "<|vision_start|>", "<|im_end|>"):
        with pytest.raises(RowError, match="control_token"):
            encoder.encode(with_media(q3, "tens.mp4", question=f"When {token}?"), "think")
    length = len(encoder.encode(with_media(q3, "tens.mp4"), "think").ids)
    with pytest.raises(RowError, match="overlong"):
        dataclasses.replace(encoder, max_prompt_tokens=length - 1).encode(with_media(q3, "tens.mp4"), "think")


def test_a_time_in_the_question_is_only_text(q3: Tiny) -> None:
    prompt = encoder_of(q3).encode(with_media(q3, "tens.mp4", question="Is <0.2 seconds> red?"), "think")
    assert len(prompt.spans) == 4


def test_a_template_without_a_video_placeholder_is_refused(q3: Tiny) -> None:
    class Silent:
        def apply_chat_template(self, conversation: object, **kwargs: object) -> str:
            return "no placeholder"

        def __call__(self, text: str, **kwargs: object) -> object:
            return q3.bundle.tokenizer(text, **kwargs)

        def convert_ids_to_tokens(self, ids: int) -> object:
            return q3.bundle.tokenizer.convert_ids_to_tokens(ids)

    with pytest.raises(RowError, match=r"placeholder.*0 video placeholders .* for 1 videos"):
        dataclasses.replace(encoder_of(q3), tokenizer=Silent()).encode(with_media(q3, "tens.mp4"), "think")


@pytest.mark.parametrize("names", CASES, ids="+".join)
@pytest.mark.parametrize("rule", ["max", "grid"])
def test_positions_are_the_models_own(names: tuple[str, ...], rule: Any, q3: Tiny) -> None:
    encoder = encoder_of(q3)
    sample = with_media(q3, *names)
    batch = official(q3, encoder, sample)
    grids = {name: batch[name] for name in ("image_grid_thw", "video_grid_thw") if name in batch}
    theirs, _ = q3.policy.core.get_rope_index(batch["input_ids"], batch["mm_token_type_ids"], **grids)
    spec = dataclasses.replace(q3.policy.positions, rule=rule)
    assert spec.per_step
    assert torch.equal(prompt_positions(encoder.encode(sample, "think"), spec), theirs[:, 0])


def inputs_of(q3: Tiny, encoder: Encoder, prompt: Prompt) -> dict[str, Any]:
    """Arguments of the decoder, from our prompt and positions and the tower's features by `visual_index`."""
    assert isinstance(encoder.media, MediaStore)
    ids = torch.tensor([prompt.ids])
    embeds = q3.policy.core.get_input_embeddings()(ids).clone()
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    levels: list[list[torch.Tensor]] = [[] for _ in range(q3.policy.deepstack)]
    features: dict[str, Any] = {}
    for handle in prompt.media:
        values = q3.bundle.pixel_values(encoder.media.get_key(handle.key).pixel_values, handle.kind)
        features[handle.key] = q3.policy.core.visual(values, grid_thw=torch.tensor([handle.grid_thw]), return_dict=True)
    for start, end, handle, first, last in visual_index(prompt):
        embeds[0, start:end] = features[handle.key].pooler_output[first:last]
        mask[0, start:end] = True
        for level, part in zip(levels, features[handle.key].deepstack_features, strict=True):
            level.append(part[first:last])
    deep = {"visual_pos_masks": mask, "deepstack_visual_embeds": [torch.cat(level) for level in levels]} if prompt.media else {}
    positions = prompt_positions(prompt, q3.policy.positions)[:, None]
    return {"inputs_embeds": embeds, "attention_mask": torch.ones_like(ids), "position_ids": positions, **deep}


@pytest.mark.parametrize("names", CASES, ids="+".join)
@torch.no_grad()
def test_decoder_fed_by_us_equals_the_model_fed_by_the_processor(names: tuple[str, ...], q3: Tiny) -> None:
    encoder = encoder_of(q3)
    sample = with_media(q3, *names)
    prompt = encoder.encode(sample, "think")
    assert q3.policy.deepstack == 2
    theirs = q3.policy.model(**official(q3, encoder, sample)).logits.log_softmax(-1)
    arguments = inputs_of(q3, encoder, prompt)
    ours = (q3.policy.core.language_model(**arguments).last_hidden_state @ q3.policy.head.T).log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    if names:  # and the deepstack features are not just decoration
        arguments["deepstack_visual_embeds"] = [torch.zeros_like(level) for level in arguments["deepstack_visual_embeds"]]
        without = (q3.policy.core.language_model(**arguments).last_hidden_state @ q3.policy.head.T).log_softmax(-1)
        assert (without - theirs).abs().max() > 1e-3


def test_freeze_puts_deepstack_mergers_with_the_projector(q3: Tiny) -> None:
    kept = {name for name, _ in freeze(q3.policy, ("vision", "language"))}
    assert {name.split(".visual.")[1].split(".")[0] for name in kept} == {"merger", "deepstack_merger_list"}
    assert q3.policy.vision_trains
    rest = {name for name, _ in freeze(q3.policy, ("projector",))}
    assert not any("merger" in name for name in rest)
    assert {name for name, _ in freeze(q3.policy, ())} == kept | rest
    assert all(".visual." not in name for name, _ in freeze(q3.policy, ("vision", "projector")))
    assert not q3.policy.vision_trains
    freeze(q3.policy, ())


def test_a_processor_of_another_family_is_refused(files: tuple[Path, Path], tiny_files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"'qwen3_vl' model but its processor is Qwen2_5_VLProcessor"):
        load_policy(str(files[0]), load_processor(str(tiny_files[0])), device="cpu")
    with pytest.raises(ConfigError, match=r"'qwen2_5_vl' model but its processor is Qwen3VLProcessor"):
        load_policy(str(tiny_files[0]), load_processor(str(files[0])), device="cpu")


def test_a_prompt_of_another_family_is_refused(q3: Tiny, tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="encoded for another model"):
        prompt_positions(tiny.prompts(1)[0], q3.policy.positions)
    with pytest.raises(ValueError, match="encoded for another model"):
        prompt_positions(q3.prompts(1)[0], tiny.policy.positions)

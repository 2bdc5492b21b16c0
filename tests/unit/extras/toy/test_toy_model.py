"""The tiny model: real classes, loads with the plain Auto classes, deterministic."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.compat import ensure_torchvision
from vlmrl.extras.toy.model import HEADS, HIDDEN, MROPE_SECTION, SPECIAL_TOKENS, VOCABULARY, build_model, build_tokenizer
from vlmrl.extras.toy.tasks import tokenizer_corpus

ensure_torchvision()
INSTRUCTION = "Think in <think></think> if it helps, then give the time span in <answer></answer>."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "model"
    build_model(out, seed=3, corpus=tokenizer_corpus([INSTRUCTION]))
    return out


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(tokenizer_corpus([INSTRUCTION]))


def test_loads_with_the_auto_classes(folder: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    assert type(model) is Qwen2_5_VLForConditionalGeneration
    assert type(processor) is Qwen2_5_VLProcessor
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.5e6
    assert 2 * sum(MROPE_SECTION) == HIDDEN // HEADS
    convert = processor.tokenizer.convert_tokens_to_ids
    assert model.config.video_token_id == convert("<|video_pad|>")
    assert model.config.image_token_id == convert("<|image_pad|>")
    assert model.generation_config.eos_token_id == processor.tokenizer.eos_token_id == convert("<|im_end|>")
    assert model.generation_config.pad_token_id == processor.tokenizer.pad_token_id == convert("<|endoftext|>")
    assert len(processor.tokenizer) == model.config.text_config.vocab_size <= VOCABULARY
    assert (folder / "model.safetensors").is_file()
    assert not list(folder.glob("*.bin"))


@pytest.mark.parametrize(("family", "name", "patch"), [("qwen2_vl", "Qwen2VL", 14), ("qwen3_vl", "Qwen3VL", 16)])
def test_other_families_load_and_see_the_video(family: Any, name: str, patch: int, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    build_model(tmp_path, seed=3, corpus=tokenizer_corpus([INSTRUCTION]), family=family)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    processor = AutoProcessor.from_pretrained(tmp_path)
    assert type(model).__name__ == f"{name}ForConditionalGeneration"
    assert type(processor).__name__ == f"{name}Processor"
    assert model.config.model_type == family
    assert model.config.vision_config.patch_size == processor.image_processor.patch_size == processor.video_processor.patch_size == patch
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 2e6
    text = processor.apply_chat_template([{"role": "user", "content": [{"type": "video"}]}], add_generation_prompt=True)
    logits = []
    for level in (0, 200):
        metadata = [{"fps": 2.0, "total_num_frames": 4, "frames_indices": list(range(4))}]
        video = np.full((4, 4 * patch, 4 * patch, 3), level, dtype=np.uint8)
        batch = processor(
            text=[text], videos=[video], video_metadata=metadata, do_sample_frames=False, do_resize=False, return_tensors="pt"
        )
        with torch.no_grad():
            logits.append(model(**batch).logits[0, -1])
    assert torch.isfinite(logits[0]).all()
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_a_narrow_model_has_the_same_tokenizer_and_a_quarter_of_the_weights(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    build_model(tmp_path, seed=3, corpus=tokenizer_corpus([INSTRUCTION]), width=64)
    wide, narrow = (AutoModelForImageTextToText.from_pretrained(one) for one in (folder, tmp_path))
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    # of the layers; the embeddings of the vocabulary are half
    layers = [sum(p.numel() for n, p in one.named_parameters() if "layers." in n or "blocks." in n) for one in (wide, narrow)]
    assert 3.5 < layers[0] / layers[1] < 4.5
    with torch.no_grad():
        assert narrow(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == wide(input_ids=torch.tensor([[1, 2, 3]])).logits.shape


def test_sees_the_video(folder: Path) -> None:
    """Forward through the whole stack: processor, tower, positions, language model; other pixels give other logits."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    message = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "When is the red square visible?"}]}]
    text = processor.apply_chat_template(message, add_generation_prompt=True)
    logits = []
    for level in (0, 200):
        video = np.full((8, 56, 56, 3), level, dtype=np.uint8)
        video[2:5, :20, :20] = (255, 0, 0)
        metadata = [{"fps": 2.0, "total_num_frames": 8, "frames_indices": list(range(8))}]
        batch = processor(text=[text], videos=[video], video_metadata=metadata, do_sample_frames=False, return_tensors="pt")
        assert int((batch["input_ids"] == model.config.video_token_id).sum()) == 4 * 2 * 2
        with torch.no_grad():
            logits.append(model(**batch).logits[0, -1])
    assert torch.isfinite(logits[0]).all()
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_same_seed_gives_the_same_files_and_leaves_the_generator_alone(folder: Path, tmp_path: Path) -> None:
    def files(root: Path) -> dict[str, str]:
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in root.iterdir()}

    state = torch.get_rng_state()
    build_model(tmp_path / "same", seed=3, corpus=tokenizer_corpus([INSTRUCTION]))
    assert torch.equal(state, torch.get_rng_state())
    assert files(tmp_path / "same") == files(folder)
    build_model(tmp_path / "other", seed=4, corpus=tokenizer_corpus([INSTRUCTION]))
    assert {name for name, value in files(tmp_path / "other").items() if value != files(folder)[name]} == {"model.safetensors"}


def test_chat_template(tokenizer) -> None:
    turn = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "Hi?"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": turn}]
    start = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "<|vision_start|><|video_pad|><|vision_end|>Hi?<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == start
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == start + "<|im_start|>assistant\n"
    with pytest.raises(Exception, match="unknown content part: audio"):
        tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "audio"}]}], tokenize=False)


def test_special_tokens_are_single_and_tags_are_ordinary_text(tokenizer) -> None:
    for token in SPECIAL_TOKENS:
        assert len(tokenizer(token).input_ids) == 1
        assert tokenizer.convert_tokens_to_ids(token) in tokenizer.all_special_ids
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        ids = tokenizer(tag).input_ids
        assert 2 <= len(ids) <= 3
        assert not set(ids) & set(tokenizer.all_special_ids)
    assert len(tokenizer("<answer>3.0 to 5.0</answer>").input_ids) <= 13


def test_digits_stay_single(tokenizer) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer("2026.11").input_ids] == ["2", "0", "2", "6", ".", "1", "1"]


@given(text=st.text(max_size=40))
def test_every_text_survives_the_tokenizer(tokenizer, text: str) -> None:
    import unicodedata

    plain = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer(plain).input_ids, clean_up_tokenization_spaces=False) == plain

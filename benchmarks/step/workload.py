"""Models, pictures, clips and rows for the benchmarks, made from seeds: the same files for every side.

Weights are random: no benchmark here says anything about quality. `tiny` is a Qwen2.5-VL of 256 features and 8 layers, whose tower
takes about the share of a step's operations that the tower of the 3B model takes (29, 42 and 53% against 39, 46 and 51% for 256,
1,024 and 4,096 visual tokens where nothing is shared); `3b` and `7b` have the sizes of Qwen2.5-VL 3B and 7B. The tokenizer is
that of the toy model in all of them, so the rows of the vocabulary beyond it have no text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, BenchmarkError, Job, Result

PATCH, MERGE, TEMPORAL = 14, 2, 2
CELL = PATCH * MERGE
QUESTION = "When is the red square visible?"
TEMPLATE = "think_or_not"
MAX_PIXELS = 128 * 128 * CELL * CELL

_TINY: dict[str, Any] = {
    "text": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2},
    "sections": (6, 5, 5),
    "vision": {"depth": 4, "hidden_size": 96, "intermediate_size": 192, "num_heads": 4, "fullatt_block_indexes": [3]},
    "tie": False,
}
_TOWER = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "fullatt_block_indexes": [7, 15, 23, 31]}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    "3b": {
        "text": {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
        },
        "sections": (16, 24, 24),
        "vision": _TOWER,
        "tie": True,
        "vocabulary": 151936,
    },
    "7b": {
        "text": {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        "sections": (16, 24, 24),
        "vision": _TOWER,
        "tie": False,
        "vocabulary": 152064,
    },
}


def work(settings: dict[str, Any]) -> Path:
    return ROOT / settings["work"]


def model_folder(settings: dict[str, Any], vocabulary: int) -> Path:
    return work(settings) / f"model-{settings['size']}-{vocabulary or 'own'}"


def media_folder(settings: dict[str, Any], kind: str, tokens: int, count: int) -> Path:
    return work(settings) / f"{kind}-{tokens}-{count}"


def model_config(size: str, tokenizer: Any, vocabulary: int) -> Any:
    """A `Qwen2_5_VLConfig` of that size; `vocabulary` 0 takes the size's own.

    Raises:
        BenchmarkError: the vocabulary is smaller than the tokenizer's.
    """
    from transformers import Qwen2_5_VLConfig

    shape = SIZES[size]
    rows = vocabulary or shape.get("vocabulary", len(tokenizer))
    if rows < len(tokenizer):
        raise BenchmarkError(f"a vocabulary of {rows} rows is smaller than the tokenizer's {len(tokenizer)}")
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad", "vision_start", "vision_end")}
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": list(shape["sections"])}
    text = shape["text"] | {
        "vocab_size": rows,
        "max_position_embeddings": 128000,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "tie_word_embeddings": shape["tie"],
    }
    vision = shape["vision"] | {
        "out_hidden_size": shape["text"]["hidden_size"],
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL,
        "tokens_per_second": 2,
        "window_size": 112,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=shape["tie"],
    )


def build_model(settings: dict[str, Any], vocabulary: int) -> None:
    """Weights, tokenizer and processor, unless they are there."""
    out = model_folder(settings, vocabulary)
    if (out / "READY").exists():
        return
    import torch

    from vlmrl import fs
    from vlmrl.compat import ensure_torchvision
    from vlmrl.data.encode import ANSWER_FORMATS, instruction
    from vlmrl.extras.toy.model import CHAT_TEMPLATE, build_tokenizer
    from vlmrl.extras.toy.tasks import tokenizer_corpus

    ensure_torchvision()
    from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    tokenizer = build_tokenizer(tokenizer_corpus([instruction(t, "time_span") for t in ANSWER_FORMATS]))
    config = model_config(settings["size"], tokenizer, vocabulary)
    torch.manual_seed(0)
    large = settings["size"] != "tiny"
    with torch.device(settings["device"] if large else "cpu"):
        model: Any = Qwen2_5_VLForConditionalGeneration(config)
    if large:
        # random weights lose nothing by half the disk; every side loads them as the type that it trains in
        model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=config.text_config.eos_token_id, pad_token_id=config.text_config.pad_token_id
    )
    sizes: dict[str, Any] = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": TEMPORAL}
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=CELL * CELL, max_pixels=MAX_PIXELS, **sizes),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(min_pixels=CELL * CELL, max_pixels=MAX_PIXELS, **sizes),
        chat_template=CHAT_TEMPLATE,
    )
    fs.mkdir(out)
    model.save_pretrained(out)
    processor.save_pretrained(out)
    fs.write_text(out / "READY", "")


def side_of(tokens: int) -> int:
    """Pixels along the side of a square picture of that many visual tokens.

    Raises:
        BenchmarkError: not a square number.
    """
    side = round(tokens**0.5)
    if side * side != tokens:
        raise BenchmarkError(f"{tokens} visual tokens are not a square; take 64, 256, 576, 1024, 2304, 4096, ...")
    return side * CELL


def build_media(settings: dict[str, Any], kind: str, tokens: int, count: int) -> None:
    """`count` pictures (or clips of 8 frames) of `tokens` visual tokens each, all different, and their rows (`rows.jsonl`)."""
    out = media_folder(settings, kind, tokens, count)
    if (out / "rows.jsonl").exists():
        return
    import numpy as np
    from PIL import Image

    from vlmrl import fs

    fs.mkdir(out)
    rows: list[str] = []
    for n in range(count):
        draw = np.random.Generator(np.random.Philox(n))
        if kind == "image":
            side = side_of(tokens)
            # blocks of colour, so that the file is small and decoding costs what it costs for a drawing
            coarse = draw.integers(0, 255, (side // CELL, side // CELL, 3), dtype=np.uint8)
            name = f"{n:04d}.png"
            Image.fromarray(coarse.repeat(CELL, 0).repeat(CELL, 1)).save(out / name)
        else:
            from tests.support.media import make_video

            side, name = side_of(tokens // (FRAMES // TEMPORAL)), f"{n:04d}.mp4"
            coarse = draw.integers(0, 255, (FRAMES, side // CELL, side // CELL, 3), dtype=np.uint8)
            make_video(out / name, coarse.repeat(CELL, 1).repeat(CELL, 2), fps=FPS)
        row = {"id": f"{kind}-{n}", "task": "benchmark", "answer_type": "number", kind: name, "prompt": QUESTION, "answer": "1"}
        rows.append(json.dumps(row))
    fs.write_text(out / "rows.jsonl", "\n".join(rows) + "\n")


FRAMES, FPS = 8, 2.0


def prepare(job: Job) -> Result:
    """A process of its own that makes all files, so that no measurement carries the memory of making them."""
    settings = job["settings"]
    for vocabulary in job["cell"]["vocabularies"]:
        build_model(settings, vocabulary)
    for kind, tokens, count in job["cell"]["media"]:
        build_media(settings, kind, tokens, count)
    return {}


def grid_of(kind: str, tokens: int) -> tuple[int, int, int]:
    """Patches of such a medium in time, height, width."""
    steps = 1 if kind == "image" else FRAMES // TEMPORAL
    side = side_of(tokens // steps) // PATCH
    return steps, side, side


def prompts_of(job: Job) -> list[tuple[str, str]]:
    """Text and picture of every prompt, as our side writes the text."""
    from vlmrl.data.encode import messages
    from vlmrl.data.source import load_source

    settings, cell = job["settings"], job["cell"]
    folder = media_folder(settings, "image", cell["prompt"], (settings["warmup"] + settings["steps"]) * cell["batch"])
    samples = load_source(folder / "rows.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    return [(messages(s, TEMPLATE)[0]["content"][-1]["text"], str(folder / s.media[0].path)) for s in samples]


def fingerprint(ids: Sequence[int]) -> int:
    """A number that tells whether two sides had the same prompt ids, visual tokens included."""
    return zlib.crc32(json.dumps(list(ids)).encode())


def reward(texts: list[str]) -> list[float]:
    """The reward of all sides: trivial, cheap and not constant."""
    return [len(text) % 7 / 6 for text in texts]

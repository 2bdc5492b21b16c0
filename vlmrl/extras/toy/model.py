"""A tiny Qwen-VL: the real classes of transformers with about a million weights, drawn from a seed.

The toy world trains a Qwen2.5-VL; Qwen2-VL, Qwen3-VL and Qwen3.5 are there for tests.

Everything a real checkpoint folder has is written: safetensors weights, generation config, a byte-level BPE tokenizer with
Qwen's special tokens, the chat template and the processor. It loads with plain `AutoModelForImageTextToText` and
`AutoProcessor`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from vlmrl.compat import ensure_torchvision

ModelFamily = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"]
"""`model_type` in the config of the model."""

_CLASSES: dict[ModelFamily, str] = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}
"""What the names of a family's classes in transformers begin with."""
_NEW = ("qwen3_vl", "qwen3_5")
"""Interleaved positions, and a processor that writes the time of each step of a video."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCABULARY = 600
"""Most tokens of the tokenizer, special tokens included; a small corpus may not have that many merges."""
INITIALIZER_RANGE = 0.08
"""With transformers' default of 0.02 a model this small stays at the answer prior for more than a thousand steps."""
EMBEDDING_STD = 0.2
MERGER_SCALE = 0.2
BRANCH_SCALE = 0.35
"""See `scale_initial_weights`."""
PAPER_POSITIONS, PAPER_MERGER = 0.5, 0.5
"""Of a model for pages: deviation of the position embeddings of its tower, and what `MERGER_SCALE` is for others."""
HIDDEN, LAYERS, HEADS, KV_HEADS = 128, 4, 4, 2
VISION_HIDDEN, VISION_DEPTH = 96, 2
PATCH, MERGE, TEMPORAL_PATCH = 14, 2, 2
QWEN3_PATCH, QWEN3_VISION_DEPTH, QWEN3_DEEPSTACK = 16, 3, (0, 1)
"""Qwen3-VL has larger patches and takes features out after these layers of its tower (0-based)."""
QWEN3_POSITIONS = 8
"""Side of Qwen3-VL's square of learned patch positions, which is stretched to each picture."""
MROPE_SECTION = (6, 5, 5)
"""Rotary frequencies for time, height and width; they sum to half of the head dimension."""
DELTA: dict[str, Any] = {
    "head_dim": 2 * HIDDEN // HEADS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
"""Qwen3.5: gated delta nets beside full attention, of whose heads half a dimension turns with the position."""

# Qwen's rule for splitting text before byte-level BPE: each digit by itself, a word with the one sign or blank before it.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}{{ raise_exception('unknown content part: ' ~ part['type']) }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_model(
    out: Path, *, seed: int, corpus: Iterable[str], family: ModelFamily = "qwen2_5_vl", width: int = HIDDEN, paper: bool = False
) -> None:
    """Write a fresh tiny model, its tokenizer and its processor to the folder `out`.

    The same arguments give the same files. The global generator of torch is left as it was.

    Args:
        width: hidden size, a multiple of 64. Heads are added with it, and the tower is three quarters as wide.
        paper: for pictures that are mostly white: the processor makes white 0, and a tower with position embeddings (those of Qwen3-VL
            and Qwen3.5) begins with loud ones. What stands on a page is else lost in what all pages share: asked in which of ten columns
            and rows the one thing on a page is, neither a usual Qwen2.5-VL nor a usual Qwen3-VL had learnt anything of it after 200 steps,
            and this one was better than its prior after 50 (one run each).
    """
    ensure_torchvision()
    import transformers

    tokenizer = build_tokenizer(corpus)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{_CLASSES[family]}ForConditionalGeneration")(build_config(tokenizer, family, width))
        scale_initial_weights(model, merger=PAPER_MERGER if paper else MERGER_SCALE)
        if paper and family in _NEW:
            torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=PAPER_POSITIONS)
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = transformers.GenerationConfig(do_sample=False, eos_token_id=end, pad_token_id=pad)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    processor = build_processor(tokenizer, family)
    if paper:
        for part in (processor.image_processor, processor.video_processor):
            part.image_mean, part.image_std = [1.0] * 3, [0.5] * 3
    processor.save_pretrained(out)


@torch.no_grad()
def scale_initial_weights(model: Any, *, merger: float = MERGER_SCALE) -> None:
    """Start with quiet residual branches, loud token embeddings and soft vision features.

    In the runs tried (one each) such a start learned *when* something is visible sooner than the plain one; more was not measured.
    """
    model.get_input_embeddings().weight.mul_(EMBEDDING_STD / INITIALIZER_RANGE)
    for name, parameter in model.named_parameters():
        if "merger.mlp.2" in name or ("merger" in name and "linear_fc2" in name):
            parameter.mul_(merger)
        if name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight", ".mlp.fc2.weight", ".mlp.linear_fc2.weight")):
            parameter.mul_(BRANCH_SCALE)


def build_tokenizer(corpus: Iterable[str]) -> Any:
    """A `Qwen2Tokenizer` trained on `corpus`: every byte has a token, digits stay single, tags and words become few tokens."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    trained.train_from_iterator(corpus, trainer)
    state = json.loads(trained.to_str())["model"]
    # A dict, because the annotations of Qwen2Tokenizer are narrower than what it takes.
    settings: dict[str, Any] = {
        "vocab": state["vocab"],
        "merges": [tuple(pair) for pair in state["merges"]],
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": [t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        "model_max_length": 32768,
    }
    tokenizer = Qwen2Tokenizer(**settings)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_config(tokenizer: Any, family: ModelFamily = "qwen2_5_vl", width: int = HIDDEN) -> Any:
    """The family's config of the tiny model for this tokenizer."""
    import transformers

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS * width // HIDDEN,
        "num_key_value_heads": KV_HEADS * width // HIDDEN,
        "max_position_embeddings": 32768,
        "initializer_range": INITIALIZER_RANGE,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(MROPE_SECTION)},
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    if family in _NEW:
        text["head_dim"] = HIDDEN // HEADS
        text["rope_parameters"]["mrope_interleaved"] = True
    if family == "qwen3_5":
        text |= DELTA
        text["rope_parameters"]["partial_rotary_factor"] = 0.5
    top: dict[str, Any] = {"initializer_range": INITIALIZER_RANGE}  # accepted, but not in the declared fields
    return getattr(transformers, f"{_CLASSES[family]}Config")(
        text_config=text,
        vision_config=_vision(family, width),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        **top,
    )


def _vision(family: ModelFamily, width: int) -> dict[str, Any]:
    """The part of the config about the tower."""
    inner = VISION_HIDDEN * width // HIDDEN
    shared = {
        "num_heads": HEADS * width // HIDDEN,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TEMPORAL_PATCH,
        "initializer_range": INITIALIZER_RANGE,
    }
    if family == "qwen2_vl":
        return shared | {"depth": VISION_DEPTH, "embed_dim": inner, "hidden_size": width, "mlp_ratio": 2, "patch_size": PATCH}
    shared |= {"hidden_size": inner, "intermediate_size": 2 * inner, "out_hidden_size": width}
    if family == "qwen2_5_vl":
        windows = {"window_size": 112, "fullatt_block_indexes": [VISION_DEPTH - 1]}
        return shared | windows | {"depth": VISION_DEPTH, "patch_size": PATCH, "tokens_per_second": 2}
    deep = {"deepstack_visual_indexes": list(QWEN3_DEEPSTACK)} if family == "qwen3_vl" else {}
    return shared | deep | {"depth": QWEN3_VISION_DEPTH, "patch_size": QWEN3_PATCH, "num_position_embeddings": QWEN3_POSITIONS**2}


def build_processor(tokenizer: Any, family: ModelFamily = "qwen2_5_vl") -> Any:
    """The family's processor. That of Qwen3-VL and Qwen3.5 normalises pictures to [-1, 1], as their checkpoints do."""
    import transformers
    from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes: dict[str, Any] = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": TEMPORAL_PATCH}
    if family in _NEW:
        sizes |= {"patch_size": QWEN3_PATCH, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        limits = {"shortest_edge": 4096, "longest_edge": 501760}
        return transformers.Qwen3VLProcessor(
            image_processor=Qwen2VLImageProcessor(size=limits, **sizes),
            tokenizer=tokenizer,
            video_processor=transformers.Qwen3VLVideoProcessor(size=limits, **sizes),
            chat_template=CHAT_TEMPLATE,
        )
    return getattr(transformers, f"{_CLASSES[family]}Processor")(
        image_processor=Qwen2VLImageProcessor(min_pixels=3136, max_pixels=501760, **sizes),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(min_pixels=3136, max_pixels=501760, **sizes),
        chat_template=CHAT_TEMPLATE,
    )

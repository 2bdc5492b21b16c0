"""Tiny models of many families: the real config, model and processor classes of transformers, random weights, a local tokenizer.

Sizes are as small as the classes allow, and kinds of layers stay: windows and chunks are shorter than a prompt with a picture, a
recurrent layer stands beside a full one, a router has more experts than it takes. What a folder holds loads with plain
`AutoModelForImageTextToText` and `AutoProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vlmrl.compat import ensure_torchvision
from vlmrl.errors import ConfigError
from vlmrl.extras.families.tiny_parts import CHAT, DELTA, EXPERTS, QWEN_NAMED, TOWER, mrope, published, template, text_sizes, tokenizer

Made = tuple[Any, Any]
"""(config, processor)."""


def qwen(config: str, tower: Mapping[str, Any], *, new: bool = True, delta: bool = False, experts: bool = False, **text: Any) -> Made:
    """Qwen2-VL to Qwen3.5: native resolution, M-RoPE, deepstack, delta nets, routers."""
    import transformers
    from transformers.models.qwen2_vl import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    t = tokenizer(["<|im_start|>", "<|vision_pad|>"], QWEN_NAMED)
    i = t.convert_tokens_to_ids
    sizes = text_sizes(t, rope_parameters=mrope(new, **({"partial_rotary_factor": 0.5} if delta else {})))
    sizes |= ({"head_dim": 16} if new else {}) | (DELTA if delta else {}) | (EXPERTS if experts else {}) | text
    common: dict[str, Any] = {"depth": 2, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2}
    ids: dict[str, Any] = {"image_token_id": i("<|image_pad|>"), "video_token_id": i("<|video_pad|>")}
    ids |= {"vision_start_token_id": i("<|vision_start|>"), "vision_end_token_id": i("<|vision_end|>")}
    made = getattr(transformers, config)(text_config=sizes, vision_config={**common, **tower}, tie_word_embeddings=False, **ids)
    patch: dict[str, Any] = {"patch_size": 16 if new else 14, "merge_size": 2, "temporal_patch_size": 2}
    bounds: dict[str, Any] = {"size": {"shortest_edge": 1024, "longest_edge": 10**6}}
    video = (transformers.Qwen3VLVideoProcessor if new else Qwen2VLVideoProcessor)(**patch, **bounds)
    chat = template(CHAT, "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>")
    kind = transformers.Qwen3VLProcessor if new else transformers.Qwen2_5_VLProcessor
    images = Qwen2VLImageProcessor(**patch, **bounds)
    return made, kind(image_processor=images, tokenizer=t, video_processor=video, chat_template=chat)


def internvl() -> Made:
    """Tiles with a thumbnail; frames of a video are pictures."""
    import transformers
    from transformers.models.internvl import InternVLVideoProcessor

    named: dict[str, str] = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    t = tokenizer(["<|im_start|>"], named)
    config = transformers.InternVLConfig(
        text_config=text_sizes(t, model_type="qwen2"),
        vision_config=TOWER | {"image_size": [32, 32], "patch_size": [8, 8]},
        image_token_id=t.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    side: Any = {"height": 32, "width": 32}
    return config, transformers.InternVLProcessor(
        image_processor=transformers.GotOcr2ImageProcessor(size=side, crop_to_patches=True, max_patches=4),
        tokenizer=t,
        video_processor=InternVLVideoProcessor(size=side),
        image_seq_length=4,
        chat_template=template(CHAT, "<IMG_CONTEXT>\n", "<video>\n"),
    )


def glm(config: str, family: str, **text: Any) -> Made:
    """M-RoPE, the time of a step after its pictures."""
    import transformers

    marks = ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
    t = tokenizer(["<|im_start|>", *marks], {"image_token": "<|image|>", "video_token": "<|video|>"})
    i = t.convert_tokens_to_ids
    ids = dict(zip(("image_start", "image_end", "video_start", "video_end"), map(i, marks), strict=True))
    tower: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 64, "patch_size": 14, "out_hidden_size": 64}
    made = getattr(transformers, config)(
        text_config=text_sizes(t, rope_parameters=mrope(partial_rotary_factor=1.0), **text),
        vision_config=tower | {"intermediate_size": 48, "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=i("<|image|>"),
        video_token_id=i("<|video|>"),
        tie_word_embeddings=False,
        **{f"{name}_token_id": value for name, value in ids.items()},
    )
    patch: dict[str, Any] = {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 784, "longest_edge": 10**6},
    }
    return made, getattr(transformers, f"{family}Processor")(
        image_processor=getattr(transformers, f"{family}ImageProcessor")(**patch),
        tokenizer=t,
        video_processor=getattr(transformers, f"{family}VideoProcessor")(**patch),
        chat_template=template(CHAT, f"{marks[0]}<|image|>{marks[1]}", f"{marks[2]}<|video|>{marks[3]}"),
    )


def gemma3() -> Made:
    """Windows of 12 beside full attention; the tokens of a picture (16) see each other on all layers."""
    import transformers

    named: dict[str, str] = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    t = tokenizer(["<start_of_turn>", "<end_of_turn>"], named, eos="<eos>", bos="<bos>")
    t.add_tokens(["\n" * n for n in range(1, 5)])  # Gemma has them, and vLLM joins those around a picture
    i = t.convert_tokens_to_ids
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3Config(
        text_config=text_sizes(t, bos="<bos>", head_dim=16, sliding_window=12, query_pre_attn_scalar=16, layer_types=kinds),
        vision_config=TOWER | {"image_size": 64, "patch_size": 8, "vision_use_head": False},
        mm_tokens_per_image=16,
        boi_token_index=i("<start_of_image>"),
        eoi_token_index=i("<end_of_image>"),
        image_token_index=i("<image_soft_token>"),
    )
    chat = template(("<start_of_turn>{role}\n", "<end_of_turn>\n"), "<start_of_image>", bos="<bos>", answers="model")
    images = transformers.Gemma3ImageProcessor(size={"height": 64, "width": 64})
    return config, transformers.Gemma3Processor(image_processor=images, tokenizer=t, image_seq_length=16, chat_template=chat)


def gemma4(*, experts: bool = False, bidirectional: str | None = "vision") -> Made:
    """Windows, pictures that see themselves inside the window, inputs per layer, shared keys, a soft cap on logits."""
    import transformers
    from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

    named: dict[str, str] = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "video_token": "<|video|>"}
    named |= {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    t = tokenizer(["<|turn>"], named, eos="<turn|>", bos="<bos>")
    i = t.convert_tokens_to_ids
    text: dict[str, Any] = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 12, "final_logit_softcapping": 30.0}
    text |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_bidirectional_attention": bidirectional}
    text |= {"vocab_size_per_layer_input": len(t), "hidden_size_per_layer_input": 0 if experts else 8}
    text |= {"num_kv_shared_layers": 0 if experts else 2}
    if experts:
        text |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
    tower: dict[str, Any] = {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 256,
    }
    config = transformers.Gemma4Config(
        text_config=text_sizes(t, bos="<bos>", **text),
        vision_config=TOWER | tower,
        audio_config=None,
        image_token_id=i("<|image|>"),
        video_token_id=i("<|video|>"),
        audio_token_id=i("<|audio|>"),
        boi_token_id=i("<|image>"),
        eoi_token_id=i("<image|>"),
    )
    return config, Gemma4Processor(
        feature_extractor=transformers.Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(max_soft_tokens=70),
        tokenizer=t,
        video_processor=Gemma4VideoProcessor(max_soft_tokens=70),
        chat_template=template(("<|turn>{role}\n", "<turn|>\n"), "<|image|>", "<|video|>", bos="<bos>", answers="model"),
    )


def smolvlm() -> Made:
    """Tiles with rows and columns as text and a global picture. Its processor needs the package num2words."""
    import transformers
    from transformers.models.smolvlm import SmolVLMImageProcessor, SmolVLMVideoProcessor

    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    named: dict[str, str] = {
        "image_token": "<image>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
    }
    t = tokenizer(["<|im_start|>", *tiles], named | {"video_token": "<video>"}, eos="<end_of_utterance>")
    padding: Any = {"pad_token_id": t.pad_token_id}  # of the text's config alone from transformers 5.23 on, which takes it and warns
    config = transformers.SmolVLMConfig(
        text_config=text_sizes(t, model_type="llama"),
        vision_config=TOWER | {"image_size": 64, "patch_size": 8},
        scale_factor=2,
        image_token_id=t.convert_tokens_to_ids("<image>"),
        **padding,
    )
    one: Any = {"longest_edge": 64}
    return config, transformers.SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(size={"longest_edge": 128}, max_image_size=one),
        tokenizer=t,
        video_processor=SmolVLMVideoProcessor(size=one, max_image_size=one),
        image_seq_len=16,
        chat_template=template(("<|im_start|>{role}: ", "<end_of_utterance>\n"), "<image>", "<video>"),
    )


def llava_onevision() -> Made:
    """Tiles of any resolution with learned newline features."""
    import transformers

    t = tokenizer(["<|im_start|>"], {"image_token": "<image>", "video_token": "<video>"})
    pins = [[32, 32], [32, 64], [64, 32], [64, 64]]
    tower: dict[str, Any] = {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8, "vision_use_head": False}
    config = transformers.LlavaOnevisionConfig(
        text_config=text_sizes(t, model_type="qwen2"),
        vision_config=TOWER | tower,
        image_token_index=t.convert_tokens_to_ids("<image>"),
        video_token_index=t.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=pins,
    )
    side: Any = {"height": 32, "width": 32}
    return config, transformers.LlavaOnevisionProcessor(
        image_processor=transformers.LlavaOnevisionImageProcessor(size=side, image_grid_pinpoints=pins),
        tokenizer=t,
        video_processor=transformers.LlavaOnevisionVideoProcessor(size=side),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=template(CHAT, "<image>\n", "<video>\n"),
    )


def mistral3() -> Made:
    """Native resolution, a token behind each row of patches."""
    import transformers

    t = tokenizer(["[INST]", "[/INST]", "[IMG_BREAK]", "[IMG_END]"], {"image_token": "[IMG]"}, eos="</s>", bos="<s>")
    tower: dict[str, Any] = {"model_type": "pixtral", "head_dim": 16, "image_size": 224, "patch_size": 14}
    config = transformers.Mistral3Config(
        text_config=text_sizes(t, bos="<s>", model_type="mistral", head_dim=16, sliding_window=None),
        vision_config=TOWER | tower,
        image_token_index=t.convert_tokens_to_ids("[IMG]"),
        tie_word_embeddings=False,
    )
    images = transformers.PixtralImageProcessor(size={"longest_edge": 224}, patch_size={"height": 14, "width": 14})
    chat = template(("[INST]", "[/INST]"), "[IMG]", bos="<s>").partition("{% if add_generation_prompt %}")[0]
    return config, transformers.PixtralProcessor(
        image_processor=images, tokenizer=t, patch_size=14, spatial_merge_size=2, chat_template=chat
    )


def minicpm(version: str) -> Made:
    """Slices with numbered pictures over the text model of Qwen3.5."""
    import transformers

    marks: dict[str, Any] = {
        "image_start_token": "<image>",
        "image_end_token": "</image>",
        "slice_start_token": "<slice>",
        "slice_end_token": "</slice>",
    }
    marks |= {"image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>"}
    t = tokenizer(["<|im_start|>"], {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"} | marks)
    i = t.convert_tokens_to_ids
    more: dict[str, Any] = {
        "image_start_id": i("<image>"),
        "image_end_id": i("</image>"),
        "slice_start_id": i("<slice>"),
        "slice_end_id": i("</slice>"),
    }
    config = getattr(transformers, f"MiniCPMV{version}Config")(
        text_config=text_sizes(t, model_type="qwen3_5_text", rope_parameters=mrope(True, partial_rotary_factor=0.5), **DELTA),
        vision_config=TOWER | {"num_hidden_layers": 3, "image_size": 64, "patch_size": 8},
        insert_layer_id=1,
        image_size=64,
        image_token_id=i("<|image_pad|>"),
        video_token_id=i("<|video_pad|>"),
        **({} if version == "4_6" else more | {"newline_id": i("Ċ")}),
    )
    slices: dict[str, Any] = {"patch_size": 8, "scale_resolution": 64}
    return config, getattr(transformers, f"MiniCPMV{version}Processor")(
        image_processor=transformers.MiniCPMV4_6ImageProcessor(**slices),
        tokenizer=t,
        video_processor=transformers.MiniCPMV4_6VideoProcessor(**slices),
        chat_template=template(CHAT, "<|image_pad|>\n", "<|video_pad|>\n"),
    )


def lfm2_vl() -> Made:
    """Short convolutions beside full attention."""
    import transformers
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor

    named: dict[str, str] = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
    t = tokenizer(["<|im_start|>"], named | {"image_thumbnail_token": "<|img_thumbnail|>"})
    text = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}
    text |= {"conv_dim": 64, "block_dim": 64}  # published files have them, and vLLM asks for them
    tower: dict[str, Any] = {"model_type": "siglip2_vision_model", "num_patches": 64, "patch_size": 16, "vision_use_head": False}
    config = transformers.Lfm2VlConfig(
        text_config=text_sizes(t, **text),
        vision_config=TOWER | tower,
        image_token_id=t.convert_tokens_to_ids("<image>"),
        projector_hidden_size=64,
        downsample_factor=2,
    )
    bounds: dict[str, Any] = {"min_image_tokens": 4, "max_image_tokens": 64, "max_num_patches": 256, "tile_size": 64}
    images = Lfm2VlImageProcessor(encoder_patch_size=16, do_image_splitting=False, **bounds)
    return config, transformers.Lfm2VlProcessor(image_processor=images, tokenizer=t, chat_template=template(CHAT, "<image>"))


def llama4() -> Made:
    """Chunks of 16 beside full attention without positions, a router, and a core that is the whole class."""
    import transformers

    marks = ["<|header_start|>", "<|header_end|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"]
    t = tokenizer([*marks, "<|patch|>"], {"image_token": "<|image|>"}, eos="<|eot|>", bos="<|begin_of_text|>")
    i = t.convert_tokens_to_ids
    text: dict[str, Any] = {"head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1}
    text |= {"interleave_moe_layer_step": 2, "attention_chunk_size": 16, "no_rope_layers": [1, 1, 1, 0]}
    tower: dict[str, Any] = {
        "intermediate_size": 128,
        "image_size": 56,
        "patch_size": 14,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 64,
    }
    config = transformers.Llama4Config(
        text_config=text_sizes(t, bos="<|begin_of_text|>", **text),
        vision_config=TOWER | tower | {"projector_output_dim": 64, "vision_output_dim": 64},
        image_token_index=i("<|patch|>"),
        boi_token_index=i("<|image_start|>"),
        eoi_token_index=i("<|image_end|>"),
    )
    chat = template(("<|header_start|>{role}<|header_end|>\n\n", "<|eot|>"), "<|image|>", bos="<|begin_of_text|>")
    images = transformers.Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    return config, transformers.Llama4Processor(
        image_processor=images, tokenizer=t, patch_size=14, pixel_shuffle_ratio=0.5, chat_template=chat
    )


_QWEN2 = {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "patch_size": 14}
_QWEN25 = {
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "patch_size": 14,
    "window_size": 56,
    "fullatt_block_indexes": [1],
}
_QWEN3 = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "patch_size": 16, "num_position_embeddings": 64}
_DEEP = _QWEN3 | {"deepstack_visual_indexes": [0, 1]}
_WIDE = {"decoder_sparse_step": 1, "norm_topk_prob": True, "moe_intermediate_size": 48}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32}
ROUTED |= {"first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 16, "use_qk_norm": False}
TINY: dict[str, Callable[[], Made]] = {
    "qwen2_vl": partial(qwen, "Qwen2VLConfig", _QWEN2, new=False),
    "qwen2_5_vl": partial(qwen, "Qwen2_5_VLConfig", _QWEN25, new=False),
    "qwen3_vl": partial(qwen, "Qwen3VLConfig", _DEEP),
    "qwen3_vl_moe": partial(qwen, "Qwen3VLMoeConfig", _DEEP, experts=True, **_WIDE),
    "qwen3_5": partial(qwen, "Qwen3_5Config", _QWEN3, delta=True),
    "qwen3_5_moe": partial(qwen, "Qwen3_5MoeConfig", _QWEN3, delta=True, experts=True, shared_expert_intermediate_size=32),
    "internvl": internvl,
    "glm4v": partial(glm, "Glm4vConfig", "Glm4v"),
    "glm46v": partial(glm, "Glm46VConfig", "Glm46V"),
    "glm4v_moe": partial(glm, "Glm4vMoeConfig", "Glm4v", **ROUTED),
    "gemma3": gemma3,
    "gemma4": gemma4,
    "gemma4_moe": partial(gemma4, experts=True),
    "gemma4_causal": partial(gemma4, bidirectional=None),
    "smolvlm": smolvlm,
    "llava_onevision": llava_onevision,
    "mistral3": mistral3,
    "minicpmv4_6": partial(minicpm, "4_6"),
    "minicpmv4_7": partial(minicpm, "4_7"),
    "lfm2_vl": lfm2_vl,
    "llama4": llama4,
}
"""Configuration -> how its tiny folder is made. Most are named after a model type; `gemma4_moe` and `gemma4_causal` are kinds of one."""


def _publish(name: str, file: Path) -> None:
    """Give the tensors of a file the names and shapes that published files have."""
    from safetensors.torch import load_file, save_file

    save_file(published(name, load_file(file)), file, {"format": "pt"})


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights of a size at which a tiny model's answers depend on its pictures and on every layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "A_log" not in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * min(0.3, 1.2 * weight.shape[-1] ** -0.5))


def widen_heads(config: Any, size: int) -> None:
    """Give the heads of a decoder with full attention `size` dimensions: by `head_dim` where its config has one, else by fewer heads.

    Args:
        size: a multiple of what they have.
    """
    text = config.get_text_config()
    had = getattr(text, "head_dim", None)
    times = size // (had or text.hidden_size // text.num_attention_heads)
    if had is None:
        text.num_attention_heads //= times
        text.num_key_value_heads //= times
    else:
        text.head_dim = size
    rope = getattr(text, "rope_parameters", None) or {}
    if "mrope_section" in rope:
        rope["mrope_section"] = [part * times for part in rope["mrope_section"]]


def write_tiny(name: str, folder: Path, *, seed: int = 0, head: int | None = None) -> None:
    """Write a tiny model of a configuration of `TINY` to an empty folder. The same seed gives the same files.

    Args:
        head: dimensions of the decoder's heads (`widen_heads`), for engines that have no kernel for heads of 16.

    Raises:
        ConfigError: no such configuration, or its processor needs a package that is not there.
    """
    ensure_torchvision()
    from transformers import AutoModelForImageTextToText, GenerationConfig

    if name not in TINY:
        raise ConfigError(f"no tiny model of '{name}'; there are: {', '.join(TINY)}")
    try:
        config, processor = TINY[name]()
    except ImportError as error:
        raise ConfigError(f"{name}: {error}".split(" Install")[0]) from error
    if head is not None:
        widen_heads(config, head)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
    randomise(model, seed + 1)
    text = config.get_text_config()
    model.generation_config = GenerationConfig(eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    _publish(name, folder / "model.safetensors")

"""What tiny models are made of: sizes, a tokenizer of bytes, a chat template, and the names and shapes of published files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
DELTA: dict[str, Any] = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
"""Gated delta net beside full attention."""
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CHAT = ("<|im_start|>{role}\n", "<|im_end|>\n")
"""What stands before and after a message."""
QWEN_NAMED = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


def template(frame: tuple[str, str], image: str, video: str | None = None, *, bos: str = "", answers: str = "assistant") -> str:
    """A chat template: `bos`, each message in its frame, media by their text where they stand among the parts. `answers`: its name for the
    role that answers."""
    before, after = frame
    part = "{% if c['type'] == 'image' %}" + image
    part += "" if video is None else "{% elif c['type'] == 'video' %}" + video
    part += "{% elif c['type'] == 'text' %}{{ c['text'] }}{% else %}{{ raise_exception('no ' ~ c['type']) }}{% endif %}"
    content = "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}" + part + "{% endfor %}{% endif %}"
    role = "{{ '" + answers + "' if m['role'] == 'assistant' else m['role'] }}"
    each = "{% for m in messages %}" + before.replace("{role}", role) + content + after + "{% endfor %}"
    return bos + each + "{% if add_generation_prompt %}" + before.replace("{role}", answers) + "{% endif %}"


def tokenizer(special: Sequence[str], named: Mapping[str, str], *, eos: str = "<|im_end|>", bos: str | None = None) -> Any:
    """Bytes and nothing else, with special tokens; `named` are those that a processor asks for as attributes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    known: dict[str, Any] = {"eos_token": eos, "pad_token": "<pad>"} | ({"bos_token": bos} if bos else {})
    out = PreTrainedTokenizerFast(tokenizer_object=base, extra_special_tokens=dict(named), **known)
    more = [token for token in special if token not in known.values()]
    if more:
        out.add_special_tokens({"additional_special_tokens": more}, replace_extra_special_tokens=False)
    return out


def text_sizes(t: Any, *, bos: str | None = None, **more: Any) -> dict[str, Any]:
    """Sizes of the text model, with the tokenizer's ids."""
    ids = {"vocab_size": len(t), "pad_token_id": t.pad_token_id, "eos_token_id": t.eos_token_id}
    return TEXT | ids | ({"bos_token_id": t.bos_token_id} if bos else {}) | more


def mrope(interleaved: bool = False, **more: Any) -> dict[str, Any]:
    """Rotary positions of time, height and width, for heads of 16 rotary dimensions."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]} | more
    return rope | ({"mrope_interleaved": True} if interleaved else {})


RENAMED = {"gemma3": ("vision_tower.", "vision_tower.vision_model.")}
"""Configuration -> (how names of transformers begin, how those in published files do), where `save_pretrained` does not write the latter.
transformers reads both, vLLM the published ones."""
TURNED = {"qwen3_vl_moe": (".experts.gate_up_proj", ".experts.down_proj")}
"""Configuration -> ends of the names of tensors that published files hold the other way round, rows as columns. transformers turns those
whose shape tells, and does not turn them back where it writes; vLLM turns all."""


def published(name: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """Give the tensors that transformers wrote the names and shapes that published files of a configuration have."""
    (begins, begin), ends = RENAMED.get(name, ("", "")), TURNED.get(name, ())
    out = {begin + key.removeprefix(begins) if key.startswith(begins) else key: one for key, one in held.items()}
    return {key: one.transpose(1, 2).contiguous() if key.endswith(ends) else one for key, one in out.items()}

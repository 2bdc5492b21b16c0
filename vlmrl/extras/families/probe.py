"""What the config, the processor and the modules of any model say about it: kinds of layers, ids, head, parts, the switch for thinking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Linear, ModuleList

from vlmrl.extras.families.generic import Message, core_of, placeholders, rendered
from vlmrl.types import MediaKind, Part

DELTA = "linear_attention"
"""Kind of layer that keeps a state of the columns before it (gated delta nets); they compute it in float32 whatever the model's type."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_PROJECTORS = ("projector", "connector", "aligner", "embed_vision", "merger", "modality_projection", "vit_merger")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What there is to know of a model before it runs."""

    model_type: str
    architecture: str
    layers: Mapping[str, int]
    """Kind of decoder layer -> how many."""
    window: int | None
    soft_cap: float | None
    experts: int
    """Of a router; 0 without one."""
    three_positions: bool
    """M-RoPE: positions of time, height and width."""
    pads: Mapping[MediaKind, int]
    video: bool
    """Whether the processor takes videos."""
    end_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    """Visual control tokens that the head could give."""

    @property
    def delta(self) -> bool:
        """Whether a recurrent state is kept in float32."""
        return DELTA in self.layers


def facts(model: Any, processor: Any) -> Facts:
    """Look at a model and its processor."""
    text = model.config.get_text_config()
    kinds = _kinds(text)
    pads = placeholders(model.config)
    return Facts(
        model_type=model.config.model_type,
        architecture=type(model).__name__,
        layers={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        window=getattr(text, "sliding_window", None) if "sliding_attention" in kinds else None,
        soft_cap=getattr(text, "final_logit_softcapping", None),
        experts=next((int(n) for name in _EXPERTS if (n := getattr(text, name, None))), 0),
        three_positions=hasattr(core_of(model), "get_rope_index"),
        pads=pads,
        video=getattr(processor, "video_processor", None) is not None,
        end_ids=end_ids(model, processor),
        forbidden_ids=forbidden_ids(processor, pads, text.vocab_size),
    )


def end_ids(model: Any, processor: Any) -> tuple[int, ...]:
    """Tokens that end an answer: what the generation config says, else the config, else the tokenizer. Never by name."""
    return ends_of((model.generation_config, model.config.get_text_config(), processor.tokenizer))


def ends_of(holders: Sequence[Any]) -> tuple[int, ...]:
    """What the first of these says that says anything."""
    for holder in holders:
        found = getattr(holder, "eos_token_id", None)
        if found is not None:
            return tuple(int(i) for i in found) if isinstance(found, list | tuple) else (int(found),)
    return ()


def forbidden_ids(processor: Any, pads: Mapping[MediaKind, int], vocabulary: int) -> tuple[int, ...]:
    """Ids that mark media in a text: the placeholders and every `*_token_id` of the processor, as far as the head has them."""
    named = {value for name, value in vars(processor).items() if name.endswith("_token_id")}
    found = {i for i in named | set(pads.values()) if isinstance(i, int) and 0 <= i < vocabulary}
    return tuple(sorted(found))


def part_of(name: str) -> Part:
    """The part of the model that a parameter of this name belongs to, by the names that transformers gives to modules."""
    steps = name.split(".")
    if any(mark in step for step in steps for mark in _PROJECTORS):
        return "projector"
    decoder = {"language_model", "text_model", "lm_head"} & set(steps)
    tower = any(step.startswith(("vision", "visual", "image_newline", "audio")) for step in steps)
    return "vision" if tower and not decoder else "language"


def adaptable(model: Any) -> list[str]:
    """Names of the linear layers of the decoder that can carry adapters (`lora_targets`), in the order of the model."""
    found = {id(module) for layer, _ in decoder_layers(model) for _, module in _adaptable(layer)}
    return [name for name, module in model.named_modules() if id(module) in found]


def _adaptable(layer: Any) -> Iterator[tuple[str, Any]]:
    for name, module in layer.named_modules():
        if isinstance(module, Linear) and module.out_features > 1 and "router" not in type(module).__name__.lower():
            yield name, module


def lora_targets(model: Any) -> Mapping[str, tuple[str, ...]]:
    """Kind of decoder layer -> last names of its linear layers, which can carry adapters. Routers and gates of one output are left out,
    and so are experts that are one tensor."""
    out: dict[str, dict[str, None]] = {}
    for layer, kind in decoder_layers(model):
        for name, _ in _adaptable(layer):
            out.setdefault(kind, {})[name.rpartition(".")[2]] = None
    return {kind: tuple(names) for kind, names in out.items()}


def towers(model: Any) -> list[Any]:
    """Modules of the core that make features of media, without projectors."""
    core = core_of(model)
    return [child for name, child in core.named_children() if part_of(f"{name}.") == "vision" and any(True for _ in child.parameters())]


def blocks(tower: Any) -> list[Any]:
    """The layers of a tower: its largest list of modules."""
    lists = [module for module in tower.modules() if isinstance(module, ModuleList)]
    return list(max(lists, key=lambda one: sum(p.numel() for p in one.parameters()), default=()))


def decoder_layers(model: Any) -> Sequence[tuple[Any, str]]:
    """(layer, its kind) in order."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "model", decoder).layers
    return list(zip(layers, _kinds(model.config.get_text_config()), strict=True))


def _kinds(text: Any) -> list[str]:
    return list(getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers)


def mixers(layer: Any) -> Sequence[Any]:
    """The modules of a decoder layer that look at other columns: attention, delta net, convolution."""
    return [module for module in layer.children() if hasattr(module, "layer_idx")]


def thinking(processor: Any) -> tuple[str, str] | None:
    """How the template begins an answer with thoughts switched on and off; None where it has no such switch."""
    asked: list[Message] = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    on, off = (
        processor.apply_chat_template(list(asked), tokenize=False, add_generation_prompt=True, enable_thinking=flag)
        for flag in (True, False)
    )
    if on == off == rendered(processor, asked):
        return None
    same = next((i for i, (a, b) in enumerate(zip(on, off, strict=False)) if a != b), min(len(on), len(off)))
    return on[same:], off[same:]

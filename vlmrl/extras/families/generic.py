"""What can be done with any vision-language model of transformers: ids and arguments from its own processor, features of one medium, how
they are handed over, positions, and what its head computes. No code of ours for a model type stands here.

Letters: P columns of a prompt, H hidden size, M scored columns, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmrl.extras.families import control
from vlmrl.types import MediaKind

TYPES = ("mm_token_type_ids", "token_type_ids", "moe_mm_token_type_ids")
"""Arguments of a core that say what kind of token stands in a column."""
_OF_TEXT = ("input_ids", "attention_mask", *TYPES)
_LEVELS = ("deepstack_features", "visual_indicator_features")
"""Features beside the pooled ones that some cores read."""


@dataclass(frozen=True)
class Clip:
    """A decoded video."""

    frames: np.ndarray
    """uint8 [T, H, W, 3]."""
    fps: float
    shown: tuple[float, ...] | None = None
    """When each frame comes on screen, in seconds, where the rate changes; None: one every 1 / fps."""
    duration: float | None = None
    """Seconds of the whole video, where it is known."""


Medium = np.ndarray | Clip
"""A decoded picture, uint8 [H, W, 3], or a video."""
Message = Mapping[str, Any]
"""A message of a chat template; its content is a list of parts, and a medium is a part `{"type": "image"}` or `{"type": "video"}`."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A prompt as a model gets it."""

    ids_P: Tensor
    types: Mapping[str, Tensor]
    """Kinds of tokens by the name of the argument, each [P]."""
    inputs: Mapping[str, Any]
    """What the processor made of the whole prompt, pixels of all media together among them. The reference, and for positions."""
    arguments: tuple[Mapping[str, Any], ...]
    """Per medium, in the order in which they stand: what the processor makes of it by itself."""
    kinds: tuple[MediaKind, ...]
    """Per medium, whose placeholder stands for it: frames of a clip are pictures to some families."""
    counts: tuple[int, ...]
    """Per medium, its placeholder tokens."""
    places: Tensor | None = None
    """Positions [3, P], where they have been computed already."""
    copies: int = 1
    """How often each medium stands in its own arguments. More than once where a picture among others is cut into fewer tiles than a
    picture alone (LLaVA-OneVision): then it is processed as one of so many."""

    @property
    def length(self) -> int:
        """P."""
        return int(self.ids_P.shape[0])


@dataclass(frozen=True)
class TowerOutput:
    """What the tower gives of one medium."""

    kind: MediaKind
    """Under which name the core takes them: a family without video features gets frames as pictures."""
    output: Any
    """The output object of `get_image_features` or `get_video_features`."""

    @property
    def count(self) -> int:
        """Rows, one per placeholder token."""
        found = _rows(self.output)
        return sum(int(part.numel() // part.shape[-1]) for part in (found if isinstance(found, list | tuple) else [found]))


def rendered(processor: Any, messages: Sequence[Message]) -> str:
    """The text of a prompt by the checkpoint's own template, placeholders not expanded."""
    return processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)


def processed(processor: Any, text: str, media: Sequence[Medium]) -> dict[str, Any]:
    """The processor's arguments for one text. A video's frames are taken as they are, never sampled again, with their true times; the
    template has written what stands before a text, so the tokenizer adds nothing."""
    pictures = [medium for medium in media if isinstance(medium, np.ndarray)]
    clips = [medium for medium in media if isinstance(medium, Clip)]
    given: dict[str, Any] = {"images": [pictures]} if pictures else {}
    if clips:
        given |= {"videos": [[clip.frames for clip in clips]], "do_sample_frames": False}
        given["video_metadata"] = [[times(clip) for clip in clips]]
    out = processor(text=[text], return_tensors="pt", add_special_tokens=False, return_mm_token_type_ids=True, **given)
    return {name: value for name, value in out.items() if name != "labels"}


def times(clip: Clip) -> Any:
    """The metadata that tells a processor when each frame was shown."""
    from transformers.video_utils import VideoMetadata

    count = len(clip.frames)
    height, width = clip.frames.shape[1:3]
    size = {"height": height, "width": width}
    if clip.shown is None:
        places = list(range(count))
        return VideoMetadata(total_num_frames=count, fps=clip.fps, frames_indices=places, duration=count / clip.fps, **size)
    # as if the video had a frame every millisecond: processors take time = index / rate, and spacing from the share that is shown
    whole = max(1, round(1000 * count / clip.fps))
    places = [round(1000 * t) for t in clip.shown]
    return VideoMetadata(total_num_frames=whole, fps=1000.0, frames_indices=places, duration=clip.duration or whole / 1000, **size)


def placeholders(config: Any) -> dict[MediaKind, int]:
    """Ids that stand for features, by kind."""
    found: dict[MediaKind, int | None] = {
        "image": getattr(config, "image_token_id", None),
        "video": getattr(config, "video_token_id", None),
    }
    return {kind: int(token) for kind, token in found.items() if token is not None}


def encode(processor: Any, pads: Mapping[MediaKind, int], messages: Sequence[Message], media: Sequence[Medium]) -> Encoded:
    """A prompt, and the arguments of each of its media by itself. `media` in the order in which they stand in the messages.

    Raises:
        RowError: `control_token`: a text of the messages holds one. The processor has not been called.
        ValueError: the placeholder tokens of the prompt are not those of its media one by one.
    """
    control.refuse(processor, messages)
    inputs = processed(processor, rendered(processor, messages), media)
    whole = sum(int((inputs["input_ids"] == pad).sum()) for pad in pads.values())
    tried: list[list[int]] = []
    for copies in dict.fromkeys((1, len(media))):
        each = [alone(processor, pads, medium, copies) for medium in media]
        tried.append([count for _, _, count in each])
        if whole == sum(tried[-1]):
            return Encoded(
                ids_P=inputs["input_ids"][0],
                types={name: inputs[name][0] for name in TYPES if name in inputs},
                inputs=inputs,
                arguments=tuple(argument for argument, _, _ in each),
                kinds=tuple(kind for _, kind, _ in each),
                counts=tuple(tried[-1]),
                copies=copies,
            )
    raise ValueError(f"{whole} placeholder tokens in the prompt, {' or '.join(map(str, tried))} in its media one by one")


@dataclass(frozen=True)
class Size:
    """What headers tell of a medium."""

    height: int
    width: int
    frames: int | None = None
    """None: a picture."""
    fps: float = 1.0


def plan(processor: Any, pads: Mapping[MediaKind, int], messages: Sequence[Message], sizes: Sequence[Size]) -> Encoded:
    """`encode` with blank media of these sizes: the same ids, kinds and counts before anything is decoded. A processor cuts and counts by
    size alone, so its own code is the plan, whatever its rule.

    Raises:
        RowError: as `encode`.
        ValueError: as `encode`.
    """
    return encode(processor, pads, messages, [_blank(size) for size in sizes])


def _blank(size: Size) -> Medium:
    picture = np.zeros((size.height, size.width, 3), np.uint8)
    return picture if size.frames is None else Clip(np.stack([picture] * size.frames), size.fps)


def alone(processor: Any, pads: Mapping[MediaKind, int], medium: Medium, copies: int = 1) -> tuple[Mapping[str, Any], MediaKind, int]:
    """(arguments, kind by placeholder, placeholder tokens) of one medium that is asked about by itself, or so many times in one prompt."""
    part = {"type": "image" if isinstance(medium, np.ndarray) else "video"}
    text = rendered(processor, [{"role": "user", "content": [part] * copies}])
    made = processed(processor, text, [medium] * copies)
    found: dict[MediaKind, int] = {kind: int((made["input_ids"] == pad).sum()) for kind, pad in pads.items()}
    argument = {name: value for name, value in made.items() if name not in _OF_TEXT}
    return argument, max(found, key=found.__getitem__), sum(found.values()) // copies


def core_of(model: Any) -> Any:
    """The multimodal core: the model without its head, or the whole model where it has no such part (Llama 4)."""
    inner = getattr(model, "model", None)
    return inner if inner is not None and hasattr(inner, "get_image_features") else model


def features(core: Any, argument: Mapping[str, Any], kind: MediaKind, copies: int = 1) -> TowerOutput:
    """Features of one medium, which stand in the places of this kind. `argument` may hold the medium several times; one is kept."""
    call = core.get_video_features if "pixel_values_videos" in argument else core.get_image_features
    wanted = inspect.signature(call).parameters
    weight = next(core.parameters())
    given = {name: cast(value, weight.dtype, weight.device) for name, value in argument.items() if name in wanted}
    out = call(**given, return_dict=True)
    if copies > 1:
        rows = _rows(out)
        setattr(out, _field(out), rows[: len(rows) // copies])
    return TowerOutput(kind, out)


def cast(value: Any, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """Pixels in the type of the weights, tensors where these are; what else is no floating tensor stays."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device=device, dtype=dtype if value.is_floating_point() else None)


def slim(found: TowerOutput) -> TowerOutput:
    """Only what is handed over, without the other things that a tower gives."""
    names = (_field(found.output), *_LEVELS)
    kept = {name: value for name in names if (value := getattr(found.output, name, None)) is not None}
    return TowerOutput(found.kind, type(found.output)(**kept))


def tensors(found: TowerOutput) -> list[Tensor]:
    """What is handed over."""
    parts = [_rows(found.output), *(getattr(found.output, name, None) or () for name in _LEVELS)]
    out: list[Tensor] = []
    for part in parts:
        out += [part] if isinstance(part, Tensor) else _flat(part)
    return out


def _flat(parts: Any) -> list[Tensor]:
    """Tensors of lists within lists."""
    return [tensor for part in parts for tensor in ([part] if isinstance(part, Tensor) else _flat(part))]


def _field(output: Any) -> str:
    """The field that cores read: the pooled output where there is one."""
    return "pooler_output" if getattr(output, "pooler_output", None) is not None else "last_hidden_state"


def _rows(output: Any) -> Any:
    return getattr(output, _field(output))


def vectors(found: TowerOutput) -> Tensor:
    """The rows of a medium one behind the other, [tokens, H]."""
    rows = _rows(found.output)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in (rows if isinstance(rows, list | tuple) else [rows])])


def hand_over(found: Sequence[TowerOutput]) -> dict[str, Any]:
    """`mm_encoder_outputs` for a row with these media in this order. A fresh dict for every call: forwards write into it."""
    out: dict[str, Any] = {}
    for kind in dict.fromkeys(one.kind for one in found):
        parts = [one.output for one in found if one.kind == kind]
        joined = copy.copy(parts[0])
        setattr(joined, _field(joined), _joined([_rows(part) for part in parts]))
        for name in _LEVELS:
            levels = [getattr(part, name, None) for part in parts]
            if levels[0] is not None:
                setattr(joined, name, [_joined(list(level)) for level in zip(*levels, strict=True)])
        out[kind] = joined
    return out


def _joined(parts: Sequence[Any]) -> Any:
    """Tensors along their first dimension, or lists one behind the other."""
    return torch.cat(list(parts)) if isinstance(parts[0], Tensor) else [item for part in parts for item in part]


def forget(core: Any) -> None:
    """Cores with M-RoPE remember how far the last prompt's positions were from its columns, and would use it for the next."""
    if hasattr(core, "rope_deltas"):
        core.rope_deltas = None


def positions(core: Any, prompt: Encoded) -> Tensor | None:
    """Positions of a prompt as the core computes them, [3, P]; None for models with one row of positions, 0 to P - 1."""
    if not hasattr(core, "get_rope_index"):
        return None
    if prompt.places is not None:
        return prompt.places
    if not prompt.counts or "mm_token_type_ids" not in prompt.types:
        return torch.arange(prompt.length).expand(3, -1)
    wanted = inspect.signature(core.get_rope_index).parameters
    given = {name: value for name, value in prompt.inputs.items() if name in wanted and name not in _OF_TEXT}
    ids = prompt.ids_P[None]
    out, _ = core.get_rope_index(
        ids, mm_token_type_ids=prompt.types["mm_token_type_ids"][None], attention_mask=torch.ones_like(ids), **given
    )
    return out[:, 0]


@dataclass(frozen=True)
class Head:
    """From hidden states to logits."""

    module: Any
    """The output embeddings: a matrix, in some models with a bias."""
    cap: float | None
    """Logits are capped to +-cap with tanh."""
    scale: float

    def logits(self, hidden_MH: Tensor) -> Tensor:
        """[M, V]."""
        return self.bent(self.module(hidden_MH) * self.scale)

    def bent(self, logits_MV: Tensor) -> Tensor:
        """The soft cap, where there is one."""
        return logits_MV if self.cap is None else self.cap * torch.tanh(logits_MV / self.cap)


def head_of(model: Any) -> Head | None:
    """The head of a model; None where the core is the whole model and gives logits itself."""
    if core_of(model) is model:
        return None
    text = model.config.get_text_config()
    scale = float(getattr(text, "logit_scale", None) or 1.0) / float(getattr(text, "logits_scaling", None) or 1.0)
    return Head(model.get_output_embeddings(), getattr(text, "final_logit_softcapping", None), scale)

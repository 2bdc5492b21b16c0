"""Prompts of ours as vLLM's engine inputs, and its answers back: the only module that knows vLLM's input and output types.

vLLM's processor is passed by. It gets our token ids, the pixels that the store decoded, and where they belong, so a prompt is the same on
both sides by construction: nothing is tokenised, resized or expanded a second time.

    ids           Prompt.ids, unchanged
    patches       uint8, in the order of the model's own processor; vLLM's tower rescales and normalises them on its device. Patches that
                  are normalised already would be normalised once more there, without any error
    placeholders  one range per medium. A video with a span per temporal step (Qwen3-VL) is one range from the marker in front of its first
                  step, in which only the placeholders count
    mm_hashes     key of the medium @ version of the tower: features that another tower computed are never found
    cache_salt    version of the weights: keys and values that other weights computed are never found

Caches of vLLM thereby need no resets, which its own synchronisation leaves half done (docs/rollout.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vlmrl.errors import ConfigError
from vlmrl.policy.model import ProcessorBundle
from vlmrl.policy.pack import PositionSpec, visual_index
from vlmrl.policy.patches import raw_patches
from vlmrl.policy.vision import Pixels
from vlmrl.types import GenerationSettings, MediaHandle, MediaKind, Prompt

ROUNDING = 1e-3
"""Most that patches normalised here and by the model's processor may differ; one grey level makes 0.01."""
FIELDS: dict[MediaKind, tuple[str, str]] = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
BANNED = -100.0
"""Bias of tokens that must not be sampled; vLLM allows no lower one. In float32 their probability is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """Of the weights that the engine holds. Every change of weights makes another one, also where the trainer's counts stay as they are."""

    policy: int
    vision: int
    whole: int = 0
    """How often all weights have been sent: a stage that loads its model anew does not count on from the last one's."""

    @property
    def salt(self) -> str:
        return f"v{self.policy}.{self.whole}"

    def media_hash(self, key: str) -> str:
        """Name of a medium's features under this version."""
        return f"{key}@{self.vision}.{self.whole}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What came of one request."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str
    """`stop`, `length`, or what went wrong."""
    cached: int
    """Tokens of the prompt that were not computed again."""
    prompt_ids: tuple[int, ...]
    experts: np.ndarray | None = None
    """Those that its columns took, in each layer that has a router (`routes`); None where they are not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedMedium:
    """One medium of a prompt: where it stands, and how vLLM counts it."""

    kind: MediaKind
    key: str
    grid: tuple[int, int, int]
    start: int
    end: int
    shown: tuple[tuple[int, int], ...] | None = None
    """Ranges of placeholders within [start, end), where not all of it is placeholders."""
    seconds: float | None = None
    """Of a temporal step of the grid, for a model whose positions run in seconds; of a frame of any video that a family's own processor
    has made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A prompt as vLLM has to know it, in types of nobody's."""

    ids: tuple[int, ...]
    media: tuple[PlacedMedium, ...] = ()
    merge: int = 2
    """Patches of a merged token, along each side."""


def place(prompt: Prompt, *, merge: int, timed: bool, pads: Mapping[MediaKind, int] | None = None) -> Placed:
    """
    Args:
        timed: temporal positions of a video run in seconds.
        pads: placeholders by kind, where the family's own processor has written the prompt.

    Raises:
        ValueError: spans and media of the prompt do not belong together.
    """
    spans = visual_index(prompt) if prompt.media else []
    owners = prompt.owners or range(len(prompt.media))
    kinds: dict[int, MediaKind] | None = {pads[kind]: kind for kind in reversed(list(pads))} if pads else None
    media: list[PlacedMedium] = []
    for number, handle in enumerate(prompt.media):
        own = [(span.start, span.end) for span, owner in zip(spans, owners, strict=True) if owner == number]
        start, end, shown, kind = own[0][0], own[-1][1], None, handle.kind
        seconds = (1.0 if handle.seconds_per_grid is None else handle.seconds_per_grid) if timed and handle.kind == "video" else None
        if kinds is not None:  # frames of a clip are pictures to some families
            shown, kind = tuple(own) if len(own) > 1 else None, kinds[prompt.ids[start]]
            seconds = _spacing(handle) if handle.kind == "video" else None
        elif handle.step_times is None:
            ((start, end),) = own
        else:
            start, shown = start - 1, tuple(own)
        media.append(PlacedMedium(kind=kind, key=handle.key, grid=handle.grid_thw, start=start, end=end, shown=shown, seconds=seconds))
    return Placed(ids=prompt.ids, media=tuple(media), merge=merge)


def _spacing(handle: MediaHandle) -> float:
    """Seconds of a frame of a video whose grid is of frames."""
    count, times = handle.grid_thw[0], handle.step_times or ()
    return (handle.duration or (times[-1] - times[0] if len(times) > 1 else 0.0) or float(count)) / count


def engine_input_of(placed: Placed, patches: Mapping[str, np.ndarray], version: Version) -> Any:
    """What `add_request` of vLLM's engine takes. `patches` by key of the medium."""
    return mm_input_of(placed, _items(placed, patches) if placed.media else {}, version)


def mm_input_of(placed: Placed, items: Mapping[str, Any], version: Version) -> Any:
    """The same, of media as vLLM splits them. `items`: those of each kind, in the order of the prompt."""
    from vllm.inputs.engine import mm_input, tokens_input  # pyright: ignore[reportMissingImports]
    from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange  # pyright: ignore[reportMissingImports]

    if not placed.media:
        return tokens_input(list(placed.ids), cache_salt=version.salt)
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[Any]] = {}
    for medium in placed.media:
        shown: torch.Tensor | None = None
        if medium.shown is not None:
            shown = torch.zeros(medium.end - medium.start, dtype=torch.bool)
            for first, last in medium.shown:
                shown[first - medium.start : last - medium.start] = True
        hashes.setdefault(medium.kind, []).append(version.media_hash(medium.key))
        span = PlaceholderRange(offset=medium.start, length=medium.end - medium.start, is_embed=shown)
        places.setdefault(medium.kind, []).append(span)
    return mm_input(list(placed.ids), MultiModalKwargsItems(items), hashes, places, cache_salt=version.salt)


def _items(placed: Placed, patches: Mapping[str, np.ndarray]) -> Any:
    """The media as vLLM splits and batches them."""
    from transformers import BatchFeature
    from vllm.model_executor.models.qwen2_vl import _create_qwen2vl_field_factory  # pyright: ignore[reportMissingImports]
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems  # pyright: ignore[reportMissingImports]

    features: dict[str, torch.Tensor] = {}
    for kind, (values, grid) in FIELDS.items():
        own = [medium for medium in placed.media if medium.kind == kind]
        if own:
            features[values] = torch.cat([torch.from_numpy(patches[medium.key]) for medium in own])
            features[grid] = torch.tensor([medium.grid for medium in own])
    fields = {name: config for name, config in _create_qwen2vl_field_factory(placed.merge)(features).items() if name in features}
    seconds = [medium.seconds for medium in placed.media if medium.seconds is not None]
    if seconds:
        features["second_per_grid_ts"] = torch.tensor(seconds)
        fields["second_per_grid_ts"] = MultiModalFieldConfig.batched("video", keep_on_cpu=True)
    return MultiModalKwargsItems.from_hf_inputs(BatchFeature(features), fields)


class EngineInputBuilder:
    """Makes engine inputs of prompts, for one model."""

    def __init__(self, bundle: ProcessorBundle, positions: PositionSpec, pixels: Pixels):
        """
        Raises:
            ConfigError: the model is run in a way that vLLM does not have.
        """
        problems = problems_of(bundle, positions)
        if problems:
            raise ConfigError(problems)
        self.bundle = bundle
        self.positions = positions
        self.pixels = pixels
        self._checked: set[MediaKind] = set()

    def engine_input(self, prompt: Prompt, version: Version) -> Any:
        """What `add_request` of vLLM's engine takes.

        Raises:
            ConfigError: the model's processor does more than to rescale and normalise.
            ValueError: spans and media of the prompt do not belong together.
        """
        return engine_input_of(self.placed(prompt), {handle.key: self.patches(handle) for handle in prompt.media}, version)

    def placed(self, prompt: Prompt) -> Placed:
        """Where everything of a prompt stands.

        Raises:
            ValueError: spans and media of the prompt do not belong together.
        """
        return place(prompt, merge=self.bundle.merge_size, timed=self.positions.tokens_per_second is not None)

    def patches(self, handle: MediaHandle) -> np.ndarray:
        """Pixels of a medium in the order of the processor's patches, uint8 [patches, dim].

        Raises:
            ConfigError: normalised, they are not the patches that the trainer uses.
        """
        medium = self.pixels.get_key(handle.key)
        b = self.bundle
        raw = medium.pixel_values
        if raw.dtype != np.uint8:
            raw = raw_patches(medium.frames, patch=b.patch_size, merge=b.merge_size, temporal=b.temporal_patch_size)
        if handle.kind not in self._checked:
            seen = b.pixel_values(medium.pixel_values, handle.kind).numpy()
            difference = float(np.abs(normalised(raw, _processor(b, handle.kind)) - seen).max())
            if not difference <= ROUNDING:
                raise ConfigError(
                    f"rollout.engine: the {handle.kind} processor of this model makes patches that differ by {difference:.3g} from "
                    "rescaled and normalised pixels, which is what vLLM's tower makes of them; use rollout.engine: hf"
                )
            self._checked.add(handle.kind)
        return raw


def _processor(bundle: ProcessorBundle, kind: MediaKind) -> Any:
    return bundle.processor.image_processor if kind == "image" else bundle.processor.video_processor


def normalised(raw: np.ndarray, processor: Any) -> np.ndarray:
    """What vLLM's tower makes of the patches: (pixels / 255 - mean) / deviation per channel, float32."""
    mean, std = (np.asarray(values, dtype=np.float32)[None, :, None] for values in (processor.image_mean, processor.image_std))
    x = raw.reshape(len(raw), mean.shape[1], -1).astype(np.float32) * np.float32(processor.rescale_factor)
    return ((x - mean) / std).reshape(raw.shape)


def problems_of(bundle: ProcessorBundle, positions: PositionSpec) -> list[str]:
    """How a model is run that vLLM has no way to run; empty where it can."""
    out: list[str] = []
    if positions.rule != "max":
        out.append(
            f"model.positions ('{positions.rule}'): vLLM knows the rule 'max' only, and under another its log-probs are those of another "
            "policy; train with model.positions: max, or use rollout.engine: hf"
        )
    image, video = bundle.processor.image_processor, bundle.processor.video_processor
    for name in ("image_mean", "image_std", "rescale_factor"):
        ours, theirs = getattr(image, name), getattr(video, name)
        if np.any(np.asarray(ours) != np.asarray(theirs)):
            out.append(f"rollout.engine: {name} is {ours} for images and {theirs} for videos; vLLM uses that of images for both")
    return out


def sampling_params(settings: GenerationSettings, seed: int, *, ends: Sequence[int], forbidden: Sequence[int]) -> Any:
    """How one answer is drawn. Ends are ours alone: those of the model's own files are ignored."""
    from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]

    return SamplingParams(
        n=1,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=0,
        seed=seed,
        max_tokens=settings.max_new_tokens,
        logprobs=0,
        ignore_eos=True,
        stop_token_ids=list(ends),
        logit_bias=dict.fromkeys(forbidden, BANNED),
        detokenize=False,
    )


def answer_of(output: Any) -> Completion:
    """A finished output of vLLM's engine."""
    completion = output.outputs[0]
    ids = tuple(int(i) for i in completion.token_ids)
    logprobs = tuple(float(step[i].logprob) for i, step in zip(ids, completion.logprobs or (), strict=False))
    return Completion(
        ids=ids,
        logprobs=logprobs,
        reason=str(completion.finish_reason),
        cached=int(output.num_cached_tokens or 0),
        prompt_ids=tuple(output.prompt_token_ids or ()),
    )

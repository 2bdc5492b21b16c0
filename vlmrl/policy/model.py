"""A policy: the model on its device, its processor, and its adapters (LoRA). What `load` and `lora` make and everything else uses."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from vlmrl.families.base import Family
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS
from vlmrl.policy.attention import Backend
from vlmrl.policy.pack import PositionSpec
from vlmrl.policy.patches import Scale, raw_patches
from vlmrl.policy.root import Shards, Unsharded
from vlmrl.types import MediaKind

if TYPE_CHECKING:
    from vlmrl.media.argued import Argue, Writer

ADAPTER = "default"
"""peft's name of the only adapter."""


@dataclass(frozen=True, kw_only=True)
class ProcessorBundle:
    """Tokenizer, image and video processing of one model, and the numbers that depend on them."""

    family: Family
    """What is special about this kind of model."""
    processor: Any
    tokenizer: Any
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    pad_ids: dict[MediaKind, int]
    special_ids: frozenset[int]
    forbidden_ids: tuple[int, ...]
    """Visual control tokens: a policy must never sample them."""
    end_ids: tuple[int, ...]
    """Tokens that end an answer."""
    fingerprint: str
    """Hash of the files that decide token ids and pixels."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """The tokenizer is not for several threads at once, and answers are scored while others are still generated."""
    step_times: bool = False
    """Whether the model reads the time of each temporal step of a video as text (`MediaStore(step_times=...)`)."""
    writer: Writer | None = None
    """The family's own processor, where it cuts media and writes prompts; None: `patchify` and `data.encode` do."""
    layouts: tuple[str, ...] = ()
    """Layouts that `vlmrl check` admitted for such a family, beside the reference."""

    @property
    def argue(self) -> Argue | None:
        """What `writer` makes of a medium, for the store."""
        return None if self.writer is None else self.writer.argue

    def patchify(self, frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Cut processed frames, uint8 [T, H, W, 3], into patches. Resizing has been done before.

        Frames repeat along time to a full temporal patch for images, as the model's own processor does.

        Returns:
            (patches [n, dim], grid (t, h, w)). Patches are uint8, which `scales` takes to what the tower sees; float32 where it is empty.
        """
        if kind not in self.scales:
            return self.processed(frames, kind)
        raw = raw_patches(frames, patch=self.patch_size, merge=self.merge_size, temporal=self.temporal_patch_size)
        count, height, width = frames.shape[:3]
        return raw, (-(-count // self.temporal_patch_size), height // self.patch_size, width // self.patch_size)

    @property
    def patch_dtype(self) -> type[np.generic]:
        """Of the patches."""
        return np.uint8 if self.scales else np.float32

    @functools.cached_property
    def scales(self) -> Mapping[MediaKind, Scale]:
        """What the processor takes pixels to, by kind; empty where it does anything else with one of them."""
        if self.writer is not None:
            return {}
        image, video = self.processor.image_processor, self.processor.video_processor
        out: dict[MediaKind, Scale] = {"image": Scale.of(image), "video": Scale.of(video)}
        sizes = {"patch": self.patch_size, "merge": self.merge_size, "temporal": self.temporal_patch_size}
        # tried on all values of a byte: only a processor that gives these bits is replaced
        frames: dict[MediaKind, int] = {"image": 1, "video": 2 * self.temporal_patch_size}
        if not all(scale.is_of(lambda x, k=kind: self.processed(x, k)[0], frames=frames[kind], **sizes) for kind, scale in out.items()):
            return {}
        return out

    def pixel_values(self, patches: np.ndarray, kind: MediaKind) -> torch.Tensor:
        """Turn patches into what the tower sees.

        Returns:
            [n, dim] float32, on the CPU.
        """
        values = torch.from_numpy(patches)
        return self.scales[kind](values) if values.dtype == torch.uint8 else values

    def processed(self, frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Cut as `patchify` does, float32 by the model's own processor."""
        tensor = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)  # [T, H, W, 3] -> [T, 3, H, W]
        if kind == "image":
            out = self.processor.image_processor(images=[tensor[0]], do_resize=False, return_tensors="pt")
            values, grid = out["pixel_values"], out["image_grid_thw"]
        else:
            out = self.processor.video_processor(videos=[tensor], do_resize=False, do_sample_frames=False, return_tensors="pt")
            values, grid = out["pixel_values_videos"], out["video_grid_thw"]
        t, h, w = (int(v) for v in grid[0])
        return values.float().numpy(), (t, h, w)

    def tokenize(self, text: str) -> list[int]:
        """Turn plain text into ids, without special tokens around it."""
        with self.lock:
            return [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Any) -> str:
        """Turn answer ids into text, without control tokens."""
        with self.lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def piece(self, ids: Sequence[int]) -> str:
        """Turn ids that may begin or end inside a word into text, control tokens included."""
        with self.lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSpec:
    """Size and place of the adapters."""

    rank: int
    alpha: float
    """The update is scaled by alpha / rank."""
    targets: tuple[str, ...] = LANGUAGE_TARGETS
    """Last part of the names of the language model's layers that get an adapter. The default, all linear layers of a Qwen decoder layer,
    means all linear layers of the decoder in a family without code of its own, whatever they are called."""
    vision: bool = False
    """Whether all linear layers of the vision tower and its mergers get one too."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The adapters that a model carries."""

    spec: LoraSpec
    tuner: Any
    """peft's LoraModel around the policy's model."""
    layers: dict[str, Any]
    """Name in the model -> peft's layer, in the order of the model."""
    names: frozenset[str]
    """Names of the trained tensors among the model's parameters."""
    on_vision: bool
    """Whether features of media depend on the adapters."""

    @contextmanager
    def off(self) -> Iterator[None]:
        """Open a context in which the model computes with its own weights alone, exactly. May be nested."""
        # only what is on now: an inner context must not switch on what an outer one has switched off
        on = [layer for layer in self.layers.values() if not layer.disable_adapters]
        trains = [(p, p.requires_grad) for layer in on for p in lora_weights(layer)]
        try:
            for layer in on:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in on:
                layer.enable_adapters(True)
            for parameter, flag in trains:  # switching on makes all of them train, frozen parts too
                parameter.requires_grad_(flag)

    def merged(self, name: str, full: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> torch.Tensor:
        """Add the adapter of one layer to its weight: W + (alpha / rank) B A, summed in float64. `full` gathers shards.

        Returns:
            [out, in], a fresh tensor; float32 where W has 16 bits or 4, which would round most updates away. A layer in 4 bits
            (`policy.nf4`) says itself what it computes with.
        """
        layer = self.layers[name]
        base = layer.get_base_layer()
        dense = getattr(base, "dense", None)
        weight = full(base.weight).detach() if dense is None else dense()
        a, b = (full(part[ADAPTER].weight).detach().double() for part in (layer.lora_A, layer.lora_B))
        # one rounding, at the end: an exported folder and a stage that goes on in this process have the same bits
        total = torch.addmm(weight.double(), b, a, alpha=self.spec.alpha / self.spec.rank)
        return total.to(torch.promote_types(weight.dtype, torch.float32))


@dataclass(kw_only=True)
class Policy:
    """A model on its device. `version` counts weight updates and is stamped on every rollout."""

    model: Any
    bundle: ProcessorBundle
    positions: PositionSpec
    device: torch.device
    version: int = 0
    vision_version: int = 0
    """Version of the weights that vision features depend on; stays the same while the tower is frozen."""
    vision_trains: bool = False
    vision_chunk_patches: int | None = None
    """Bound of the patches of one pass of the tower (`policy.vision`); None: all media of a kind at once."""
    prefix_backend: Backend = "dense"
    """Attention over packed rows (`policy.attention`)."""
    prefix_reason: str = ""
    """Why that backend was taken, for the log."""
    deepstack: int = 0
    """Levels of features that the tower gives besides the merged ones; level i is added to the hidden states after decoder layer i
    (0-based) at the visual columns. 0 for models without them."""
    compute: torch.dtype = torch.float32
    """Type of the forward pass, and of the weights of parts that do not train (`policy.precision`). What trains stays float32: at learning
    rates of RL an update is smaller than what bfloat16 can add to a weight, so it would silently stop learning."""
    quantized: Literal["none", "nf4"] = "none"
    """Form of the decoder's linear layers (`policy.nf4`). What is not `none` has adapters that train, and never changes itself."""
    lora: Adapters | None = None
    """Low-rank adapters in `model` (`policy.lora`); then they alone train."""
    adapters_on: bool = True
    """False: a view of the model under its adapters."""
    decode_grid: Callable[..., Any] | None = None
    """Makes the cache of the reference engine where layers keep more than keys and values; None: `rollout.grid.DecodeGrid`."""
    sequence: Any = None
    """The ranks that share packed rows (`train.sequence`); None: every rank computes its own alone."""
    subject: Any = None
    """For families without code of their own (`policy.foreign`): the model as they run it, with its `core`; can `hand_over` a medium."""
    layouts: Mapping[str, Any] | None = None
    """The layouts of such a family; None: those of `policy.forward`."""
    shards: Shards = field(default_factory=Unsharded)
    """Where the weights are; a training engine puts them there (`train.updates`)."""

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Open the context of every forward pass: the compute type, and in a view without adapters these switched off."""
        with ExitStack() as stack:
            if self.lora is not None and not self.adapters_on:
                stack.enter_context(self.lora.off())
            stack.enter_context(torch.autocast(self.device.type, dtype=self.compute, enabled=self.compute != torch.float32))
            yield

    def without_adapters(self) -> Policy:
        """View the weights under the adapters as a policy of its own, over the same memory. It has nothing that trains.

        Raises:
            ValueError: the policy has no adapters.
        """
        if self.lora is None:
            raise ValueError("the policy has no adapters, so its own weights are the ones that train: load the others beside it")
        return replace(self, adapters_on=False, vision_trains=False)

    def state(self, *, ordered: bool = False, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield everything that the model's `state_dict` holds, in its order or by name.

        Where weights lie in shards they are gathered one by one: every rank goes through all of them that are `wanted`.

        Yields:
            (name, whole tensor); tied ones are one tensor.
        """
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        uses = Counter(map(id, parameters.values()))
        tied: dict[int, torch.Tensor] = {}
        state = self.model.state_dict()
        for name in filter(wanted, sorted(state) if ordered else state):
            own = id(parameters.get(name))  # tied weights are one object under several names, gathered once
            whole = tied[own] if own in tied else self.shards.full(parameters.get(name, state[name])).detach()
            if uses[own] > 1:
                tied[own] = whole
            yield name, whole

    @property
    def core(self) -> Any:
        """The model without its head (holds `visual` and `language_model`)."""
        return self.model.model if self.subject is None else self.subject.core

    @property
    def head(self) -> torch.Tensor:
        """The output matrix, [V, H]."""
        return self.model.get_output_embeddings().weight


def lora_weights(layer: Any) -> list[torch.nn.Parameter]:
    """Return A and B of one of peft's layers."""
    return [layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight]

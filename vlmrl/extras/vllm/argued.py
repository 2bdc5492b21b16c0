"""Media as a family's own processor made them, as vLLM's registered processor of the model passes them on.

That one calls the model's own processor, adds what the model asks for beside it (how many tiles a medium has, for example), and says which
rows of a tensor belong to which medium. Here the call is answered with what our store holds, so pixels are the trainer's, and all around
them is vLLM's own. Each medium is passed on by itself, as it was processed.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.inputs import Placed, PlacedMedium, Version, mm_input_of, place
from vlmrl.extras.vllm.wire import WireError, tensors_from, tensors_message
from vlmrl.families.report import report_of
from vlmrl.policy.load import load_processor
from vlmrl.policy.model import ProcessorBundle
from vlmrl.policy.vision import Pixels
from vlmrl.types import MediaHandle, MediaKind, Prompt

_ERRORS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""What vLLM's processors raise where they do not take what ours made."""
MOST_PIXELS = 2**30
"""Of one medium on a server."""
MOST_PLANS = 2**14
"""Sizes of media that a server knows."""
CLIPS = "rollout.engine: 'vllm' is not proven with videos of this model; take hf; "


def lacks(bundle: ProcessorBundle, path: str, promise: str, *, here: bool = True) -> str:
    """Why vLLM is not proven with a model that is run through its own processor; nothing where it is, and for any other model.

    Args:
        here: vLLM runs in this environment, and has to be that which was tried.
    """
    if bundle.writer is None:
        return ""
    report = report_of(path)
    if report is None:
        return f"no report lies beside it: `vlmrl check` of a folder with the model with --engine vllm tries promise {promise}"
    return report.lacks(promise, here=here)


def require_proven(bundle: ProcessorBundle, path: str, option: str) -> None:
    """
    Raises:
        ConfigError: vLLM is not proven with the model.
    """
    if why := lacks(bundle, path, "P14"):
        who = f"a '{bundle.family.name}' model under model.family '{bundle.family.choice}'"
        raise ConfigError(f"{option}: not proven with {who}; take hf: the policy itself answers; {why}")


class ArguedMedia:
    """Media of prompts and where they stand, as a server takes them."""

    def __init__(self, pad_ids: Mapping[MediaKind, int], pixels: Pixels, *, clips: str = ""):
        """
        Args:
            pad_ids: placeholders of the family by kind.
            clips: why videos are not taken; nothing where they are.
        """
        self.pixels, self._pad_ids, self._clips = pixels, pad_ids, clips

    def placed(self, prompt: Prompt) -> Placed:
        """Where everything of a prompt stands.

        Raises:
            ConfigError: it has a video, and these are not taken.
            ValueError: spans and media of the prompt do not belong together.
        """
        if self._clips and any(handle.kind == "video" for handle in prompt.media):
            raise ConfigError(CLIPS + self._clips)
        return place(prompt, merge=1, timed=False, pads=self._pad_ids)

    def patches(self, handle: MediaHandle) -> np.ndarray:
        """What the family's processor has made of a medium, as bytes (`wire.tensors_message`).

        Raises:
            ConfigError: that is not tensors alone.
        """
        arguments = self.pixels.get_key(handle.key).argued.arguments
        other = [name for name, value in arguments.items() if not isinstance(value, torch.Tensor)]
        if other:
            raise ConfigError(
                f"rollout.vllm.servers: the model's processor makes a '{other[0]}' that is no tensor; leave them out, and vLLM runs in the "
                "trainer's process"
            )
        return tensors_message(arguments)


class ArguedInputs(ArguedMedia):
    """Makes engine inputs of the prompts of a family that is run through its own processor, in this process."""

    def __init__(self, processor: Any, pad_ids: Mapping[MediaKind, int], pixels: Pixels, model_config: Any, *, clips: str = ""):
        """
        Args:
            processor: the family's own.
            model_config: vLLM's, of the engine that is asked.
        """
        super().__init__(pad_ids, pixels, clips=clips)
        self._registered = _Registered(processor, pad_ids, model_config)

    def engine_input(self, prompt: Prompt, version: Version) -> Any:
        """Make what `add_request` of vLLM's engine takes.

        Raises:
            ConfigError: vLLM does not take a medium of this model as its own processor makes it.
            ValueError: spans and media of the prompt do not belong together.
        """
        placed = self.placed(prompt)
        return self._registered.engine_input(placed, {h.key: self.pixels.get_key(h.key).argued.arguments for h in prompt.media}, version)


class ServedInputs:
    """Makes them on a server, of what a trainer has sent. Nothing of that is trusted: a medium has to be what the server's own processor
    makes of that size, but for its pixels."""

    def __init__(self, path: str, model_config: Any, *, clips: str, **given: Any):
        """
        Args:
            path: of the model.
            model_config, clips: as of `ArguedInputs`.
            given: what `load_processor` is told.

        Raises:
            ConfigError: the model is not run through its own processor.
        """
        bundle = load_processor(path, **given)
        if bundle.writer is None:
            raise ConfigError(f"{path}: media of a '{bundle.family.name}' model are patches")
        self.fingerprint, self._clips, self._argue = bundle.fingerprint, clips, bundle.writer.argue
        self._registered = _Registered(bundle.processor, bundle.pad_ids, model_config)
        self._plan = lru_cache(MOST_PLANS)(self._planned)
        self._lock = threading.Lock()

    def engine_input(self, placed: Placed, patches: Mapping[str, np.ndarray], version: Version) -> Any:
        """Make what `generate` of vLLM's engine takes. `patches`: as `ArguedMedia.patches` gives them, by key.

        Raises:
            ConfigError: vLLM does not take a medium of this model as its own processor makes it.
            WireError: a medium is not what the processor makes of its size.
        """
        with self._lock:
            return self._registered.engine_input(placed, {one.key: self.taken(one, patches[one.key]) for one in placed.media}, version)

    def taken(self, medium: PlacedMedium, sent: np.ndarray) -> dict[str, torch.Tensor]:
        """The tensors of a medium that was sent.

        Raises:
            ConfigError: it is a video, and these are not taken.
            WireError: a tensor is missing, or has another size or type than the processor's own; or there is one more.
        """
        kind: MediaKind = "image" if medium.seconds is None else "video"
        if kind == "video" and self._clips:
            raise ConfigError(CLIPS + self._clips)
        if math.prod(medium.grid) > MOST_PIXELS:
            raise WireError(f"a medium of {medium.grid} has more than {MOST_PIXELS} pixels")
        out, plan = tensors_from(sent), self._plan(kind, medium.grid)
        found = _facts(medium.kind, _tokens(medium), out)
        for name in {**plan, **found}:
            if found.get(name) != plan.get(name):
                made, own = (of.get(name, "missing") for of in (found, plan))
                raise WireError(f"'{name}' of a medium of {medium.grid} is {made}, and the processor of this server makes {own}")
        return out

    def _planned(self, kind: MediaKind, grid: tuple[int, int, int]) -> dict[str, Any]:
        """What the processor makes of black pixels of this size, by name."""
        made = self._argue(np.zeros((*grid, 3), np.uint8), kind, None, None)
        return _facts(made.kind, made.tokens, made.arguments)


def _facts(kind: MediaKind, tokens: int, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What follows from a medium's size, by name."""
    return {"placeholders": (kind, tokens), **{name: _spec(tensor) for name, tensor in tensors.items()}}


def _spec(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], str]:
    """Its type, its shape, and whole numbers (counts, grids, masks)."""
    free = tensor.is_floating_point() or tensor.dtype == torch.uint8
    held = "" if free else hashlib.blake2b(tensor.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), held


def _tokens(medium: PlacedMedium) -> int:
    return sum(end - start for start, end in medium.shown or ((medium.start, medium.end),))


class _Registered:
    """vLLM's processor of a model, in which ours stands in place of the model's."""

    def __init__(self, processor: Any, pad_ids: Mapping[MediaKind, int], model_config: Any):
        from transformers import BatchFeature
        from vllm.multimodal import MULTIMODAL_REGISTRY  # pyright: ignore[reportMissingImports]
        from vllm.multimodal.processing import InputProcessingContext  # pyright: ignore[reportMissingImports]

        made: list[dict[str, Any]] = []

        class Ours(InputProcessingContext):
            def get_hf_processor(self, *_: Any, **__: Any) -> Any:
                return processor  # with the caps that the recipe sets

            def call_hf_processor(self, *_: Any, **__: Any) -> Any:
                if not made:
                    raise ValueError("its processor in vLLM asks the model's own more than once")
                return BatchFeature(self._postprocess_output(made.pop()))

        self._made, self._pad_ids = made, pad_ids
        self._theirs: Any = MULTIMODAL_REGISTRY.create_processor(model_config)
        context = self._theirs.info.ctx
        self._theirs.info.ctx = Ours(context.model_config, context.tokenizer)

    def engine_input(self, placed: Placed, media: Mapping[str, Mapping[str, Any]], version: Version) -> Any:
        """Make what vLLM's engine takes. `media`: what the family's processor has made of each, by key.

        Raises:
            ConfigError: vLLM does not take one of them.
        """
        items: dict[str, list[Any]] = {}
        for medium in placed.media:
            try:
                items.setdefault(medium.kind, []).append(self._item(medium, media[medium.key]))
            except _ERRORS as error:
                first = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
                what = "image" if medium.seconds is None else "video"
                raise ConfigError(
                    f"rollout.engine: vLLM does not take this {what} as the model's own processor makes it ({first}); take hf"
                ) from error
        return mm_input_of(placed, items, version)

    def _item(self, medium: PlacedMedium, arguments: Mapping[str, Any]) -> Any:
        """Pass a medium on.

        Raises:
            ValueError: what vLLM makes of it is not one medium, or does not hold all of it.
        """
        from vllm.multimodal.inputs import MultiModalKwargsItems  # pyright: ignore[reportMissingImports]

        # copies: some of these processors change a tensor's shape in place
        tensors = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
        ids = torch.full((1, _tokens(medium)), self._pad_ids[medium.kind])
        self._made[:] = [{**tensors, "input_ids": ids, "attention_mask": torch.ones_like(ids)}]
        items = self._theirs.info.parse_mm_data({medium.kind: _shown(medium)})
        found = self._theirs._apply_hf_processor_main(items, {})
        if self._made:
            raise ValueError("its processor in vLLM does not ask the model's own")
        split = MultiModalKwargsItems.from_hf_inputs(found, self._theirs._get_mm_fields_config(found, {}))
        (kind, whole), *others = split.items()
        if others or kind != medium.kind or len(whole) != 1:
            raise ValueError(f"one medium became {', '.join(f'{len(of)} of kind {name}' for name, of in split.items())}")
        for name, element in whole[0].items():
            for dim, part in enumerate(_last(getattr(element.field, "slices", ()))):
                rows = found[name].shape[dim]
                if part.stop not in (None, rows):
                    raise ValueError(f"vLLM counts {int(part.stop)} rows of '{name}', and ours has made {rows}")
        return whole[0]


def _last(slices: Any) -> tuple[slice, ...]:
    """Where the last medium of a flat field lies, by dimension."""
    last = slices[-1] if len(slices) else ()
    return (last,) if isinstance(last, slice) else tuple(last)


def _shown(medium: PlacedMedium) -> Any:
    """A medium as vLLM's processors read sizes and times from it, black: pixels come from what ours made."""
    frames = np.zeros((*medium.grid, 3), np.uint8)
    if medium.kind == "image":
        return [frames[0]]
    count, seconds = len(frames), medium.seconds or 1.0
    told = {"total_num_frames": count, "fps": 1 / seconds, "duration": count * seconds, "frames_indices": list(range(count))}
    return [(frames, told | {"do_sample_frames": False, "video_backend": "vlmrl"})]

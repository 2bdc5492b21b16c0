"""Media as a family's own processor made them, as vLLM's registered processor of the model passes them on.

That one calls the model's own processor, adds what the model asks for beside it (how many tiles a medium has, for example), and says which
rows of a tensor belong to which medium. Here the call is answered with what our store holds, so pixels are the trainer's, and all around
them is vLLM's own. Each medium is passed on by itself, as it was processed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.inputs import Version, mm_input_of, place
from vlmrl.families.report import report_of
from vlmrl.policy.model import ProcessorBundle
from vlmrl.policy.vision import Pixels
from vlmrl.types import MediaHandle, MediaKind, Prompt

_ERRORS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""What vLLM's processors raise where they do not take what ours made."""


def lacks(bundle: ProcessorBundle, path: str, promise: str) -> str:
    """Why vLLM is not proven with a model that is run through its own processor; nothing where it is, and for any other model."""
    if bundle.writer is None:
        return ""
    report = report_of(path)
    if report is None:
        return f"no report lies beside it: `vlmrl check` of a folder with the model with --engine vllm tries promise {promise}"
    return report.lacks(promise)


class ArguedInputs:
    """Makes engine inputs of the prompts of a family that is run through its own processor."""

    def __init__(self, processor: Any, pad_ids: Mapping[MediaKind, int], pixels: Pixels, model_config: Any, *, clips: str = ""):
        """
        Args:
            processor: the family's own.
            pad_ids: its placeholders by kind.
            model_config: vLLM's, of the engine that is asked.
            clips: why videos are not taken; nothing where they are.
        """
        self.pixels, self._clips = pixels, clips
        self._registered = _Registered(processor, pad_ids, model_config)

    def engine_input(self, prompt: Prompt, version: Version) -> Any:
        """Make what `add_request` of vLLM's engine takes.

        Raises:
            ConfigError: vLLM does not take a medium of this model as its own processor makes it.
            ValueError: spans and media of the prompt do not belong together.
        """
        media = [self.pixels.get_key(handle.key) for handle in prompt.media]
        items: dict[str, list[Any]] = {}
        for handle, medium in zip(prompt.media, media, strict=True):
            items.setdefault(medium.argued.kind, []).append(self._item(handle, medium))
        placed = place(prompt, merge=1, timed=False, kinds=[medium.argued.kind for medium in media])
        return mm_input_of(placed, items, version)

    def _item(self, handle: MediaHandle, medium: Any) -> Any:
        if self._clips and handle.kind == "video":
            raise ConfigError(f"rollout.engine: 'vllm' is not proven with videos of this model; take hf; {self._clips}")
        try:
            return self._registered.item(handle, medium)
        except _ERRORS as error:
            first = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            raise ConfigError(
                f"rollout.engine: vLLM does not take this {handle.kind} as the model's own processor makes it ({first}); take hf"
            ) from error


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

    def item(self, handle: MediaHandle, medium: Any) -> Any:
        """Pass a medium on.

        Raises:
            ValueError: what vLLM makes of it is not one medium, or does not hold all of it.
        """
        from vllm.multimodal.inputs import MultiModalKwargsItems  # pyright: ignore[reportMissingImports]

        argued = medium.argued
        # copies: some of these processors change a tensor's shape in place
        tensors = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in argued.arguments.items()}
        ids = torch.full((1, argued.tokens), self._pad_ids[argued.kind])
        self._made[:] = [{**tensors, "input_ids": ids, "attention_mask": torch.ones_like(ids)}]
        items = self._theirs.info.parse_mm_data({argued.kind: _shown(handle, medium)})
        found = self._theirs._apply_hf_processor_main(items, {})
        if self._made:
            raise ValueError("its processor in vLLM does not ask the model's own")
        split = MultiModalKwargsItems.from_hf_inputs(found, self._theirs._get_mm_fields_config(found, {}))
        (kind, whole), *others = split.items()
        if others or kind != argued.kind or len(whole) != 1:
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


def _shown(handle: MediaHandle, medium: Any) -> Any:
    """A medium as vLLM's processors read sizes and times from it; pixels come from what ours made."""
    frames = medium.frames
    if medium.argued.kind == "image":
        return [frames[0]]
    count, times = len(frames), handle.step_times or ()
    span = handle.duration or (times[-1] - times[0] if len(times) > 1 else 0.0) or float(count)
    told = {"total_num_frames": count, "fps": count / span, "duration": span, "frames_indices": list(range(count))}
    return [(frames, told | {"do_sample_frames": False, "video_backend": "vlmrl"})]

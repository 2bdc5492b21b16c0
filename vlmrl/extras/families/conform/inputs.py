"""Promises about what goes into a model: ids (P1), tokens per medium (P2), pixels (P3), features handed over (P4), positions (P5)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmrl.extras.families import generic, layouts
from vlmrl.extras.families.conform.check import Check, broken, equal
from vlmrl.extras.families.conform.subject import Asked, Tried
from vlmrl.extras.families.generic import Clip

ERRORS = (ValueError, RuntimeError, TypeError, KeyError, IndexError, StopIteration, AttributeError, ImportError, AssertionError)
"""What processors and models raise when something does not fit."""


def ids(tried: Tried) -> list[Check]:
    """P1: ids of a prompt are those that `apply_chat_template(tokenize=True)` gives for the same pictures and frames."""
    out: list[Check] = []
    for name, asked in tried.asked.items():
        if name in tried.failed:
            out.append(Check("P1", name, "encoded", float("nan"), 0.0, note=tried.failed[name]))
            continue
        try:
            theirs = _theirs(tried.processor, asked)
        except ERRORS as error:
            out.append(broken("P1", name, "ids of the chat template", error))
            continue
        ours = tried.prompts[name].ids_P.tolist()
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        note = f"{len(ours)} ids, {len(theirs)} of the template; they part at {first}"
        out.append(equal("P1", name, "ids of the chat template", ours == theirs, note))
    return out


def _theirs(processor: Any, asked: Asked) -> list[int]:
    """Ids as the processor makes them from a conversation with its media inside."""
    media = iter(asked.media)
    messages: list[dict[str, Any]] = []
    times: list[Any] = []
    for message in asked.messages:
        parts: list[dict[str, Any]] = []
        for part in message["content"]:
            found = next(media) if part["type"] in ("image", "video") else None
            if isinstance(found, Clip):
                parts.append({"type": "video", "video": found.frames})
                times.append(generic.times(found))
            else:
                parts.append(part if found is None else {"type": "image", "image": found})
        messages.append({"role": message["role"], "content": parts})
    clips: dict[str, Any] = {"do_sample_frames": False, "video_metadata": [times]} if times else {}
    got = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, add_generation_prompt=True, return_tensors="pt", processor_kwargs=clips
    )
    return got["input_ids"][0].tolist()


def counts(tried: Tried) -> list[Check]:
    """P2: a medium has as many placeholder tokens as its tower gives features."""
    out: list[Check] = []
    for name, prompt in tried.prompts.items():
        if not prompt.counts:
            continue
        try:
            with torch.no_grad():
                found = [one.count for one in tried.scored(name, [[0]]).media]
        except ERRORS as error:
            out.append(broken("P2", name, "features", error))
            continue
        out.append(equal("P2", name, "placeholders are features", found == list(prompt.counts), f"{prompt.counts} and {found}"))
    return out


def pixels(tried: Tried) -> list[Check]:
    """P3: what the processor makes of a picture does not depend on the type that holds it (numpy, torch, PIL)."""
    prompt = tried.prompts.get("image")
    if prompt is None:
        return []
    picture = tried.asked["image"].media[0]
    assert isinstance(picture, np.ndarray)
    out: list[Check] = []
    for name, other in _containers(picture).items():
        text = generic.rendered(tried.processor, tried.asked["image"].messages)
        got = tried.processor(text=[text], images=[[other]], return_tensors="pt", add_special_tokens=False)
        same = torch.equal(got["pixel_values"], prompt.inputs["pixel_values"])
        out.append(equal("P3", "image", f"the same pixels from {name}", same))
    return out


def _containers(picture: np.ndarray) -> dict[str, Any]:
    from PIL import Image

    return {"torch": torch.from_numpy(picture).permute(2, 0, 1), "PIL": Image.fromarray(picture)}


def handed_over(tried: Tried) -> list[Check]:
    """P4: features handed over give the logits of pixels, to the bit. What a model refuses as pixels may be handed over all the same."""
    out: list[Check] = []
    model, core = tried.subject.model, tried.subject.core
    wanted = inspect.signature(core.forward).parameters
    for name, prompt in tried.prompts.items():
        if not prompt.counts:
            continue
        scored = tried.scored(name, [[0]])
        dtype = next(model.parameters()).dtype
        whole = {k: generic.cast(v, dtype) for k, v in prompt.inputs.items()}
        kept = {k: v for k, v in whole.items() if k in wanted and not k.startswith("pixel_")}
        with torch.no_grad():
            try:
                generic.forget(core)
                ours = model(**kept, use_cache=False, **layouts.features_of(scored.media)).logits
            except ERRORS as error:
                out.append(broken("P4", name, "features handed over", error))
                continue
            try:
                generic.forget(core)
                theirs = model(**whole, use_cache=False).logits
            except ERRORS as error:
                first = str(error).split("\n")[0]
                out.append(Check("P4", name, "runs with features", 0.0, 0.0, note=f"its own forward refuses pixels: {first}"[:200]))
                continue
        limit = 1e-9 if tried.exact else 1e-4
        out.append(Check("P4", name, "logits of pixels", float((ours - theirs).abs().max()), limit))
    return out


def positions(tried: Tried) -> list[Check]:
    """P5: positions of a prompt are those that the model gives its decoder when it is left alone."""
    out: list[Check] = []
    for name in tried.prompts:
        prompt = tried.prompts[name]
        try:
            theirs = _decoder_positions(tried, name)
        except ERRORS as error:
            out.append(broken("P5", name, "positions of the core", error))
            continue
        ours = generic.positions(tried.subject.core, prompt)
        ours = torch.arange(prompt.length) if ours is None else ours
        if theirs is None:
            same = torch.equal(ours, torch.arange(prompt.length).expand_as(ours))
        else:
            same = theirs.shape[-1] == prompt.length and torch.equal(theirs[:, 0] if theirs.ndim == 3 else theirs[0], ours)
        out.append(equal("P5", name, "positions of the core", same, f"{None if theirs is None else tuple(theirs.shape)}"))
    return out


def forgotten(tried: Tried) -> list[Check]:
    """P5: a core with M-RoPE remembers how far the positions of the prompt before were from its columns. No call of a layout meets that:
    it would count for whatever is left to the core to place."""
    core, name = tried.subject.core, next(iter(tried.prompts))
    if not hasattr(core, "rope_deltas"):
        return []
    out: list[Check] = []
    for layout, run in layouts.LAYOUTS.items():
        met: list[bool] = []
        core.rope_deltas = torch.tensor([[-3]])
        hook = core.register_forward_pre_hook(lambda module, _, met=met: met.append(module.rope_deltas is not None))
        try:
            with torch.no_grad():
                run(tried.subject, [tried.scored(name, [[0], [1]])])
        except ERRORS as error:
            out.append(broken("P5", name, f"{layout} forgets the prompt before", error))
            continue
        finally:
            hook.remove()
        out.append(equal("P5", name, f"{layout} forgets the prompt before", bool(met) and not any(met), f"{sum(met)} of {len(met)} calls"))
    return out


class _Seen(Exception):
    """The decoder has been called."""


def _decoder_positions(tried: Tried, name: str) -> Tensor | None:
    """What the decoder gets as positions when the model makes them; None where it leaves them to the decoder."""
    prompt = tried.prompts[name]
    core = tried.subject.core
    scored = tried.scored(name, [[0]])
    wanted = inspect.signature(core.forward).parameters
    kept = {k: v for k, v in prompt.inputs.items() if k in wanted and not k.startswith("pixel_")}
    seen: list[Tensor | None] = []

    def look(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        seen.append(kwargs.get("position_ids"))
        raise _Seen

    decoder = core.language_model if hasattr(core, "language_model") else tried.subject.model.get_decoder()
    hook = decoder.register_forward_pre_hook(look, with_kwargs=True)
    try:
        generic.forget(core)
        with torch.no_grad():
            core(**kept, use_cache=False, **layouts.features_of(scored.media))
    except _Seen:
        return seen[0]
    finally:
        hook.remove()
    raise RuntimeError("the decoder was not called")

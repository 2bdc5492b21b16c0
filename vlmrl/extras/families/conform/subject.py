"""What the promises are tried on: a model of any family, and prompts with text, pictures and clips."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlmrl.compat import ensure_torchvision
from vlmrl.errors import ConfigError
from vlmrl.extras.families import generic, layouts, probe
from vlmrl.extras.families.generic import Clip, Encoded, Medium, Message
from vlmrl.extras.families.layouts import PromptAnswers, Subject
from vlmrl.extras.families.shrink import shrunk
from vlmrl.extras.families.tiny import TINY, randomise
from vlmrl.families.packages import what_is_missing

LARGE = 200_000_000
"""Parameters beyond which a model is tried in float32."""


@dataclass(frozen=True)
class Asked:
    """A conversation of one message with its media."""

    messages: Sequence[Message]
    media: Sequence[Medium]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A model under test."""

    subject: Subject
    processor: Any
    facts: probe.Facts
    asked: Mapping[str, Asked]
    """By name, in the order in which they are tried."""
    prompts: Mapping[str, Encoded]
    """Those of them that could be encoded."""
    failed: Mapping[str, str]
    """Those that could not, and why."""
    folder: Path | None = None
    """Where its weights came from, if they are files."""

    @property
    def exact(self) -> bool:
        """Whether it runs in float64."""
        return next(self.subject.model.parameters()).dtype == torch.float64

    def scored(self, name: str, answers: Sequence[Sequence[int]]) -> PromptAnswers:
        """A prompt with fresh features, which carry gradients."""
        prompt = self.prompts[name]
        pairs = zip(prompt.arguments, prompt.kinds, strict=True)
        found = [generic.features(self.subject.core, argument, kind, prompt.copies) for argument, kind in pairs]
        return PromptAnswers(prompt=prompt, media=found, answers=answers)


def picture(height: int, width: int, shift: int) -> np.ndarray:
    """A smooth picture, uint8 [H, W, 3], another one for each shift."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin((x + shift) / 9), 128 + 100 * np.cos((y - shift) / 7), (x * 3 + y * 2 + 40 * shift) % 256]
    return np.stack(waves, -1).clip(0, 255).astype(np.uint8)


def questions(video: bool) -> dict[str, Asked]:
    """Text, one picture, two of unlike size, a picture behind text, a clip, a clip and a picture."""
    image, clip = {"type": "image"}, {"type": "video"}
    a, b = picture(64, 96, 1), picture(96, 64, 2)
    film = Clip(np.stack([picture(64, 64, 3 + t) for t in range(4)]), 2.0)
    out = {
        "image": _asked([image, "what is it?"], a),
        "text": _asked(["what is it?"]),
        "two": _asked([image, "and", image, "differ where?"], a, b),
        "behind": _asked(["look:", image], b),
    }
    if video:
        out |= {"video": _asked([clip, "when?"], film), "mixed": _asked([clip, "and", image, "alike?"], film, a)}
    return out


def _asked(parts: Sequence[Any], *media: Medium) -> Asked:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return Asked([{"role": "user", "content": content}], media)


def open_subject(path: str, cases: Sequence[str] = ()) -> Tried:
    """Load a model and encode the questions, or some of them.

    Raises:
        ConfigError: not found, or nothing of it can be used.
    """
    ensure_torchvision()
    from transformers import AutoModelForImageTextToText, AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
        model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
    except ImportError as error:
        raise ConfigError(what_is_missing(error, f"the processor of '{path}'")) from error
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise ConfigError(
            f"{path}: {first}\n  give a folder or a hub id of *.safetensors of a model that transformers itself has classes for"
        ) from error
    local = Path(path).expanduser()
    return replace(try_out(model, processor, cases), folder=local if local.is_dir() else None)


def open_small(path: str, cases: Sequence[str] = ()) -> Tried:
    """A small random model after the config of a folder, with the folder's own processor. No weights are read.

    Raises:
        ConfigError: not found.
    """
    ensure_torchvision()
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except ImportError as error:
        raise ConfigError(what_is_missing(error, f"the processor of '{path}'")) from error
    except (OSError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise ConfigError(f"{path}: {first}\n  give a folder, a hub id, or a name, as: {', '.join(TINY)}") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForImageTextToText.from_config(shrunk(config), dtype=torch.float32)
    randomise(model, 1)
    return try_out(model, processor, cases)


def try_out(model: Any, processor: Any, cases: Sequence[str] = ()) -> Tried:
    """A model that is in memory already."""
    count = sum(p.numel() for p in model.parameters())
    model = (model.double() if count <= LARGE else model).eval()
    if probe.facts(model, processor).experts:
        model.set_experts_implementation("eager")  # the default refuses float64
    subject = layouts.prepare(model)
    found = probe.facts(model, processor)
    asked = {name: one for name, one in questions(found.video).items() if not cases or name in cases}
    prompts: dict[str, Encoded] = {}
    failed: dict[str, str] = {}
    for name, one in asked.items():
        try:
            prompts[name] = generic.encode(processor, found.pads, one.messages, one.media)
        except (ValueError, RuntimeError, TypeError, KeyError, IndexError, StopIteration, AttributeError, ImportError) as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Tried(subject=subject, processor=processor, facts=found, asked=asked, prompts=prompts, failed=failed)


def own_logits(tried: Tried, scored: PromptAnswers, answer: Sequence[int]) -> Tensor:
    """Logits of a prompt with an answer behind it through the model's own forward, head and positions, [columns, V]."""
    prompt, model = scored.prompt, tried.subject.model
    wanted = inspect.signature(tried.subject.core.forward).parameters
    given = {k: v for k, v in prompt.inputs.items() if k in wanted and not k.startswith("pixel_") and k not in of_columns(prompt)}
    ids = torch.cat([prompt.ids_P, torch.tensor(list(answer), dtype=torch.int64)])[None]
    types = {name: torch.cat([kind, kind.new_zeros(len(answer))])[None] for name, kind in prompt.types.items() if name in wanted}
    generic.forget(tried.subject.core)
    media = layouts.features_of(scored.media)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given, **types, **media).logits[0]


def alone(tried: Tried, scored: PromptAnswers, answer: Sequence[int]) -> Tensor:
    """The reference: log-probs of an answer in a row of its own, [tokens]."""
    return layouts.logprobs(own_logits(tried, scored, answer)[scored.prompt.length - 1 : -1], answer)


def of_columns(prompt: Encoded) -> set[str]:
    """Arguments that stand for every column, which a longer row needs anew."""
    return {"input_ids", "attention_mask", *prompt.types}

"""Reads the requests of lmms-eval as jobs: which document, what is asked, how to generate. Pure; imports nothing of lmms-eval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import Generation
from vlmrl.types import GenerationSettings, Prompt

Key = tuple[str, str, int]
"""(task, split, document number)."""

DEFAULT_UNTIL = ["\n\n"]
"""What upstream fills in where a task names no stop strings. It cuts a chain of thought at its first blank line, so it is not obeyed; a
task that means it cannot be told from one that says nothing."""
MAX_NEW_TOKENS = 1024
"""Where a task names no length."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "num_beams": (None, 1),
    "n": (None, 1),
    "best_of": (None, 1),
    "num_return_sequences": (None, 1),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "length_penalty": (None, 1),
}
"""Keys that change what is generated and that our engines do not have -> the values that mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request for one answer."""

    key: Key
    doc: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    """As upstream tasks give them: `[{"role": ..., "content": [{"type": ..., "url" or "text": ...}]}]`."""
    settings: GenerationSettings
    until: tuple[str, ...]
    """Stop strings, the default aside."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to one document."""

    prompt: Prompt
    settings: GenerationSettings
    generation: Generation
    """As generated."""
    shown: str
    """What scorers were given."""


def read_request(arguments: tuple[Any, ...], task_dict: Mapping[str, Any]) -> Job:
    """A request of either layout. Chat: (text, doc -> messages, settings, document, task, split). Simple: (text, settings,
    doc -> visuals, document, task, split).

    Raises:
        ConfigError: it is of neither layout, a visual is of an unknown kind, or the settings cannot be obeyed.
    """
    if len(arguments) != 6:
        raise ConfigError(f"a request of lmms-eval with {len(arguments)} arguments; known are the chat and simple layouts, with 6")
    chat = callable(arguments[1])
    text, make, settings = (arguments[0], arguments[1], arguments[2]) if chat else (arguments[0], arguments[2], arguments[1])
    number, task, split = arguments[3], arguments[4], arguments[5]
    doc = task_dict[task][split][number]
    where = f"task '{task}', document {number}"
    messages = make(doc) if chat else _user_turn(make, doc, text, where)
    if not isinstance(messages, list):
        raise ConfigError(f"{where}: doc_to_messages gave {type(messages).__name__}; it must be a list of turns")
    return Job(
        key=(str(task), str(split), int(number)),
        doc=doc,
        messages=messages,
        settings=settings_of(settings, where),
        until=stop_strings(settings),
    )


def settings_of(given: Mapping[str, Any], where: str) -> GenerationSettings:
    """Generation settings of a task. Greedy, unless it asks for sampling (`do_sample`, or a temperature without it). Keys that are
    nothing to do with sampling, such as `image_aspect_ratio`, are other models' business.

    Raises:
        ConfigError: it asks for beams, penalties or other things that our engines do not do, or for no tokens.
    """
    for name, neutral in _NEUTRAL.items():
        if given.get(name) not in neutral:
            raise ConfigError(f"{where}: generation_kwargs.{name} is {given[name]!r}, which vlmrl's engines do not do; remove it")
    length = given.get("max_new_tokens", given.get("max_gen_toks"))
    length = MAX_NEW_TOKENS if length is None else int(length)
    if length < 1:
        raise ConfigError(f"{where}: generation_kwargs.max_new_tokens is {length}; it must be at least 1")
    temperature = given.get("temperature")
    sampled = given.get("do_sample")
    if sampled is False:
        temperature = 0.0
    elif temperature is None:
        temperature = 1.0 if sampled else 0.0
    top_p = given.get("top_p")
    return GenerationSettings(max_new_tokens=length, temperature=float(temperature), top_p=1.0 if top_p is None else float(top_p))


def stop_strings(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings that a task set itself; none where they are the default."""
    until = given.get("until") or []
    until = [until] if isinstance(until, str) else list(until)
    return () if until == DEFAULT_UNTIL else tuple(until)


def cut(text: str, until: Sequence[str]) -> str:
    """`text` before the first stop string in it."""
    places = [place for stop in until if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def _user_turn(visuals: Callable[[Any], Any], doc: Mapping[str, Any], text: str, where: str) -> list[dict[str, Any]]:
    """The message that the simple layout means: its visuals, then its text."""
    content: list[dict[str, Any]] = []
    for visual in visuals(doc) or []:
        if isinstance(visual, dict):
            raise ConfigError(f"{where}: a visual with {sorted(visual)}; audio and parts of videos are not supported")
        content.append({"type": _kind(visual), "url": visual})
    return [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def _kind(visual: object) -> str:
    """Upstream's rule: a path with the suffix of an image is an image, any other path a video."""
    suffixes = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tiff", ".webp")
    return "video" if isinstance(visual, str) and not visual.lower().endswith(suffixes) else "image"

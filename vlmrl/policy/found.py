"""Finds a model: a folder, the hub's cache on this machine, or the hub. Where the hub does not answer, it is asked once and not again."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from vlmrl.errors import ConfigError

PATIENCE = 5.0
"""Seconds for the hub to answer a request without a body. What is then downloaded has the hub's own limits and retries."""


def located(path: str, revision: str | None = None) -> str:
    """Say what to load a model from.

    Returns:
        The folder, with `~` expanded; an id of the hub as it is, where the hub answers; else the folder of the hub's cache.

    Raises:
        ConfigError: an id that is not in the cache, and the hub does not answer.
    """
    folder = Path(path).expanduser()
    if folder.exists():
        return str(folder)
    silent = why_no_hub()
    if silent is None:
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, "config.json", revision=revision)
    except HFValidationError:
        found = None
    if not isinstance(found, str):
        raise ConfigError(f"model.path: {problem_of(path, revision)}\n  {silent}")
    return str(Path(found).parent)


@functools.cache
def why_no_hub() -> str | None:
    """Ask the hub once in a process, without the retries of its own client; None where it answers, whatever it says."""
    from huggingface_hub import constants, get_session, is_offline_mode

    if is_offline_mode():
        return "the hub was not asked: HF_HUB_OFFLINE is set"
    session = get_session()
    # its client is that of httpx or of httpx2, by the hub's version
    client = importlib.import_module(type(session).__module__.partition(".")[0])
    try:
        session.head(constants.ENDPOINT, timeout=PATIENCE)
    except client.TransportError as error:
        return f"{constants.ENDPOINT} does not answer: {str(error) or type(error).__name__}"
    return None


def problem_of(model: str, revision: str | None = None) -> str | None:
    """Say why a model cannot be opened without a network; None where it can."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HFValidationError

    folder = Path(model).expanduser()
    if folder.exists() or model.startswith((".", "/", "~")):
        if not folder.is_dir():
            return f"no folder {model}"
        missing = _missing(folder)
        return None if missing is None else f"{model} has no {missing}; give the folder of a model with its processor, as it was published"
    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        return f"'{model}' is no folder here, and no id of the hub"
    get = f"get it with: hf download {model}"
    if not isinstance(found, str):
        return f"'{model}' is no folder here and not in the hub's cache ({HF_HUB_CACHE}); {get}"
    missing = _missing(Path(found).parent)
    return None if missing is None else f"the hub's cache holds only a part of '{model}', without {missing}; {get}"


def _missing(folder: Path) -> str | None:
    """The first file that a model needs and this folder lacks."""
    wanted = ("config.json", "*processor_config.json", "*.safetensors")
    return next((name for name in wanted if not any(folder.glob(name))), None)

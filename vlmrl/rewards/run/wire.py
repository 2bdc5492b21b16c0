"""The wire format between trainer and reward worker: groups as JSON values. Nothing that arrives can become code.

Numbers come back bit for bit (Python writes the shortest text that reads as the same float); tuples inside `gt` and `meta`, which
come from JSON rows, come back as lists.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from vlmrl.protocols import RewardContext
from vlmrl.types import Group, Guidance, MediaHandle, MediaRef, Prompt, Rollout, Sample, Turn, TurnRollout

_OURS = (Group, Prompt, Rollout, Sample, Turn, MediaRef, MediaHandle, Guidance)


def encode_call(group: Group, ctx: RewardContext) -> str:
    """Write group and context as one line of JSON. The decoded media of the context stay behind: a worker sees their handles only.

    Raises:
        TypeError: a value of the row is neither JSON nor of numpy.
    """
    call = {"group": group, "progress": ctx.progress}
    return json.dumps(call, default=_plain, separators=(",", ":"))


def decode_call(value: Mapping[str, Any]) -> tuple[Group, RewardContext]:
    """Read what `encode_call` was given.

    Returns:
        Group and context; the context knows its media by their handles only.

    Raises:
        KeyError, TypeError: keys are missing or unknown.
    """
    group = value["group"]
    return Group(
        id=group["id"],
        prompt=_prompt(group["prompt"]),
        rollouts=tuple(_rollout(r) for r in group["rollouts"]),
        guided=tuple(_prompt(p) for p in group["guided"]),
    ), RewardContext(progress=value["progress"])


def _plain(value: Any) -> Any:
    """One of our frozen types, a numpy scalar or array, or a mapping that is no dict, as JSON values."""
    if isinstance(value, _OURS):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.name != "routes"}
    if isinstance(value, Mapping):
        return dict(value)
    if type(value).__module__.split(".")[0] == "numpy":
        return value.tolist()
    raise TypeError(f"a reward worker is sent JSON values; the row holds a {type(value).__name__}: {value!r:.100}")


def _rollout(v: Mapping[str, Any]) -> Rollout:
    guidance = None if v["guidance"] is None else Guidance(**v["guidance"])
    given = {**v, "ids": tuple(v["ids"]), "logprobs": tuple(v["logprobs"]), "guidance": guidance}
    return TurnRollout(**{**given, "prompt": _prompt(v["prompt"])}) if "attempt" in v else Rollout(**given)


def _prompt(v: Mapping[str, Any]) -> Prompt:
    return Prompt(
        **{
            **v,
            "sample": _sample(v["sample"]),
            "ids": tuple(v["ids"]),
            "media": tuple(_handle(m) for m in v["media"]),
            "spans": tuple((start, end) for start, end in v["spans"]),
            "owners": tuple(v["owners"]),
        }
    )


def _sample(v: Mapping[str, Any]) -> Sample:
    return Sample(**{**v, "media": tuple(_ref(m) for m in v["media"]), "history": tuple(Turn(**t) for t in v["history"])})


def _ref(v: Mapping[str, Any]) -> MediaRef:
    times = None if v["times"] is None else tuple(v["times"])
    return MediaRef(**{**v, "frames": tuple(_ref(frame) for frame in v["frames"]), "times": times})


def _handle(v: Mapping[str, Any]) -> MediaHandle:
    t, h, w = v["grid_thw"]
    times = None if v["step_times"] is None else tuple(v["step_times"])
    return MediaHandle(**{**v, "grid_thw": (t, h, w), "step_times": times})

"""What GUI actions mean on a screen: the pixel of a point of 0 to 1000, the key of a name. What the worlds of browsers share."""

from __future__ import annotations

from vlmrl.extras.agents.browser.page import KEYS, MODIFIERS


def pixel(point: tuple[float, float], width: int, height: int) -> tuple[int, int] | None:
    """The pixel of a screen of this size that a point of 0 to 1000 lies in; None outside."""
    if not all(0 <= one <= 1000 for one in point):
        return None
    return min(int(point[0] * width / 1000), width - 1), min(int(point[1] * height / 1000), height - 1)


def read_key(text: str) -> tuple[str, int] | None:
    """(key, modifiers) of `Enter`, `a`, `ctrl+a`, `ctrl+shift+left`; None where there is no such key."""
    held, name = text.strip().split("+"), ""
    if held[-1] == "" and text.strip().endswith("+"):  # the key + itself
        held, name = [one for one in held if one], "+"
    else:
        name = held.pop().strip()
    modifiers = [MODIFIERS.get(one.strip().lower().replace("control", "ctrl")) for one in held]
    short = name.lower().removeprefix("arrow")
    if None in modifiers or not (len(name) == 1 or short in KEYS):
        return None
    return (name if len(name) == 1 else short), sum(one for one in modifiers if one is not None)

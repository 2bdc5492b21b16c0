"""What of an episode's past stands in the prompt of a turn. Pure: which screens, and where a prompt begins anew.

    all               the whole conversation: one chain for the episode
    last k            each turn's prompt is new, with the last k screens: exact, and turns share next to nothing
    last k, every b   the prompt begins anew at the turns 0, b, 2b, ... with the last k screens, and grows in between: exact, and chains of
                      b turns share their past

What was left out of a prompt when the answer was sampled is left out when it is trained: a chain never loses a screen in its middle.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What stands in the prompt of a turn."""

    start: int
    """The turn at which the prompt began."""
    first: int
    """The first turn whose screen it shows; those before are told as actions only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A policy of history."""

    screens: int | None = None
    """Screens that a prompt begins with; None: all of them."""
    every: int = 1
    """Turns for which a prompt grows before it begins anew."""
    actions: bool = True
    """Whether a prompt that begins anew tells the actions before as text."""

    def __post_init__(self) -> None:
        if (self.screens is not None and self.screens < 1) or self.every < 1 or (self.screens is None and self.every != 1):
            raise ValueError(f"history: screens {self.screens}, every {self.every}; at least 1 each, and 'every' only with 'screens'")

    @staticmethod
    def of(text: str) -> History:
        """`all`, `3`, or `3/8` for the last 3, every 8.

        Raises:
            ValueError: it is none of these.
        """
        if text == "all":
            return History()
        screens, slash, every = text.partition("/")
        if not screens.isdigit() or (slash and not every.isdigit()):
            raise ValueError(f"history '{text}': write all, 3 (the last 3 screens) or 3/8 (the last 3, every 8 turns)")
        return History(screens=int(screens), every=int(every or 1))

    def window(self, turn: int) -> Window:
        """For a turn, counted from 0."""
        if self.screens is None:
            return Window(start=0, first=0)
        start = turn // self.every * self.every
        return Window(start=start, first=max(0, start - self.screens + 1))

    def longest(self, turns: int) -> int:
        """Most screens in a prompt of an episode with so many turns."""
        return max((turn - self.window(turn).first + 1 for turn in range(turns)), default=0)

    def prefilled(self, turns: int) -> int:
        """Screens that are read in an episode, where what a chain has read is kept: all at the beginning of a prompt, then one per turn."""
        windows = [self.window(turn) for turn in range(turns)]
        return sum(turn - window.first + 1 if turn == window.start else 1 for turn, window in enumerate(windows))

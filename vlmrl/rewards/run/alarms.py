"""Alarms about a run that goes on but no longer learns what it should (constant rewards, cut-off answers): warnings, never a stop.

Pure functions of the last logged steps. The window is not part of the run's state: it changes nothing that is trained or logged, so a
resumed run is the same without it, and simply watches anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

WINDOW = 50
"""Steps that are looked at."""
EDGE = 10
"""Steps at either end of the window that are compared with each other."""
FAULTY_STEPS = 3
"""So many of the last `EDGE` steps need a fault before a rise is one."""
TRUNCATED = 0.3
READABLE = 0.5
LONGER = 2.0

Window = Sequence[Mapping[str, float]]


def constant_columns(window: Window) -> dict[str, str]:
    """Reward columns whose mean has not changed within a full window: nothing can be learned from them."""
    if len(window) < WINDOW:
        return {}
    out: dict[str, str] = {}
    for key in window[-1]:
        if key.startswith("rewards/") and key.endswith("/mean"):
            values = [step.get(key) for step in window[-WINDOW:]]
            if all(value == values[-1] for value in values):
                name = key.removeprefix("rewards/").removesuffix("/mean")
                out[f"constant/{name}"] = (
                    f"reward '{name}' has been {values[-1]:.3g} on average for {WINDOW} steps without any change: it teaches nothing; "
                    "look at some answers, at the row's gold, and at its weight"
                )
    return out


def rising_faults(window: Window) -> dict[str, str]:
    """More rewards fail than did: at least twice as many in the last steps as in the first ones, and in several steps."""
    if len(window) < 2 * EDGE:
        return {}
    per_step = [sum(value for key, value in step.items() if key.startswith("fault/reward/")) for step in window]
    earlier, now = sum(per_step[:EDGE]), sum(per_step[-EDGE:])
    if sum(n > 0 for n in per_step[-EDGE:]) < FAULTY_STEPS or now < 2 * earlier:
        return {}
    last = next(step for step, n in zip(reversed(window), reversed(per_step), strict=True) if n > 0)
    kinds = ", ".join(sorted(k.removeprefix("fault/reward/") for k, v in last.items() if k.startswith("fault/reward/") and v > 0))
    text = f"rewards fail more often: {now:g} rollouts in the last {EDGE} steps, {earlier:g} in the first {EDGE} of {len(window)}"
    return {"faults": f"{text} ({kinds})"}


def truncated(window: Window) -> dict[str, str]:
    """A large share of the answers is cut off at the limit of length."""
    share = _mean(window[-EDGE:], "completions/clipped_ratio")
    if share is None or share <= TRUNCATED:
        return {}
    return {"truncated": f"{share:.0%} of the answers of the last {EDGE} steps are cut off; raise rollout.max_new_tokens or reward brevity"}


def unreadable(window: Window) -> dict[str, str]:
    """Few answers can be read out of the texts: what is scored is the format and not the task."""
    share = _mean(window[-EDGE:], "completions/parse_rate")
    if share is None or share >= READABLE:
        return {}
    return {"unreadable": f"only {share:.0%} of the texts of the last {EDGE} steps hold an answer that can be read; look at some of them"}


def longer(window: Window) -> dict[str, str]:
    """Answers have become much longer within the window."""
    if len(window) < 2 * EDGE:
        return {}
    earlier, now = (_mean(part, "completions/mean_length") for part in (window[:EDGE], window[-EDGE:]))
    if earlier is None or now is None or earlier <= 0 or now <= LONGER * earlier:
        return {}
    return {"longer": f"answers grew from {earlier:.0f} to {now:.0f} tokens on average within {len(window)} steps"}


RULES: tuple[Callable[[Window], dict[str, str]], ...] = (constant_columns, rising_faults, truncated, unreadable, longer)


@dataclass(kw_only=True)
class Watch:
    """Applies the rules to each step, and says an alarm again only after a window has passed."""

    window: list[Mapping[str, float]] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def see(self, metrics: Mapping[str, float]) -> list[str]:
        """Take a step's logged values; the texts of what is to be said now."""
        self.steps += 1
        self.window = [*self.window, dict(metrics)][-WINDOW:]
        out: list[str] = []
        for rule in RULES:
            for name, text in rule(self.window).items():
                if self.steps - self.said.get(name, -WINDOW) >= WINDOW:
                    self.said[name] = self.steps
                    out.append(text)
        return out


def _mean(steps: Window, key: str) -> float | None:
    """Mean over `EDGE` steps; None where there are fewer or one does not have the value."""
    values = [step[key] for step in steps if key in step]
    return sum(values) / EDGE if len(values) == EDGE else None

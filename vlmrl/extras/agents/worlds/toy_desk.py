"""Environment `toy_desk`: the embedded world of screens with two to four things to do on them, in pure Python.

A goal names two to four parts in order: press a button, open an icon, type a word, scroll. The screen of a part shows what it needs
and one or two grey things. The right action leads on; a click on something grey leads to a screen with nothing but a white button,
which leads back; whatever else changes nothing. So attempts at one task meet in the same states, and part and meet again. Actions
are those of `metrics.gui`, coordinates 0 to 1000; a click counts for the quarter of the screen that it lies in, which is what a tiny
model can tell apart (`toy.picture`). Goals, texts and elements are of the kind of the rows of the toy world `gui`.

The reward is 1 on the last right action; fewest actions: one for each part. States are named exactly. Faults can be injected, for
tests of what runs episodes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.extras.toy.picture import COLORS, GREY, Thing, flat, png
from vlmrl.metrics.gui import Action, parse_action
from vlmrl.protocols import environment
from vlmrl.rng import key, uniform

KINDS = ("press", "open", "type", "scroll")
ICONS = ("circle", "triangle")
WORDS = ("cat", "news", "music", "rain", "taxi", "gold", "train", "hello")
DIRECTIONS = ("up", "down")
SIZES = {"press": (40, 36), "open": (40, 40), "type": (40, 24)}
"""Width and height of elements, in pixels of a screen of 100 x 100."""
QUARTER = 50
VERSION = "1"

Fault = Literal["kill", "hang", "raise", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskSubgoal:
    """One part of a goal."""

    kind: str
    what: str
    """Colour of a button, colour and shape of an icon, word, direction."""
    quarter: int
    """Where its element stands; 0 where it has none."""
    grey: tuple[tuple[int, str, str], ...]
    """(quarter, kind, shape) of the grey things on its screen."""

    @property
    def text(self) -> str:
        verbs = {"press": "press the {} button", "open": "open the {}", "type": "type {}", "scroll": "scroll {}"}
        return verbs[self.kind].format(self.what)

    def right(self, action: Action) -> bool:
        """Whether the action does this part."""
        if self.kind in ("press", "open"):
            return action.kind == "click" and action.point is not None and quarter_of(action.point) == self.quarter
        if self.kind == "type":
            return action.kind == "input_text" and action.text == self.what
        return action.kind == "scroll" and action.direction == self.what

    def action(self) -> str:
        """The action that does this part, as it is answered."""
        if self.kind in ("press", "open"):
            return json.dumps({"action": "click", "coordinate": middle(self.quarter)})
        if self.kind == "type":
            return json.dumps({"action": "input_text", "text": self.what})
        return json.dumps({"action": "scroll", "direction": self.what})


@functools.cache
def make_goal(seed: int, length: int | None) -> tuple[DeskSubgoal, ...]:
    """The parts of an episode: `length` of them, or two to four."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-desk", *names) % n

    kinds, parts = list(KINDS), list[DeskSubgoal]()
    for i in range(2 + draw(3, "length") if length is None else length):
        kind = kinds.pop(draw(len(kinds), "kind", i))
        color = list(COLORS)[draw(len(COLORS), "color", i)]
        what = {
            "press": color,
            "open": f"{color} {ICONS[draw(2, 'icon', i)]}",
            "type": WORDS[draw(len(WORDS), "word", i)],
            "scroll": DIRECTIONS[draw(2, "direction", i)],
        }[kind]
        quarters = [0, 1, 2, 3] if kind != "scroll" else [0, 2]  # the bar stands at the right
        quarter = quarters.pop(draw(len(quarters), "quarter", i)) if kind != "scroll" else 0
        grey: list[tuple[int, str, str]] = []
        for n in range(1 + draw(2, "clutter", i)):
            other = ("press", "open")[draw(2, "other", i, n)]
            shape = "square" if other == "press" else ICONS[draw(2, "shape", i, n)]
            grey.append((quarters.pop(draw(len(quarters), "place", i, n)), other, shape))
        parts.append(DeskSubgoal(kind=kind, what=what, quarter=quarter, grey=tuple(grey)))
    return tuple(parts)


def quarter_of(point: tuple[float, float]) -> int:
    """The quarter that a point of 0 to 1000 lies in: top left, top right, bottom left, bottom right."""
    return int(point[0] >= 500) + 2 * int(point[1] >= 500)


def middle(quarter: int) -> list[int]:
    return [250 + 500 * (quarter % 2), 250 + 500 * (quarter // 2)]


def _element(quarter: int, kind: str, color: str, shape: str) -> Thing:
    width, height = SIZES[kind]
    x, y = QUARTER * (quarter % 2), QUARTER * (quarter // 2) + (QUARTER - height) // 2
    return Thing(color=color, shape=shape, box=(x + 1, y, x + 1 + width, y + height))


@functools.lru_cache(maxsize=1024)
def _screen(part: DeskSubgoal | None) -> bytes:
    """The screen of a part; of a wrong click where there is none."""
    if part is None:
        return png(flat([_element(0, "press", "white", "square")]))
    things = [_element(quarter, kind, GREY, shape) for quarter, kind, shape in part.grey]
    if part.kind == "press":
        things.append(_element(part.quarter, "press", part.what, "square"))
    elif part.kind == "open":
        things.append(_element(part.quarter, "open", *part.what.split()))
    elif part.kind == "type":
        things.append(_element(part.quarter, "type", "white", "frame"))
    else:
        things.append(Thing(color="white", shape="square", box=(92, 30, 98, 70)))
    return png(flat(things))


class ToyDesk:
    """See the top of the file."""

    def __init__(self, crash_share: float, fault: Fault, fault_attempts: int):
        self._crash_share, self._fault, self._fault_attempts = crash_share, fault, fault_attempts
        self._goal: tuple[DeskSubgoal, ...] = ()
        self._done = self._turn = 0
        self._lost = False
        self._crash_at: int | None = None

    @property
    def identity(self) -> Mapping[str, str]:
        return {"environment": "toy_desk", "version": VERSION}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A desk. `task["length"]`: parts of the goal, 2 to 4; drawn where it is not given."""
        length = task.get("length")
        if length is not None and not (type(length) is int and 2 <= length <= len(KINDS)):
            raise ValueError(f"toy_desk: the task's length is {length!r}; it must be 2, 3 or 4")
        self._goal, self._done, self._turn, self._lost = make_goal(seed, length), 0, 0, False
        crashes = task.get("attempt", 0) < self._fault_attempts and uniform(seed, "toy-desk", "crash") < self._crash_share
        self._crash_at = key(seed, "toy-desk", "crash at") % (len(self._goal) + 1) if crashes else None
        self._maybe_crash()
        return self._observe()

    def step(self, action: str) -> Transition:
        if self._done == len(self._goal):
            raise RuntimeError("toy_desk: a step after the end of the episode")
        self._turn += 1
        self._maybe_crash()
        parsed = parse_action(action)
        if parsed is None:
            return Transition(observation=self._observe(), outcome="invalid")
        part = self._goal[self._done]
        clicked = quarter_of(parsed.point) if parsed.kind == "click" and parsed.point is not None else None
        if self._lost:
            self._lost = clicked != 0
        elif part.right(parsed):
            self._done += 1
        elif clicked is not None and clicked in {quarter for quarter, _, _ in part.grey}:
            self._lost = True
        if self._done == len(self._goal):
            return Transition(observation=None, reward=1.0, outcome="success")
        return Transition(observation=self._observe())

    def close(self) -> None:
        pass

    def propose(self, n: int) -> str:
        """A click on each quarter, every word, every direction, and one thing that cannot be read; more often the right action."""
        clicks = [json.dumps({"action": "click", "coordinate": middle(quarter)}) for quarter in range(4)]
        typed = [json.dumps({"action": "input_text", "text": word}) for word in WORDS[:2]]
        scrolled = [json.dumps({"action": "scroll", "direction": direction}) for direction in DIRECTIONS]
        choices = [*clicks, *typed, *scrolled, "click it", self.solve(), self.solve(), self.solve()]
        return choices[n % len(choices)]

    def solve(self) -> str:
        return json.dumps({"action": "click", "coordinate": middle(0)}) if self._lost else self._goal[self._done].action()

    def optimum(self) -> Optimum:
        return Optimum(reward=1.0, turns=len(self._goal))

    def _observe(self) -> Observation:
        goal = ", then ".join(part.text for part in self._goal)
        done = ", ".join(part.text for part in self._goal[: self._done]) or "nothing"
        return Observation(
            text=f"Task: {goal}. Done: {done}.",
            screens=(_screen(None if self._lost else self._goal[self._done]),),
            state=f"{self._done}{' lost' if self._lost else ''}",
        )

    def _maybe_crash(self) -> None:
        if self._crash_at is None or self._turn < self._crash_at:
            return
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault == "hang":
            time.sleep(3600)
        elif self._fault == "memory":
            bytearray(1 << 40)
        raise RuntimeError("toy_desk: an injected fault")


@environment("toy_desk", tasks=({"id": "desk"}, {"id": "desk-2", "length": 2}, {"id": "desk-4", "length": 4}))
def toy_desk(*, crash_share: float = 0.0, fault: Fault = "kill", fault_attempts: int = 1) -> ToyDesk:
    """Screens with buttons, icons, a text field and a scroll bar; two to four right actions solve a task, wrong clicks lead astray.

    Args:
        crash_share: share of the episodes that end in a fault, at a turn of their own, in their first `fault_attempts` attempts.
        fault: how: `kill` the process, `hang`, `raise`, or ask for a terabyte of `memory`.

    Raises:
        ValueError: a share that is none.
    """
    if not 0 <= crash_share <= 1:
        raise ValueError(f"environment 'toy_desk': crash_share is {crash_share}; it must be within 0 and 1")
    return ToyDesk(crash_share, fault, fault_attempts)

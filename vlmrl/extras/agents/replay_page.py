"""The replay of episodes: one HTML file with every screen in order, clicks drawn on it, actions, rewards and faults.

Screens are written once, whatever the number of turns that show them, and everything that comes from a model or a world is escaped. The
page has no script and loads nothing.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.evals.page import TRUTH_COLOUR, render_page
from vlmrl.evals.score.table import visible
from vlmrl.extras.agents.episodes import action_of
from vlmrl.extras.agents.evaluate import SCREENS, SUFFIX, read_episodes
from vlmrl.extras.agents.screens import screen_hash
from vlmrl.extras.agents.trajectory import Trajectory, TrajectoryTurn
from vlmrl.metrics.gui import Action, parse_action

SHOWN = 100
"""Attempts on a page."""
_ARROWS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_FULL = 1000.0
"""Coordinates of actions are 0 to 1000 along each side."""


@dataclass
class _Screens:
    """The screens of a page, each once."""

    folder: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def of(self, name: str) -> dict[str, Any]:
        """id, data, width and height of a screen; no data where its file is gone or another."""
        if name not in self.found:
            self.found[name] = {"id": f"s{len(self.found)}"} | self._read(self.folder / f"{name}.png", name)
        return self.found[name]

    def _read(self, file: Path, name: str) -> dict[str, Any]:
        from PIL import Image, UnidentifiedImageError

        data = file.read_bytes() if file.is_file() else b""
        try:
            if screen_hash(data) != name:
                raise UnidentifiedImageError
            with Image.open(io.BytesIO(data)) as image:
                size, kind = image.size, Image.MIME[image.format or "PNG"]
        except (UnidentifiedImageError, OSError):
            return {"data": None, "width": 0, "height": 0}
        return {"data": f"data:{kind};base64,{base64.b64encode(data).decode()}", "width": size[0], "height": size[1]}


def write_replay(records: Path, out: Path | None = None) -> Path:
    """Write the replay of an evaluation's episodes.

    Args:
        records: the records file of a task, `<task>.jsonl`; its episodes and screens lie beside it.
        out: the HTML file; by default `<task>.replay.html` beside the records.

    Raises:
        StorageError: there are no episodes, one is damaged, or the page cannot be written.
    """
    out = out or records.with_suffix(".replay.html")
    named = [(name, played) for name, _, played in read_episodes(records.with_suffix(SUFFIX))]
    fs.write_text(out, render_page(__name__, "replay.html.jinja", page(records.stem, named, records.parent / SCREENS)))
    return out


def write_played(groups: Sequence[Sequence[Trajectory]], folder: Path) -> Path:
    """Write the replay of episodes that were played without an evaluation, `replay.html` in their folder.

    Args:
        groups: the attempts at each task.
        folder: what they were played into; it holds their screens.

    Raises:
        StorageError: the page cannot be written.
    """
    named = [(str(one.task.get("id", one.seed)), one) for group in groups for one in group]
    out = folder / "replay.html"
    fs.write_text(out, render_page(__name__, "replay.html.jinja", page(folder.name, named, folder / SCREENS)))
    return out


def page(title: str, named: Sequence[tuple[str, Trajectory]], screens: Path) -> dict[str, Any]:
    """What the template shows of (name, attempt); at most `SHOWN` attempts."""
    kept = _Screens(screens)
    outcomes = Counter(one.outcome or "running" for _, one in named)
    episodes = [_episode(name, one, kept) for name, one in named[:SHOWN]]
    return {
        "title": visible(title),
        "truth": TRUTH_COLOUR,
        "outcomes": [(visible(outcome), count) for outcome, count in sorted(outcomes.items())],
        "episodes": episodes,
        "left_out": max(0, len(named) - SHOWN),
        "screens": [one for one in kept.found.values() if one["data"] is not None],
    }


def _episode(name: str, one: Trajectory, screens: _Screens) -> dict[str, Any]:
    return {
        "name": visible(name),
        "k": one.k,
        "outcome": visible(one.outcome or "running"),
        "fault": None if one.fault is None else visible(one.fault),
        "total": None if one.total is None else f"{one.total:g}",
        "fewest": None if one.optimum is None else one.optimum.turns,
        "seed": one.seed,
        "turns": [_turn(n, turn, screens) for n, turn in enumerate(one.turns, start=1)],
    }


def _turn(number: int, turn: TrajectoryTurn, screens: _Screens) -> dict[str, Any]:
    action = parse_action(action_of(turn.action, "think_or_not"))
    shown = [screens.of(ref.sha256 or "") for ref in turn.seen.media]
    return {
        "number": number,
        "text": visible(turn.seen.text),
        "state": visible(turn.seen.state),
        "answer": visible(turn.action),
        "reward": None if turn.reward is None else f"{turn.reward:g}",
        "outcome": visible(turn.outcome),
        "info": visible(
            ", ".join(f"{name} {value if isinstance(value, str) else format(value, 'g')}" for name, value in turn.info.items())
        ),
        "caption": "" if action is None else visible(_caption(action)),
        # an action is on what was seen last
        "screens": [one | {"mark": _mark(action, one) if one is shown[-1] else None} for one in shown],
    }


def _caption(action: Action) -> str:
    """An action in a few words."""
    return " ".join(word for word in (action.kind, action.direction, action.text, action.status) if word)


def _mark(action: Action | None, screen: dict[str, Any]) -> dict[str, float] | None:
    """What is drawn of an action, in pixels of the screen: a ring where it points, or an arrow from the middle."""
    if action is None:
        return None
    width, height = screen["width"], screen["height"]
    radius = max(3.0, min(width, height) / 14)
    if action.point is not None:
        return {"x": action.point[0] / _FULL * width, "y": action.point[1] / _FULL * height, "r": radius}
    if action.direction in _ARROWS:
        dx, dy = _ARROWS[action.direction]
        return {"x": width / 2, "y": height / 2, "dx": dx * width / 4, "dy": dy * height / 4, "r": radius}
    return None

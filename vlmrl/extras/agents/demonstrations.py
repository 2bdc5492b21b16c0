"""Played episodes as rows of supervised fine-tuning, one for each action: the prompt, media and earlier turns that a stage would give.

A row is what a policy of history makes of the turn (`agents.prompts`), written in the schema of rows, so that encoding it gives the ids and
pixels under which the stage samples. Where a prompt goes on from earlier turns these are the row's `history`, whose first question says how
to answer; the last does not say it again (`meta.asked_first`). What cannot be written so (a text with blanks at its ends) is refused.

Screens are the files that the episode left, beside the rows and named with their hashes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from vlmrl.answers.tags import gold_text, parse
from vlmrl.data.encode import instruction
from vlmrl.data.row import parse_row
from vlmrl.errors import ConfigError, RowError
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.play import SCREENS
from vlmrl.extras.agents.prompts import first_sample
from vlmrl.extras.agents.trajectory import Trajectory, TrajectoryTurn
from vlmrl.metrics.gui import action_of
from vlmrl.types import MediaRef, Sample

ROWS = "rows.jsonl"
GUI = "action"
"""Answer type of prompts that ask for a JSON action."""


@dataclasses.dataclass(frozen=True)
class _Taught:
    """What a row teaches: an action, and a thought where the agent wrote one."""

    answer: str
    thought: str | None

    def text(self, answer_format: str) -> str:
        like = Sample(id="", task="", answer_type="", question="", media=(), answer=self.answer, gt={})
        return gold_text(like, answer_format, self.thought)


def demonstrations(groups: Sequence[Sequence[Trajectory]], history: History, answer_format: str) -> tuple[list[dict[str, Any]], int]:
    """(rows of the episodes that succeeded, each prompt with its answer once; the rows that were left out as the same).

    Args:
        groups: the attempts at each task.
        answer_format: of the stage that learns from them: earlier answers stand in prompts as it writes them.

    Raises:
        ConfigError: a turn whose prompt cannot be written as a row.
    """
    out: dict[str, dict[str, Any]] = {}
    most = 0
    for one in (one for group in groups for one in group if one.outcome == "success"):
        for row in episode_rows(one, history, answer_format):
            most += 1
            same = {name: value for name, value in row.items() if name not in ("id", "meta")}
            out.setdefault(json.dumps(same, sort_keys=True), row)
    return list(out.values()), most - len(out)


def episode_rows(trajectory: Trajectory, history: History, answer_format: str) -> list[dict[str, Any]]:
    """A row for each turn of an episode.

    Raises:
        ConfigError: a turn whose prompt cannot be written as a row.
    """
    taught = [_taught(turn.action, answer_format) for turn in trajectory.turns]
    texts = [one.text(answer_format) for one in taught]
    # earlier answers stand in prompts as a policy writes them, with their tags
    said = dataclasses.replace(
        trajectory, turns=tuple(dataclasses.replace(turn, action=text) for turn, text in zip(trajectory.turns, texts, strict=True))
    )
    return [_row(said, n, one, history, answer_format) for n, one in enumerate(taught)]


def _taught(action: str, answer_format: str) -> _Taught:
    found = parse(action, answer_format)
    return _Taught(action, None) if found.answer is None else _Taught(found.answer, found.thought)


def _row(said: Trajectory, n: int, taught: _Taught, history: History, answer_format: str) -> dict[str, Any]:
    window = history.window(n)
    first = first_sample(said, window.start, window.first, actions=history.actions)
    since = said.turns[window.start : n + 1]
    questions = [first.question, *(turn.seen.text for turn in since[1:])]
    shown = [first.media, *(turn.seen.media for turn in since[1:])]
    name = f"{said.task.get('id', 'task')}-{said.seed}-{said.k}-{n}"
    row: dict[str, Any] = {
        "id": name,
        "task": first.task,
        "answer_type": first.answer_type,
        "prompt": _asked(questions[-1], shown[-1]),
        "images": [{"path": f"{SCREENS}/{ref.path}", "sha256": ref.sha256} for media in shown for ref in media],
        "answer": taught.answer,
        "meta": {"turn": n},
    }
    if first.answer_type == GUI:
        row["gt"] = {"action": _gui(taught.answer, name)}
    if taught.thought is not None:
        row["thought"] = taught.thought
    if len(since) > 1:
        asking = [f"{questions[0]} {instruction(answer_format, first.answer_type)}", *questions[1:-1]]
        row["history"] = [_turn(*one) for one in zip(asking, shown, since, strict=False)]
        row["meta"]["asked_first"] = True
        questions = [*asking, questions[-1]]
    _check(row, questions)
    return row


def _gui(answer: str, name: str) -> dict[str, Any]:
    """An action as the gold answer of its row.

    Raises:
        ConfigError: it is no action in JSON, which is what the prompt asks for.
    """
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict) or action_of(found) is None:
        how = "an environment whose actions are no JSON is registered with asks='exact_text'"
        raise ConfigError(f"turn {name} cannot be written as a row: {answer[:60]!r} is no JSON action, which its prompt asks for; {how}")
    return found


def _turn(question: str, media: Sequence[MediaRef], turn: TrajectoryTurn) -> dict[str, str]:
    return {"prompt": _asked(question, media), "answer": turn.action}


def _asked(question: str, media: Sequence[MediaRef]) -> str:
    return f"{'<image>' * len(media)}\n{question}" if media else question


def _check(row: dict[str, Any], questions: Sequence[str]) -> None:
    """That reading a row gives back what was asked.

    Raises:
        ConfigError: it does not.
    """
    try:
        sample = parse_row(row, source=row["id"], media_root=".")
    except RowError as error:
        raise ConfigError(f"turn {row['id']} cannot be written as a row: {error}") from error
    if [*(turn.question for turn in sample.history), sample.question] != list(questions):
        raise ConfigError(f"turn {row['id']} cannot be written as a row: its text begins or ends with blanks, which rows do not keep")

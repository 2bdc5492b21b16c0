"""Prompts of trajectories: the chain of segments that each turn was, or would be, sampled under, by a policy of history."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from vlmrl.answers.tags import FREE
from vlmrl.extras.agents.conversation import Conversation, Segment, answer_segment, first_segment, turns
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.rows import answer_type_of
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn
from vlmrl.types import MediaHandle, MediaRef, Prompt, Sample

Handles = Callable[[MediaRef], MediaHandle]


def next_prompt(
    so_far: Trajectory, seen: Snapshot, history: History, conversation: Conversation, handle: Handles, *, answer_format: str = FREE
) -> Prompt:
    """The prompt of the next answer, where `seen` is what is shown now. The rows of the whole trajectory have the same (`rows`).

    Raises:
        RowError, MediaError: what encoding raises.
    """
    waiting = TrajectoryTurn(seen=seen, action="", ids=(conversation.end,), reward=0.0)
    made = chains(dataclasses.replace(so_far, turns=(*so_far.turns, waiting)), history, conversation, handle, answer_format=answer_format)
    return rows(made[-1:])[-1][0]


def first_sample(trajectory: Trajectory, start: int, first: int, *, actions: bool = True) -> Sample:
    """The question that a prompt begins with at turn `start`: screens from turn `first` on, earlier actions as text, what is seen now."""
    past = [f"{n + 1}. {turn.action}" for n, turn in enumerate(trajectory.turns[:start])] if actions else []
    told = f"Actions so far: {' '.join(past)}\n" if past else ""
    return Sample(
        id=f"{trajectory.task.get('id', 'task')}-{trajectory.seed}-{trajectory.k}-{start}",
        task="environment",
        answer_type=answer_type_of(trajectory.task, "action"),
        question=told + trajectory.turns[start].seen.text,
        media=tuple(ref for turn in trajectory.turns[first : start + 1] for ref in turn.seen.media),
        answer="",
        gt={},
    )


def chains(
    trajectory: Trajectory, history: History, conversation: Conversation, handle: Handles, *, answer_format: str = FREE
) -> list[tuple[Prompt, list[Segment]]]:
    """(first prompt, segments) of each chain of a trajectory. Every turn is an answer in exactly one.

    Turns without ids (nobody sampled them) stand as their text and an end token.

    Raises:
        RowError, MediaError: what encoding raises.
    """
    out: list[tuple[Prompt, list[Segment]]] = []
    for n, turn in enumerate(trajectory.turns):
        window = history.window(n)
        if window.start == n:
            prompt = conversation.encoder.encode(first_sample(trajectory, n, window.first, actions=history.actions), answer_format)
            out.append((prompt, [first_segment(prompt)]))
        chain = out[-1][1]
        if chain[-1].sampled:
            chain.append(conversation.observation(chain[-1], turn.seen.text, [handle(ref) for ref in turn.seen.media]))
        chain.append(answer_segment(chain[-1], _ids(turn, conversation)))
    return out


def rows(made: Sequence[tuple[Prompt, list[Segment]]]) -> list[tuple[Prompt, tuple[int, ...]]]:
    """(prompt, response ids) of every turn, in order."""
    return [row for prompt, chain in made for row in turns(chain, prompt)]


def read(made: Sequence[tuple[Prompt, list[Segment]]]) -> tuple[int, int]:
    """(tokens that are read in the episode where a chain keeps what it has read, answers included; the longest prompt of a turn)."""
    total = sum(len(segment.ids) for _, chain in made for segment in chain)
    return total, max((len(prompt.ids) for prompt, _ in rows(made)), default=0)


def _ids(turn: TrajectoryTurn, conversation: Conversation) -> tuple[int, ...]:
    return turn.ids or (*conversation.encoder.tokenize(turn.action), conversation.end)

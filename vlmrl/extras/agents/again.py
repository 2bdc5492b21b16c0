"""Prompts of a stage's turns made again for other eyes: the same past, told as it was told to the sampler, over screens of other sizes.

They are made from the record of the attempts by the code that made the sampler's (`agents.turns`), so text, history and sampled ids are
the same, and turns that share a prompt share one here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from vlmrl.data.encode import Encoder
from vlmrl.extras.agents.collect import SCREENS
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.episodes import EnvSetup
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.extras.agents.turns import EpisodeCollector, turn_rollouts
from vlmrl.run.loop import Loop
from vlmrl.types import Group, MediaRef, Prompt


class TurnsAgain:
    """The turns of a stage's episodes, as an encoder of other media shows them."""

    def __init__(self, loop: Loop, encoder_of: Callable[[Path], Encoder]):
        """`encoder_of`: the encoder whose media lie in a folder, that of the screens."""
        self._loop = loop
        self.encoder = encoder_of(loop.session.run.path / SCREENS)

    def __call__(self, group: Group, told: str) -> list[tuple[Prompt, Sequence[MediaRef]]]:
        """Make the prompt of each of a group's turns, in the order of its rollouts, while its step is trained.

        Args:
            told: text behind the question that each prompt begins with.

        Returns:
            Prompts, each with the screens that it shows.

        Raises:
            RowError, MediaError: what encoding raises.
        """
        collector, history = self._collector, self._table.history
        attempts = [one for one in collector.played[self._loop.stage.state.step][group.id] if one.fault is None]
        made = turn_rollouts(self._table, [with_words(one, told, history) if told else one for one in attempts], 0)
        return list(zip((turn.prompt for turn in made), (shown for one in attempts for shown in screens_of(one, history)), strict=True))

    @property
    def _collector(self) -> EpisodeCollector:
        pipeline = self._loop.pipeline
        assert pipeline is not None
        assert isinstance(pipeline.collector, EpisodeCollector)
        return pipeline.collector

    @cached_property
    def _table(self) -> EnvSetup:
        media, folder = self.encoder.media, self.encoder.data_root
        conversation = Conversation(self.encoder)
        return dataclasses.replace(self._collector.table, conversation=conversation, handle=lambda ref: media.get(ref, folder).handle)


def screens_of(attempt: Trajectory, history: History) -> list[tuple[MediaRef, ...]]:
    """List the screens that stand in the prompt of each turn."""
    shown = [turn.seen.media for turn in attempt.turns]
    return [tuple(ref for of_turn in shown[history.window(n).first : n + 1] for ref in of_turn) for n in range(len(shown))]


def with_words(attempt: Trajectory, words: str, history: History) -> Trajectory:
    """Give an attempt in which every prompt that begins anew has these words behind its question."""
    turns = list(attempt.turns)
    for n, turn in enumerate(turns):
        if history.window(n).start == n:
            turns[n] = dataclasses.replace(turn, seen=dataclasses.replace(turn.seen, text=f"{turn.seen.text}{words}"))
    return dataclasses.replace(attempt, turns=tuple(turns))

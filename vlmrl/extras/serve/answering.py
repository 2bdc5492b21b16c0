"""A request while it is answered: the engine's thread tells what it draws, one listener hears of it, and either side can end it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmrl.extras.serve.protocol import Chat, Choice, cut_at
from vlmrl.extras.serve.stream import Growing, Piece
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import Rollout


@dataclass(frozen=True, kw_only=True)
class Said:
    """The answers to a request."""

    choices: tuple[Choice, ...]


Item = Piece | Said | Exception
"""What a listener hears: pieces of a streamed answer, and at the end all of it, or why there is none."""


class Answering:
    """One request between the server and the engine."""

    def __init__(self, chat: Chat, prompt_tokens: int, answers: int, bundle: ProcessorBundle):
        """`answers`: how many are generated; the greedy one stands for all `chat.n`."""
        self.chat, self.prompt_tokens, self.bundle = chat, prompt_tokens, bundle
        self.answers = answers
        self.cancelled = False
        self._growing = [Growing(bundle.decode, chat.stop) for _ in range(answers)]
        self._lock = threading.Lock()
        self._heard: list[Item] = []
        self._listener: Callable[[Item], None] | None = None

    def choices_of(self, place: int) -> list[int]:
        """The answers of the reply that the generated one stands for."""
        return list(range(self.chat.n)) if self.answers == 1 else [place]

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token, where log-probs are asked for."""
        return tuple(self.bundle.decode([token]) for token in ids) if self.chat.logprobs else ()

    # ---- the engine's side ----------------------------------------------------------------------------------------------------

    def drawn(self, place: int, token: int, logprob: float) -> bool:
        """A token of an answer was drawn. False: nobody reads on, or a stop string is there."""
        if self.cancelled:
            return False
        if not self.chat.stream and not self.chat.stop:
            return True
        growing = self._growing[place]
        text = growing.add(token, logprob)
        if self.chat.stream and text:
            self._tell(growing.take(place, text))
        return not growing.stopped

    def finish(self, rollouts: Sequence[Rollout]) -> None:
        """All answers have ended."""
        made = [self._choice(one) for one in rollouts]
        if self.chat.stream and not self.cancelled:
            for place, (one, growing) in enumerate(zip(made, self._growing, strict=True)):
                last = growing.take(place, growing.rest(one.text))
                if last.text or (last.ids and (self.chat.logprobs or self.chat.token_ids)):
                    self._tell(last)
        self._tell(Said(choices=tuple(made[place] for place in range(self.answers) for _ in range(self.chat.n // self.answers))))

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self._tell(error)

    def _choice(self, rollout: Rollout) -> Choice:
        stopped = cut_at(rollout.text, self.chat.stop)
        return Choice(
            text=rollout.text if stopped is None else stopped,
            finish=rollout.finish if stopped is None else "stop",
            ids=rollout.ids,
            pieces=self.tokens(rollout.ids),
            logprobs=rollout.logprobs if self.chat.logprobs else (),
        )

    def _tell(self, item: Item) -> None:
        with self._lock:
            if self._listener is not None:
                self._listener(item)
            elif not self.cancelled:
                self._heard.append(item)

    # ---- the server's side ----------------------------------------------------------------------------------------------------

    def follow(self, listener: Callable[[Item], None]) -> None:
        """Call `listener` with all that there was and will be, from the engine's thread."""
        with self._lock:
            for item in self._heard:
                listener(item)
            self._heard, self._listener = [], listener

    def cancel(self) -> None:
        """Nobody listens any more; what is still generated ends at its next token."""
        self.cancelled = True
        with self._lock:
            self._listener = None

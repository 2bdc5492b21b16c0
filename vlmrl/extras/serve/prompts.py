"""Messages as prompts of the model: the last question as a row of training would ask it, or the turns as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vlmrl.data.encode import Encoder, PromptMedium
from vlmrl.errors import RowError
from vlmrl.evals.ask.asking import Asking
from vlmrl.extras.serve.incoming import Incoming
from vlmrl.extras.serve.protocol import Chat, Message, Refused
from vlmrl.media.store import MediaStore
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import MediaRef, Prompt, Sample, Turn

SYSTEM = ("system", "developer")


class Prompts:
    """Makes the prompts of a served model."""

    def __init__(self, bundle: ProcessorBundle, store: MediaStore, asking: Asking, *, max_prompt_tokens: int):
        """`asking` went through `asking.chosen`."""
        assert asking.answer_type is not None
        self._answer_type: str = asking.answer_type
        self._asking = asking
        self._encoder = Encoder.of(bundle, store, Path(), max_prompt_tokens=max_prompt_tokens, prompt=asking.prompt)

    def as_trained(self, chat: Chat, incoming: Incoming) -> Prompt:
        """The last message as the question of a row: its media first, the instruction of the answer format behind it. Earlier messages
        are its history.

        Raises:
            Refused: turns that no row has, media that cannot be used, or a prompt that is too long.
        """
        earlier, last = chat.messages[:-1], chat.messages[-1]
        shown = [incoming.open(part) for message in chat.messages for part in message.parts if part.kind != "text"]
        if any(message.role in SYSTEM for message in chat.messages):
            raise Refused("a system message was not in training; take the model that ends in '-plain', which is asked as the messages are")
        roles = [message.role for message in chat.messages]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise Refused("messages: expected user and assistant in turn, the user first and last", param="messages")
        if not last.text.strip():
            raise Refused("messages: the last one asks nothing", param="messages")
        turns = zip(earlier[::2], earlier[1::2], strict=True)
        history = tuple(Turn(question=asked.text, answer=said.text, media=_media(asked)) for asked, said in turns)
        sample = self._sample(last.text, shown, history)
        return self._made(lambda: self._encoder.encode_shown(sample, self._asking.answer_format, shown))

    def plain(self, chat: Chat, incoming: Incoming) -> Prompt:
        """The messages as they are, through the model's chat template; nothing is added.

        Raises:
            Refused: see `as_trained`.
        """
        shown: list[PromptMedium] = []
        turns: list[dict[str, object]] = []
        for message in chat.messages:
            content: list[dict[str, str]] = []
            for part in message.parts:
                if part.kind == "text":
                    content.append({"type": "text", "text": part.value})
                else:
                    shown.append(incoming.open(part))
                    content.append({"type": part.kind})
            turns.append({"role": "system" if message.role in SYSTEM else message.role, "content": content})
        sample = self._sample("", shown, ())
        return self._made(lambda: self._encoder.encode_turns(sample, turns, shown))

    def _sample(self, question: str, shown: Sequence[PromptMedium], history: tuple[Turn, ...]) -> Sample:
        frame = self._asking.frame
        return Sample(
            id="asked",
            task="asked",
            answer_type=self._answer_type,
            question=question,
            media=tuple(MediaRef(kind=one.handle.kind, path="sent") for one in shown),
            answer="",
            gt={},
            source="the request",
            history=history,
            meta={} if frame is None else {"frame": frame},
        )

    def _made(self, make: Callable[[], Prompt]) -> Prompt:
        try:
            return make()
        except RowError as error:
            code = "context_length_exceeded" if error.reason == "overlong" else "invalid_prompt"
            raise Refused(str(error), param="messages", code=code) from error


def _media(message: Message) -> int:
    return sum(part.kind != "text" for part in message.parts)

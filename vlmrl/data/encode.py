"""Encodes a sample as a `Prompt` (chat template, media, token ids): the only place where prompt token ids are made.

The messages hold the earlier turns of a conversation, the media placeholders, the question and the instruction of the answer format,
or what a recipe's `data.prompt` makes of these two (`data.wording`).

The chat template is rendered once with one placeholder per medium, tokenised once, and each placeholder is repeated as often
as that medium has features. Counts are compared on the way; nothing is padded, dropped or truncated to make them fit.

A video whose handle has `step_times` (Qwen3-VL) is written as `<1.3 seconds><|vision_start|>...<|vision_end|>` per temporal step,
before tokenising, in the place of its placeholder: the token ids are those of transformers' own processor, 5.10 and later. That
one keeps the template's `<|vision_start|>` and `<|vision_end|>` around the whole video; earlier ones dropped that pair.

Ours: the times are the frames' own presentation times. The processor computes frame index / average frame rate, which is the same
for a constant frame rate and wrong by as much as the rate changes for others.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import FREE
from vlmrl.errors import RowError
from vlmrl.types import MediaHandle, MediaKind, MediaRef, Prompt, Sample

if TYPE_CHECKING:
    from vlmrl.media.argued import Writer

ANSWER_FORMATS = ("think", "answer_only", "think_or_not")
Messages = Sequence[dict[str, Any]]
"""Of a conversation, in the form that chat templates take."""

_INSTRUCTION = {
    "answer_only": "Give {what} in <answer></answer>.",
    "think": "Think in <think></think>, then give {what} in <answer></answer>.",
    "think_or_not": "Think in <think></think> or leave it empty, then give {what} in <answer></answer>.",
}


def instruction(answer_format: str, answer_type: str) -> str:
    """Write the sentence that asks for the answer format; empty where answers are free.

    Raises:
        RowError: the answer format is unknown.
    """
    if answer_format == FREE:
        return ""
    if answer_format not in _INSTRUCTION:
        raise RowError("answer_format", f"unknown answer format '{answer_format}'; known: {', '.join(ANSWER_FORMATS)}")
    return _INSTRUCTION[answer_format].format(what=ANSWER_TYPES[answer_type].ask)


def messages(sample: Sample, answer_format: str, prompt: str | None = None) -> list[dict[str, Any]]:
    """Build the conversation in the chat template's form: the earlier turns, then one of the user.

    The user's turn holds the media in order, question and instruction; or question, media, instruction where the row says so. With a
    recipe's `prompt` its text stands in the place of question and instruction, on the question's side of the media. Where a row's
    `meta.asked_first` is true the first turn of its history gives the instruction, and the last does not give it again.

    Returns:
        A list of `{"role": ..., "content": [part, ...]}`; a part is `{"type": "text", "text": ...}` or `{"type": "image" or "video"}`.

    Raises:
        RowError: the answer format is unknown, or `prompt` cannot be rendered for this row.
    """
    media: list[dict[str, Any]] = [{"type": ref.kind} for ref in sample.media]
    out: list[dict[str, Any]] = []
    for turn in sample.history:
        # `sample.media` is in the order of the whole conversation: each turn takes its own from the front, the last turn gets the rest
        shown, media = media[: turn.media], media[turn.media :]
        text = [{"type": "text", "text": turn.question}] if turn.question else []
        out.append({"role": "user", "content": [*text, *shown] if turn.question_first else [*shown, *text]})
        out.append({"role": "assistant", "content": [{"type": "text", "text": turn.answer}]})
    ask = "" if sample.meta.get("asked_first") else instruction(answer_format, sample.answer_type)
    if prompt is not None and answer_format != FREE:
        from vlmrl.data.wording import worded  # jinja, for recipes that word their prompts themselves

        text = {"type": "text", "text": worded(prompt, sample, answer_format, ask)}
        return [*out, {"role": "user", "content": [text, *media] if sample.question_first else [*media, text]}]
    if sample.question_first:
        content = [{"type": "text", "text": sample.question}, *media, *([{"type": "text", "text": ask}] if ask else [])]
    else:
        content = [*media, {"type": "text", "text": f"{sample.question} {ask}" if ask else sample.question}]
    return [*out, {"role": "user", "content": content}]


_OPEN, _CLOSE = "<|vision_start|>", "<|vision_end|>"


class PromptMedium(NamedTuple):
    """A medium on its way into a prompt."""

    handle: MediaHandle
    frames: np.ndarray
    """uint8 [T, h, w, 3]; black ones where a prompt is planned from headers."""


class Tokenizer(Protocol):
    """What encoding needs of a transformers tokenizer."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def __call__(self, text: str, **kwargs: Any) -> Any: ...

    def convert_ids_to_tokens(self, ids: int) -> Any: ...


class Processor(Protocol):
    """What encoding needs of `policy.load.ProcessorBundle`."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def pad_ids(self) -> dict[MediaKind, int]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def writer(self) -> Writer | None: ...


class MediaSource(Protocol):
    """Where media come from by reference: `media.store.MediaStore`, or what stands in front of one."""

    def get(self, ref: MediaRef, root: Path) -> Any: ...

    def plan(self, ref: MediaRef, root: Path) -> Any: ...


class LaidOut(NamedTuple):
    """A text with its media as token ids."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    owners: tuple[int, ...]
    """For each span the number of its medium."""
    kinds: Mapping[str, tuple[int, ...]]
    """As `Prompt.kinds`."""

    def put(self, prompt: Prompt) -> Prompt:
        """Give a prompt these columns; owners are written as `Prompt.owners` are, none where every medium has one span."""
        owners = () if self.owners == tuple(range(len(self.owners))) else self.owners
        return dataclasses.replace(prompt, ids=self.ids, spans=self.spans, owners=owners, kinds=self.kinds)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns samples into prompts for one model.

    `pad_ids` maps a medium's kind to its placeholder id; `special_ids` are all control tokens of the tokenizer.
    """

    tokenizer: Any
    media: MediaSource
    data_root: Path
    pad_ids: dict[MediaKind, int]
    special_ids: frozenset[int]
    max_prompt_tokens: int
    prompt: str | None = None
    """The recipe's `data.prompt` (`data.wording`); None: the question and our own sentence."""
    writer: Writer | None = None
    """Makes the ids of families without code of their own; None: they are made here."""
    _harmless: dict[Any, int] = field(default_factory=dict[Any, int], init=False, repr=False, compare=False)
    """Shape of a conversation -> control tokens that its template has by itself."""

    @staticmethod
    def of(processor: Processor, media: MediaSource, data_root: Path, *, max_prompt_tokens: int, prompt: str | None = None) -> Encoder:
        """Make the encoder of a model, from its processor."""
        return Encoder(
            tokenizer=processor.tokenizer,
            media=media,
            data_root=data_root,
            pad_ids=processor.pad_ids,
            special_ids=processor.special_ids,
            max_prompt_tokens=max_prompt_tokens,
            prompt=prompt,
            writer=processor.writer,
        )

    def root(self, sample: Sample) -> Path:
        """Give the folder that the sample's media paths are relative to."""
        return self.data_root / sample.media_root

    def wanted(self, sample: Sample) -> list[tuple[MediaRef, Path]]:
        """List the sample's media as `encode` asks for them, each with the folder that its path is relative to."""
        return [(ref, self.root(sample)) for ref in sample.media]

    def encode(self, sample: Sample, answer_format: str) -> Prompt:
        """Decode the sample's media (once per content, cached) and make its prompt.

        Raises:
            MediaError: a medium cannot be read or decoded.
            RowError: `overlong`, `control_token` or `placeholder` (counts disagree), naming the row.
        """
        found = [self.media.get(ref, root) for ref, root in self.wanted(sample)]
        return self.encode_shown(sample, answer_format, [PromptMedium(one.handle, one.frames) for one in found])

    def encode_shown(self, sample: Sample, answer_format: str, shown: Sequence[PromptMedium]) -> Prompt:
        """Make the prompt as `encode` does, with media that are decoded already.

        Raises:
            RowError: as `encode`.
        """
        if self.writer is not None:
            return self._written(self.writer, sample, answer_format, shown)
        return self._prompt(sample, answer_format, tuple(one.handle for one in shown))

    def plan(self, sample: Sample, answer_format: str) -> Prompt:
        """Make the same prompt from media headers alone: same ids and spans for well-formed files, empty handle keys."""
        handles = tuple(self.media.plan(ref, self.root(sample)) for ref in sample.media)
        if self.writer is not None:
            from vlmrl.media.argued import blank

            # the family's processor wants pixels, but looks at their number only: black frames of the planned size give the same ids
            return self._written(self.writer, sample, answer_format, [PromptMedium(handle, blank(handle.grid_thw)) for handle in handles])
        return self._prompt(sample, answer_format, handles)

    def encode_turns(self, sample: Sample, turns: Messages, shown: Sequence[PromptMedium]) -> Prompt:
        """Make the prompt of turns in the chat template's own form, with no instruction added: for what was not made from a row.

        Args:
            sample: names the prompt in messages and says how answers are read.
            turns: `role`, and `content` as parts of the type text, image or video.
            shown: the media of those parts, in order.

        Raises:
            RowError: as `encode`.
        """
        # control tokens of the template itself are in both renderings; one more in the first has come out of a text
        parts = [{"role": turn["role"], "content": [_harmless(part) for part in turn["content"]]} for turn in turns]
        found, expected = (self.tokenize(self.rendered(one)) for one in (turns, parts))
        self._check_counts(sample, self._control_tokens(found), self._control_tokens(expected))
        if self.writer is not None:
            return self._written_as(self.writer, sample, FREE, turns, shown)
        return self._laid_out(sample, FREE, self.rendered(turns), found, tuple(one.handle for one in shown))

    def _written(self, writer: Writer, sample: Sample, answer_format: str, media: Sequence[PromptMedium]) -> Prompt:
        """The prompt as the family's own processor writes it, checked against what it makes of each medium by itself."""
        asked = messages(sample, answer_format, self.prompt)
        self._check_control_tokens(sample, answer_format, self.tokenize(self.rendered(asked)))
        return self._written_as(writer, sample, answer_format, asked, media)

    def _written_as(self, writer: Writer, sample: Sample, answer_format: str, asked: Messages, media: Sequence[PromptMedium]) -> Prompt:
        made = self.expanded(writer, writer.render(asked), media, _where(sample))
        return self._made(sample, answer_format, tuple(one.handle for one in media), made)

    def expanded(self, writer: Writer, text: str, media: Sequence[PromptMedium], where: str) -> LaidOut:
        """Lay out a rendered text as the family's own processor writes it.

        Args:
            media: those of its placeholders, in order.
            where: names the text in messages.

        Raises:
            RowError: `placeholder`: the processor refuses it, or makes something else of its media in company.
        """
        tokens = [one.handle.tokens for one in media]
        try:
            ids, kinds = writer.expand(text, media)
        except RowError as error:
            raise RowError(error.reason, f"{where}: {error}") from error
        # the processor has expanded the placeholders itself; its counts must be those that each medium was planned and packed with
        columns = [column for column, token in enumerate(ids) if token in self.pad_ids.values()]
        if len(columns) != sum(tokens):
            raise RowError(
                "placeholder",
                f"{where}: {len(columns)} placeholder tokens in the prompt, {tokens} in its media one by one: this family's processor "
                "treats media in company otherwise; give it rows with one medium",
            )
        return LaidOut(ids, *_runs(columns, tokens), kinds)

    def _made(self, sample: Sample, answer_format: str, media: tuple[MediaHandle, ...], made: LaidOut) -> Prompt:
        if len(made.ids) > self.max_prompt_tokens:
            raise RowError(
                "overlong",
                f"{_where(sample)}: {len(made.ids)} prompt tokens > max_prompt_tokens {self.max_prompt_tokens}; "
                "lower media.max_pixels, media.fps or media.max_frames, or raise the limit",
            )
        return made.put(Prompt(sample=sample, ids=(), media=media, spans=(), answer_format=answer_format))

    def _prompt(self, sample: Sample, answer_format: str, handles: Sequence[MediaHandle]) -> Prompt:
        text = self.rendered(messages(sample, answer_format, self.prompt))
        short = self.tokenize(text)
        self._check_control_tokens(sample, answer_format, short)
        return self._laid_out(sample, answer_format, text, short, tuple(handles))

    def _laid_out(self, sample: Sample, answer_format: str, text: str, short: list[int], handles: tuple[MediaHandle, ...]) -> Prompt:
        """A rendered prompt, whose ids are `short`, with every placeholder repeated as its medium needs."""
        if any(handle.step_times is not None for handle in handles):
            # the times are text and can merge with what stands beside them, so the whole prompt is tokenised anew, not its pieces
            short = self.tokenize(self._with_times(sample, text, handles))
        return self._made(sample, answer_format, handles, self.spread(short, handles, _where(sample)))

    def rendered(self, asked: Messages) -> str:
        """Render messages by the chat template up to where an answer begins, a placeholder per medium."""
        if self.writer is not None:
            return self.writer.render(asked)
        return str(self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))

    def tokenize(self, text: str) -> list[int]:
        """Tokenise a text as it stands, control tokens included."""
        return [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def spread(self, short: Sequence[int], handles: Sequence[MediaHandle], where: str) -> LaidOut:
        """Repeat every placeholder as often as its medium has features.

        Args:
            short: ids with one placeholder per medium, or per temporal step of one with `step_times`.
            handles: the media in the order of their placeholders.
            where: names the row in messages.

        Raises:
            RowError: `placeholder`: placeholders and media disagree.
        """
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        owners: list[int] = []
        # one entry per span that is still to come: a medium has one, or one per temporal step
        waiting = [(owner, tokens) for owner, handle in enumerate(handles) for tokens in _pieces(handle)]
        for token in short:
            if token not in self.pad_ids.values():
                ids.append(token)
                continue
            # refused instead of repaired: a prompt whose features belong to another medium trains on the wrong picture without any error
            if len(owners) == len(waiting) or self.pad_ids[handles[waiting[len(owners)][0]].kind] != token:
                raise RowError("placeholder", f"{where}: placeholders and media disagree in number or order")
            owner, tokens = waiting[len(owners)]
            owners.append(owner)
            spans.append((len(ids), len(ids) + tokens))
            ids.extend([token] * tokens)
        if len(owners) < len(waiting):
            left = len({owner for owner, _ in waiting[len(owners) :]})
            raise RowError("placeholder", f"{where}: {left} media have no placeholder in the chat template")
        return LaidOut(tuple(ids), tuple(spans), tuple(owners), {})

    def _with_times(self, sample: Sample, text: str, handles: Sequence[MediaHandle]) -> str:
        """`text` with every video's placeholder written out step by step, one placeholder per step."""
        pad = str(self.tokenizer.convert_ids_to_tokens(self.pad_ids["video"]))
        videos = [handle for handle in handles if handle.kind == "video"]
        parts = text.split(pad)
        if len(parts) != len(videos) + 1:
            raise RowError(
                "placeholder", f"{_where(sample)}: {len(parts) - 1} video placeholders in the chat template for {len(videos)} videos"
            )
        out = [parts[0]]
        for handle, after in zip(videos, parts[1:], strict=True):
            # one digit after the point, as transformers' Qwen3-VL processor writes it; other digits are other tokens
            out += [pad] if handle.step_times is None else [f"<{t:.1f} seconds>{_OPEN}{pad}{_CLOSE}" for t in handle.step_times]
            out.append(after)
        return "".join(out)

    def _check_control_tokens(self, sample: Sample, answer_format: str, ids: list[int]) -> None:
        """Text of a row must not smuggle in control tokens: their count equals that of the same prompt with a harmless question, which is
        made once for each shape of conversation. A recipe's `prompt` may show what else the row says, so that must be free of them."""
        kinds = tuple(ref.kind for ref in sample.media)
        turns = tuple((turn.media, turn.question_first) for turn in sample.history)
        shape = (kinds, turns, sample.question_first, answer_format, sample.answer_type)
        plain = dataclasses.replace(sample, question="question")
        if self.prompt is not None and answer_format != FREE:
            from vlmrl.data.wording import names_of, worded

            for name in names_of(self.prompt) & {"task", "meta"}:
                shown = json.dumps(getattr(sample, name), ensure_ascii=False, default=dict)
                self._check_counts(sample, self._control_tokens(self.tokenize(shown)), 0, f"'{name}', which data.prompt shows,")
            # a template may word every row differently, so its text for a harmless question is part of the key
            shape = (*shape, worded(self.prompt, plain, answer_format, instruction(answer_format, sample.answer_type)))
        # one rendering per shape instead of one per row: the template does the same for all rows of it
        if shape not in self._harmless:
            harmless = tuple(dataclasses.replace(turn, question="question", answer="answer") for turn in sample.history)
            plain = dataclasses.replace(plain, history=harmless)
            self._harmless[shape] = self._control_tokens(self.tokenize(self.rendered(messages(plain, answer_format, self.prompt))))
        self._check_counts(sample, self._control_tokens(ids), self._harmless[shape])

    def _control_tokens(self, ids: Sequence[int]) -> int:
        return sum(map(self.special_ids.__contains__, ids))

    def _check_counts(self, sample: Sample, found: int, expected: int, what: str = "the question") -> None:
        if found != expected:
            raise RowError("control_token", f"{_where(sample)}: {what} contains {found - expected} control token(s) of the model")


def _harmless(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "text": "question"} if part["type"] == "text" else part


def _runs(columns: Sequence[int], counts: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """(spans, owners) of placeholder columns that belong to media with so many of them each, in their order."""
    spans: list[tuple[int, int]] = []
    owners: list[int] = []
    of = [owner for owner, count in enumerate(counts) for _ in range(count)]
    for column, owner in zip(columns, of, strict=True):
        # the next column of the same medium's run; a gap within a medium (tiles, rows of patches) begins a new span of it
        if owners and owners[-1] == owner and spans[-1][1] == column:
            spans[-1] = (spans[-1][0], column + 1)
        else:
            spans.append((column, column + 1))
            owners.append(owner)
    return tuple(spans), tuple(owners)


def _pieces(handle: MediaHandle) -> list[int]:
    """Placeholder tokens of each span of a medium."""
    if handle.step_times is None:
        return [handle.tokens]
    steps = handle.grid_thw[0]
    if len(handle.step_times) != steps or handle.tokens % steps:
        raise ValueError(
            f"video {handle.key[:12]}: {len(handle.step_times)} step times and {handle.tokens} tokens for {steps} temporal steps"
        )
    return [handle.tokens // steps] * steps


def _where(sample: Sample) -> str:
    return f"row '{sample.id}' ({sample.source})"

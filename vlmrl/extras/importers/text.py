"""Texts of foreign rows: placeholders of media, instructions about the answer format, and answers in their wrapping."""

from __future__ import annotations

import re
from itertools import pairwise

from vlmrl.errors import RowError

_NUMBERED = re.compile(r"<(image|video)[ _]?(\d{1,3})>", re.IGNORECASE)
_PLAIN = re.compile(r"<(?:image|video)>")
_NUMBERED_RUN = re.compile(r"(?:\s*<(?:image|video)[ _]?\d{1,3}>)+", re.IGNORECASE)

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_INSTRUCTION = re.compile(r"</?(?:think|thinking|answer)>|\\boxed|reasoning process as an internal monologue", re.IGNORECASE)

_TAG = re.compile(r"<(/?)(thinking|think|answer)>", re.IGNORECASE)
_BOXED = re.compile(r"\$?\s*\\boxed\{(.*)\}\s*\.?\s*\$?", re.DOTALL)


def place_media(question: str, options: list[str], images: int, videos: int) -> tuple[str, list[str]]:
    """Question and options with placeholders as our schema has them: together at the start or the end of the question.

    Plain `<image>` and `<video>` stay where they are; the schema refuses those within the text, since it cannot keep their place.
    A numbered one (`<image 2>`) is a name: in a run at the start or the end that counts 1, 2, ... it becomes a plain one, anywhere
    else the words `image 2`, with the media in front in the order of their numbers. So is what the text refers to kept.

    Raises:
        RowError: `placeholder`: both kinds at once, a number without its medium, a medium without a number, or media shown in another
            order than that of the row.
    """
    texts = [question, *options]
    numbered = [(kind.lower(), int(number)) for text in texts for kind, number in _NUMBERED.findall(text)]
    if not numbered:
        return question, options
    if any(_PLAIN.search(text) for text in texts):
        raise RowError("placeholder", "the row has placeholders with and without numbers; use one kind")
    for kind, count in (("image", images), ("video", videos)):
        named = {number for k, number in numbered if k == kind}
        if named and named != set(range(1, count + 1)):
            raise RowError("placeholder", f"the text names {kind}s {sorted(named)}, but the row has {count} {kind}(s)")
        if not named and count:
            raise RowError("placeholder", f"the text names no {kind}, but the row has {count}")
    plain = _plain_run(question)
    if plain is not None and len(numbered) == images + videos:
        return plain, options
    # The first run is only where the media stand; later mentions refer to them.
    start = _NUMBERED_RUN.match(question)
    if start is not None:
        leading = [int(number) for _, number in _NUMBERED.findall(start.group())]
        if leading != sorted(leading):
            raise RowError(
                "placeholder", f"the text shows its media in the order {leading}; list them in that order and number them 1, 2, ..."
            )
        question = question[start.end() :]
    front = "<image>" * images + "<video>" * videos
    return front + _words(question).lstrip(), [_words(option) for option in options]


def has_numbers(texts: list[str]) -> bool:
    """Whether one of the texts has a numbered placeholder."""
    return any(_NUMBERED.search(text) for text in texts)


def _plain_run(question: str) -> str | None:
    """The question with its one run of placeholders 1, 2, ... made plain; None if they are elsewhere or in another order."""
    text = question.strip()
    runs = list(_NUMBERED_RUN.finditer(text))
    if len(runs) != 1 or not (runs[0].start() == 0 or runs[0].end() == len(text)):
        return None
    seen: dict[str, int] = {}
    for kind, number in _NUMBERED.findall(text):
        seen[kind.lower()] = seen.get(kind.lower(), 0) + 1
        if int(number) != seen[kind.lower()]:
            return None
    return _NUMBERED.sub(lambda match: f"<{match.group(1).lower()}>", text)


def _words(text: str) -> str:
    return _NUMBERED.sub(lambda match: f"{match.group(1).lower()} {int(match.group(2))}", text)


def cut_instructions(question: str) -> tuple[str, str]:
    """(question without what asks for an answer format, what was cut).

    Cut are sentences at its start or end that name a think or answer tag, `\\boxed`, or verl's "reasoning process as an internal
    monologue"; never a question (`?`), and nothing in the middle. The recipe's `answer_format` says what the model is asked for instead.

    Raises:
        RowError: `bad_value`, nothing would be left.
    """
    text = question.strip()
    bounds = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    first, last = 0, len(pieces)
    while last > first and (not pieces[last - 1].strip() or _asks_format(pieces[last - 1])):
        last -= 1
    while first < last and _asks_format(_PLAIN.sub("", pieces[first])):
        first += 1
    cut = "".join([*pieces[:first], *pieces[last:]]).strip()
    if not cut:
        return question, ""
    media = "".join(_PLAIN.findall(cut))
    kept = "".join(pieces[first:last]).strip()
    if not _PLAIN.sub("", kept).strip():
        raise RowError("bad_value", "the question is nothing but instructions about the answer format; set 'instructions: keep'")
    at_end = _PLAIN.search(pieces[-1]) is not None and text.endswith(">")
    return (kept + media if at_end else media + kept), _PLAIN.sub("", cut).strip()


def _asks_format(sentence: str) -> bool:
    return _INSTRUCTION.search(sentence) is not None and not sentence.rstrip().endswith("?")


def unwrap(text: str) -> tuple[str, str | None]:
    """(answer, thought) of a gold answer as other trainers store it.

    `<think>...</think><answer>B</answer>` gives both; of several answer blocks the last counts, as for the model's own answers. Text
    after a closed thought without answer tags is the answer. `\\boxed{...}` around the whole answer is taken off. Other text is
    itself.

    Raises:
        RowError: `answer`: tags that do not close, text around an answer block, or nothing inside it.
    """
    answer: str | None = None
    thought: str | None = None
    opened: tuple[str, int] | None = None
    rest, place = "", 0
    for match in _TAG.finditer(text):
        kind = "answer" if match.group(2).lower() == "answer" else "think"
        if opened is None and not match.group(1):
            rest += text[place : match.start()]
            opened = (kind, match.end())
        elif opened is not None and opened[0] == kind and match.group(1):
            inner = text[opened[1] : match.start()]
            if kind == "answer":
                answer = inner
            elif thought is None:
                thought = inner
            opened, place = None, match.end()
        elif opened is None or opened[0] == "answer":
            raise RowError("answer", f"the gold answer has {match.group()} where it opens or closes nothing: {text[:80]!r}")
    if opened is not None:
        raise RowError("answer", f"the gold answer opens <{opened[0]}> and does not close it: {text[:80]!r}")
    rest += text[place:]
    if answer is not None and rest.strip():
        raise RowError("answer", f"the gold answer has text outside of its tags: {rest.strip()[:80]!r}")
    bare = _unboxed((rest if answer is None else answer).strip())
    if not bare:
        raise RowError("answer", "the gold answer is empty")
    return bare, thought.strip() or None if thought is not None else None


def _unboxed(text: str) -> str:
    """Without a `\\boxed{}` that encloses all of it."""
    match = _BOXED.fullmatch(text)
    if match is None:
        return text
    depth = 0
    for character in match.group(1):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return text
    return match.group(1).strip() if depth == 0 else text

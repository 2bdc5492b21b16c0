"""Reading and writing answers: `<think>...</think><answer>...</answer>` and its relatives.

The reader is a scanner over tag positions, linear in the length of the text whatever a collapsing policy emits. The last answer
block counts: a model that reconsiders is judged on its final statement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlmrl.types import Sample

MAX_CHARS = 65536
"""Longer completions are cut at the front; they were truncated by any sensible token limit before."""
FREE = "free"
"""In the place of an answer format: the question stands alone, for text that the policy writes for itself (hints, derivations)."""
EMPTY_THOUGHT = "\n\n"
"""The dropped thought of TON (arXiv:2505.16854), byte for byte."""

_TAG = re.compile(r"<(/?)(thinking|think|answer)>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A completion taken apart."""

    thought: str | None
    """Content of the first closed think block; None without one."""
    answer: str | None
    """Content of the last closed answer block outside the thought, stripped; None without one."""
    format_ok: bool
    """Whether the whole completion is what the answer format asks for, white space around it aside."""
    empty_thought: bool
    """A think block that is blank: a skip."""
    errors: tuple[str, ...] = ()
    """Codes: `no_answer`, `answers` (several), `unclosed`, `nested`, `order`, `outside` (text outside the blocks), `overlong` (cut)."""


@dataclass(frozen=True, slots=True)
class _Block:
    kind: str
    start: int
    """Of its opening tag."""
    inner: str
    end: int
    """After its closing tag."""


def _blocks(text: str) -> tuple[list[_Block], set[str]]:
    """Closed blocks in order, and what is wrong with the tags."""
    blocks: list[_Block] = []
    errors: set[str] = set()
    opened: tuple[str, int, int] | None = None
    for match in _TAG.finditer(text):
        kind = "answer" if match[2].lower() == "answer" else "think"
        if not match[1]:
            if opened is not None:
                errors.add("nested")
                if opened[0] == "think":
                    continue  # tags inside a thought are its text
            # an answer that opens within an answer begins anew: the last statement counts
            opened = (kind, match.start(), match.end())
        elif opened is not None and opened[0] == kind:
            blocks.append(_Block(kind, opened[1], text[opened[2] : match.start()], match.end()))
            opened = None
        else:
            errors.add("unclosed" if opened is None else "nested")
    if opened is not None:
        errors.add("unclosed")
    return blocks, errors


def parse(completion: str, answer_format: str) -> Parsed:
    """Take a completion apart. Never raises; what is wrong is in `errors`.

    Returns:
        The first thought and the last answer, whether the form is right, and the names of what is wrong in order.
    """
    # from the end, where the answer is
    text = completion[-MAX_CHARS:]
    blocks, errors = _blocks(text)
    if len(completion) > MAX_CHARS:
        errors.add("overlong")  # what was cut off cannot be vouched for
    thoughts = [b for b in blocks if b.kind == "think"]
    answers = [b for b in blocks if b.kind == "answer"]
    # `think_or_not` wants both blocks too: leaving the thought out is an empty one
    wanted = ["answer"] if answer_format == "answer_only" else ["think", "answer"]
    if not answers:
        errors.add("no_answer")
    if len(answers) > 1:
        errors.add("answers")
    if [b.kind for b in blocks] != wanted and answers:
        errors.add("order")
    place = 0
    for block in blocks:
        if text[place : block.start].strip():
            errors.add("outside")
        place = block.end
    if text[place:].strip():
        errors.add("outside")
    return Parsed(
        thought=thoughts[0].inner if thoughts else None,
        answer=answers[-1].inner.strip() if answers else None,
        format_ok=not errors and [b.kind for b in blocks] == wanted,
        empty_thought=bool(thoughts) and not thoughts[0].inner.strip(),
        errors=tuple(sorted(errors)),
    )


def first_answer(text: str) -> str | None:
    """Find the content of the first closed answer block outside the thought, stripped; None without one."""
    blocks, _ = _blocks(text[-MAX_CHARS:])
    return next((b.inner.strip() for b in blocks if b.kind == "answer"), None)


def without_tags(text: str) -> str:
    """Put blanks in the place of a text's think and answer tags, and strip it."""
    return _TAG.sub(" ", text[-MAX_CHARS:]).strip()


def answer_view(text: str) -> str:
    """Find what a scorer without knowledge of tags should see: the last answer block, else what follows the thought, else the text.

    A thought that never closes leaves nothing.
    """
    blocks, _ = _blocks(text[-MAX_CHARS:])
    answers = [b for b in blocks if b.kind == "answer"]
    if answers:
        return answers[-1].inner.strip()
    tags = [(m[1], m[2].lower(), m.end()) for m in _TAG.finditer(text) if m[2].lower() != "answer"]
    if not tags:
        return text.strip()
    return text[tags[-1][2] :].strip() if tags[-1][0] else ""


def gold_text(sample: Sample, answer_format: str, thought: str | None) -> str:
    """Write the completion that gives the sample's true answer. Without a thought, answer formats with thoughts get the empty one."""
    answer = f"<answer>{sample.answer}</answer>"
    if answer_format == "answer_only":
        return answer
    return f"<think>{thought if thought else EMPTY_THOUGHT}</think>{answer}"

"""Finds the answer's tokens within a rollout, for the likelihood of the answer given the thought (GRPO-CARE, arXiv:2506.16141).

The authors drop a fixed number of tokens at the end. Here it goes by characters: the tokens that hold any character between the tags of
the last answer block, white space next to the tags aside. Closing tag and end token are out, however the tokenizer cuts them; a token
that holds the answer's border and a piece of a tag is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from vlmrl.answers.tags import MAX_CHARS, parse
from vlmrl.types import Rollout

Decode = Callable[[Sequence[int]], str]
"""`ProcessorBundle.decode`: ids to text, control tokens left out."""


def answer_span(text: str, answer_format: str) -> tuple[int, int] | None:
    """Find the characters [start, end) of the answer that `answers.tags.parse` finds; None without one, or if it is blank."""
    answer = parse(text, answer_format).answer
    if not answer:
        return None
    first = max(0, len(text) - MAX_CHARS)
    found = [*re.compile(rf"<answer>\s*({re.escape(answer)})\s*</answer>", re.IGNORECASE).finditer(text, first)]
    return found[-1].span(1) if found else None


def answer_tokens(ids: Sequence[int], text: str, span: tuple[int, int], decode: Decode) -> tuple[int, int]:
    """Find the tokens [start, end) that hold any character of `span`. `text` is what `ids` decode to.

    Prefixes are decoded at the places of a binary search: a decoded prefix is never longer than a longer one.
    """

    def least(whole: Callable[[str], bool]) -> int:
        """Fewest leading tokens whose text is `whole`, which stays true once it is."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if whole(decode(ids[:middle])) else (middle + 1, high)
        return low

    # the text is compared at the end, since a character that is cut in two decodes to a placeholder of the same length
    return least(lambda prefix: len(prefix) > span[0]) - 1, least(lambda prefix: prefix[: span[1]] == text[: span[1]])


def answer_mask(rollouts: Sequence[Rollout], answer_formats: Sequence[str], decode: Decode) -> torch.Tensor:
    """Mark the answer's tokens.

    Returns:
        [N, T] bool, T the longest rollout; a row without an answer is all False.
    """
    width = max((len(r.ids) for r in rollouts), default=0)
    mask = torch.zeros((len(rollouts), width), dtype=torch.bool)
    for n, (rollout, answer_format) in enumerate(zip(rollouts, answer_formats, strict=True)):
        span = answer_span(rollout.text, answer_format)
        if span is not None:
            start, end = answer_tokens(rollout.ids, rollout.text, span, decode)
            mask[n, start:end] = True
    return mask

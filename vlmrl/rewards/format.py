"""Rewards of form: `format` wants the whole answer format, `structure` counts its tags, `think_format` wants a thought and any answer."""

from __future__ import annotations

import itertools
import re

from vlmrl.answers.tags import MAX_CHARS, parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group

_THINK_TAG = re.compile(r"<(/?)(thinking|think)>", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(thinking|think|answer)>", re.IGNORECASE)
_WANTED = {"answer_only": ("answer", "/answer")}
_ALL = ("think", "/think", "answer", "/answer")


@reward("format", form_only=True)
def format_reward(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the whole completion is the blocks of the prompt's answer format in order, else 0. An empty thought is valid."""
    return [float(parse(rollout.text, group.prompt.answer_format).format_ok) for rollout in group.rollouts]


def thinks_first(text: str) -> bool:
    """Check that a text is one think block, blank or not, and then something that is not blank. One pass over the text."""
    # a third tag is already one too many; the rest of a long text is not searched
    tags = list(itertools.islice(_THINK_TAG.finditer(text), 3))
    if len(tags) != 2 or len(text) > MAX_CHARS:
        return False
    opening, closing = tags
    pair = not opening[1] and bool(closing[1]) and opening[2].lower() == closing[2].lower()
    return pair and not text[: opening.start()].strip() and bool(text[closing.end() :].strip())


def tag_share(text: str, answer_format: str) -> float:
    """Compute the share of the answer format's tags that occur exactly once and stand in order, in [0, 1]. One pass over the text.

    Of tags that occur once in a wrong order, the longest run of them (with gaps) in the right order counts.
    """
    wanted = _WANTED.get(answer_format, _ALL)
    places: dict[str, list[int]] = {}
    for match in _TAG.finditer(text[-MAX_CHARS:]):
        kind = "answer" if match[2].lower() == "answer" else "think"
        places.setdefault(f"{match[1]}{kind}", []).append(match.start())
    once = [places[tag][0] for tag in wanted if len(places.get(tag, ())) == 1]
    # subsets from the longest down, of four tags at most; `combinations` keeps the wanted order, so sorted positions are in order
    orders = (c for n in range(len(once), 0, -1) for c in itertools.combinations(once, n) if list(c) == sorted(c))
    return len(next(orders, ())) / len(wanted)


@reward("think_format")
def think_format(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the completion is one think block and then an answer in any form, else 0; for models that answer without tags.

    A prompt that asks for no thought (`answer_only`) is not judged (None).
    """
    if group.prompt.answer_format == "answer_only":
        return [None] * len(group.rollouts)
    return [float(thinks_first(rollout.text)) for rollout in group.rollouts]


@reward("structure")
def structure(group: Group, ctx: RewardContext) -> list[float | None]:
    """Share of the answer format's tags that occur exactly once and in order, in [0, 1]: partial credit on the way to the form.

    The tag count of open-r1, a quarter for each of four tags. Ours: order counts, line breaks around tags do not, and a prompt for
    the answer alone has two tags.
    """
    return [tag_share(rollout.text, group.prompt.answer_format) for rollout in group.rollouts]

"""Conversations (P17): the rows of an environment's turns, against the model's own forward on the whole conversation.

What stands between answers is asked of the processor by itself, with the media that are seen there. So its ids have to be those of the
template's whole conversation; ids that were sampled stay as they are, whatever text they are. Of the whole conversation only the columns of
answers are scored, each under all that stands before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vlmrl.errors import MediaError, RowError
from vlmrl.extras.families import generic, layouts
from vlmrl.extras.families.conform.check import Check, apart, broken, equal
from vlmrl.extras.families.conform.exact import ANSWERS, limits
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.shelf import Desk, desk_of, spoken
from vlmrl.extras.families.conform.subject import Tried, own_logits, picture
from vlmrl.extras.families.layouts import PromptAnswers
from vlmrl.extras.families.training import encoded
from vlmrl.registry import Catalogue
from vlmrl.types import Prompt

Told = list[tuple[Prompt, tuple[int, ...]]]
CONVERSATION: Catalogue[Callable[..., Told]] = Catalogue("conversation")
"""Who makes rows of conversations: another optional part."""
SAID = "a1"
SHOWN = ("now look", "and now?")
"""A text with a picture, and one without."""


def laid_out(tried: Tried) -> list[Check]:
    """P17, for every prompt that is asked about as its media are one by one."""
    out: list[Check] = []
    for name, prompt in tried.prompts.items():
        if prompt.copies != 1:
            continue
        try:
            desk = desk_of(tried)
            first = desk.prompt(tried.asked[name].messages, tried.asked[name].media)
            seen = desk.shelf.put(desk.scribe, picture(64, 64, 5)).handle
            rows = CONVERSATION["told"](desk.encoder, first, ANSWERS[:3], [(SHOWN[0], [seen]), (SHOWN[1], ())])
            out += [_written(tried, desk, name, first, seen), _kept(name, rows), *_scored(tried, desk, name, rows)]
        except (*ERRORS, RowError, MediaError) as error:
            out.append(broken("P17", name, "a conversation", error))
    return out


def _written(tried: Tried, desk: Desk, name: str, first: Prompt, seen: Any) -> Check:
    """What stands around an answer has the ids and kinds of the template's whole conversation."""
    ids = desk.encoder.tokenize(SAID)
    (_, _), (second, _) = CONVERSATION["told"](desk.encoder, first, [ids, ids], [(SHOWN[0], [seen])])
    asked = tried.asked[name]
    messages = [*asked.messages, spoken("assistant", SAID), spoken("user", SHOWN[0], ["image"])]
    whole = generic.encode(tried.processor, tried.facts.pads, messages, [*asked.media, desk.shelf.get_key(seen.key).frames[0]])
    before, behind = len(first.ids), len(second.ids) - len(first.ids) - len(ids)
    pairs = [(list(second.ids), whole.ids_P.tolist())]
    pairs += [(list(kinds), whole.types[kind].tolist()) for kind, kinds in second.kinds.items()]
    # a template may write a blank before an answer: the answer's own columns are compared by nobody
    same = all(a[:before] == b[:before] and a[-behind:] == b[-behind:] for a, b in pairs) and set(second.kinds) == set(whole.types)
    note = f"{pairs[0][0][-behind:]} and {pairs[0][1][-behind:]}"
    return equal("P17", name, "between answers stands what the template writes", same, note)


def _kept(name: str, rows: Told) -> Check:
    """Every prompt begins with the one before it and what was answered to that."""
    same = all(
        later.ids[: len(before.ids) + len(ids)] == before.ids + ids and later.media[: len(before.media)] == before.media
        for (before, ids), (later, _) in itertools.pairwise(rows)
    )
    return equal("P17", name, "what was said before is kept", same)


def _scored(tried: Tried, desk: Desk, name: str, rows: Told) -> list[Check]:
    """Rows of turns give the log-probs of answers in the whole conversation, and of nothing between them."""
    groups = [_group(tried, desk, prompt, ids) for prompt, ids in rows]
    (last, ids), logp = rows[-1], limits(tried)[0]
    with torch.no_grad():
        logits = own_logits(tried, groups[-1], ids)[:-1]
        whole = layouts.logprobs(logits, (*last.ids, *ids)[1:])
        wanted = [whole[len(prompt.ids) - 1 :][: len(answer)] for prompt, answer in rows]
        found = {layout: [row for (row,) in layouts.LAYOUTS[layout](tried.subject, groups)] for layout in ("repeat", "shared_prefix")}
    out = [Check("P17", name, f"log-probs of turns, {layout}", _apart(ours, wanted), logp) for layout, ours in found.items()]
    between = whole[len(rows[0][0].ids) - 1 :].sum() - sum(row.sum() for row in wanted)
    return [*out, Check("P17", name, "control: what stands between is scored too", float(between.abs()), 100 * logp, control=True)]


def _apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return apart(ours, theirs) if [len(row) for row in ours] == [len(row) for row in theirs] else float("inf")


def _group(tried: Tried, desk: Desk, prompt: Prompt, ids: Sequence[int]) -> PromptAnswers:
    core = tried.subject.core
    argued = [desk.shelf.get_key(handle.key).argued for handle in prompt.media]
    media = [generic.features(core, one.arguments, one.kind) for one in argued]
    return PromptAnswers(prompt=encoded(tried.subject, prompt, desk.shelf), media=media, answers=[ids])

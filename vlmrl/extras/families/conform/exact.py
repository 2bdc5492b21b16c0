"""Promises about what comes out: padded rows (P6), the forked cache (P7), the packed row (P8), decoding (P9), the head (P10).

The reference is always one row per answer through the model's own forward, head and positions. Beside every promise about a layout stands a
control: the same layout with a mistake in it must be off by a hundred times the limit, else the promise could not see that mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vlmrl.extras.families import engine_fork, generic, layouts, masks
from vlmrl.extras.families.conform.check import Check, apart, broken, equal, gradients, relative
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.subject import Tried, alone, own_logits
from vlmrl.extras.families.generic import TowerOutput
from vlmrl.extras.families.layouts import PromptAnswers
from vlmrl.train.updates import recompute

ANSWERS = ((40, 50, 60, 70, 80, 41, 51), (90, 41, 51), (61,), (33, 44, 55, 66))
"""Ids of answers: bytes of a local tokenizer, ordinary tokens of any other."""
DECODED = 64
"""Tokens of a greedy answer at most."""
DRAWN = 12


def limits(tried: Tried) -> tuple[float, float]:
    """(of log-probs, of relative gradients)."""
    return (1e-9, 1e-8) if tried.exact else (2e-4, 2e-3)


def _total(rows: Sequence[Tensor]) -> Tensor:
    """A loss to which every answer counts differently."""
    return sum(((i + 1) * row.sum() for i, row in enumerate(rows)), torch.zeros((), dtype=rows[0].dtype))


def _flat(found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [row for group in found for row in group]


def first_case(tried: Tried) -> str:
    """A prompt with a picture, where one could be encoded."""
    return "image" if "image" in tried.prompts else next(iter(tried.prompts))


def reference(tried: Tried, groups: Sequence[PromptAnswers]) -> list[Tensor]:
    """Every answer alone."""
    return [alone(tried, group, answer) for group in groups for answer in group.answers]


def padded(tried: Tried) -> list[Check]:
    """P6: a padded batch of rows is the rows alone."""
    out: list[Check] = []
    for name in tried.prompts:
        with torch.no_grad():
            try:
                group = tried.scored(name, ANSWERS[:3])
                value = apart(_flat(layouts.repeat(tried.subject, [group])), reference(tried, [group]))
            except ERRORS as error:
                out.append(broken("P6", name, "log-probs", error))
                continue
        out.append(Check("P6", name, "log-probs", value, limits(tried)[0]))
    return out


def same_gradients(promise: str, tried: Tried, layout: str, name: str, answers: Sequence[Sequence[int]]) -> list[Check]:
    """Log-probs and the gradient of all parameters, the tower's among them, of one prompt in a layout."""
    logp, gradient = limits(tried)
    parameters = list(tried.subject.model.parameters())
    try:
        theirs = reference(tried, [tried.scored(name, answers)])
        wanted = gradients(_total(theirs), parameters)
        ours = _flat(layouts.LAYOUTS[layout](tried.subject, [tried.scored(name, answers)]))
        got = gradients(_total(ours), parameters)
    except ERRORS as error:
        return [broken(promise, name, "log-probs", error)]
    return [
        Check(promise, name, "log-probs", apart(ours, theirs), logp),
        Check(promise, name, "gradient", relative(got, wanted), gradient),
    ]


def forked(tried: Tried) -> list[Check]:
    """P7: prompts once, their caches forked to the answers."""
    out: list[Check] = []
    for name in tried.prompts:
        out += same_gradients("P7", tried, "fork", name, ANSWERS[:3])
    return out


def packed(tried: Tried) -> list[Check]:
    """P8: one packed row, of one group and of several; one, two and four answers; with layers computed again; and its controls."""
    out: list[Check] = []
    logp, _ = limits(tried)
    for name in tried.prompts:
        out += same_gradients("P8", tried, "shared_prefix", name, ANSWERS[:3])
    several = list(tried.prompts)
    with torch.no_grad():
        for what, shape in {"several groups": (3, 1, 2, 4, 2, 1), "answers of length 1": (0,)}.items():
            try:
                chosen = several if len(shape) > 1 else several[:1]
                groups = [tried.scored(n, ANSWERS[:k] if k else [[40], [50]]) for n, k in zip(chosen, shape, strict=False)]
                value = apart(_flat(layouts.shared_prefix(tried.subject, groups)), reference(tried, groups))
                out.append(Check("P8", "+".join(chosen), what, value, logp))
            except ERRORS as error:
                out.append(broken("P8", "+".join(several), what, error))
    name = first_case(tried)
    for what, mistake in CONTROLS.items():
        try:
            with torch.no_grad(), mistake():
                group = tried.scored(name, ANSWERS)
                value = apart(_flat(layouts.shared_prefix(tried.subject, [group])), reference(tried, [group]))
            out.append(Check("P8", name, f"control: {what}", value, 100 * logp, control=True))
        except ERRORS as error:
            out.append(broken("P8", name, f"control: {what}", error))
    return out


def recomputed(tried: Tried) -> list[Check]:
    """P8: the gradient of a packed row is the same when layers are computed again in the backward pass."""
    name = first_case(tried)
    model = tried.subject.model
    parameters = list(model.parameters())
    try:
        wanted = gradients(_total(_flat(layouts.shared_prefix(tried.subject, [tried.scored(name, ANSWERS[:3])]))), parameters)
        recompute(model)
        model.train()
        got = gradients(_total(_flat(layouts.shared_prefix(tried.subject, [tried.scored(name, ANSWERS[:3])]))), parameters)
    except ERRORS as error:
        return [broken("P8", name, "gradient with recomputation", error)]
    finally:
        recompute(model, on=False)
        model.eval()
    return [Check("P8", name, "gradient with recomputation", relative(got, wanted), limits(tried)[1])]


def _patched(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    @contextmanager
    def context() -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return context


def _unowned(row: Tensor, positions: Tensor, owners: Tensor) -> Tensor:
    """Every answer sees those before it."""
    n = len(positions)
    return torch.ones(n, n, dtype=torch.bool).tril()


CONTROLS: dict[str, Callable[[], Any]] = {"answers see each other": _patched(masks, "owned", _unowned)}
"""Name -> context in which a layout makes that mistake."""


def decoded(tried: Tried) -> list[Check]:
    """P9: greedy answers from a forked cache are `model.generate`'s; drawn ones never have a forbidden id, and end where one ends.

    No answer may hold a forbidden id, as in training: the model would look for the pixels of a placeholder that it wrote itself.
    """
    out: list[Check] = []
    likeliest = engine_fork.greedy(tried.facts.forbidden_ids)
    for name, prompt in tried.prompts.items():
        try:
            group = tried.scored(name, [[0]])
            media = group.media
            ours = engine_fork.answers(tried.subject, prompt, media, count=2, choose=likeliest, ends=tried.facts.end_ids, longest=DECODED)
            theirs = _generated(tried, name)
        except ERRORS as error:
            out.append(broken("P9", name, "greedy answer", error))
            continue
        same = all(answer == theirs for answer in ours)
        out.append(equal("P9", name, f"greedy answer of {len(theirs)} tokens", same, f"{ours[0]} and {theirs}"))
        out.append(_ends(tried, name, media, theirs))
        draw = engine_fork.drawn(7, tried.facts.forbidden_ids)
        drawn = engine_fork.answers(tried.subject, prompt, media, count=3, choose=draw, ends=tried.facts.end_ids, longest=DRAWN)
        bad = sum(token in tried.facts.forbidden_ids for answer in drawn for token in answer)
        out.append(Check("P9", name, "forbidden ids drawn", float(bad), 0.0))
    return out


def _ends(tried: Tried, name: str, media: Sequence[TowerOutput], greedy: Sequence[int]) -> Check:
    """An answer ends with the first token that ends one: with one from the middle of the greedy answer as the end, there."""
    end = greedy[len(greedy) // 2]
    until = list(greedy[: greedy.index(end) + 1])
    likeliest = engine_fork.greedy(tried.facts.forbidden_ids)
    ours = engine_fork.answers(tried.subject, tried.prompts[name], media, count=1, choose=likeliest, ends=(end,), longest=DECODED)
    return equal("P9", name, "ends where an end is", ours == [until], f"{ours[0]} and {until}")


def _generated(tried: Tried, name: str) -> list[int]:
    """The greedy answer of `model.generate` from pixels; from its own forward row by row, where the model refuses its own pixels."""
    prompt, model = tried.prompts[name], tried.subject.model
    dtype = next(model.parameters()).dtype
    wanted = inspect.signature(model.forward).parameters
    inputs = {k: generic.cast(v, dtype) for k, v in prompt.inputs.items() if k in wanted}
    generic.forget(tried.subject.core)
    try:
        with torch.no_grad():
            got = model.generate(
                **inputs,
                max_new_tokens=DECODED,
                do_sample=False,
                suppress_tokens=list(tried.facts.forbidden_ids) or None,
                eos_token_id=list(tried.facts.end_ids),
                pad_token_id=0,
            )
    except ERRORS:
        return _step_by_step(tried, name)
    finally:
        generic.forget(tried.subject.core)
    return got[0, prompt.length :].tolist()


def _step_by_step(tried: Tried, name: str) -> list[int]:
    """Greedy without a cache: the whole row again for each token."""
    scored = tried.scored(name, [[0]])
    out: list[int] = []
    never = torch.tensor(tried.facts.forbidden_ids, dtype=torch.int64)
    with torch.no_grad():
        while len(out) < DECODED and not set(out) & set(tried.facts.end_ids):
            out.append(int(own_logits(tried, scored, out)[-1].index_fill(0, never, -torch.inf).argmax()))
    return out


def head(tried: Tried) -> list[Check]:
    """P10: our head on the core's hidden states gives the model's own logits."""
    subject = tried.subject
    if subject.head is None:
        return []
    name = first_case(tried)
    prompt = tried.prompts[name]
    with torch.no_grad():
        group = tried.scored(name, [[0]])
        columns = list(range(prompt.length))
        given: dict[str, Any] = {k: v[None] for k, v in layouts.kinds(subject, [prompt.types], [0]).items()}
        given |= {"input_ids": prompt.ids_P[None], "position_ids": layouts.row_positions(subject, prompt, [])[..., None, :]}
        given["attention_mask"] = torch.ones(1, prompt.length, dtype=torch.int64)
        ours, _ = layouts.logits(subject, [0] * len(columns), columns, **given, **layouts.features_of(group.media))
        generic.forget(subject.core)
        theirs = subject.model(**given, use_cache=False, **layouts.features_of(group.media)).logits[0]
    return [Check("P10", name, "logits", float((ours - theirs).abs().max()), 1e-9 if tried.exact else 1e-4)]

"""A row's numbers do not depend on who else is in its prompt or its batch (P3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vlmrl.extras.families import generic, layouts
from vlmrl.extras.families.conform.check import Check, apart, broken
from vlmrl.extras.families.conform.exact import ANSWERS, limits
from vlmrl.extras.families.conform.inputs import ERRORS
from vlmrl.extras.families.conform.subject import Tried
from vlmrl.extras.families.generic import Encoded

_PIXELS = ("pixel_values", "pixel_values_videos")


def in_prompt(tried: Tried) -> list[Check]:
    """P3: a medium's features are those that it has when the tower sees all media of its prompt at once."""
    out: list[Check] = []
    for name, prompt in tried.prompts.items():
        if len(prompt.counts) < 2:
            continue
        try:
            with torch.no_grad():
                together = whole(tried, prompt)
                each = [generic.vectors(one) for one in tried.scored(name, [[0]]).media]
        except ERRORS as error:
            out.append(broken("P3", name, "features in company", error))
            continue
        for pixels, theirs in together.items():
            ours = torch.cat([rows for rows, argument in zip(each, prompt.arguments, strict=True) if argument.get(pixels) is not None])
            limit = 1e-9 if tried.exact else 1e-5
            if ours.shape == theirs.shape:
                out.append(Check("P3", name, f"features in company, {pixels}", apart([ours], [theirs]), limit))
            else:  # SmolVLM keeps those of the clip alone
                note = f"its processor keeps pixels of {len(theirs)} of {len(ours)} tokens"
                out.append(Check("P3", name, f"features in company, {pixels}", 0.0, 0.0, note=note))
    return out


def whole(tried: Tried, prompt: Encoded) -> Mapping[str, Tensor]:
    """Features of all media of a prompt from its pixels together, [tokens, H] by the name of the pixels."""
    out: dict[str, Tensor] = {}
    for pixels in _PIXELS:
        if prompt.inputs.get(pixels) is not None:
            argument = {key: value for key, value in prompt.inputs.items() if key == pixels or key not in _PIXELS}
            out[pixels] = generic.vectors(generic.features(tried.subject.core, argument, "image"))
    return out


def in_batch(tried: Tried) -> list[Check]:
    """P3: log-probs of a prompt's answers are the same beside another prompt of the batch, before it and behind it: beside a text, and
    beside the prompt with the most media."""
    names = [name for name, prompt in tried.prompts.items() if prompt.copies == 1]
    if len(names) < 2:
        return []
    most = max(names[1:], key=lambda name: len(tried.prompts[name].counts))
    try:
        with torch.no_grad():
            mine = tried.scored(names[0], ANSWERS[:2])
            guests = [tried.scored(name, ANSWERS[2:3]) for name in dict.fromkeys([*({"text"} & set(names[1:])), most])]
            [alone] = layouts.repeat(tried.subject, [mine])
            behind = layouts.repeat(tried.subject, [*guests, mine])[-1]
            before = layouts.repeat(tried.subject, [mine, guests[-1]])[0]
    except ERRORS as error:
        return [broken("P3", names[0], "log-probs in a batch", error)]
    value = max(apart(alone, behind), apart(alone, before))
    return [Check("P3", f"{names[0]}+{most}", "log-probs in a batch", value, limits(tried)[0])]

"""Questions about the same media, read together: what their prompts begin with, media included, is read once.

Prompts with the same media begin alike up to where their questions part. Such an opening is asked as a turn of its own, whose one token is
thrown away; the questions are the next turns of that conversation, so of each only what is behind the opening is read (`agents.kept`).
Answers are those of whole prompts up to the rounding of batched kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vlmrl.extras.agents.kept import session_of
from vlmrl.policy.model import Policy
from vlmrl.protocols import RolloutEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, MediaHandle, Prompt, Request, Rollout

READ = GenerationSettings(max_new_tokens=1, temperature=0.0)
Group = tuple[Prompt, list[int]]
"""(opening, places of the requests whose prompts begin with it)."""


def generate(engine: RolloutEngine, requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
    """Make the rollouts of every request, in order, as `engine.generate` does. Openings are shared by the reference engine alone, for
    models that keep nothing but keys and values, and as far as its `kept_bytes` go.

    Raises:
        NumericsError: logits are not finite.
    """
    if not isinstance(engine, HFEngine) or engine.policy.decode_grid is not None:
        return engine.generate(requests, settings)
    groups = _within(openings_of(requests), engine.policy, engine.kept_bytes)
    if not groups:
        return engine.generate(requests, settings)
    numbered = [dataclasses.replace(request, conversations=(n,) * len(request.ks)) for n, request in enumerate(requests)]
    read = [
        Request(prompt=opening, seeds=(0,), ks=(0,), conversations=(first,), alike=(tuple(others),), goes_on=True)
        for opening, (first, *others) in groups
    ]
    with session_of(engine) as session:
        session.generate(read, READ)
        return session.generate(numbered, settings)


def openings_of(requests: Sequence[Request]) -> list[Group]:
    """What prompts of two requests or more begin with, all their media or the first of them included, in the order of the first request.
    Prompts whose media have several spans (`Prompt.owners`) are left out: a session keeps nothing of them."""
    alike: dict[tuple[MediaHandle, ...], list[int]] = {}
    for place, request in enumerate(requests):
        if request.prompt.media and not request.prompt.owners and not request.prompt.kinds:
            alike.setdefault(request.prompt.media, []).append(place)
    out: list[Group] = []
    for places in alike.values():
        prompts = [requests[place].prompt for place in places]
        # every prompt has something behind its opening: the state that its answer begins from
        shortest = min(len(prompt.ids) for prompt in prompts) - 1
        columns = zip(*(prompt.ids[:shortest] for prompt in prompts), strict=True)
        same = next((n for n, column in enumerate(columns) if len(set(column)) > 1), shortest)
        first = prompts[0]
        shared = [span for span in first.spans if span[1] <= same]
        cut = next((span[0] for span in first.spans if span[0] < same < span[1]), same)
        if len(places) > 1 and shared and all(prompt.spans[: len(shared)] == tuple(shared) for prompt in prompts):
            opening = dataclasses.replace(first, ids=first.ids[:cut], media=first.media[: len(shared)], spans=tuple(shared))
            out.append((opening, places))
    return out


def _within(groups: Sequence[Group], policy: Policy, budget: int) -> list[Group]:
    """Those whose keys and values fit together; the longest shares go first."""
    text = policy.model.config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token = 2 * text.num_hidden_layers * text.num_key_value_heads * head * policy.compute.itemsize
    kept: list[Group] = []
    for group in sorted(groups, key=lambda group: -len(group[0].ids) * (len(group[1]) - 1)):
        if (size := len(group[0].ids) * token) <= budget:
            kept.append(group)
            budget -= size
    return kept

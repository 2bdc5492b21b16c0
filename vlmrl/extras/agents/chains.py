"""Turns of one episode in a packed row: what they share of the conversation is computed once.

Where the prompt of a turn begins with the turn before it (its prompt, and the ids that were sampled for it), the two make a chain. A chain
is one suffix of the prefix layout: `answer 1, observation, answer 2, ...` behind the first prompt, which chains of several attempts share.
Attention needs nothing new, since every token sees the first prompt and what stands before it in its own chain. What differs from
`pack_shared`: only sampled tokens are scored, positions continue through the pictures of later turns, and these pictures have columns of
their own. Log-probs are those of a row per turn.

Chains are found in the rows themselves, by comparing ids and media: a turn whose prompt begins anew (`history.screens`) begins a chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vlmrl.extras.agents.past import behind, continues
from vlmrl.policy.forward import Layout, shared_prefix
from vlmrl.policy.pack import (
    PackedBatch,
    PositionSpec,
    Row,
    extend,
    layout_of,
    partition,
    prompt_positions,
    response_mask,
    tensor_of,
    to_device,
)
from vlmrl.types import Prompt

Chain = list[int]
"""Places of rows, each the continuation of the one before it."""


def chains_of(rows: Sequence[Row]) -> list[list[Chain]]:
    """The chains that begin with the same prompt of a group, for each such prompt, in the order of their first rows. Every row is in one
    chain; of several that it continues it goes to the longest."""
    by_group: dict[int, list[Chain]] = {}
    for place in sorted(range(len(rows)), key=lambda n: (len(rows[n].prompt.ids), n)):
        row = rows[place]
        chains = by_group.setdefault(row.group, [])
        fitting = [chain for chain in chains if continues(row, rows[chain[-1]])]
        if fitting:
            max(fitting, key=lambda chain: _length(rows, chain)).append(place)
        else:
            chains.append([place])
    found: dict[tuple[int, int], list[Chain]] = {}
    for chain in sorted((chain for chains in by_group.values() for chain in chains), key=min):
        first = rows[chain[0]]
        found.setdefault((first.group, id(first.prompt)), []).append(chain)
    return list(found.values())


def _length(rows: Sequence[Row], chain: Chain) -> int:
    last = rows[chain[-1]]
    return len(last.prompt.ids) + len(last.response)


def split_chains(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Places of the rows of each packed row: chains are whole, and so are those of one prompt where they fit (`pack.partition`)."""
    roots = chains_of(rows)
    prefixes = [len(rows[chains[0][0]].prompt.ids) for chains in roots]
    sizes = [(prefix, [_length(rows, chain) - prefix for chain in chains]) for prefix, chains in zip(prefixes, roots, strict=True)]
    return [[place for g, held in part for i in held for place in roots[g][i]] for part in partition(sizes, max_tokens)]


def pack_chains(rows: Sequence[Row], spec: PositionSpec, device: torch.device, *, pad_id: int) -> PackedBatch:
    """One packed row of all given rows, which keep their order."""
    ids: list[int] = []
    positions: list[torch.Tensor] = []
    prompts: list[tuple[Prompt, int]] = []
    sizes: list[tuple[int, list[int]]] = []
    scored: dict[int, torch.Tensor] = {}
    for chains in chains_of(rows):
        root = rows[chains[0][0]].prompt
        start, prefix = len(ids), len(root.ids)
        prompts.append((root, start))
        positions.append(prompt_positions(root, spec))
        ids += root.ids
        suffixes: list[int] = []
        for chain in chains:
            last, at = rows[chain[-1]], len(ids)
            later = behind(last.prompt, prefix, len(root.media))
            if later.media:
                prompts.append((later, at))
            positions.append(extend(prompt_positions(last.prompt, spec), len(last.response))[:, prefix:])
            ids += (*later.ids, *last.response)
            suffixes.append(len(ids) - at)
            for place in chain:
                own = torch.arange(len(rows[place].response)) + len(rows[place].prompt.ids) - 1
                scored[place] = torch.where(own < prefix, start + own, at - prefix + own)
        sizes.append((prefix, suffixes))
    return PackedBatch(
        rows=tuple(rows),
        prompts=tuple(prompts),
        layout=layout_of(sizes),
        ids_1N=tensor_of(ids)[None],
        positions_31N=to_device(torch.cat(positions, dim=1)[:, None], device),
        score_M=to_device(torch.cat([scored[place] for place in range(len(rows))]), device),
        targets_M=tensor_of([token for row in rows for token in row.response]),
        mask_BT=to_device(response_mask(rows), device),
    )


CHAINS = Layout(split_chains, pack_chains, shared_prefix)
"""`chains` of `policy.forward.LAYOUTS`."""

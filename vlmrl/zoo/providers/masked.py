"""Log-probs of the same answers where the policy sees less: patches of the media blackened (`masked_logp`), or no media (`unseen_logp`).

Which patches are black goes by the run's seed, the step and the medium's key: other ones in every step, the same ones for all rows of a
prompt, for all updates of a step and in a resumed run. So the tower sees each masked medium once per pass over the step's rows; features
are in a cache with the bound of the policy's own, which is dropped behind the pass. The keys are those of masked pixels (`zoo.masked`).

Ours: the papers' code masks anew for every answer; here the answers of a group share a mask, as they share the picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from vlmrl import rng
from vlmrl.policy.pack import Row, response_mask
from vlmrl.policy.vision import VisionCache
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import Minibatch, score_rows
from vlmrl.types import Prompt
from vlmrl.zoo.masked import MaskedView, unseen


def scored_under(stage: Stage, rows: Sequence[Row], view: Callable[[Prompt], Prompt], vision: VisionCache | None = None) -> torch.Tensor:
    """Compute log-probs of the rows that show media, under other prompts, without gradient.

    Args:
        view: makes such a prompt of a row's own; it is called once for each.
        vision: features of the media of those prompts; None: the stage's.

    Returns:
        float32 [n, T] on the CPU; NaN in rows without media.
    """
    made: dict[int, Prompt] = {}
    places = [place for place, row in enumerate(rows) if row.prompt.media]
    for prompt in (rows[place].prompt for place in places):
        if id(prompt) not in made:
            made[id(prompt)] = view(prompt)
    # on every rank, also one that has none: it may gather weights
    found_NT = score_rows(stage.learner, [dataclasses.replace(rows[n], prompt=made[id(rows[n].prompt)]) for n in places], vision=vision)
    out_NT = torch.full(response_mask(rows).shape, float("nan"))
    out_NT[places, : found_NT.shape[1]] = found_NT
    return out_NT


def _masked(stage: Stage, rows: Sequence[Row], method: Bound) -> torch.Tensor:
    patch, share = method.argument("patch"), method.argument("share")
    if patch < 1 or not 0 <= share <= 1:
        raise ValueError(f"{method.slot} '{method.name}': needs patch {patch} >= 1 and share {share} in [0, 1]")
    view = MaskedView(
        stage.store, patch, share, lambda key: rng.generator(stage.seed, "mask", stage.cfg.name, stage.state.step, key, patch, str(share))
    )
    return scored_under(stage, rows, view.of, VisionCache(view, budget_bytes=stage.learner.vision.budget))


@provides("masked_logp_NT", arguments=("patch", "share"))
def masked_logprobs(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob of each token where a `share` of the squares of `patch` pixels is black in the prompt's media, [n, T]: under the policy
    before the updates. NaN in rows without media. One forward of the others without gradient."""
    return {"masked_logp_NT": _masked(stage, batch.rows, method)}


@provides("masked_logp_BT", arguments=("patch", "share"))
def masked_logprobs_of_minibatch(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, torch.Tensor]:
    """The same for the rows of a minibatch and a loss, [N, T]: under the policy before this update."""
    return {"masked_logp_BT": _masked(stage, batch.rows, method)}


@provides("unseen_logp_NT")
def unseen_logprobs(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob of each token where the prompt's media are left out of it, [n, T]: under the policy before the updates. NaN in rows without
    media. One forward of the others without gradient, and none of the tower."""
    return {"unseen_logp_NT": scored_under(stage, batch.rows, unseen)}

"""SPO: single-stream policy optimisation, a remembered value per prompt in place of a group. arXiv:2509.13232.

A_raw = r - v with v the value of the prompt from before this step, then (A_raw - batch mean) / (batch deviation + epsilon) over all
rollouts of all ranks. No group is needed: one rollout per prompt is the paper's setting, more are allowed.

Ours: v comes from the run's ledger. The paper's tracker is a Beta posterior that forgets faster the further the policy moved; which
average the ledger keeps is the ledger's business, and v must be on the scale of the summed reward. A prompt that was never seen has
v = `prior` (0.5 is what the paper's tracker starts from without offline samples). A batch whose A_raw are all equal gets exactly 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


@advantage("spo", paper="arXiv:2509.13232", needs=("baseline_N",), baseline="prompt", min_generations=1, moves_signs=True)
def spo(x: AdvantageInputs, *, prior: float = 0.5, epsilon: float = 1e-6, ddof: Literal[0, 1] = 1) -> Tensor:
    """Reward minus the prompt's remembered value, z-scored over the batch."""
    value_N = need(x, "baseline_N", "advantage 'spo'").double()
    raw_N = x.reward_N - torch.where(value_N.isnan(), torch.full_like(value_N, prior), value_N)
    batch_N = torch.zeros_like(x.group_N)
    scaled_N = (raw_N - segments.mean(raw_N, batch_N, x.valid_N)) / (segments.std(raw_N, batch_N, x.valid_N, ddof=ddof) + epsilon)
    live_N = x.valid_N & ~segments.flat(raw_N, batch_N, x.valid_N)
    return torch.where(live_N, scaled_N, torch.zeros_like(scaled_N)).detach()

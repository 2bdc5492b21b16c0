"""Which groups carry enough signal to train on and to be kept for later: the pure part of the selective sample buffer. Skywork R1V2,
arXiv:2504.16656.

The report keeps samples with non-zero advantage and brings them back with a chance that grows with |advantage|. Here: a group's
priority is the mean |advantage| of its judged, sampled rows; groups without any, or below `min_priority`, are dropped, and past
groups from `sampling.buffer.SampleBuffer` may take their places.

Ours: groups instead of single answers; the threshold (0: any signal). The selection sees rewards, so its advantages are GRPO's
(group z-scores with the sample deviation); the trainer pushes with the same mean of the advantages it trains on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter


@rollout_filter("selective_sample_buffer", paper="arXiv:2504.16656", drops_flat_groups=True, sampled_rows_only=True)
def selective_sample_buffer(x: AdvantageInputs, *, min_priority: float = 0.0) -> tuple[Tensor, str]:
    """Keep groups whose mean |advantage| is above 0 and at least `min_priority`."""
    counted_N = x.valid_N & x.on_policy_N
    live_N = counted_N & ~segments.flat(x.reward_N, x.group_N, counted_N)
    centred_N = x.reward_N - segments.mean(x.reward_N, x.group_N, live_N)
    spread_N = segments.std(x.reward_N, x.group_N, live_N, ddof=1)
    score_N = torch.where(live_N, centred_N / spread_N.clamp(min=1e-300), torch.zeros_like(centred_N))
    worth_N = segments.mean(score_N.abs(), x.group_N, counted_N)
    return (worth_N > 0) & (worth_N >= min_priority), "selective_sample_buffer"

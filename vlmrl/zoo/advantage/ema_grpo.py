"""EMA-GRPO of OneThinker: group-centred rewards over a running deviation of the task. arXiv:2512.03043, with the official code.

A_i = (r_i - mean_g) / (max(std_tau, min_std) + epsilon), std_tau from running first and second moments of the task's raw rewards,
m <- decay * m + (1 - decay) * m_batch, started at the moments of the first batch and updated with this step's rewards before they are
used. A group with any |A| above `guard` uses its own population deviation instead. Tasks with small and large reward ranges thus get
equal weight, while within a task a group's own spread still counts. Defaults as in the code.

The running moments are state that the trainer keeps: see `AdvantageInputs.memory`. `update` is pure; the advantage calls it on the
state before the step, and the trainer stores what it returns.

Ours: state is [mean, variance] per task, the same numbers without the cancellation in E[x^2] - E[x]^2, over all ranks (the code keeps
one state per process). The task is the run's (the code splits segmentation into image and video). A flat group (see `segments.flat`),
so also a group of one, gets exactly 0, though its rewards count in the task's moments; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


def update(state: Mapping[str, Sequence[float]], x: AdvantageInputs, *, decay: float = 0.99) -> dict[str, list[float]]:
    """The state after a step with these rewards: {task name: [mean, variance]}. Tasks without a judged rollout stay as they are.

    Raises:
        ValueError: `decay` outside [0, 1), no task names, or a state that is not two numbers per task.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"advantage 'ema_grpo': decay is {decay}, must be in [0, 1)")
    out: dict[str, list[float]] = {}
    for task, moments in state.items():
        if len(moments) != 2:
            raise ValueError(f"advantage 'ema_grpo': state of task '{task}' is {list(moments)}, not [mean, variance]")
        out[task] = [float(moments[0]), float(moments[1])]
    for one in sorted({int(i) for i in x.task_N[x.valid_N]}):
        name = _task(x, one)
        reward_n = x.reward_N[x.valid_N & (x.task_N == one)].detach().double()
        mean, variance = float(reward_n.mean()), float(reward_n.var(unbiased=False))
        if name in out:
            old_mean, old_variance = out[name]
            # running E[x^2] - E[x]^2, rearranged: the spread of the two means is part of the variance
            variance = decay * old_variance + (1 - decay) * variance + decay * (1 - decay) * (mean - old_mean) ** 2
            mean = decay * old_mean + (1 - decay) * mean
        out[name] = [mean, variance]
    return out


def _task(x: AdvantageInputs, one: int) -> str:
    if not 0 <= one < len(x.tasks):
        raise ValueError(
            f"advantage 'ema_grpo': task id {one} has no name in AdvantageInputs.tasks ({', '.join(x.tasks) or 'empty'}); running "
            "moments are kept by name, as ids differ from step to step"
        )
    return x.tasks[one]


@advantage("ema_grpo", paper="arXiv:2512.03043", needs=("tasks",), remembers=update, scale="deviation", scale_over="task")
def ema_grpo(x: AdvantageInputs, *, decay: float = 0.99, min_std: float = 1e-3, guard: float = 5.0, epsilon: float = 1e-6) -> Tensor:
    """Reward minus group mean, over the running deviation of the task's rewards.

    Raises:
        ValueError: no `memory`, an argument out of range, or what `update` raises.
    """
    if min_std <= 0 or guard <= 0:
        raise ValueError(f"advantage 'ema_grpo': min_std {min_std} and guard {guard} must be positive")
    if x.memory is None:
        raise ValueError("advantage 'ema_grpo' needs its memory (the running moments before this step; empty at the first), which is None")
    state = update({task: [float(v) for v in moments] for task, moments in x.memory.items()}, x, decay=decay)
    std_N = torch.full(x.valid_N.shape, min_std, dtype=torch.float64)
    for one in sorted({int(i) for i in x.task_N[x.valid_N]}):
        std_N[x.task_N == one] = max(state[_task(x, one)][1] ** 0.5, min_std)
    out_N = centre.centre_scale(x, scale_N=std_N, epsilon=epsilon)
    own_N = centre.centre_scale(x, scale_N=segments.std(x.reward_N, x.group_N, x.valid_N, ddof=0), epsilon=epsilon)
    wild_N = segments.maximum(out_N.abs(), x.group_N, x.valid_N) > guard
    return torch.where(wild_N, own_N, out_N)

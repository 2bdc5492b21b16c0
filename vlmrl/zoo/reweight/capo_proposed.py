"""CAPO: tokens whose update would leave the region where the policy's curvature can be trusted do not train. After arXiv:2510.00819, with
the authors' code.

The step that a token alone would make in the output matrix is G = eta A v h^T (their SGD model), p the policy's distribution there,
v = onehot(y) - p and h the last hidden state. It moves the logits by u = eta A |h|^2 v, so that the objective and the policy shift by

    m_H = A v.u + A / 2 [(v.u)^2 - Var_p(u)],    m_F = Var_p(u) / 2   (of the KL, to second order)

A token trains where 0 <= m_H < `objective` (`symmetric`: where |m_H| is) and m_F < `policy`. As in the code: 0.01 and 0.0001.
Everything follows from p(y), the sums of p^2 and p^3, A and the number s = eta |h|^2:

    |v|^2 = 1 - 2 p(y) + sum p^2,   Var_p(v) = p(y) (1 - p(y))^2 + sum p^3 - p(y)^3 - (p(y) - sum p^2)^2

Ours: s is one number, `step`, for all tokens, as the norm before the output matrix gives hidden states nearly one length: the learning rate
of the coming update times the hidden size, up to the norm's weights. In the authors' runs that is 1.5e-5 times 3584, 0.05, and leaves alone
what is nearly certain; with 1e-6 and a size of 2048 it is 0.002, and nearly nothing is masked. A step that is much too large for the bounds
masks every token: `vlmrl check` points out a rate that may be. The code can also model Adam's moments. Masked tokens stay in the
denominator. One forward pass without gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

NAME = "reweight 'capo_proposed'"
HIDDEN = 2048
"""Hidden size by which a recipe is judged before its model is open: that of Qwen2.5-VL-3B."""
OF_AUTHORS = 1.5e-5 * 3584
"""Their step."""


def shifts(p_NT: Tensor, p2_NT: Tensor, p3_NT: Tensor, adv_NT: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """(m_H, m_F) of each token from its probability and the sums of p^2 and p^3 over the vocabulary."""
    length_NT = 1 - 2 * p_NT + p2_NT
    variance_NT = (p_NT * (1 - p_NT) ** 2 + p3_NT - p_NT**3 - (p_NT - p2_NT) ** 2).clamp(min=0)
    moved_NT = step * adv_NT * length_NT
    policy_NT = (step * adv_NT) ** 2 * variance_NT / 2
    return adv_NT * moved_NT + adv_NT / 2 * (moved_NT**2 - 2 * policy_NT), policy_NT


def _masks_all(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    """Pointed out: a learning rate whose default step is above that of the authors and may mask every token."""
    rate = getattr(getattr(stage, "optim", None), "lr", None)
    if arguments.get("step") is None and rate is not None and rate * HIDDEN > OF_AUTHORS:
        text = f"{NAME} takes for its step the learning rate times the hidden size, here {rate:g} * {HIDDEN} = {rate * HIDDEN:.2g} or more"
        text += f", and that of its authors is {OF_AUTHORS:.2g}: tokens that are not nearly certain are masked, which may be all of them"
        yield f"{text}; give `step`, or lower optim.lr"


@reweight(
    "capo_proposed",
    paper="arXiv:2510.00819",
    needs=("logp_NT", "log_p2_NT", "log_p3_NT", "logit_step_N"),
    per="token",
    doubts=_masks_all,
)
def capo_proposed(
    x: AdvantageInputs,
    adv_NT: Tensor,
    *,
    step: float | None = None,
    objective: float = 0.01,
    policy: float = 1e-4,
    symmetric: bool = False,
) -> Tensor:
    """Token advantages, 0 where the token's own update would shift objective or policy too far. [n, T]

    Args:
        step: learning rate times squared length of the hidden state; None: times the hidden size, with the rate of the coming update.

    Raises:
        ValueError: a negative step, a bound that is not positive, or what it needs is not there.
    """
    if step is None:
        step = float(need(x, "logit_step_N", NAME)[0]) if len(adv_NT) else 0.0
    if step < 0 or objective <= 0 or policy <= 0:
        raise ValueError(f"{NAME}: needs step {step} >= 0, objective {objective} > 0 and policy {policy} > 0")
    width = adv_NT.shape[1]
    p_NT, p2_NT, p3_NT = (need(x, name, NAME)[:, :width].double().exp() for name in ("logp_NT", "log_p2_NT", "log_p3_NT"))
    objective_NT, policy_NT = shifts(p_NT, p2_NT, p3_NT, adv_NT.double(), step)
    inside_NT = (objective_NT.abs() if symmetric else objective_NT) < objective
    kept_NT = inside_NT & (policy_NT < policy) & (torch.ones_like(inside_NT) if symmetric else objective_NT >= 0)
    return torch.where(kept_NT, adv_NT, torch.zeros_like(adv_NT))

"""The method that each slot has where a recipe names none. The only place outside a method's own file that knows these names."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULTS: Mapping[str, str] = {
    "sampler": "uniform",
    "budget": "fixed",
    "strategy": "plain",
    "advantage": "grpo",
    "credit": "broadcast",
    "loss": "ppo_clip",
    "importance_correction": "none",
    "reduce": "seq_mean",
    "kl": "k3",
}
"""Field of a stage (or `strategy` of its rollout) -> name of the method."""

SFT_REDUCER = "token_mean"
"""How the token losses of supervised fine-tuning become one number: the mean over the batch's tokens, as everywhere."""

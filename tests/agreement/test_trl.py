"""TRL 1.16 and we give the same advantages, losses and gradients for what both have; `docs/trl.md` lists names and differences.

The right-hand sides come from TRL's own methods (see `tests/support/trl_peer.py`), on ragged random batches in float64. Padding is NaN
on our side and finite on TRL's, which multiplies by the mask.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("trl") is None:
    pytest.skip("needs trl, which the dev extra installs on Python 3.11 and newer", allow_module_level=True)

from tests.support import trl_peer
from vlmrl.algo import registries
from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.methods import registries as load_all
from vlmrl.train.batch import total

load_all()
SEEDS = range(4)
WIDTH = 9
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
"""Not closer: TRL makes n / (n - 1) and the temperatures of SAPO in float32."""
MASKED = float("nan")


# Advantages


def rewards(seed: int, columns: int, missing: float, prompts: int = 5, num_generations: int = 6) -> Tensor:
    """float64 [N, K], some places NaN, the first three rows of every prompt fully judged."""
    random = torch.Generator().manual_seed(seed)
    value = torch.rand(prompts, num_generations, columns, generator=random, dtype=torch.float64)
    lost = torch.rand(value.shape, generator=random) < missing
    lost[:, :3] = False
    value[lost] = float("nan")
    return value.flatten(0, 1)


def advantage_inputs(rewards_NK: Tensor, weights_K: Tensor, num_generations: int) -> AdvantageInputs:
    n = len(rewards_NK)
    return AdvantageInputs(
        reward_N=total(rewards_NK, weights_K),
        rewards_NK=rewards_NK,
        valid_N=~rewards_NK.isnan().all(dim=1),
        group_N=torch.arange(n) // num_generations,
        task_N=torch.zeros(n, dtype=torch.int64),
        on_policy_N=torch.ones(n, dtype=torch.bool),
        length_N=torch.full((n,), 4),
        columns=tuple(f"column_{k}" for k in range(rewards_NK.shape[1])),
        weights_K=weights_K,
    )


def both_advantages(peer: Any, name: str, rewards_NK: Tensor, num_generations: int = 6, **arguments: Any) -> tuple[Tensor, Tensor]:
    """(ours, TRL's) on the same rewards and weights."""
    n = len(rewards_NK)
    lengths = [1 + i % WIDTH for i in range(n)]
    theirs = trl_peer.scored(peer, rewards_NK.clone(), num_generations, lengths, torch.zeros(n, WIDTH, dtype=torch.float64))["advantages"]
    assert theirs.dtype == torch.float64
    ours = registries.advantage.bind(name, arguments)(advantage_inputs(rewards_NK, peer.reward_weights, num_generations))
    return ours, theirs


ADVANTAGES = [
    ("grpo", "grpo", {"scale_rewards": "group"}),
    ("dr_grpo", "grpo", {"scale_rewards": "none"}),
    ("batch_std", "grpo", {"scale_rewards": "batch"}),
    ("gdpo", "grpo", {"multi_objective_aggregation": "normalize_then_sum"}),
    ("rloo", "rloo", {"normalize_advantages": False}),
]
"""(our advantage, TRL's trainer, its settings)"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(("name", "kind", "settings"), ADVANTAGES, ids=[a[0] for a in ADVANTAGES])
def test_advantages(name, kind, settings, columns, missing, seed):
    peer = getattr(trl_peer, kind)(columns=columns, **settings)
    peer.reward_weights = torch.tensor([1.0, 0.5, 2.0][:columns], dtype=torch.float64)
    given = rewards(seed, columns, missing)
    if missing:
        given[5] = float("nan")
    ours, theirs = both_advantages(peer, name, given)
    assert theirs.abs().max() > 0.1
    torch.testing.assert_close(ours, theirs, **CLOSE)


# Losses


def token_batch(seed: int, rows: int = 8, spread: float = 0.3) -> dict[str, Tensor]:
    """Log-probs [B, T] of three policies, advantages [B] and a ragged mask; finite everywhere."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    length = torch.randint(1, WIDTH + 1, (rows,), generator=random)
    length[0] = WIDTH
    logp = -normal(rows, WIDTH).abs() - 0.01
    return {
        "logp": logp,
        "old": logp + spread * normal(rows, WIDTH),
        "ref": logp + normal(rows, WIDTH).clamp(-2, 2),
        "adv": normal(rows),
        "mask": torch.arange(WIDTH) < length[:, None],
    }


def ours(x: dict[str, Tensor], loss: str, arguments: dict[str, Any], reduce: str, kl: str | None = None, beta: float = 0.0) -> Any:
    """(value, gradient by log-prob) of a whole step: sum of weighted token losses over the count, as `train.step` computes it."""
    nan = torch.where(x["mask"], 0.0, MASKED)
    logp = (x["logp"] + nan).requires_grad_()
    inputs = LossInputs(
        logp_BT=logp,
        logp_old_BT=x["old"] + nan,
        logp_ref_BT=None,
        adv_BT=x["adv"][:, None] + nan,
        mask_BT=x["mask"],
        group_B=torch.zeros(len(logp), dtype=torch.int64),
    )
    value = registries.policy_loss.bind(loss, arguments)(inputs).loss_BT
    if kl is not None:
        old = (inputs.logp_old_BT,) if registries.kl_estimator.get(kl).extra.get("needs") else ()
        value = value + beta * registries.kl_estimator.bind(kl)(logp, x["ref"] + nan, *old)
    reduction = registries.reducer.bind(reduce, {"length": WIDTH} if reduce == "fixed_length" else {})(x["mask"])
    number = torch.where(x["mask"], value * reduction.weight_BT, torch.zeros_like(value)).sum() / reduction.count
    (grad,) = torch.autograd.grad(number, logp)
    return number.detach(), torch.where(x["mask"], grad, torch.zeros_like(grad))


def theirs(x: dict[str, Tensor], parts: int = 1, on_policy: bool = False, **settings: Any) -> Any:
    """(value, gradient by log-prob) of TRL over `parts` micro-batches whose gradients add up to one step."""
    peer = trl_peer.grpo(micro_batches=parts, max_completion_length=WIDTH, **settings)
    logp = x["logp"].clone().requires_grad_()
    number = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(len(logp)).chunk(parts):
        mask = x["mask"][rows].long()
        batch = {
            "prompt_ids": torch.ones(len(rows), 2, dtype=torch.int64),
            "prompt_mask": torch.ones(len(rows), 2, dtype=torch.int64),
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": x["adv"][rows],
            "num_items_in_batch": x["mask"].sum(),
            "ref_per_token_logps": x["ref"][rows],
        }
        number = number + trl_peer.loss(peer, batch if on_policy else {**batch, "old_per_token_logps": x["old"][rows]}, logp[rows])
    (grad,) = torch.autograd.grad(number, logp)
    return number.detach(), torch.where(x["mask"], grad, torch.zeros_like(grad))


LOSSES = {
    "grpo": ({"loss_type": "grpo"}, ("ppo_clip", {}, "seq_mean")),
    "two-sided": ({"loss_type": "grpo", "delta": 1.3}, ("ppo_clip", {"delta": 1.3}, "seq_mean")),
    "dr_grpo": ({"loss_type": "dr_grpo"}, ("ppo_clip", {}, "fixed_length")),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, ("ppo_clip", {"clip_high": 0.28}, "token_mean")),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.08},
        ("gspo", {"clip_low": 0.05, "clip_high": 0.08}, "seq_mean"),
    ),
    "gspo, bounds of the paper": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ("gspo", {}, "seq_mean"),
    ),
    "luspo": ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "seq_sum")),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.2}, ("cispo", {"ratio_max": 1.2}, "token_mean")),
    "cispo, default": ({"loss_type": "cispo", "epsilon_high": 5.0}, ("cispo", {}, "token_mean")),
    "sapo": ({"loss_type": "sapo"}, ("sapo", {}, "seq_mean")),
    "sapo, sharp": (
        {"loss_type": "sapo", "sapo_temperature_pos": 3.0, "sapo_temperature_neg": 5.0},
        ("sapo", {"tau_positive": 3.0, "tau_negative": 5.0}, "seq_mean"),
    ),
}
"""TRL's settings -> (our loss, its arguments, our reducer)"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, parts, seed):
    settings, method = LOSSES[name]
    x = token_batch(seed)
    (value, grad), (peer_value, peer_grad) = ours(x, *method), theirs(x, parts, **settings)
    assert peer_grad.abs().max() > 0.01
    torch.testing.assert_close(value, peer_value, **CLOSE)
    torch.testing.assert_close(grad, peer_grad, **CLOSE)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_where_the_old_policy_is_the_current_one(name):
    settings, method = LOSSES[name]
    x = token_batch(11)
    (value, grad), (peer_value, peer_grad) = ours({**x, "old": x["logp"]}, *method), theirs(x, on_policy=True, **settings)
    torch.testing.assert_close(value, peer_value, **CLOSE)
    torch.testing.assert_close(grad, peer_grad, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("corrected", "kl"), [(False, "k3"), (True, "unbiased")])
def test_divergence(corrected, kl, seed):
    x = token_batch(seed)
    value, grad = ours(x, "ppo_clip", {}, "token_mean", kl, 0.1)
    peer_value, peer_grad = theirs(x, loss_type="dapo", beta=0.1, use_bias_correction_kl=corrected)
    assert not torch.allclose(peer_grad, theirs(x, loss_type="dapo")[1], atol=1e-3)
    torch.testing.assert_close(value, peer_value, **CLOSE)
    torch.testing.assert_close(grad, peer_grad, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo_gradient_on_policy(seed):
    """TRL clips the ratio of the whole answer; at ratio 1 its gradient is that of `seq_sum`. The values differ by the lengths."""
    x = token_batch(seed)
    logp, mask = x["logp"].clone().requires_grad_(), x["mask"].long()
    batch = {
        **dict.fromkeys(("prompt_ids", "prompt_mask"), torch.ones(len(logp), 2, dtype=torch.int64)),
        **dict.fromkeys(("completion_ids", "completion_mask"), mask),
        "advantages": x["adv"],
        "old_logps": (x["logp"] * mask).sum(1),
    }
    (peer_grad,) = torch.autograd.grad(trl_peer.loss(trl_peer.rloo(), batch, logp), logp)
    _, grad = ours({**x, "old": x["logp"]}, "ppo_clip", {}, "seq_sum")
    torch.testing.assert_close(grad, peer_grad, **CLOSE)


MISMATCH = {
    "token_truncate": ("tis", {"ratio_min": 0.8, "ratio_max": 1.2}),
    "token_mask": ("mis", {"level": "token", "ratio_min": 0.8, "ratio_max": 1.2}),
    "sequence_truncate": ("sequence", {"ratio_min": 0.8, "ratio_max": 1.2}),
    "sequence_mask": ("mis", {"ratio_min": 0.8, "ratio_max": 1.2}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MISMATCH)
def test_weights_for_the_samplers_log_probs(mode, seed):
    x = token_batch(seed, rows=12, spread=0.1)
    lengths = x["mask"].sum(1).tolist()
    sampled = [row[:n].tolist() for row, n in zip(x["old"].float().double(), lengths, strict=True)]
    sampled[0][2] = float("nan")
    bounds = {"vllm_importance_sampling_clip_min": 0.8, "vllm_importance_sampling_clip_max": 1.2}
    peer = trl_peer.grpo(use_vllm=True, vllm_importance_sampling_mode=mode, **bounds)
    out = trl_peer.scored(peer, rewards(seed, 1, 0.0, prompts=2), 6, lengths, x["logp"], sampled)
    known = torch.full(x["logp"].shape, float("nan"), dtype=torch.float64)
    for row, logprobs in zip(known, sampled, strict=True):
        row[: len(logprobs)] = torch.tensor(logprobs, dtype=torch.float32)
    name, arguments = MISMATCH[mode]
    weight, _ = registries.importance_correction.bind(name, arguments)(x["logp"], known, x["mask"])
    expected = out["importance_sampling_ratio"].expand_as(weight)
    counts = x["mask"] & ~known.isnan()
    assert (expected[counts] != 1).any()
    torch.testing.assert_close(weight[counts], expected[counts], **CLOSE)


# Differences that docs/trl.md states


def test_a_flat_group_keeps_rounding_in_trl():
    given = torch.tensor([0.3, 0.1 + 0.2, 0.3, 0.0, 0.5, 1.0], dtype=torch.float64)[:, None]
    ours_N, theirs_N = both_advantages(trl_peer.grpo(), "grpo", given, num_generations=3)
    assert ours_N[:3].tolist() == [0.0] * 3
    assert 0 < theirs_N[:3].abs().max() < 1e-9
    torch.testing.assert_close(ours_N, theirs_N, **CLOSE)


def test_gdpo_leaves_groups_of_one_out_of_the_batch():
    nan = float("nan")
    given = torch.tensor([[0.0, 1.0], [1.0, 3.0], [0.2, nan], [0.5, 0.1], [nan, nan], [nan, nan]], dtype=torch.float64)
    peer = trl_peer.grpo(columns=2, multi_objective_aggregation="normalize_then_sum")
    ours_N, theirs_N = both_advantages(peer, "gdpo", given, num_generations=3)
    assert ours_N[3:].tolist() == [0.0] * 3
    assert theirs_N[3:].tolist() == pytest.approx([0.0] * 3, abs=1e-9)
    # three rollouts with a comparison against four judged ones, mean 0 in both: the deviations relate as sqrt(3 / 2)
    torch.testing.assert_close(ours_N[:2] * math.sqrt(3 / 2), theirs_N[:2], rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("name", ["grpo", "gspo", "sapo"])
def test_rows_without_tokens_count_in_trl(name):
    settings, method = LOSSES[name]
    x = token_batch(3)
    x["mask"][2:4] = False
    (value, grad), (peer_value, peer_grad) = ours(x, *method), theirs(x, **settings)
    torch.testing.assert_close(value * 6 / 8, peer_value, **CLOSE)
    torch.testing.assert_close(grad * 6 / 8, peer_grad, **CLOSE)


def test_bnpo_depends_on_the_split_in_trl():
    x = token_batch(5)
    value, _ = ours(x, "ppo_clip", {}, "token_mean")
    torch.testing.assert_close(value, theirs(x, 1, loss_type="bnpo")[0], **CLOSE)
    assert not torch.allclose(value, theirs(x, 4, loss_type="bnpo")[0], rtol=1e-3)


def test_far_log_ratios_are_clamped_by_us():
    x = token_batch(0, rows=1)
    x |= {"old": x["logp"] - 25.0, "adv": torch.tensor([-1.0], dtype=torch.float64)}
    value, grad = ours(x, "ppo_clip", {}, "seq_mean")
    peer_value, peer_grad = theirs(x, loss_type="grpo")
    assert float(value) == pytest.approx(math.exp(20))
    assert float(peer_value) == pytest.approx(math.exp(25))
    assert not grad.any()
    assert peer_grad.all()


def test_k3_is_capped_by_us():
    x = token_batch(0, rows=1)
    x |= {"old": x["logp"], "ref": x["logp"] + 4.0, "adv": torch.zeros(1, dtype=torch.float64)}
    value, _ = ours(x, "ppo_clip", {}, "seq_mean", "k3", 1.0)
    assert float(value) == pytest.approx(10.0)
    assert float(theirs(x, loss_type="grpo", beta=1.0)[0]) == pytest.approx(math.exp(4) - 4 - 1)


def test_defaults_that_differ():
    """What a user who leaves out everything gets on either side."""
    their = trl_peer.defaults("GRPOConfig")
    assert (their.loss_type, their.beta, their.epsilon, their.epsilon_high) == ("dapo", 0.0, 0.2, None)
    assert (their.scale_rewards, their.multi_objective_aggregation, their.use_bias_correction_kl) == ("group", "sum_then_normalize", True)
    assert (their.num_generations, their.temperature, their.vllm_importance_sampling_mode) == (8, 1.0, "sequence_mask")
    assert trl_peer.defaults("RLOOConfig").beta == 0.05
    # without epsilon_high, the bound of cispo is epsilon: every weight is at most 0.2
    x = token_batch(1)
    (_, grad), (_, peer_grad) = ours(x, "cispo", {"ratio_max": 1.0}, "token_mean"), theirs(x, loss_type="cispo")
    assert float(peer_grad.abs().max()) <= 0.2 * float(x["adv"].abs().max()) / float(x["mask"].sum()) + 1e-12
    assert float(grad.abs().max()) > 2 * float(peer_grad.abs().max())

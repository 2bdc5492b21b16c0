"""GRPO for a vision-language model in one file. Read this file first.

    python examples/tiny_loop.py 30      # steps; from the repository's root; the first run makes the toy world and its model

A step has six phases: choose rows, encode, roll out, score, advantages, update. Each is one function or one call, in this order, and
uses the parts that the trainer uses. `vlmrl train` adds what a long run needs: resume, filters, several ranks, metrics, checks.
`tests/e2e/test_tiny_loop.py` runs both for three steps: loss, gradient norm and reward are equal to the last bit.
Tensor names say their shapes: N rollouts of a step, K rewards, B rows of a micro-batch, T answer tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vlmrl import rng
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.algo.loss.ppo_clip import ppo_clip
from vlmrl.algo.ratio import token_mean
from vlmrl.data.encode import Encoder
from vlmrl.data.source import load_source
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.policy.forward import shared_prefix
from vlmrl.policy.load import Policy, freeze, load_policy, load_processor
from vlmrl.policy.pack import Row, pack_shared, split_shared
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RewardContext
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.temporal_iou import temporal_iou_reward
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.sampling.uniform import UniformSampler
from vlmrl.types import GenerationSettings, Group, Prompt, Request, Sample

STAGE, SEED = "rl", 0
PROMPTS_PER_STEP, NUM_GENERATIONS, MAX_NEW_TOKENS = 4, 8, 24
LEARNING_RATE, MAX_GRAD_NORM, MAX_TOKENS_PER_MICROBATCH = 3e-4, 1.0, 16384
Rewards = dict[Callable[[Group, RewardContext], Sequence[float | None]], float]
REWARDS: Rewards = {temporal_iou_reward: 1.0, format_reward: 0.1}  # function -> weight


@dataclass(frozen=True)
class Parts:
    policy: Policy
    vision: VisionCache
    encoder: Encoder
    samples: dict[str, Sample]


def load(model: Path, data: Path) -> Parts:
    """Model, processor, media and rows. The store decodes each medium once; rollout and training see the same pixels."""
    processor = load_processor(str(model))
    sizes = {"min_pixels": 3136, "max_pixels": 4704, "video_total_pixels": None, "fps": 2.0, "min_frames": 4, "max_frames": 32}
    store = MediaStore.of(MediaSettings(**sizes, cache_bytes=2**28, decoder="pyav"), processor)
    encoder = Encoder.of(processor, store, data, max_prompt_tokens=4096)
    rows = load_source(data / "train.jsonl", media_root=".", dedupe="error", max_bad_rows=0.0, quarantine=None)
    policy = load_policy(str(model), processor, device="cpu", positions="grid")
    return Parts(policy, VisionCache(store, budget_bytes=2**28), encoder, {sample.id: sample for sample in rows})


def encode(parts: Parts, sample_ids: Sequence[str]) -> list[Prompt]:
    """Question and media of each row as token ids. A medium becomes one placeholder token per vision feature."""
    return [parts.encoder.encode(parts.samples[sample_id], "think_or_not") for sample_id in sample_ids]


def roll_out(parts: Parts, prompts: Sequence[Prompt], step: int) -> list[Group]:
    """NUM_GENERATIONS answers to each prompt, which is prefilled once for all of them. The seed of an answer is a function of its
    coordinates: there is no random state, so a run that resumes samples the same answers."""
    ks = tuple(range(NUM_GENERATIONS))
    requests = [
        Request(prompt=p, ks=ks, seeds=tuple(rng.key(SEED, "rollout", STAGE, step, place, p.sample.id, k) for k in ks))
        for place, p in enumerate(prompts)
    ]
    answers = HFEngine(parts.policy, parts.vision).generate(requests, GenerationSettings(max_new_tokens=MAX_NEW_TOKENS))
    return [Group(id=p.sample.id, prompt=p, rollouts=tuple(rollouts)) for p, rollouts in zip(prompts, answers, strict=True)]


def score(groups: Sequence[Group], rewards: Rewards) -> torch.Tensor:
    """Rewards of all rollouts, [N, K]. `None` means that a reward cannot judge: NaN, never 0."""
    columns = [[value for group in groups for value in reward(group, RewardContext())] for reward in rewards]
    return torch.tensor([[float("nan") if v is None else v for v in column] for column in columns], dtype=torch.float64).T


def advantages(groups: Sequence[Group], rewards_NK: torch.Tensor, weights_K: torch.Tensor) -> torch.Tensor:
    """How much better each rollout is than its group, [N]: reward minus group mean, over group deviation."""
    places = [place for place, group in enumerate(groups) for _ in group.rollouts]
    inputs = AdvantageInputs(
        reward_N=(rewards_NK * weights_K).sum(dim=1),
        rewards_NK=rewards_NK,
        valid_N=~rewards_NK.isnan().any(dim=1),
        group_N=torch.tensor(places),
        task_N=torch.zeros(len(places), dtype=torch.int64),
        on_policy_N=torch.ones(len(places), dtype=torch.bool),
        length_N=torch.tensor([len(rollout.ids) for group in groups for rollout in group.rollouts]),
        columns=tuple(f"reward_{k}" for k in range(rewards_NK.shape[1])),
    )
    return grpo(inputs)


def update(parts: Parts, optimizer: torch.optim.Optimizer, groups: Sequence[Group], adv_N: torch.Tensor) -> tuple[float, float]:
    """One optimizer step on all rollouts: (loss, gradient norm). The loss is divided by the tokens of the whole step, so the gradient
    does not depend on the split into micro-batches. A micro-batch holds each prompt once, with all its answers behind it."""
    policy, processor = parts.policy, parts.policy.bundle
    answers = [(place, group.prompt, rollout.ids) for place, group in enumerate(groups) for rollout in group.rollouts]
    rows = [Row(index=n, group=place, prompt=prompt, response=ids) for n, (place, prompt, ids) in enumerate(answers)]
    tokens, loss = sum(len(row.response) for row in rows), 0.0
    optimizer.zero_grad()
    for places in split_shared(rows, MAX_TOKENS_PER_MICROBATCH):
        batch = pack_shared([rows[n] for n in places], policy.positions, policy.device, pad_id=processor.end_ids[0])
        scored = shared_prefix(policy, batch, parts.vision, temperature=1.0, forbidden=processor.forbidden_ids, train=True)
        logp_BT, mask_BT = scored.logp_BT, batch.mask_BT
        adv_BT = adv_N[places].to(logp_BT.dtype)[:, None].expand_as(logp_BT)
        # rollouts are trained on once, so the old policy is the current one: the ratio is 1 and its gradient is the policy gradient
        old = {"logp_old_BT": logp_BT.detach(), "logp_ref_BT": None}
        x = LossInputs(logp_BT=logp_BT, **old, adv_BT=adv_BT, mask_BT=mask_BT, group_B=batch.group_B)
        part = (ppo_clip(x).loss_BT * token_mean(mask_BT).weight_BT).sum() / tokens
        part.backward()
        loss += part.item()
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_GRAD_NORM)
    optimizer.step()
    policy.version += 1
    policy.vision_version += int(policy.vision_trains)  # cached features of a tower that trains are out of date
    return loss, norm.item()


def train(model: Path, data: Path, *, steps: int, rewards: Rewards = REWARDS) -> Iterator[dict[str, float]]:
    """The loop. Yields loss, gradient norm and mean reward of each step."""
    parts, weights_K = load(model, data), torch.tensor(list(rewards.values()), dtype=torch.float64)
    optimizer = torch.optim.AdamW([p for _, p in freeze(parts.policy, ("vision",))], lr=LEARNING_RATE, weight_decay=0.0)
    sampler = UniformSampler(list(parts.samples), rng.key(SEED, "stage", STAGE))
    for step in range(steps):
        planned = sampler.plan(None, prompts=PROMPTS_PER_STEP, rollouts=NUM_GENERATIONS)
        groups = roll_out(parts, encode(parts, [row.sample_id for row in planned]), step)
        rewards_NK = score(groups, rewards)
        loss, norm = update(parts, optimizer, groups, advantages(groups, rewards_NK, weights_K))
        yield {"loss": loss, "grad_norm": norm, "reward": (rewards_NK * weights_K).sum(dim=1).mean().item()}


if __name__ == "__main__":
    from vlmrl.config.load import load as load_recipe
    from vlmrl.extras.toy.base import prepare
    from vlmrl.run.ui import Ui

    places = prepare(load_recipe(Path("examples/tiny_loop.yaml"), []).config, Ui())
    for line in train(Path(places.model), places.data, steps=int(sys.argv[1])):
        print(", ".join(f"{name} {value:.4f}" for name, value in line.items()), flush=True)

"""A policy and vLLM with its weights, for tests that hold one against the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.support import tiny
from vlmrl.extras.vllm.engine import Core, VllmEngine
from vlmrl.policy.forward import layout_of
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.mismatch import gaps
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

GREEDY = GenerationSettings(max_new_tokens=12, temperature=0.0)
EQUAL = 1e-5
"""Nats by which two float32 kernels may differ here."""


@dataclass
class Pair:
    """A policy, vLLM with its weights, and a prompt of each layout."""

    family: str
    folder: Path
    loaded: tiny.Tiny
    core: Core
    engine: VllmEngine
    prompts: dict[str, Prompt]
    requests: list[Request] = field(init=False)
    start: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.start = {name: tensor.clone() for name, tensor in self.loaded.policy.model.state_dict().items()}
        self.requests = [Request(prompt=prompt, seeds=(5,), ks=(0,)) for prompt in self.prompts.values()]

    def moved(self, *, tower: bool) -> None:
        """What an update of the policy does to its versions."""
        policy = self.loaded.policy
        policy.vision_trains = tower
        policy.version += 1
        policy.vision_version += int(tower)

    def vllm(self, settings: GenerationSettings = GREEDY) -> dict[str, Rollout]:
        with self.engine.ready():
            return dict(zip(self.prompts, [group[0] for group in self.engine.generate(self.requests, settings)], strict=True))

    def hf(self) -> dict[str, Rollout]:
        engine = own_engine(self.loaded.policy, VisionCache(self.loaded.store, budget_bytes=2**28))
        return dict(zip(self.prompts, [g[0] for g in engine.generate(self.requests, GREEDY)], strict=True))

    def gaps(self, answers: dict[str, Rollout], temperature: float = 1.0) -> dict[str, float]:
        """What the meter says of answers, by place."""
        rows = [Row(index=n, group=n, prompt=self.prompts[name], response=a.ids) for n, (name, a) in enumerate(answers.items())]
        policy, layout = self.loaded.policy, layout_of(self.loaded.policy, "repeat")
        batch = layout.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        vision = VisionCache(self.loaded.store, budget_bytes=2**28)
        with torch.no_grad():
            scored = layout.forward(policy, batch, vision, temperature=temperature, forbidden=policy.bundle.forbidden_ids, train=False)
        sampled = torch.full_like(scored.logp_BT, float("nan"))
        for n, answer in enumerate(answers.values()):
            sampled[n, : len(answer.ids)] = torch.tensor(answer.logprobs)
        found = gaps(scored.logp_BT, sampled, [row.prompt for row in batch.rows])
        return {name.rsplit("/", 1)[-1]: float(a / b) for name, (a, b) in found.items() if "logp_gap" in name}


def apart(a: dict[str, Rollout], b: dict[str, Rollout]) -> dict[str, float]:
    """Largest difference of log-probs while the ids are the same, by layout."""
    out: dict[str, float] = {}
    for name in a:
        same = [x == y for x, y in zip(a[name].ids, b[name].ids, strict=False)]
        upto = same.index(False) + 1 if False in same else len(same)
        out[name] = max(abs(x - y) for x, y in list(zip(a[name].logprobs, b[name].logprobs, strict=False))[:upto])
    return out

"""What a model family must keep: every layout of the training forward and the rollout engine agree on log-probs."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support import tiny
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Request


def check_family(model: Path, world: Path) -> None:
    """Load a checkpoint, generate for two videos, and score the answers in both layouts.

    Raises:
        AssertionError: the layouts differ from each other (by more than 1e-4), or from what the engine reported.
    """
    loaded = tiny.load(model, world)
    policy, prompts = loaded.policy, loaded.prompts(2)
    requests = [Request(prompt=p, ks=(0, 1), seeds=(7, 8)) for p in prompts]
    with torch.no_grad():
        answers = HFEngine(policy, loaded.vision).generate(requests, GenerationSettings(max_new_tokens=6))
        rows = [
            Row(index=2 * g + k, group=g, prompt=prompt, response=rollout.ids)
            for g, (prompt, group) in enumerate(zip(prompts, answers, strict=True))
            for k, rollout in enumerate(group)
        ]
        scored = {}
        for name, layout in LAYOUTS.items():
            batch = layout.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
            out = layout.forward(policy, batch, loaded.vision, temperature=1.0, forbidden=policy.bundle.forbidden_ids, train=False)
            scored[name] = out.logp_BT
    torch.testing.assert_close(scored["shared_prefix"], scored["repeat"], rtol=0, atol=1e-4)
    for row, logp_T in zip((r for group in answers for r in group), scored["repeat"], strict=True):
        torch.testing.assert_close(torch.tensor(row.logprobs), logp_T[: len(row.ids)], rtol=0, atol=1e-4)
    videos = {handle.key for prompt in prompts for handle in prompt.media}
    assert len(videos) == 2
    assert not torch.equal(scored["repeat"][0], scored["repeat"][2]), "two videos and the same log-probs: the model does not see them"

"""The reference rollout engine: the policy itself, generating.

Each prompt is encoded by the vision tower once and prefilled once; its key-value cache is then expanded to its rollouts, which
decode together. Rows that finish leave the batch. Every draw comes from a table of uniforms that depends on the request's seed
and the token's place alone, so an answer does not depend on what else is in the batch (up to the rounding of batched kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vlmrl.policy.forward import embed
from vlmrl.policy.load import Policy
from vlmrl.policy.positions import prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.types import FinishReason, GenerationSettings, Request, Rollout


def uniforms(seeds: Sequence[int], tokens: int) -> np.ndarray:
    """The draws of each rollout, float64 [len(seeds), tokens] in [0, 1)."""
    return np.stack([np.random.Generator(np.random.Philox(seed)).random(tokens) for seed in seeds])


def sample(logits_NV: torch.Tensor, draws_N: torch.Tensor, settings: GenerationSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """(token [N], its log-prob [N] under the distribution it was drawn from). Greedy takes the first of equal maxima.

    Nucleus: the smallest set of most likely tokens whose mass reaches `top_p`, renormalised.
    """
    if settings.temperature == 0:
        logp_NV = torch.log_softmax(logits_NV, dim=-1)
        token_N = logits_NV.argmax(dim=-1)
        return token_N, logp_NV.gather(1, token_N[:, None])[:, 0]
    logp_NV = torch.log_softmax(logits_NV / settings.temperature, dim=-1)
    if settings.top_p < 1:
        ordered, order = logp_NV.sort(dim=-1, descending=True, stable=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        ordered = ordered.masked_fill(before >= settings.top_p, float("-inf"))
        logp_NV = torch.log_softmax(torch.full_like(logp_NV, float("-inf")).scatter(1, order, ordered), dim=-1)
    cdf_NV = logp_NV.double().exp().cumsum(-1)
    draw_N1 = (draws_N * cdf_NV[:, -1])[:, None]
    token_N = torch.searchsorted(cdf_NV, draw_N1, right=True)[:, 0].clamp(max=cdf_NV.shape[1] - 1)
    return token_N, logp_NV.gather(1, token_N[:, None])[:, 0]


class HFEngine:
    """Generates with the training policy in place; weights are always current and `version` is the policy's."""

    def __init__(self, policy: Policy, vision: VisionCache):
        self.policy = policy
        self.vision = vision
        self.prefilled_prompts = 0

    @property
    def version(self) -> int:
        return self.policy.version

    def close(self) -> None:
        """Nothing to release: the policy belongs to the trainer."""

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        """Rollouts of every request, in order: `len(request.seeds)` each."""
        if not requests:
            return []
        with self.policy.autocast():
            return self._generate(requests, settings)

    def _generate(self, requests: Sequence[Request], settings: GenerationSettings) -> list[list[Rollout]]:
        counts = [len(request.seeds) for request in requests]
        hidden_PH, cache, attention_PS, next_P = self._prefill(requests)
        owner_N = torch.repeat_interleave(torch.arange(len(requests)), torch.tensor(counts)).to(self.policy.device)
        cache.batch_select_indices(owner_N)
        draws = torch.from_numpy(uniforms([s for r in requests for s in r.seeds], settings.max_new_tokens)).to(self.policy.device)
        ids, logps, finished = self._decode(hidden_PH[owner_N], cache, attention_PS[owner_N], next_P[owner_N], draws, settings)
        out: list[list[Rollout]] = []
        n = 0
        for request in requests:
            group: list[Rollout] = []
            for k in request.ks:
                finish: FinishReason = "stop" if finished[n] else "length"
                text = self.policy.bundle.decode(ids[n])
                group.append(
                    Rollout(k=k, ids=tuple(ids[n]), logprobs=tuple(logps[n]), text=text, finish=finish, policy_version=self.version)
                )
                n += 1
            out.append(group)
        return out

    def _prefill(self, requests: Sequence[Request]) -> tuple[torch.Tensor, Any, torch.Tensor, torch.Tensor]:
        """Last hidden state [P, H], cache, attention mask [P, S] (left-padded) and position of the next token [P]."""
        from transformers import DynamicCache

        prompts = [request.prompt for request in requests]
        width = max(len(prompt.ids) for prompt in prompts)
        pad = self.policy.bundle.end_ids[0]
        ids = torch.full((len(prompts), width), pad, dtype=torch.int64)
        attention = torch.zeros((len(prompts), width), dtype=torch.int64)
        positions = torch.zeros((3, len(prompts), width), dtype=torch.int64)
        offsets = [width - len(prompt.ids) for prompt in prompts]
        for b, prompt in enumerate(prompts):
            ids[b, offsets[b] :] = torch.tensor(prompt.ids)
            attention[b, offsets[b] :] = 1
            positions[:, b, offsets[b] :] = prompt_positions(prompt, self.policy.positions)
        device = self.policy.device
        ids, attention, positions = ids.to(device), attention.to(device), positions.to(device)
        features = self.vision.features(self.policy, [h for prompt in prompts for h in prompt.media], train=False)
        embeds = embed(self.policy, ids, list(zip(prompts, offsets, strict=True)), features)
        cache = DynamicCache(config=self.policy.model.config.get_text_config())
        out = self.policy.core.language_model(
            inputs_embeds=embeds, attention_mask=attention, position_ids=positions, past_key_values=cache, use_cache=True
        )
        self.prefilled_prompts += len(prompts)
        return out.last_hidden_state[:, -1], cache, attention, positions[0, :, -1] + 1

    def _decode(
        self,
        hidden_NH: torch.Tensor,
        cache: Any,
        attention_NS: torch.Tensor,
        next_N: torch.Tensor,
        draws_NT: torch.Tensor,
        settings: GenerationSettings,
    ) -> tuple[list[list[int]], list[list[float]], list[bool]]:
        """Token by token until every row has ended or is as long as allowed."""
        device, total = self.policy.device, hidden_NH.shape[0]
        ends = torch.tensor(self.policy.bundle.end_ids, device=device)
        forbidden = torch.tensor(self.policy.bundle.forbidden_ids, device=device)
        ids: list[list[int]] = [[] for _ in range(total)]
        logps: list[list[float]] = [[] for _ in range(total)]
        finished = [False] * total
        alive = torch.arange(total, device=device)
        for t in range(settings.max_new_tokens):
            logits = (hidden_NH @ self.policy.head.T).float().index_fill(1, forbidden, float("-inf"))
            token, logp = sample(logits, draws_NT[alive, t], settings)
            ended = torch.isin(token, ends)
            for row, i, lp, end in zip(alive.tolist(), token.tolist(), logp.tolist(), ended.tolist(), strict=True):
                ids[row].append(i)
                logps[row].append(lp)
                finished[row] = end
            if bool(ended.all()) or t + 1 == settings.max_new_tokens:
                break
            if bool(ended.any()):
                keep = (~ended).nonzero(as_tuple=True)[0]
                alive, token, next_N, attention_NS = alive[keep], token[keep], next_N[keep], attention_NS[keep]
                cache.batch_select_indices(keep)
            attention_NS = torch.cat([attention_NS, attention_NS.new_ones((len(alive), 1))], dim=1)
            out = self.policy.core.language_model(
                inputs_embeds=self.policy.core.get_input_embeddings()(token[:, None]),
                attention_mask=attention_NS,
                position_ids=next_N.view(1, -1, 1).expand(3, -1, -1),
                past_key_values=cache,
                use_cache=True,
            )
            hidden_NH, next_N = out.last_hidden_state[:, -1], next_N + 1
        return ids, logps, finished

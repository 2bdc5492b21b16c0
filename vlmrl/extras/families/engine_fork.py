"""Decoding with any vision-language model: a prompt once, its cache forked to as many answers, rows that are done leave.

The rollout engine of families without code of their own. Prompts decode one after another, so what an answer is depends on its own prompt,
its seed and the answers beside it in its group, and on nothing else in the batch. Draws come from the same table of uniforms as the
reference engine's.

Letters: G answers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlmrl.errors import ConfigError, NumericsError
from vlmrl.extras.families import cache as caches
from vlmrl.extras.families import generic, layouts, routing
from vlmrl.extras.families.generic import Encoded, TowerOutput
from vlmrl.extras.families.layouts import Subject
from vlmrl.extras.families.training import encoded
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.draw import sample, uniforms
from vlmrl.rollout.in_place import SLOTS, Done, InPlace
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

Look = Callable[[int, int, float], bool]
"""(answer, token, its log-prob) -> whether the answer goes on."""
Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(logits [rows, V], answers that these rows are [rows], number of the token) -> ids [rows]."""


@dataclass
class Experts:
    """The experts that one prompt's columns took, and those of its answers (`families.routing`)."""

    recording: routing.Recording
    prompt_PLk: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))
    steps: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    """Of each token that was read: (answers that these rows are [rows], their experts [rows, L, k])."""

    def written(self, prompt: Prompt, answers: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
        """Write (those of the prompt, those of the answer) as text, for each answer. The last token of an answer was never read."""
        before = routing.written(self.prompt_PLk, routing.mark(prompt.ids, [handle.key for handle in prompt.media]))
        rows = torch.cat([rows for rows, _ in self.steps]) if self.steps else torch.zeros(0, dtype=torch.int64)
        experts = torch.cat([experts for _, experts in self.steps]).cpu() if self.steps else self.prompt_PLk[:0].cpu()
        return [(before, routing.written(experts[rows == row], routing.mark(ids))) for row, ids in enumerate(answers)]


@torch.no_grad()
def answers(
    subject: Subject,
    prompt: Encoded,
    media: Sequence[TowerOutput],
    *,
    count: int,
    choose: Choose,
    ends: Sequence[int],
    longest: int,
    over_G: Tensor | None = None,
    experts: Experts | None = None,
) -> list[list[int]]:
    """`count` answers to one prompt, each up to and with one of `ends` or `longest` tokens.

    Args:
        over_G: bool [count], read after each call of `choose`: answers that end here whatever was drawn.
        experts: where the experts that are taken are kept; its recording runs.

    Raises:
        ValueError: the model keeps no cache.
    """
    out: list[list[int]] = [[] for _ in range(count)]
    last_1H, cache = layouts.prefilled(subject, prompt, media)
    if experts is not None:
        experts.prompt_PLk = experts.recording.take()
    caches.fork(cache, count)
    logits_GV = layouts.logits_of(subject, last_1H).expand(count, -1)
    alive = torch.arange(count)
    own = generic.positions(subject.core, prompt)
    last = torch.tensor(sorted(ends), dtype=torch.int64)
    for number in range(longest):
        ids = choose(logits_GV, alive, number).cpu()
        for row, token in zip(alive.tolist(), ids.tolist(), strict=True):
            out[row].append(token)
        going = ~torch.isin(ids, last)
        if over_G is not None:
            going &= ~over_G[alive]
        if number == longest - 1 or not bool(going.any()):
            break
        if not bool(going.all()):
            caches.select(cache, going.nonzero()[:, 0])
            ids, alive = ids[going], alive[going]
        place = layouts.answer_positions(own, prompt.length, number + 1)[..., -1:]
        rows = range(len(ids))
        logits_GV, _ = layouts.logits(
            subject,
            rows,
            [0] * len(ids),
            input_ids=ids[:, None],
            position_ids=torch.stack([place] * len(ids), -2),
            past_key_values=cache,
            use_cache=True,
        )
        if experts is not None:
            experts.steps.append((alive, experts.recording.take()))
    return out


def greedy(forbidden: Sequence[int] = ()) -> Choose:
    """The likeliest token that is not forbidden."""
    never = torch.tensor(list(forbidden), dtype=torch.int64)

    def choose(logits_GV: Tensor, rows: Tensor, number: int) -> Tensor:
        return logits_GV.index_fill(1, never, -torch.inf).argmax(-1)

    return choose


def drawn(seed: int, forbidden: Sequence[int] = (), temperature: float = 1.0) -> Choose:
    """A token by its probability; each answer and place has a generator of its own, whatever rows are left."""
    never = torch.tensor(list(forbidden), dtype=torch.int64)

    def choose(logits_GV: Tensor, rows: Tensor, number: int) -> Tensor:
        p_GV = torch.softmax(logits_GV.index_fill(1, never, -torch.inf).double() / temperature, -1)
        out: list[Tensor] = []
        for p_V, row in zip(p_GV, rows.tolist(), strict=True):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + row) * 1_000_003 + number)
            out.append(torch.multinomial(p_V, 1, generator=generator))
        return torch.cat(out)

    return choose


class ForkEngine(InPlace):
    """Generates with the training policy in place; weights are always current and `version` is the policy's."""

    def __init__(self, policy: Policy, vision: VisionCache, *, max_num_seqs: int = SLOTS):
        """`max_num_seqs`: most answers that decode at a time."""
        super().__init__(policy, vision, max_num_seqs)

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None) -> list[list[Rollout]]:
        """Rollouts of every request, in order: `len(request.seeds)` each. `done` is called with a request's number and rollouts as
        soon as its last answer has ended.

        Raises:
            NumericsError: logits are not finite; no token is drawn from them.
        """
        return self._generated(requests, settings, done, None)

    @torch.no_grad()
    def followed(
        self, requests: Sequence[Request], settings: GenerationSettings, look: Callable[[int, int, int, float], bool]
    ) -> list[list[Rollout]]:
        """As `generate`. `look(request, place of the answer, token, log-prob)` is asked after each token whether the answer goes on."""
        return self._generated(requests, settings, None, look)

    def _generated(
        self,
        requests: Sequence[Request],
        settings: GenerationSettings,
        done: Done | None,
        look: Callable[[int, int, int, float], bool] | None,
    ) -> list[list[Rollout]]:
        out: list[list[Rollout]] = []
        for number, request in enumerate(requests):
            rollouts: list[Rollout] = []
            for start in range(0, len(request.seeds), self.max_num_seqs):
                some = slice(start, start + self.max_num_seqs)
                own = None if look is None else (lambda g, *drawn, n=number, at=start: look(n, at + g, *drawn))
                rollouts += self._rollouts(request.prompt, request.ks[some], request.seeds[some], settings, own)
            out.append(rollouts)
            if done is not None:
                done(number, rollouts)
        return out

    def _rollouts(
        self, prompt: Prompt, ks: Sequence[int], seeds: Sequence[int], settings: GenerationSettings, look: Look | None
    ) -> list[Rollout]:
        policy = self.policy
        subject: Subject = policy.subject
        if settings.routes and subject.unrouted:
            raise ConfigError(f"rollout.router_replay: {subject.unrouted}; take it out")
        with policy.autocast(), routing.recorded() if settings.routes else nullcontext() as recording:
            experts = None if recording is None else Experts(recording)
            features = self.vision.features(policy, prompt.media, train=False)
            media = [features[handle.key].features for handle in prompt.media]
            draw = _Draw(policy, seeds, settings, prompt.sample.id, look)
            found = answers(
                subject,
                encoded(subject, prompt, self.vision.pixels),
                media,
                count=len(seeds),
                choose=draw,
                ends=policy.bundle.end_ids,
                longest=settings.max_new_tokens,
                over_G=draw.over_G,
                experts=experts,
            )
        self.prefilled_prompts += 1
        self.prefilled_tokens += len(prompt.ids)
        self.decoded_steps += draw.steps
        ends = set(policy.bundle.end_ids)
        routes = [()] * len(found) if experts is None else experts.written(prompt, found)
        return [
            Rollout(
                k=k,
                ids=tuple(ids),
                logprobs=tuple(logps[: len(ids)]),
                text=policy.bundle.decode(ids),
                finish="stop" if ids[-1] in ends or over else "length",
                policy_version=self.version,
                routes=taken,
            )
            for k, ids, logps, over, taken in zip(ks, found, draw.logps_GT.tolist(), draw.over_G.tolist(), routes, strict=True)
        ]


class _Draw:
    """Draws tokens of one prompt's answers and keeps their log-probs."""

    def __init__(self, policy: Policy, seeds: Sequence[int], settings: GenerationSettings, name: str, look: Look | None):
        self.settings, self.name, self.look = settings, name, look
        self.over_G = torch.zeros(len(seeds), dtype=torch.bool)
        self.draws = torch.from_numpy(uniforms(seeds, settings.max_new_tokens)).to(policy.device)
        self.logps_GT = torch.zeros((len(seeds), settings.max_new_tokens))
        self.forbidden = torch.tensor(policy.bundle.forbidden_ids, dtype=torch.int64, device=policy.device)
        self.steps = 0

    def __call__(self, logits_GV: Tensor, rows: Tensor, number: int) -> Tensor:
        logits = logits_GV.float().index_fill(1, self.forbidden, float("-inf"))
        token, logp = sample(logits, self.draws[rows.to(logits.device), number], self.settings)
        logp = logp.cpu()
        if not bool(logp.isfinite().all()):
            raise NumericsError(
                f"logits not finite: {int((~logp.isfinite()).sum())} of {len(logp)} answers, at token {number + 1} of an answer to "
                f"'{self.name}'"
            )
        self.logps_GT[rows, number] = logp
        self.steps += 1
        if self.look is not None:
            for row, one, value in zip(rows.tolist(), token.tolist(), logp.tolist(), strict=True):
                self.over_G[row] = not self.look(row, one, value)
        return token

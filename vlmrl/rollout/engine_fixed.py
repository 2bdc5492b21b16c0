"""The reference engine with rooms of fixed size: a decoding step that asks the host nothing, recorded once and replayed on a GPU.

`engine_hf` makes room as answers grow, lets rows leave in the middle, and looks after each token at which answers have ended. Here
a step has the same shapes each time and works in place: rows that have ended go on with a token that nobody reads, and the host looks
after every `LOOK` tokens. On CUDA the step is recorded as a graph, one for each size of the answers' room (64 tokens, then doubled), and
replayed; elsewhere the same step is computed as it is. A token is drawn from the same uniform as in `engine_hf`, so answers are the same
up to the rounding of batched kernels: rooms decide in which order a softmax sums.

Letters as in `engine_hf`; N is all places, A*G.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vlmrl.policy.attention import Pair, grid_attention
from vlmrl.rollout.draw import sample
from vlmrl.rollout.engine_hf import GenerateCall, HFEngine, KeptTurns
from vlmrl.rollout.grid import GROW, places, stacked
from vlmrl.rollout.in_place import Done
from vlmrl.types import GenerationSettings, Request, Rollout

LOOK = 16
"""Tokens from one look at which answers have ended to the next."""


class FixedGrid:
    """Keys and values of A prompts with G answers each, in place. `attend` is called by every layer of the model."""

    def __init__(self, *, slots: int, width: int, prompt: int, answer: int, device: torch.device):
        """`prompt`, `answer`: most tokens of each."""
        self.width, self.prompt, self.answer = width, prompt, answer
        self.held: list[int | None] = [None] * slots
        """The caller's number of the prompt in each slot."""
        self.ages = [0] * slots
        """Tokens that the slot's answers have been decoded for; the host's own count."""
        self.room = min(GROW, answer)
        self._length_A = torch.zeros(slots, dtype=torch.int64, device=device)
        self._age_A = torch.zeros(slots, dtype=torch.int64, device=device)
        self._layers: list[tuple[Pair, Pair]] = []
        """Per layer those of the prompts [A, K, P, D] and of the answers [A, K, G, T, D]."""
        self._at_AKG = self._age_A
        self._mask = torch.zeros(0, device=device)

    @property
    def slots(self) -> int:
        return len(self.held)

    @property
    def free(self) -> list[int]:
        return [slot for slot, number in enumerate(self.held) if number is None]

    @property
    def busy(self) -> list[int]:
        return [slot for slot, number in enumerate(self.held) if number is not None]

    def admit(self, numbers: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: list[Pair]) -> None:
        """Put prompts into the first free slots.

        Args:
            numbers: the caller's.
            counts: answers of each; the other places of its slot are never alive.
            lengths: tokens of each.
            layers: per layer keys and values of the packed prompts, [1, K, sum of lengths, D]; taken out one by one.
        """
        del counts
        taken = self.free[: len(numbers)]
        for slot, number in zip(taken, numbers, strict=True):
            self.held[slot], self.ages[slot] = number, 0
        index = torch.tensor(taken, device=self._age_A.device)
        for i in range(len(layers)):
            new = layers.pop(0)
            if i == len(self._layers):
                self._layers.append((self._empty(*new), self._empty(*new, self.width)))
            for kept, answers, x in zip(*self._layers[i], new, strict=True):
                kept.index_copy_(0, index, stacked(x, lengths, self.prompt))
                answers.index_fill_(0, index, 0)  # 0 times what an earlier answer left there would be no 0 if that was not finite
        self._length_A.index_copy_(0, index, torch.tensor(lengths, device=index.device))
        self._age_A.index_fill_(0, index, 0)

    def _empty(self, k: Tensor, v: Tensor, *width: int) -> Pair:
        room = self.answer if width else self.prompt
        return tuple(x.new_zeros(self.slots, x.shape[1], *width, room, x.shape[3]) for x in (k, v))  # pyright: ignore[reportReturnType]

    def own(self, number: int, k: int, tokens: int) -> list[Pair]:
        """Show the keys and values of the first tokens of an answer to the prompt with the caller's number, [1, K, tokens, D]: views."""
        a = self.held.index(number)
        return [(keys[a, :, k, :tokens][None], values[a, :, k, :tokens][None]) for _, (keys, values) in self._layers]

    def prepare(self, tokens: int) -> None:
        """Choose a room in which every slot has place for so many more tokens. A step's shapes depend on nothing else."""
        needed = max(self.ages[slot] for slot in self.busy) + tokens
        while self.room < min(needed, self.answer):
            self.room = min(2 * self.room, self.answer)

    def advance(self) -> None:
        """Make ready for one more token of every place."""
        device = self._age_A.device
        at_A = self._age_A.clamp(max=self.room - 1)  # a free slot ages too, and must not write behind its room
        self._at_AKG = places(self._layers[0][1][0], at_A)
        prompt = torch.arange(self.prompt, device=device)[None] >= self._length_A[:, None]
        answer = torch.arange(self.room, device=device)[None] > at_A[:, None]
        hidden = torch.cat([prompt, answer], dim=1)
        self._mask = torch.zeros(hidden.shape, device=device).masked_fill(hidden, float("-inf"))[:, None, None]
        self._age_A += 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend from the new tokens: query [1, K*R, N, D], key and value [1, K, N, D] -> [1, N, K*R, D]. Stores key and value."""
        prompt, own = self._layers[layer]
        heads, size = key.shape[1], key.shape[3]
        for kept, x in zip(own, (key, value), strict=True):
            new = x[0].transpose(0, 1).reshape(self.slots, self.width, heads, size).transpose(1, 2)
            kept.view(-1, size).index_copy_(0, self._at_AKG, new.reshape(-1, size))
        shared = query.shape[1] // heads
        q = query[0].transpose(0, 1).reshape(self.slots, self.width, heads, shared, size).transpose(1, 2)
        return grid_attention(q, prompt, (own[0][:, :, :, : self.room], own[1][:, :, :, : self.room]), self._mask, scale)[None]


class FixedEngine(HFEngine):
    """`HFEngine` whose steps have fixed shapes (`rollout.graphs`)."""

    def begin(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: KeptTurns | None) -> GenerateCall:
        return FixedRun(self, requests, settings, done, kept)


class FixedRun(GenerateCall):
    """One call of `generate`. Tensors by place are changed in place alone: a recorded step knows them by their addresses."""

    def __init__(
        self, engine: HFEngine, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: KeptTurns | None = None
    ):
        super().__init__(engine, requests, settings, done, kept)
        width, longest = max(len(request.seeds) for request in requests), settings.max_new_tokens
        slots = max(1, min(len(requests), engine.max_num_seqs // width))  # each as wide as the widest request
        device = self.policy.device
        self.fixed = FixedGrid(
            slots=slots, width=width, prompt=max(len(request.prompt.ids) for request in requests), answer=longest, device=device
        )
        places = slots * width
        self.alive_N = torch.zeros(places, dtype=torch.bool, device=device)
        self.stopped_N, self.broken_N = torch.zeros_like(self.alive_N), torch.zeros_like(self.alive_N)
        self.t_N = torch.zeros(places, dtype=torch.int64, device=device)
        self.position_N = torch.zeros_like(self.t_N)
        self.hidden_NH: Tensor | None = None
        self.draw_NT = torch.zeros((places, longest), dtype=self.draws.dtype, device=device)
        self.ids_NT = torch.zeros((places, longest), dtype=torch.int64, device=device)
        self.logp_NT = torch.zeros((places, longest), dtype=torch.float32, device=device)
        self.steps: dict[int, Callable[[], None]] = {}
        """Room of the answers -> the recorded step."""

    def loop(self) -> list[list[Rollout]]:
        """Admit, take a few steps, look, until nothing waits and nothing runs."""
        grid = self.fixed
        while self.queue or grid.busy:
            self._fill()
            # not further than the slot with most left: behind that nothing is alive
            tokens = min(LOOK, max(grid.answer - grid.ages[slot] for slot in grid.busy))
            grid.prepare(tokens)
            for _ in range(tokens):
                self._step()
            self.engine.decoded_steps += tokens
            for slot in grid.busy:
                grid.ages[slot] += tokens
            self._look()
        return self.out

    def rehearse(self) -> None:
        """Prefill the prompts that run together and take a step in each room, up to the largest. Where others wait, some are prefilled
        beside the whole caches too."""
        grid = self.fixed
        self._fill()
        grid.held = [None] * grid.slots
        self._fill()
        grid.held = [0] * grid.slots
        self.token()
        while grid.room < grid.answer:
            grid.prepare(grid.room + 1)
            self.token()

    def _fill(self) -> None:
        """Prefill waiting prompts into free slots."""
        while self.queue and self.fixed.free:
            chosen: list[int] = []
            tokens = 0
            while self.queue and len(chosen) < len(self.fixed.free):
                size = len(self.requests[self.queue[0]].prompt.ids)
                if chosen and tokens + size > self.engine.prefill_tokens:
                    break
                chosen.append(self.queue.popleft())
                tokens += size
            slots = self.fixed.free[: len(chosen)]
            rows = self.prefill(chosen, self.fixed)
            width = self.fixed.width
            places = [slot * width + k for slot, i in zip(slots, chosen, strict=True) for k in range(len(self.requests[i].seeds))]
            at = torch.tensor(places, device=self.t_N.device)
            if self.hidden_NH is None:
                self.hidden_NH = rows.hidden_NH.new_zeros(len(self.t_N), rows.hidden_NH.shape[1])
            self.hidden_NH.index_copy_(0, at, rows.hidden_NH)
            self.position_N.index_copy_(0, at, rows.position_N)
            self.draw_NT.index_copy_(0, at, self.draws[rows.row_N])
            self.t_N.index_fill_(0, at, 0)
            self.alive_N.index_fill_(0, at, True)
            self.stopped_N.index_fill_(0, at, False)

    def _step(self) -> None:
        """Draw and decode one token of every place, by the record of this room where there is one."""
        room = self.fixed.room
        if room in self.steps:
            self.steps[room]()
        elif self.policy.device.type == "cuda":
            self.steps[room] = recorded(self.token)  # which takes this step as well
        else:
            self.token()

    def token(self) -> None:
        """Draw and decode one token of every place; on the device alone, in place, with the same shapes whatever has ended."""
        assert self.hidden_NH is not None
        logits = (self.hidden_NH @ self.head.T).float().index_fill(1, self.forbidden, float("-inf"))
        at = self.t_N.clamp(max=self.fixed.answer - 1)[:, None]
        drawn, logp = sample(logits, self.draw_NT.gather(1, at)[:, 0], self.settings)
        alive = self.alive_N & logp.isfinite()
        self.broken_N |= self.alive_N & ~alive  # refused at the next look: to raise here would wait for the device
        drawn = torch.where(alive, drawn, torch.zeros_like(drawn))
        # a place that has ended writes back what it holds: to leave it out would change shapes
        for kept, new in ((self.ids_NT, drawn), (self.logp_NT, logp)):
            kept.scatter_(1, at, torch.where(alive[:, None], new[:, None], kept.gather(1, at)))
        stopped = alive & (drawn[:, None] == self.ends).any(dim=1)
        self.t_N += alive
        self.stopped_N |= stopped
        self.alive_N.copy_(alive & ~(stopped | (self.t_N >= self.fixed.answer)))
        self.fixed.advance()
        # into the same memory: a recorded step reads its inputs by their addresses
        self.hidden_NH.copy_(self.forward(drawn, self.position_N, self.fixed))
        self.position_N += 1

    def _look(self) -> None:
        """Hand out what has ended; the one wait of `LOOK` tokens."""
        flags = torch.stack([self.alive_N.long(), self.stopped_N.long(), self.broken_N.long(), self.t_N]).tolist()
        alive, stopped, broken, lengths = flags
        width, grid = self.fixed.width, self.fixed
        for slot in grid.busy:
            number = grid.held[slot]
            assert number is not None
            first, count = slot * width, len(self.requests[number].seeds)
            row = self.first[number]
            self.lengths[row : row + count] = lengths[first : first + count]
            if any(broken[first : first + count]):
                k = broken[first : first + count].index(1)
                self.refuse(row + k, sum(broken), sum(alive) + sum(broken))
            if any(alive[first : first + count]):
                continue  # a slot is free when all of its answers have ended
            self.ids[row : row + count] = self.ids_NT[first : first + count]
            self.logps[row : row + count] = self.logp_NT[first : first + count]
            for k in range(count):
                self.retire(row + k, bool(stopped[first + k]))
            grid.held[slot] = None

    def answer(self, request: int, k: int, tokens: int) -> list[Pair]:
        return self.fixed.own(request, k, tokens)


@functools.cache
def _side(device: int) -> torch.cuda.Stream:
    """The one stream of a device that steps are recorded on: cuBLAS keeps a workspace for every stream it has ever seen."""
    return torch.cuda.Stream(device)


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Take a step on CUDA, and record it: what is returned takes the next one. The step that is taken chooses kernels and fills the cache
    of 16-bit weights, which a record would else hold as work of every step."""
    now, aside = torch.cuda.current_stream(), _side(torch.cuda.current_device())
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        step()
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        step()
    return graph.replay

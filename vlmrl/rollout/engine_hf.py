"""The reference rollout engine: the policy itself generates (continuous batching, one shared copy of each prompt's keys and values).

Each prompt is encoded by the vision tower once and prefilled once, in packed rows without padding. Its answers decode together against
that one copy of its keys and values (`DecodeGrid`): one matrix product for all of them, nothing is expanded. An answer that ends leaves
at once, and as soon as there is room for all answers of the next prompt, it comes in; prompts with the longest expected answers go
first, so that no long one is left over at the end. Every draw comes from a table of uniforms that depends on the request's seed and the
token's place alone, so an answer does not depend on what else is in the batch (up to the rounding of batched kernels).

In a session (`rollout.kept`) keys and values of a conversation are kept from turn to turn, and only what is new of a prompt is prefilled.

Letters: A prompts in the grid, G answers of a prompt (at most), P prompt tokens and T answer tokens (padded), N rollouts that decode now,
R query heads per key head (GQA), K key heads, D head size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vlmrl.errors import NumericsError
from vlmrl.policy.attention import Decoding, Pair, grid_attention, require
from vlmrl.policy.chains import behind
from vlmrl.policy.forward import embed
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import layout_of, prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.draw import sample, uniforms
from vlmrl.rollout.in_place import SLOTS, Done, InPlace
from vlmrl.rollout.kept import Extension, Kept, KeptSession
from vlmrl.types import FinishReason, GenerationSettings, Request, Rollout

GROW = 64
"""Answer tokens that room is made for at a time."""


class DecodeGrid:
    """State of decoding. `attend` is called by every layer of the model, `advance` once per token."""

    def __init__(self, *, width: int, device: torch.device):
        """`width`: most answers of one prompt."""
        self.width = width
        self.device = device
        self.slots: list[int] = []
        """The caller's number of each prompt in the grid."""
        self._prompt: list[tuple[Tensor, Tensor]] = []
        self._answer: list[tuple[Tensor, Tensor]] = []
        self._lengths: list[int] = []
        self._ages: list[int] = []
        self._alive_AG = np.zeros((0, width), dtype=np.bool_)
        self._moved = True
        """Whether rows or prompts have come or gone since the tensors below were made. What is decided here is decided on numbers of
        the host: asking the device would wait for it, in every token."""
        self._place_N = torch.zeros(0, dtype=torch.int64, device=device)
        self._length_A = self._age_A = self._at_N = self._place_N
        self._mask = torch.zeros(0, device=device)
        self._seen = 0
        self._together: int | None = None
        """Where the new token goes, when all places are taken by rows of one age."""

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add prompts behind those in the grid.

        Args:
            slots: the caller's numbers.
            counts: answers of each.
            lengths: tokens of each.
            layers: per layer keys and values of the packed prompts, [1, K, sum of lengths, D].
        """
        self._drop_finished()
        if not self.slots:
            self._prompt, self._answer = [], []
        width = max([*lengths, *(k.shape[2] for k, _ in self._prompt[:1])])
        new = [tuple(stacked(x, lengths, width) for x in pair) for pair in layers]
        room = self._answer[0][0].shape[3] if self._answer else GROW
        for i, (k, v) in enumerate(new):
            shape = (len(slots), k.shape[1], self.width, room, k.shape[3])
            own = (k.new_zeros(shape), v.new_zeros(shape))
            if i < len(self._prompt):
                old_k, old_v = (_widen(x, width) for x in self._prompt[i])
                self._prompt[i] = (torch.cat([old_k, k]), torch.cat([old_v, v]))
                self._answer[i] = (torch.cat([self._answer[i][0], own[0]]), torch.cat([self._answer[i][1], own[1]]))
            else:
                self._prompt.append((k, v))
                self._answer.append(own)
        self.slots += slots
        self._lengths += lengths
        self._ages += [0] * len(slots)
        self._alive_AG = np.concatenate([self._alive_AG, np.arange(self.width)[None] < np.asarray(counts)[:, None]])
        self._moved = True

    def finish(self, ended: Sequence[bool]) -> None:
        """Take rows out: one bool for each of the rows alive, in their order (prompts, then answers)."""
        self._alive_AG.reshape(-1)[np.flatnonzero(self._alive_AG)[np.asarray(ended, dtype=np.bool_)]] = False
        self._moved = True

    def advance(self) -> None:
        """Make ready for one more token of every row that is alive."""
        if 2 * int(self._alive_AG.any(axis=1).sum()) <= len(self.slots):
            self._drop_finished()
        self._seen = max(self._ages) + 1
        if self._seen > self._answer[0][0].shape[3]:
            self._answer = [(_longer(k, GROW), _longer(v, GROW)) for k, v in self._answer]
        if self._moved:
            self._place_N = torch.from_numpy(np.flatnonzero(self._alive_AG)).to(self.device)
            self._length_A, self._age_A = torch.tensor([self._lengths, self._ages], device=self.device)
            self._moved = False
        self._at_N = self._age_A[self._place_N // self.width]
        self._together = self._seen - 1 if self._alive_AG.all() and min(self._ages) == self._seen - 1 else None
        prompt = torch.arange(self._prompt[0][0].shape[2], device=self.device)[None] >= self._length_A[:, None]
        answer = torch.arange(self._seen, device=self.device)[None] > self._age_A[:, None]
        hidden = torch.cat([prompt, answer], dim=1)
        self._mask = torch.zeros(hidden.shape, device=self.device).masked_fill(hidden, float("-inf"))[:, None, None]
        self._ages = [age + 1 for age in self._ages]
        self._age_A = self._age_A + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of the new tokens: query [1, K*R, N, D], key and value [1, K, N, D] -> [1, N, K*R, D]. Stores key and value."""
        own_k, own_v = self._answer[layer]
        prompt_k, prompt_v = self._prompt[layer]
        prompts, heads, width, _, size = own_k.shape
        shared = query.shape[1] // heads
        q_N, k_N, v_N = (x[0].transpose(0, 1) for x in (query, key, value))
        if self._together is not None:
            # every place is taken by a row of the same age: plain views instead of index arithmetic
            own_k[:, :, :, self._together] = k_N.view(prompts, width, heads, size).transpose(1, 2)
            own_v[:, :, :, self._together] = v_N.view(prompts, width, heads, size).transpose(1, 2)
            grid = q_N.contiguous()
        else:
            a, g = self._place_N // width, self._place_N % width
            own_k[a, :, g, self._at_N] = k_N
            own_v[a, :, g, self._at_N] = v_N
            grid = query.new_zeros(prompts * width, query.shape[1], size)
            grid[self._place_N] = q_N
        q = grid.view(prompts, width, heads, shared, size).transpose(1, 2)
        own = own_k[:, :, :, : self._seen], own_v[:, :, :, : self._seen]
        rows = grid_attention(q, (prompt_k, prompt_v), own, self._mask, scale)
        return (rows if self._together is not None else rows[self._place_N])[None]

    def own(self, slot: int, k: int, tokens: int) -> list[Pair]:
        """The keys and values of the first tokens of an answer to the prompt with the caller's number, [1, K, tokens, D]: views."""
        a = self.slots.index(slot)
        return [(keys[a, :, k, :tokens][None], values[a, :, k, :tokens][None]) for keys, values in self._answer]

    def _drop_finished(self) -> None:
        """Remove prompts without a row alive."""
        keep = np.flatnonzero(self._alive_AG.any(axis=1))
        if len(keep) == len(self.slots):
            return
        self.slots, self._lengths, self._ages = ([x[i] for i in keep] for x in (self.slots, self._lengths, self._ages))
        kept = torch.from_numpy(keep).to(self.device)
        self._prompt = [(k[kept], v[kept]) for k, v in self._prompt]
        self._answer = [(k[kept], v[kept]) for k, v in self._answer]
        self._alive_AG = self._alive_AG[keep]
        self._moved = True


def stacked(x: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """Packed [1, K, sum of lengths, D] -> [A, K, width, D], padded with zeros behind."""
    out = x.new_zeros(len(lengths), x.shape[1], width, x.shape[3])
    at = 0
    for i, n in enumerate(lengths):
        out[i, :, :n] = x[0, :, at : at + n]
        at += n
    return out


def _widen(x: Tensor, width: int) -> Tensor:
    return x if x.shape[2] >= width else torch.nn.functional.pad(x, (0, 0, 0, width - x.shape[2]))


def _longer(x: Tensor, tokens: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, tokens))


KEPT_BYTES = 2**31
PREFILL_TOKENS = 32768
"""Prompt tokens that are prefilled in one pass; one longer prompt goes alone."""


class Grid(Decoding, Protocol):
    """Where the keys and values of prompts go."""

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: Sequence[Pair], /) -> None: ...


@dataclass
class Running:
    """The rollouts that decode now, in the grid's order. N rows."""

    rows: list[int]
    """Row of the output buffers."""
    row_N: torch.Tensor
    """The same on the device."""
    hidden_NH: torch.Tensor
    """State that the next token is drawn from."""
    position_N: torch.Tensor
    """Position of the next token."""
    t_N: torch.Tensor
    """Tokens drawn so far."""

    def select(self, which: Sequence[int]) -> Running:
        """These places. By numbers and not by a mask, whose count the host would have to wait for."""
        index = torch.tensor(which, dtype=torch.int64, device=self.row_N.device)
        rows = [self.rows[n] for n in which]
        return Running(rows, self.row_N[index], self.hidden_NH[index], self.position_N[index], self.t_N[index])

    def concat(self, more: Running) -> Running:
        return Running(
            self.rows + more.rows,
            torch.cat([self.row_N, more.row_N]),
            torch.cat([self.hidden_NH, more.hidden_NH]),
            torch.cat([self.position_N, more.position_N]),
            torch.cat([self.t_N, more.t_N]),
        )


class HFEngine(InPlace):
    """Generates with the training policy in place; weights are always current and `version` is the policy's."""

    def __init__(
        self,
        policy: Policy,
        vision: VisionCache,
        *,
        max_num_seqs: int = SLOTS,
        prefill_tokens: int = PREFILL_TOKENS,
        kept_bytes: int = KEPT_BYTES,
    ):
        """`max_num_seqs`: most answers that decode at a time; a prompt with more answers than that decodes alone. `kept_bytes`: of keys
        and values that a session keeps from turn to turn."""
        require(policy.model.config.get_text_config())
        super().__init__(policy, vision, max_num_seqs)
        self.prefill_tokens = prefill_tokens
        self.kept_bytes = kept_bytes

    @contextmanager
    def session(self) -> Iterator[KeptSession]:
        """Turns of conversations that keep the keys and values of their past."""
        kept = Kept(self.kept_bytes)
        try:
            yield KeptSession(self.generate, kept)
        finally:
            kept.clear()

    def begin(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: Kept | None) -> Run:
        """What one call of `generate` does."""
        return Run(self, requests, settings, done, kept)

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None, kept: Kept | None = None
    ) -> list[list[Rollout]]:
        """Rollouts of every request, in order: `len(request.seeds)` each. `done` is called with a request's number and rollouts as
        soon as its last answer has ended. `kept`: of the session that asks.

        Raises:
            NumericsError: logits are not finite; no token is drawn from them.
        """
        if not requests:
            return []
        with self.policy.autocast():
            return self.begin(requests, settings, done, kept).loop()


class Run:
    """One call of `generate`."""

    def __init__(
        self, engine: HFEngine, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: Kept | None = None
    ):
        self.engine, self.policy, self.requests, self.settings, self.done = engine, engine.policy, requests, settings, done
        self.kept = kept
        device = self.policy.device
        counts = [len(request.seeds) for request in requests]
        self.first = [sum(counts[:i]) for i in range(len(counts))]
        self.left = list(counts)
        self.owner = [i for i, n in enumerate(counts) for _ in range(n)]
        total, length = sum(counts), settings.max_new_tokens
        self.draws = torch.from_numpy(uniforms([s for r in requests for s in r.seeds], length)).to(device)
        self.ids = torch.zeros((total, length), dtype=torch.int64, device=device)
        self.logps = torch.zeros((total, length), dtype=torch.float32, device=device)
        self.lengths = [0] * total
        self.stopped = [False] * total
        self.queue = deque(sorted(range(len(requests)), key=lambda i: (-requests[i].expected_tokens, i)))
        self.grid = DecodeGrid(width=max(counts), device=device)
        self.out: list[list[Rollout]] = [[] for _ in requests]
        self.ends = torch.tensor(self.policy.bundle.end_ids, device=device)
        self.forbidden = torch.tensor(self.policy.bundle.forbidden_ids, device=device)
        # transposed, a head that trains is nothing that autocast would keep a 16-bit copy of
        self.head = self.policy.head.to(self.policy.compute)

    def loop(self) -> list[list[Rollout]]:
        """Admit, draw, retire, decode, until nothing waits and nothing runs."""
        rows: Running | None = None
        while self.queue or rows is not None:
            rows = self._admit(rows)
            rows, token = self._draw(rows)
            if rows is not None:
                rows = self._decode(rows, token)
        return self.out

    def _admit(self, rows: Running | None) -> Running:
        """Let in as many waiting prompts as there is room for, at least one into an empty grid, and prefill them."""
        alive = 0 if rows is None else len(rows.rows)
        while self.queue:
            chosen: list[int] = []
            tokens = 0
            while self.queue:
                request = self.requests[self.queue[0]]
                size = len(request.prompt.ids)
                full = alive > 0 and alive + len(request.seeds) > self.engine.max_num_seqs
                if full or (chosen and tokens + size > self.engine.prefill_tokens):
                    break
                chosen.append(self.queue.popleft())
                alive, tokens = alive + len(request.seeds), tokens + size
            if not chosen:
                break
            more = self.prefill(chosen, self.grid)
            rows = more if rows is None else rows.concat(more)
        assert rows is not None
        return rows

    def prefill(self, chosen: Sequence[int], grid: Grid) -> Running:
        """One pass over what is not kept of the prompts, packed; the keys and values of all of them go into the grid."""
        policy, device = self.policy, self.policy.device
        prompts = [self.requests[i].prompt for i in chosen]
        counts = [len(self.requests[i].seeds) for i in chosen]
        pasts = [None if self.kept is None else self.kept.past(self.requests[i], policy.version) for i in chosen]
        starts = [0 if past is None else past.node.tokens for past in pasts]
        parts = [p if past is None else behind(p, past.node.tokens, len(past.prompt.media)) for p, past in zip(prompts, pasts, strict=True)]
        layout = layout_of([(len(part.ids), ()) for part in parts])
        ids = torch.tensor([[i for part in parts for i in part.ids]], device=device)
        places = [prompt_positions(prompt, policy.positions)[:, start:] for prompt, start in zip(prompts, starts, strict=True)]
        positions = torch.cat(places, dim=1)[:, None].to(device)
        features = self.engine.vision.features(policy, [h for part in parts for h in part.media], train=False)
        inputs = embed(policy, ids, [(part, 0, block.start) for part, block in zip(parts, layout.blocks, strict=True)], features)
        nodes = [None if past is None else past.node for past in pasts]
        extension = Extension(nodes, [len(part.ids) for part in parts]) if any(starts) else None
        record: list[Pair] = []
        packed = {"prefix_layout": layout, "prefix_backend": policy.prefix_backend, "record": record}
        how: dict[str, Any] = packed if extension is None else {"decoding": extension}
        hidden = policy.core.language_model(
            **inputs.arguments(), attention_mask=None, position_ids=positions, use_cache=False, **how
        ).last_hidden_state[0]
        grid.admit(chosen, counts, [len(prompt.ids) for prompt in prompts], record if extension is None else extension.record)
        if self.kept is not None:
            own = record if extension is None else extension.own
            for i, past, block in zip(chosen, nodes, layout.blocks, strict=True):
                self.kept.keep_prompt(self.requests[i], past, own, (block.start, block.end), policy.version)
        self.engine.prefilled_prompts += len(prompts)
        self.engine.prefilled_tokens += layout.tokens
        self.engine.kept_tokens += sum(starts)
        last = torch.tensor([block.end - 1 for block in layout.blocks], device=device)
        owner = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor(counts)).to(device)
        rows = [self.first[i] + k for i, n in zip(chosen, counts, strict=True) for k in range(n)]
        row_N = torch.tensor(rows, device=device)
        return Running(rows, row_N, hidden[last][owner], positions[0, 0, last][owner] + 1, torch.zeros_like(row_N))

    def answer(self, request: int, k: int, tokens: int) -> list[Pair]:
        """The keys and values of the first tokens of a running answer, [1, K, tokens, D]: views."""
        return self.grid.own(request, k, tokens)

    def _draw(self, rows: Running) -> tuple[Running | None, torch.Tensor]:
        """Draw the next token of every row, and retire the rows that it ends.

        A NaN or +inf among a row's logits makes the log-prob of whatever is drawn from them NaN, and nothing is kept of such a draw: all
        tokens would count as likely, those of `forbidden` too. That is asked together with whether a row has ended, in one wait: the
        only one of a token.
        """
        logits = (rows.hidden_NH @ self.head.T).float().index_fill(1, self.forbidden, float("-inf"))
        token, logp = sample(logits, self.draws[rows.row_N, rows.t_N], self.settings)
        flags = torch.stack([~logp.isfinite(), torch.isin(token, self.ends)]).tolist()
        broken: list[bool] = flags[0]
        stopped: list[bool] = flags[1]
        if any(broken):
            self.refuse(rows.rows[broken.index(True)], sum(broken), len(broken))
        self.ids[rows.row_N, rows.t_N] = token
        self.logps[rows.row_N, rows.t_N] = logp
        rows.t_N = rows.t_N + 1
        for row in rows.rows:
            self.lengths[row] += 1
        ended = [stop or self.lengths[row] >= self.settings.max_new_tokens for row, stop in zip(rows.rows, stopped, strict=True)]
        if any(ended):
            for row, end, stop in zip(rows.rows, ended, stopped, strict=True):
                if end:
                    self.retire(row, stop)
            self.grid.finish(ended)
            left = [n for n, end in enumerate(ended) if not end]
            if not left:
                return None, token
            rows, token = rows.select(left), token[torch.tensor(left, device=token.device)]
        return rows, token

    def refuse(self, row: int, broken: int, running: int) -> None:
        """Stop: what these rows would go on with is not a draw from the policy."""
        raise NumericsError(
            f"logits not finite: {broken} of {running} running answers, first at token {self.lengths[row] + 1} of an "
            f"answer to '{self.requests[self.owner[row]].prompt.sample.id}'"
        )

    def retire(self, row: int, stopped: bool) -> None:
        self.stopped[row] = stopped
        i, read = self.owner[row], self.lengths[row] - 1
        if self.kept is not None and self.requests[i].goes_on and read:
            k = row - self.first[i]
            ids = tuple(self.ids[row, :read].tolist())
            self.kept.keep_answer(self.requests[i], k, ids, self.answer(i, k, read), self.policy.version)
        request = self.owner[row]
        self.left[request] -= 1
        if self.left[request] == 0:
            self.out[request] = self.rollouts(request)
            if self.done is not None:
                self.done(request, self.out[request])

    def rollouts(self, request: int) -> list[Rollout]:
        out: list[Rollout] = []
        ks = self.requests[request].ks
        rows = slice(self.first[request], self.first[request] + len(ks))
        found = zip(ks, self.ids[rows].tolist(), self.logps[rows].tolist(), self.lengths[rows], self.stopped[rows], strict=True)
        for k, ids, logps, length, stopped in found:
            ids, logps = tuple(ids[:length]), tuple(logps[:length])
            finish: FinishReason = "stop" if stopped else "length"
            text = self.policy.bundle.decode(ids)
            out.append(Rollout(k=k, ids=ids, logprobs=logps, text=text, finish=finish, policy_version=self.engine.version))
        return out

    def _decode(self, rows: Running, token: torch.Tensor) -> Running:
        """One forward pass of one token per row."""
        self.grid.advance()
        self.engine.decoded_steps += 1
        hidden = self.forward(token, rows.position_N, self.grid)
        return Running(rows.rows, rows.row_N, hidden, rows.position_N + 1, rows.t_N)

    def forward(self, token_N: Tensor, position_N: Tensor, grid: Grid) -> Tensor:
        """The language model over one token of every row: the states that their next tokens are drawn from [N, H]."""
        return self.policy.core.language_model(
            inputs_embeds=self.policy.core.get_input_embeddings()(token_N[None]),
            attention_mask=None,
            position_ids=position_N.view(1, 1, -1).expand(3, -1, -1),
            use_cache=False,
            decoding=grid,
        ).last_hidden_state[0]

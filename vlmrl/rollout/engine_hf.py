"""The reference rollout engine: the policy itself generates (continuous batching, one shared copy of each prompt's keys and values).

Each prompt is encoded by the vision tower once and prefilled once, in packed rows without padding. Its answers decode together against
that one copy of its keys and values (`rollout.grid`): one matrix product for all of them, nothing is expanded. An answer that ends leaves
at once, and as soon as there is room for all answers of the next prompt, it comes in; prompts with the longest expected answers go
first, so that no long one is left over at the end. Every draw comes from a table of uniforms that depends on the request's seed and the
token's place alone, so an answer does not depend on what else is in the batch (up to the rounding of batched kernels).

A session of conversations may keep keys and values from turn to turn (`KeptTurns`); then only what is new of a prompt is prefilled.

Letters: N rollouts that decode now, K key heads, D head size, H hidden width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vlmrl.errors import NumericsError
from vlmrl.policy.attention import Decoding, Pair, require
from vlmrl.policy.forward import embed
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import layout_of, prompt_positions
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.draw import sample, uniforms
from vlmrl.rollout.grid import DecodeGrid
from vlmrl.rollout.in_place import SLOTS, Done, InPlace
from vlmrl.types import FinishReason, GenerationSettings, Request, Rollout

KEPT_BYTES = 2**31
PREFILL_TOKENS = 32768
"""Prompt tokens that are prefilled in one pass; one longer prompt goes alone."""


class Grid(Decoding, Protocol):
    """The cache that keys and values of prompts go into, and that their answers decode on."""

    def admit(self, slots: Sequence[int], counts: Sequence[int], lengths: Sequence[int], layers: list[Pair], /) -> None: ...


class KeptTurns(Protocol):
    """Keys and values that a session of conversations keeps from one call of `generate` to the next."""

    def past(self, request: Request, version: int) -> Any:
        """Look up what is kept of a request's prompt for these weights: how many `tokens` it begins with, and what is `behind` them; or
        None."""
        ...

    def extension(self, pasts: Sequence[Any], new: Sequence[int]) -> Any:
        """Make the `decoding` of a forward pass that reads so many `new` tokens behind each of these pasts. It remembers keys and values:
        those of whole rows as `record`, those of what is new as `own`."""
        ...

    def keep_prompt(self, request: Request, past: Any, new: Sequence[Pair], own: tuple[int, int], version: int) -> None:
        """Keep what was read of a prompt behind its past. `new`: by layer, keys and values of packed prompts; the columns `own` are this
        prompt's."""
        ...

    def keep_answer(self, request: Request, k: int, ids: tuple[int, ...], layers: Sequence[Pair], version: int) -> None:
        """Keep what was read of the answer in place `k`: these ids, with keys and values [1, K, own, D]."""
        ...


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
        """Select rows by their places, and not by a mask, whose count the host would have to wait for."""
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

    def begin(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: KeptTurns | None) -> GenerateCall:
        """Prepare one call of `generate`."""
        return GenerateCall(self, requests, settings, done, kept)

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None, kept: KeptTurns | None = None
    ) -> list[list[Rollout]]:
        """Make the rollouts of every request, in order: `len(request.seeds)` each. `done` is called with a request's number and rollouts as
        soon as its last answer has ended. `kept`: of the session that asks.

        Raises:
            NumericsError: logits are not finite; no token is drawn from them.
        """
        if not requests:
            return []
        with self.policy.autocast():
            return self.begin(requests, settings, done, kept).loop()

    @torch.no_grad()
    def rehearse(self, requests: Sequence[Request], settings: GenerationSettings) -> None:
        counted = dict(vars(self))  # numbers and references, of which a rehearsal moves the counts alone
        with self.policy.autocast():
            self.begin(requests, settings, None, None).rehearse()
        vars(self).update(counted)  # what was thrown away is no work of the run


class GenerateCall:
    """One call of `generate`."""

    def __init__(
        self, engine: HFEngine, requests: Sequence[Request], settings: GenerationSettings, done: Done | None, kept: KeptTurns | None = None
    ):
        self.engine, self.policy, self.requests, self.settings, self.done = engine, engine.policy, requests, settings, done
        grid, device = self.policy.decode_grid or DecodeGrid, self.policy.device
        self.kept = kept if grid is DecodeGrid else None  # keys and values alone would not be enough to go on from
        counts = [len(request.seeds) for request in requests]
        # answers are rows of the output buffers, request after request: `first` row of each request, `owner` of each row
        self.first = [sum(counts[:i]) for i in range(len(counts))]
        self.left = list(counts)
        self.owner = [i for i, n in enumerate(counts) for _ in range(n)]
        total, length = sum(counts), settings.max_new_tokens
        # [answers, tokens]: what is drawn depends on seed and place alone, not on what runs beside it
        self.draws = torch.from_numpy(uniforms([s for r in requests for s in r.seeds], length)).to(device)
        self.ids = torch.zeros((total, length), dtype=torch.int64, device=device)
        self.logps = torch.zeros((total, length), dtype=torch.float32, device=device)
        self.lengths = [0] * total
        self.stopped = [False] * total
        # the longest first, so that none is left to decode alone at the end; of equal ones the first
        self.queue = deque(sorted(range(len(requests)), key=lambda i: (-requests[i].expected_tokens, i)))
        self.grid = grid(width=max(counts), longest=length, device=device)
        self.out: list[list[Rollout]] = [[] for _ in requests]
        self.ends = torch.tensor(self.policy.bundle.end_ids, device=device)
        self.forbidden = torch.tensor(self.policy.bundle.forbidden_ids, device=device)
        # cast once: autocast keeps its 16-bit copies of parameters, but not of a view as `head.T` is, and would cast it in every token
        self.head = self.policy.head if self.policy.compute == torch.float32 else self.policy.head.to(self.policy.compute)

    def loop(self) -> list[list[Rollout]]:
        """Admit, draw, retire, decode, until nothing waits and nothing runs."""
        rows: Running | None = None
        while self.queue or rows is not None:
            rows = self._admit(rows)
            rows, token = self._draw(rows)
            if rows is not None:
                rows = self._decode(rows, token)
        return self.out

    def rehearse(self) -> None:
        """Prefill the prompts that run together, draw a token for each of their answers, and decode one at each size that the room of the
        answers grows to, up to that of the longest: what generation takes at most, in a few tokens. They are thrown away."""
        rows = self._admit(None)
        token, _ = self._pick(rows)
        longest, at = self.settings.max_new_tokens - 2, -1
        while at < longest:  # the last token of an answer is drawn and not decoded
            at = min(self.grid.room, longest)
            self.grid.skip(at)
            self.grid.advance()
            self.forward(token, rows.position_N, self.grid)

    def _admit(self, rows: Running | None) -> Running:
        """Let in as many waiting prompts as there is room for, at least one into an empty grid, and prefill them."""
        alive = 0 if rows is None else len(rows.rows)
        while self.queue:
            chosen: list[int] = []
            tokens = 0
            while self.queue:
                request = self.requests[self.queue[0]]
                size = len(request.prompt.ids)
                # an empty grid takes any prompt: one with more answers than fit decodes alone, instead of never
                full = alive > 0 and alive + len(request.seeds) > self.engine.max_num_seqs
                if full or (chosen and tokens + size > self.engine.prefill_tokens):
                    break
                chosen.append(self.queue.popleft())
                alive, tokens = alive + len(request.seeds), tokens + size
            if not chosen:
                break
            self.grid.drop_finished()  # what has ended makes room for what the pass holds
            more = self.prefill(chosen, self.grid)
            rows = more if rows is None else rows.concat(more)
        assert rows is not None
        return rows

    def prefill(self, chosen: Sequence[int], grid: Grid) -> Running:
        """Read what is not kept of the prompts in one packed pass; the keys and values of all of them go into the grid."""
        policy, device = self.policy, self.policy.device
        prompts = [self.requests[i].prompt for i in chosen]
        counts = [len(self.requests[i].seeds) for i in chosen]
        pasts = [None if self.kept is None else self.kept.past(self.requests[i], policy.version) for i in chosen]
        starts = [0 if past is None else past.tokens for past in pasts]
        # of a prompt whose beginning is kept, only what comes behind is read
        parts = [prompt if past is None else past.behind(prompt) for prompt, past in zip(prompts, pasts, strict=True)]
        # groups without an answer: the prompts stand one behind another in one row, and none sees another
        layout = layout_of([(len(part.ids), ()) for part in parts])
        ids = torch.tensor([[i for part in parts for i in part.ids]])  # [1, tokens], on the host: `embed` counts placeholders there
        places = [prompt_positions(prompt, policy.positions)[:, start:] for prompt, start in zip(prompts, starts, strict=True)]
        positions = torch.cat(places, dim=1)[:, None].to(device)  # [3, 1, tokens]; of what is new, behind those of the past
        features = self.engine.vision.features(policy, [h for part in parts for h in part.media], train=False)
        inputs = embed(policy, ids, [(part, 0, block.start) for part, block in zip(parts, layout.blocks, strict=True)], features)
        extension = self.kept.extension(pasts, [len(part.ids) for part in parts]) if self.kept is not None and any(starts) else None
        record: list[Pair] = []
        packed = {"prefix_layout": layout, "prefix_backend": policy.prefix_backend, "record": record}
        # attention goes by the layout of the row, or by the extension, which knows the pasts as well
        how: dict[str, Any] = packed if extension is None else {"decoding": extension}
        hidden = policy.core.language_model(
            **inputs.arguments(), attention_mask=None, position_ids=positions, use_cache=False, **how
        ).last_hidden_state[0]
        if self.kept is not None:  # before `admit`, which takes the layers out of the record
            own = record if extension is None else extension.own
            for i, past, block in zip(chosen, pasts, layout.blocks, strict=True):
                self.kept.keep_prompt(self.requests[i], past, own, (block.start, block.end), policy.version)
        grid.admit(chosen, counts, [len(prompt.ids) for prompt in prompts], record if extension is None else extension.record)
        self.engine.prefilled_prompts += len(prompts)
        self.engine.prefilled_tokens += layout.tokens
        self.engine.kept_tokens += sum(starts)
        # each answer starts from its prompt's last state; text ends every prompt, so the first axis is the position on all three
        last = torch.tensor([block.end - 1 for block in layout.blocks], device=device)
        owner = torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor(counts)).to(device)
        rows = [self.first[i] + k for i, n in zip(chosen, counts, strict=True) for k in range(n)]
        row_N = torch.tensor(rows, device=device)
        return Running(rows, row_N, hidden[last][owner], positions[0, 0, last][owner] + 1, torch.zeros_like(row_N))

    def answer(self, request: int, k: int, tokens: int) -> list[Pair]:
        """Show the keys and values of the first tokens of a running answer.

        Returns:
            By layer, [1, K, tokens, D] each: views.
        """
        return self.grid.own(request, k, tokens)

    def _draw(self, rows: Running) -> tuple[Running | None, torch.Tensor]:
        """Draw the next token of every row, and retire the rows that it ends.

        A NaN or +inf among a row's logits makes the log-prob of whatever is drawn from them NaN, and nothing is kept of such a draw: all
        tokens would count as likely, those of `forbidden` too. That is asked together with whether a row has ended, in one wait: the
        only one of a token.
        """
        token, logp = self._pick(rows)
        flags = torch.stack([~logp.isfinite(), torch.isin(token, self.ends)]).tolist()
        broken: list[bool] = flags[0]
        stopped: list[bool] = flags[1]
        if any(broken):
            self.refuse(rows.rows[broken.index(True)], sum(broken), len(broken))
        self.ids[rows.row_N, rows.t_N] = token
        self.logps[rows.row_N, rows.t_N] = logp
        rows.t_N = rows.t_N + 1
        # counted on the host as well: to ask the device would be one more wait in every token
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

    def _pick(self, rows: Running) -> tuple[Tensor, Tensor]:
        """Draw the next token of every row. Returns (token [N], log-prob [N])."""
        # training log-probs leave these ids out too: both sides have one distribution. The product is of the compute type on both sides
        # (`policy.head`), and what follows is float32
        logits = (rows.hidden_NH @ self.head.T).float().index_fill(1, self.forbidden, float("-inf"))
        return sample(logits, self.draws[rows.row_N, rows.t_N], self.settings)

    def refuse(self, row: int, broken: int, running: int) -> None:
        """Raise NumericsError: what these rows would go on with is not a draw from the policy."""
        raise NumericsError(
            f"logits not finite: {broken} of {running} running answers, first at token {self.lengths[row] + 1} of an "
            f"answer to '{self.requests[self.owner[row]].prompt.sample.id}'"
        )

    def retire(self, row: int, stopped: bool) -> None:
        self.stopped[row] = stopped
        # an answer's last token was drawn and never read, so there are no keys and values of it
        i, read = self.owner[row], self.lengths[row] - 1
        if self.kept is not None and self.requests[i].goes_on and read:
            k = row - self.first[i]
            ids = tuple(self.ids[row, :read].tolist())
            self.kept.keep_answer(self.requests[i], k, ids, self.answer(i, k, read), self.policy.version)
        request = self.owner[row]
        self.left[request] -= 1
        if self.left[request] == 0:
            self.out[request] = self.rollouts(request)
            if self.done is not None:  # scores are asked for while others decode
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
        """Make one forward pass of one token per row."""
        self.grid.advance()
        self.engine.decoded_steps += 1
        hidden = self.forward(token, rows.position_N, self.grid)
        return Running(rows.rows, rows.row_N, hidden, rows.position_N + 1, rows.t_N)

    def forward(self, token_N: Tensor, position_N: Tensor, grid: Grid) -> Tensor:
        """Run the language model over one token of every row.

        Returns:
            [N, H], the states that the next tokens are drawn from.
        """
        return self.policy.core.language_model(
            inputs_embeds=self.policy.core.get_input_embeddings()(token_N[None]),
            attention_mask=None,
            # an answer is text: the three axes of M-RoPE move as one
            position_ids=position_N.view(1, 1, -1).expand(3, -1, -1),
            use_cache=False,
            decoding=grid,
        ).last_hidden_state[0]

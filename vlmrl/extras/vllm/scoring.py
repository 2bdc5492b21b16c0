"""Runs inside vLLM's worker: log-probs of given ids at positions of a request's prompt, under the distribution that a trainer samples from.

vLLM's own log-probs of a prompt (`prompt_logprobs`) are those of the raw logits, whatever the mode of its log-probs: no temperature, no
forbidden ids, since a prompt passes no processor of samples. So the hidden states are taken where vLLM takes them for its own, and the
model's own function makes logits of the positions that are asked for, and of no others. With several workers each does the same.

A request brings what is asked in `extra_args[ASK]` of its sampling parameters, and the scores are fetched by its name. A position that the
prefix cache has covered is never computed, so its scores are missing; whoever asked asks again past the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

ASK = "vlmrl"
ROWS = 256
"""Positions whose logits are in memory at once."""
MOST = 4096
"""Requests whose scores are kept; those of one that nobody fetches go when others come."""


def given_logprobs(logits_MV: torch.Tensor, ids_MK: torch.Tensor, *, temperature: float, forbidden: Sequence[int]) -> torch.Tensor:
    """Compute the log-probs of given ids under softmax(logits / temperature) without the forbidden ids, whose own are -inf.

    Returns:
        [M, K], float32, or float64 for float64 input.
    """
    z_MV = logits_MV.to(torch.float64 if logits_MV.dtype == torch.float64 else torch.float32) / temperature
    if forbidden:
        z_MV[:, list(forbidden)] = float("-inf")
    return z_MV.gather(1, ids_MK) - z_MV.logsumexp(1, keepdim=True)


def ask_of(name: str, start: int, ids: np.ndarray, *, temperature: float, forbidden: Sequence[int]) -> dict[str, Any]:
    """What a request brings. `start`: the first position that is asked for; `ids`: those asked for at each from there on, int32 [T, K]."""
    return {"name": name, "start": start, "shape": list(ids.shape), "ids": ids.tobytes(), "how": [temperature, *forbidden]}


@dataclass
class _Asked:
    """One request that is being scored."""

    start: int
    ids_TK: torch.Tensor
    temperature: float
    forbidden: tuple[int, ...]
    found_TK: torch.Tensor = field(init=False)
    """NaN where nothing was computed yet."""

    def __post_init__(self) -> None:
        self.found_TK = torch.full(self.ids_TK.shape, float("nan"))

    @staticmethod
    def of(told: Mapping[str, Any]) -> _Asked:
        ids = np.frombuffer(told["ids"], dtype=np.int32).reshape(told["shape"]).astype(np.int64)
        temperature, *forbidden = told["how"]
        return _Asked(int(told["start"]), torch.from_numpy(ids), float(temperature), tuple(map(int, forbidden)))


class Scoring:
    """Scores what requests ask, as vLLM computes their prompts."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, _Asked] = OrderedDict()

    def watch(self, runner: Any) -> str:
        """See every step of a runner from now on.

        Returns:
            Why it cannot be seen; empty where it can.
        """
        own = getattr(runner, "_get_prompt_logprobs_dict", None)
        if own is None:
            return "its model runner is one whose hidden states cannot be seen; set VLLM_USE_V2_MODEL_RUNNER=0"

        def seen(hidden_states: torch.Tensor, num_scheduled_tokens: Mapping[str, int]) -> Any:
            self._step(runner, hidden_states, num_scheduled_tokens)
            return own(hidden_states, num_scheduled_tokens)

        runner._get_prompt_logprobs_dict = seen
        return ""

    def fetch(self, name: str) -> bytes | None:
        """Hand out the scores of a request, float32 [T, K], and forget it; None where some are missing."""
        asked = self._asked.pop(name, None)
        if asked is None or bool(asked.found_TK.isnan().any()):
            return None
        return asked.found_TK.numpy().tobytes()

    def _step(self, runner: Any, hidden_states: torch.Tensor, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            request = runner.requests[name]
            parameters = request.sampling_params
            told = None if parameters is None else (parameters.extra_args or {}).get(ASK)
            if told is not None:
                first = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
                self.take(told, int(request.num_computed_tokens), hidden_states[first : first + count], runner.model.compute_logits)

    def take(self, told: Mapping[str, Any], place: int, hidden_SH: torch.Tensor, logits_of: Callable[[torch.Tensor], Any]) -> None:
        """Score what is asked of some positions.

        Args:
            told: what the request brought (`ask_of`).
            place: of the first of these positions in the prompt.
            logits_of: hidden states -> logits; None in a worker that does not gather them.
        """
        asked = self._asked.setdefault(told["name"], _Asked.of(told))
        while len(self._asked) > MOST:
            self._asked.popitem(last=False)
        first, last = max(place, asked.start), min(place + len(hidden_SH), asked.start + len(asked.ids_TK))
        for start in range(first, last, ROWS):
            end = min(start + ROWS, last)
            logits = logits_of(hidden_SH[start - place : end - place])
            if logits is not None:
                rows = slice(start - asked.start, end - asked.start)
                ids_MK = asked.ids_TK[rows].to(logits.device)
                made = given_logprobs(logits, ids_MK, temperature=asked.temperature, forbidden=asked.forbidden)
                asked.found_TK[rows] = made.cpu()

"""What a worker of a teacher's server makes of hidden states: log-probs of the sampling's distribution, however vLLM cuts a prompt."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch

from vlmrl.extras.vllm import scoring
from vlmrl.extras.vllm.scoring import ASK, Scoring, ask_of, given_logprobs

V, H = 13, 4
HEAD = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
FORBIDDEN = (2, 7)
START, LENGTH = 3, 5
"""First position that is asked for, and how many."""
HIDDEN = torch.randn(START + LENGTH + 2, H, generator=torch.Generator().manual_seed(1))
IDS = np.asarray([[1, 3, 5], [0, 4, 12], [6, 6, 8], [9, 10, 11], [1, 0, 3]], dtype=np.int32)


def expected(temperature: float = 0.7) -> torch.Tensor:
    z = (HIDDEN[START : START + LENGTH].double() @ HEAD.T.double()) / temperature
    allowed = [i for i in range(V) if i not in FORBIDDEN]
    every = torch.full_like(z, -torch.inf)
    every[:, allowed] = z[:, allowed].log_softmax(1)
    return every.gather(1, torch.from_numpy(IDS).long())


def logits_of(hidden: torch.Tensor) -> torch.Tensor:
    return hidden @ HEAD.T


def told(name: str = "a") -> dict[str, Any]:
    return ask_of(name, START, IDS, temperature=0.7, forbidden=FORBIDDEN)


def fetched(scores: Scoring, name: str = "a") -> torch.Tensor:
    made = scores.fetch(name)
    assert made is not None
    return torch.from_numpy(np.frombuffer(made, dtype=np.float32).reshape(IDS.shape).copy())


def test_given_ids_at_a_temperature_without_forbidden_ids() -> None:
    logits, ids = HIDDEN[START : START + LENGTH].double() @ HEAD.T.double(), torch.from_numpy(IDS).long()
    found = given_logprobs(logits.clone(), ids, temperature=0.7, forbidden=FORBIDDEN)
    torch.testing.assert_close(found, expected(), rtol=0, atol=1e-12)
    assert found.dtype == torch.float64
    forbidden = given_logprobs(logits, torch.full_like(ids, 7), temperature=0.7, forbidden=FORBIDDEN)
    assert (forbidden == -torch.inf).all()


@pytest.mark.parametrize("step", [1, 2, 4, 100])
def test_a_prompt_may_come_in_pieces(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "ROWS", 2)
    scores = Scoring()
    for place in range(0, len(HIDDEN), step):
        scores.take(told(), place, HIDDEN[place : place + step], logits_of)
    torch.testing.assert_close(fetched(scores), expected().float(), rtol=0, atol=1e-5)
    assert scores.fetch("a") is None, "it is handed out once"


def test_what_the_prefix_cache_has_covered_is_missing() -> None:
    scores = Scoring()
    scores.take(told(), START + 1, HIDDEN[START + 1 :], logits_of)
    assert scores.fetch("a") is None
    scores.take(told("b"), START, HIDDEN[START:], logits_of)
    torch.testing.assert_close(fetched(scores, "b"), expected().float(), rtol=0, atol=1e-5)


def test_a_worker_without_logits_has_no_scores() -> None:
    scores = Scoring()
    scores.take(told(), 0, HIDDEN, lambda hidden: None)
    assert scores.fetch("a") is None


def test_scores_that_nobody_fetches_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MOST", 2)
    scores = Scoring()
    for name in "abc":
        scores.take(told(name), 0, HIDDEN, logits_of)
    assert scores.fetch("a") is None
    assert scores.fetch("c") is not None


def request(extra: dict[str, Any] | None, computed: int) -> Any:
    return types.SimpleNamespace(sampling_params=types.SimpleNamespace(extra_args=extra), num_computed_tokens=computed)


def test_the_runner_is_seen_where_it_makes_log_probs_of_its_own() -> None:
    seen: list[Any] = []
    runner = types.SimpleNamespace(
        requests={"x": request(None, 0), "y": request({ASK: told()}, 2), "z": types.SimpleNamespace(sampling_params=None)},
        query_start_loc=types.SimpleNamespace(np=np.asarray([0, 4, 12])),
        input_batch=types.SimpleNamespace(req_id_to_index={"x": 0, "y": 1, "z": 2}),
        model=types.SimpleNamespace(compute_logits=logits_of),
        _get_prompt_logprobs_dict=lambda *given: seen.append(given) or {"of": "vLLM"},
    )
    scores = Scoring()
    assert scores.watch(runner) == ""
    hidden = torch.cat([torch.zeros(4, H), HIDDEN[2:], torch.zeros(1, H)])
    counts = {"x": 4, "y": len(HIDDEN) - 2, "z": 1}
    assert runner._get_prompt_logprobs_dict(hidden, counts) == {"of": "vLLM"}
    assert seen[0][0] is hidden
    assert seen[0][1] == counts
    torch.testing.assert_close(fetched(scores), expected().float(), rtol=0, atol=1e-5)


def test_another_runner_is_refused() -> None:
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in Scoring().watch(types.SimpleNamespace())

"""Experts that come with vLLM's answers: rows by slots of its cache, written as updates read them, and refused where they are not whole."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.families import routing
from vlmrl.extras.vllm.inputs import Completion, Version
from vlmrl.extras.vllm.routes import Routes, experts_of, require_routers, written
from vlmrl.extras.vllm.wire import WireError, answers_from, answers_message, body_message, reply_from
from vlmrl.types import Prompt, Sample

SAMPLE = Sample(id="a", task="t", answer_type="free", question="q", media=(), answer="x", gt={})
PROMPT = Prompt(sample=SAMPLE, ids=(5, 6, 7), media=(), spans=(), answer_format="answer_only")
ANSWER = Completion(ids=(8, 9), logprobs=(-0.1, -0.2), reason="stop", cached=0, prompt_ids=PROMPT.ids)
SUBJECT = SimpleNamespace(unrouted="", routers=2, routes=routing.routes)
EXPERTS = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)


def test_experts_are_written_as_updates_read_them() -> None:
    before, behind = written(dataclasses.replace(ANSWER, experts=EXPERTS), PROMPT, SUBJECT)
    prompt, answer = routing.read(before, routing.mark(PROMPT.ids), 3), routing.read(behind, routing.mark(ANSWER.ids), 1)
    assert prompt is not None
    assert answer is not None
    assert torch.cat([prompt, answer]).tolist() == EXPERTS.tolist(), "the last token of an answer is never read"


@pytest.mark.parametrize(("experts", "said"), [(None, "gave none"), (EXPERTS[:3], "gave those of 3")])
def test_experts_of_other_columns_are_an_error(experts: np.ndarray | None, said: str) -> None:
    with pytest.raises(EngineError, match=f"vLLM read 4 columns for an answer to 'a', and of their experts {said}"):
        written(dataclasses.replace(ANSWER, experts=experts), PROMPT, SUBJECT)


def runner() -> SimpleNamespace:
    """Two requests in a cache with blocks of two tokens; the second one shares the first block of the other."""
    tables = np.array([[3, 1, 0], [3, 2, 0]], dtype=np.int32)
    table = SimpleNamespace(block_size=2, block_table=SimpleNamespace(np=tables), slot_mapping=SimpleNamespace(gpu=torch.zeros(8).long()))
    rows, computed = {"1-ab12": 0, "11-cd34": 1}, np.zeros(2, dtype=np.int32)
    return SimpleNamespace(input_batch=SimpleNamespace(block_table=[None, table], req_id_to_index=rows, num_computed_tokens_cpu=computed))


def test_a_column_that_was_found_has_the_experts_of_its_slot() -> None:
    routes, seen = Routes(), SimpleNamespace(rows=torch.zeros(0))
    routes._runner, routes._group, routes._told = runner(), 1, {}
    routes._seen = SimpleNamespace(snapshot_routing_data=lambda columns: seen.rows[:columns])
    routes._kept = torch.zeros((8, 1, 1), dtype=torch.uint8)
    batch = routes._runner.input_batch
    slots = batch.block_table[1].slot_mapping.gpu
    # three columns of the first request, then its fourth and the third of the second, which found two
    steps = (([10, 11, 12], [6, 7, 2], [0, 0], {"1-ab12": 3}), ([13, 22], [3, 4], [3, 2], {"1-ab12": 1, "11-cd34": 1}))
    for rows, places, computed, scheduled in steps:
        seen.rows = torch.tensor(rows, dtype=torch.uint8)[:, None, None]
        slots[: len(places)] = torch.tensor(places)
        batch.num_computed_tokens_cpu[:] = computed
        routes._step(len(rows), scheduled)
    batch.req_id_to_index.clear()  # both have ended, and their slots are others'
    routes._kept.zero_()
    assert routes.fetch("1") == (bytes([10, 11, 12, 13]), (4, 1, 1), "|u1")
    assert routes.fetch("11") == (bytes([10, 11, 22]), (3, 1, 1), "|u1")
    assert routes.fetch("1") is routes.fetch("2") is None, "one that was fetched, and one that was never there"


def test_experts_are_of_layers_with_a_router_whoever_has_them() -> None:
    none = SimpleNamespace(outputs=[SimpleNamespace(routed_experts=None)])
    kept = (EXPERTS.tobytes(), EXPERTS.shape, EXPERTS.dtype.str)
    for output, fetched in ((none, [None, kept]), (SimpleNamespace(outputs=[SimpleNamespace(routed_experts=EXPERTS)]), [])):
        found = experts_of(output, fetched, [1])
        assert found is not None
        assert found.tolist() == EXPERTS[:, 1:].tolist()
    assert experts_of(none, [None], [1]) is None


def test_experts_come_over_the_wire_as_they_are() -> None:
    version, answers = Version(policy=1, vision=1), [dataclasses.replace(ANSWER, experts=EXPERTS), ANSWER]
    read, (first, second) = answers_from(reply_from(body_message(answers_message(version, answers))), PROMPT.ids)
    assert read == version
    assert first.experts is not None
    assert (first.experts.dtype, first.experts.tolist()) == (EXPERTS.dtype, EXPERTS.tolist())
    assert second.experts is None
    message = answers_message(version, answers)
    for wrong in ({"type": "<f4"}, {"shape": [3]}, {"bytes": "?"}, {"type": "|O"}):
        told = message["answers"][0]["experts"] | wrong
        with pytest.raises(WireError):
            answers_from({**message, "answers": [message["answers"][0] | {"experts": told}]}, PROMPT.ids)


def test_a_model_whose_routers_vllm_does_not_have_is_refused() -> None:
    require_routers(SUBJECT, 2)
    with pytest.raises(ConfigError, match="its model in vLLM has routers in 3 layers, and here in 2; take it out"):
        require_routers(SUBJECT, 3)
    with pytest.raises(ConfigError, match=r"rollout\.router_replay: its routers are X; take it out"):
        require_routers(SimpleNamespace(unrouted="its routers are X", routers=2), 2)
    with pytest.raises(ConfigError, match="it has no routers"):
        require_routers(None, 2)

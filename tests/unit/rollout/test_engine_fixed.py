"""The engine with fixed shapes: the answers of the reference engine, a step that asks the host nothing and moves nothing."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch

from tests.support.pretend import Pretend
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.errors import NumericsError
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout import engine_fixed
from vlmrl.rollout.engine_fixed import LOOK, FixedEngine, FixedGrid, FixedRun
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

Groups = list[list[Rollout]]


def request(prompt: Prompt, n: int) -> Request:
    return Request(prompt=prompt, ks=tuple(range(n)), seeds=tuple(rng.key(0, prompt.sample.id, k) for k in range(n)))


def assert_same(got: Groups, expected: Groups) -> None:
    for one, other in zip((r for g in got for r in g), (r for g in expected for r in g), strict=True):
        assert (one.ids, one.text, one.finish, one.k) == (other.ids, other.text, other.finish, other.k)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (1.3, 0.8)])
def test_answers_are_those_of_the_reference_engine(tiny: Tiny, temperature: float, top_p: float) -> None:
    """More tokens than one room, prompts of different length and with different numbers of answers."""
    requests = [request(p, 1 + n % 4) for n, p in enumerate(tiny.prompts(6))]
    settings = GenerationSettings(max_new_tokens=80, temperature=temperature, top_p=top_p)
    got = FixedEngine(tiny.policy, tiny.vision).generate(requests, settings)
    expected = HFEngine(tiny.policy, tiny.vision).generate(requests, settings)
    assert_same(got, expected)
    if temperature:
        assert {r.finish for g in expected for r in g} >= {"stop"}, "some must end early"
    assert max(len(r.ids) for g in expected for r in g) > engine_fixed.GROW, "and some need more than the first room"


@pytest.mark.parametrize("max_num_seqs", [1, 5, 8])
def test_few_slots_are_filled_again(tiny: Tiny, max_num_seqs: int) -> None:
    requests = [request(p, 4) for p in tiny.prompts(7)]
    settings = GenerationSettings(max_new_tokens=24)
    expected = HFEngine(tiny.policy, tiny.vision).generate(requests, settings)
    seen: list[int] = []
    engine = FixedEngine(tiny.policy, tiny.vision, max_num_seqs=max_num_seqs, prefill_tokens=1)
    assert_same(engine.generate(requests, settings, lambda n, _: seen.append(n)), expected)
    assert sorted(seen) == list(range(7)), "every request is reported once"
    assert engine.prefilled_prompts == 7


def test_the_same_batch_gives_the_same_bits(tiny: Tiny) -> None:
    engine, requests = FixedEngine(tiny.policy, tiny.vision), [request(p, 4) for p in tiny.prompts(4)]
    settings = GenerationSettings(max_new_tokens=20)
    assert engine.generate(requests, settings) == engine.generate(requests, settings)


def test_a_slot_keeps_nothing_of_what_was_in_it(tiny: Tiny) -> None:
    """Not even what is not finite: a mask of -inf makes its weight 0, and 0 times NaN is NaN."""
    grid = FixedGrid(slots=1, width=2, prompt=3, answer=4, device=torch.device("cpu"))
    layers = [(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))]
    grid.admit([5], [2], [3], list(layers))
    ((_, own),) = grid._layers
    for x in own:
        x.fill_(float("nan"))
    grid.held[0] = None
    grid.admit([6], [2], [2], [(k[:, :, :2], v[:, :, :2]) for k, v in layers])
    ((prompt, own),) = grid._layers
    assert all((x == 0).all() for x in own)
    assert all((x[0, :, 2] == 0).all() for x in prompt)
    grid.advance()
    out = grid.attend(0, torch.randn(1, 4, 2, 4), torch.randn(1, 2, 2, 4), torch.randn(1, 2, 2, 4), 0.5)
    assert out.shape == (1, 2, 4, 4)
    assert out.isfinite().all()


def test_logits_that_are_not_finite_end_it(tiny: Tiny) -> None:
    (prompt,) = tiny.prompts(1)
    before = tiny.policy.head.detach().clone()
    with torch.no_grad():
        tiny.policy.head[7] = float("nan")
    try:
        with pytest.raises(NumericsError, match=f"2 of 2 running answers, first at token 1 of an answer to '{prompt.sample.id}'"):
            FixedEngine(tiny.policy, tiny.vision).generate([request(prompt, 2)], GenerationSettings(max_new_tokens=4))
    finally:
        with torch.no_grad():
            tiny.policy.head.copy_(before)


def test_a_step_asks_the_host_nothing_and_moves_nothing(tiny: Tiny) -> None:
    """What a record of it needs: no wait, no copy, and every tensor that outlives it stays at its address."""
    policy = copy.copy(tiny.policy)
    policy.prefix_backend = "two_call"
    policy.model = copy.deepcopy(tiny.policy.model)
    with Pretend() as fake, torch.no_grad():
        fake.move(policy.model)
        policy.device = fake.device
        engine = FixedEngine(policy, VisionCache(tiny.store, budget_bytes=2**26))
        run = FixedRun(engine, [request(p, 2) for p in tiny.prompts(2)], GenerationSettings(max_new_tokens=40), None)
        run._fill()
        run.fixed.prepare(LOOK)
        run.token()

        def addresses() -> dict[str, int]:
            held = {name: x for name, x in vars(run).items() if name.endswith(("_N", "_NH", "_NT")) and isinstance(x, torch.Tensor)}
            held |= {
                f"{i}.{j}.{n}": x for i, layer in enumerate(run.fixed._layers) for j, pair in enumerate(layer) for n, x in enumerate(pair)
            }
            held |= {"length": run.fixed._length_A, "age": run.fixed._age_A}
            return {name: x.elem.data_ptr() for name, x in held.items()}

        before = addresses()
        assert len(before) > 8
        fake.reset()
        for _ in range(3):
            run.token()
        assert addresses() == before
        assert [fake.total(kind) for kind in ("wait", "to device", "to host", "hidden")] == [0, 0, 0, 0], fake.lines("wait")
        fake.reset()
        run._look()
        assert fake.total("wait") == 1


def test_a_decoded_token_more_is_no_wait_more(tiny: Tiny) -> None:
    """The control: the reference engine waits once per token, this one once per look."""
    policy = copy.copy(tiny.policy)
    policy.prefix_backend = "two_call"
    policy.model = copy.deepcopy(tiny.policy.model)
    waits: dict[str, list[int]] = {}
    with Pretend() as fake:
        fake.move(policy.model)
        policy.device = fake.device
        for kind in (HFEngine, FixedEngine):
            for tokens in (LOOK, 3 * LOOK):
                engine = kind(policy, VisionCache(tiny.store, budget_bytes=2**26))
                long = [dataclasses.replace(request(p, 2)) for p in tiny.prompts(2)]
                fake.reset()
                engine.generate(long, GenerationSettings(max_new_tokens=tokens))
                waits.setdefault(kind.__name__, []).append(fake.total("wait", "rollout/"))
    few, many = waits["FixedEngine"]
    assert many - few <= 2 + 2 * 2, "two looks, and the numbers of four answers that end later"
    assert waits["HFEngine"][1] - waits["HFEngine"][0] > many - few


@pytest.mark.gpu
def test_a_recorded_step_gives_what_the_step_gives(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model).cuda()
    policy.device = torch.device("cuda")
    policy.prefix_backend = "two_call"
    requests, settings = [request(p, 4) for p in tiny.prompts(6)], GenerationSettings(max_new_tokens=80)

    def answers() -> Groups:
        return FixedEngine(policy, VisionCache(tiny.store, budget_bytes=2**26), max_num_seqs=8).generate(requests, settings)

    replayed = answers()

    def unrecorded(step: Callable[[], None]) -> Callable[[], None]:
        step()  # as the recording does
        return step

    monkeypatch.setattr(engine_fixed, "recorded", unrecorded)
    assert_same(replayed, answers())

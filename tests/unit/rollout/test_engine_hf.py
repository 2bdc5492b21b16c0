"""The rollout engine against transformers' own `generate` and against a plain forward."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.policy.pack import Row, prompt_positions
from vlmrl.policy.repeat import pack, repeat
from vlmrl.rollout.engine_hf import HFEngine, sample, uniforms
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout


def request(prompt: Prompt, n: int) -> Request:
    return Request(prompt=prompt, ks=tuple(range(n)), seeds=tuple(rng.key(0, prompt.sample.id, k) for k in range(n)))


def generate_greedy(tiny: Tiny, prompt: Prompt, tokens: int) -> list[int]:
    """transformers' greedy decoding of one prompt, with our positions and without sampling placeholders."""
    ids = torch.tensor([prompt.ids])
    positions = torch.cat([torch.arange(len(prompt.ids))[None, None], prompt_positions(prompt, tiny.policy.positions)[:, None]])
    (handle,) = prompt.media
    pixels = tiny.bundle.pixel_values(tiny.store.get_key(handle.key).pixel_values, "video")
    out = tiny.policy.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        position_ids=positions,
        pixel_values_videos=pixels,
        video_grid_thw=torch.tensor([handle.grid_thw]),
        max_new_tokens=tokens,
        do_sample=False,
        suppress_tokens=list(tiny.bundle.forbidden_ids),
    )
    return out[0, len(prompt.ids) :].tolist()


def test_greedy_equals_generate_on_50_prompts(tiny: Tiny) -> None:
    prompts = tiny.prompts(50)
    assert len({len(p.ids) for p in prompts}) > 1, "prompts of different length must be in the batch"
    answers = HFEngine(tiny.policy, tiny.vision).generate(
        [request(p, 1) for p in prompts], GenerationSettings(max_new_tokens=24, temperature=0.0)
    )
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        assert list(answer.ids) == generate_greedy(tiny, prompt, 24), prompt.sample.id


def test_grid_rule_equals_plain_generate_without_our_positions(tiny: Tiny) -> None:
    policy = copy.copy(tiny.policy)
    policy.positions = dataclasses.replace(tiny.policy.positions, rule="grid")
    prompts = tiny.prompts(8)
    answers = HFEngine(policy, tiny.vision).generate(
        [request(p, 1) for p in prompts], GenerationSettings(max_new_tokens=16, temperature=0.0)
    )
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids, (handle,) = torch.tensor([prompt.ids]), prompt.media
        out = tiny.policy.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == tiny.bundle.pad_ids["video"]).int() * 2,
            pixel_values_videos=tiny.bundle.pixel_values(tiny.store.get_key(handle.key).pixel_values, "video"),
            video_grid_thw=torch.tensor([handle.grid_thw]),
            second_per_grid_ts=torch.tensor([handle.seconds_per_grid]),
            max_new_tokens=16,
            do_sample=False,
            suppress_tokens=list(tiny.bundle.forbidden_ids),
        )
        assert out[0, len(prompt.ids) :].tolist() == list(answer.ids), prompt.sample.id


def test_logprobs_equal_a_full_forward(tiny: Tiny) -> None:
    prompts = tiny.prompts(12)
    settings = GenerationSettings(max_new_tokens=24, temperature=0.7)
    groups = HFEngine(tiny.policy, tiny.vision).generate([request(p, 4) for p in prompts], settings)
    rows = [Row(index=0, group=0, prompt=p, response=r.ids) for p, group in zip(prompts, groups, strict=True) for r in group]
    batch = pack(rows, tiny.policy.positions, tiny.policy.device, pad_id=0)
    with torch.no_grad():
        scored = repeat(tiny.policy, batch, tiny.vision, temperature=0.7, forbidden=tiny.bundle.forbidden_ids, train=False)
    reported = torch.tensor([lp for group in groups for r in group for lp in r.logprobs])
    assert (scored.logp_BT[batch.mask_BT] - reported).abs().max() < 1e-5


def test_each_prompt_is_prefilled_and_encoded_once(tiny: Tiny) -> None:
    prompts = tiny.prompts(3)
    engine = HFEngine(tiny.policy, tiny.vision)
    tiny.policy.vision_version += 1  # forget cached features
    before = tiny.vision.patches_encoded
    engine.generate([request(p, 8) for p in prompts], GenerationSettings(max_new_tokens=4))
    assert engine.prefilled_prompts == 3
    assert tiny.vision.patches_encoded - before == sum(int(np.prod(p.media[0].grid_thw)) for p in prompts)
    engine.generate([request(p, 8) for p in prompts], GenerationSettings(max_new_tokens=4))
    assert tiny.vision.patches_encoded - before == sum(int(np.prod(p.media[0].grid_thw)) for p in prompts)


def test_answers_do_not_depend_on_company_or_order(tiny: Tiny) -> None:
    prompts = tiny.prompts(6)
    engine, settings = HFEngine(tiny.policy, tiny.vision), GenerationSettings(max_new_tokens=16)

    def ids(groups: list[list[Rollout]]) -> list[list[tuple[int, ...]]]:
        return [[r.ids for r in group] for group in groups]

    together = ids(engine.generate([request(p, 3) for p in prompts], settings))
    alone = [ids(engine.generate([request(p, 3)], settings))[0] for p in prompts]
    backwards = ids(engine.generate([request(p, 3) for p in reversed(prompts)], settings))[::-1]
    assert together == alone == backwards


def test_same_batch_gives_the_same_bits(tiny: Tiny) -> None:
    engine, requests = HFEngine(tiny.policy, tiny.vision), [request(p, 4) for p in tiny.prompts(4)]
    settings = GenerationSettings(max_new_tokens=16)
    assert engine.generate(requests, settings) == engine.generate(requests, settings)


def test_control_tokens_are_never_sampled(tiny: Tiny) -> None:
    bias = tiny.policy.head.detach().clone()
    engine = HFEngine(tiny.policy, tiny.vision)
    with torch.no_grad():  # make every placeholder by far the most likely token
        for token in tiny.bundle.forbidden_ids:
            tiny.policy.head[token] = 0.0
        tiny.policy.head[list(tiny.bundle.forbidden_ids)] += 50 * tiny.policy.head.abs().mean()
    try:
        for temperature in (0.0, 1.5):
            settings = GenerationSettings(max_new_tokens=12, temperature=temperature)
            groups = engine.generate([request(p, 4) for p in tiny.prompts(3)], settings)
            assert not {i for g in groups for r in g for i in r.ids} & set(tiny.bundle.forbidden_ids)
    finally:
        with torch.no_grad():
            tiny.policy.head.copy_(bias)


def test_version_is_stamped_and_finish_reason_is_true(tiny: Tiny) -> None:
    tiny.policy.version = 7
    try:
        groups = HFEngine(tiny.policy, tiny.vision).generate([request(p, 4) for p in tiny.prompts(4)], GenerationSettings(max_new_tokens=6))
    finally:
        tiny.policy.version = 0
    for rollout in (r for g in groups for r in g):
        assert rollout.policy_version == 7
        assert (rollout.finish == "stop") == (rollout.ids[-1] in tiny.bundle.end_ids)
        assert len(rollout.ids) <= 6
        assert not set(rollout.ids[:-1]) & set(tiny.bundle.end_ids)


def test_nucleus_keeps_the_smallest_sufficient_set() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    settings = GenerationSettings(max_new_tokens=1, top_p=0.8)
    tokens = [int(sample(logits, torch.tensor([u], dtype=torch.float64), settings)[0]) for u in np.linspace(0, 0.999, 200)]
    assert set(tokens) == {0, 1}
    assert tokens.count(0) / 200 == pytest.approx(0.5 / 0.8, abs=0.02)
    _, logp = sample(logits, torch.tensor([0.0], dtype=torch.float64), settings)
    assert float(logp) == pytest.approx(np.log(0.5 / 0.8), abs=1e-6)


def test_sampling_follows_the_distribution() -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    draws = torch.from_numpy(uniforms([5], 20_000)[0])
    tokens, logp = sample(p.log().expand(20_000, 4), draws, GenerationSettings(max_new_tokens=1))
    shares = torch.bincount(tokens, minlength=4) / 20_000
    assert torch.allclose(shares, p, atol=4 * (0.25 / 20_000) ** 0.5)
    assert torch.allclose(logp, p.log()[tokens], atol=1e-6)


def test_temperature_scales_the_reported_distribution() -> None:
    logits = torch.tensor([[1.0, 0.0]])
    _, logp = sample(logits, torch.tensor([0.0], dtype=torch.float64), GenerationSettings(max_new_tokens=1, temperature=0.5))
    assert float(logp) == pytest.approx(float(torch.log_softmax(logits / 0.5, -1)[0, 0]), abs=1e-6)


@pytest.mark.parametrize("max_num_seqs", [1, 5, 8])
def test_few_slots_give_the_same_answers_and_refill(tiny: Tiny, max_num_seqs: int) -> None:
    requests = [request(p, 4) for p in tiny.prompts(7)]
    settings = GenerationSettings(max_new_tokens=24)
    wide = HFEngine(tiny.policy, tiny.vision)
    expected = [[r.ids for r in group] for group in wide.generate(requests, settings)]
    narrow, seen = HFEngine(tiny.policy, tiny.vision, max_num_seqs=max_num_seqs), []
    got = narrow.generate(requests, settings, lambda n, rollouts: seen.append((n, [r.ids for r in rollouts])))
    assert [[r.ids for r in group] for group in got] == expected
    assert sorted(seen) == list(enumerate(expected)), "every request is reported once, as it was returned"
    longest = [max(len(ids) for ids in group) for group in expected]
    assert narrow.decoded_steps <= sum(longest), "never slower than one prompt at a time"
    if max_num_seqs == 8:
        assert narrow.decoded_steps < sum(longest) * 0.9, "two prompts at a time, and a free place is taken at once"


def test_longest_expected_answers_are_admitted_first(tiny: Tiny) -> None:
    prompts = tiny.prompts(5)
    expected = [3.0, 9.0, 1.0, 9.0, 5.0]
    requests = [dataclasses.replace(request(p, 2), expected_tokens=e) for p, e in zip(prompts, expected, strict=True)]
    engine, order = HFEngine(tiny.policy, tiny.vision, max_num_seqs=2), []
    engine.generate(requests, GenerationSettings(max_new_tokens=6), lambda n, _: order.append(n))
    assert order == [1, 3, 4, 0, 2]


def test_a_small_prefill_budget_changes_nothing(tiny: Tiny) -> None:
    requests, settings = [request(p, 3) for p in tiny.prompts(5)], GenerationSettings(max_new_tokens=12)
    plain = HFEngine(tiny.policy, tiny.vision).generate(requests, settings)
    engine = HFEngine(tiny.policy, tiny.vision, prefill_tokens=1)
    assert [[r.ids for r in g] for g in engine.generate(requests, settings)] == [[r.ids for r in g] for g in plain]
    assert engine.prefilled_prompts == 5

"""Families through their own processor and forward: layouts, scores, the engine, what prompts are made of, and gradients."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.support.given import load_given, make_model, make_rows
from tests.support.tiny import Tiny
from vlmrl.data.encode import messages
from vlmrl.errors import RowError
from vlmrl.extras.agents.conversation import Conversation, answer_segment, first_segment, joined
from vlmrl.extras.families import generic
from vlmrl.extras.families.engine_fork import ForkEngine
from vlmrl.extras.families.scribe import medium_of
from vlmrl.policy.forward import TokenLogprobs, layout_of
from vlmrl.policy.head import TokenStat
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import Row
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings, Request, Rollout

pytestmark = pytest.mark.not_fast  # builds models

QUICK = {"qwen3_5": True, "gemma4": True, "lfm2_vl": False}
"""Families that are tried in the default lane, and whether they have videos: a delta net, a soft cap with windows, short convolutions."""
MORE = {"gemma3": False, "smolvlm": True, "internvl": True, "llama4": False, "qwen2_5_vl": True, "llava_onevision": True, "glm46v": True}
SETTINGS = GenerationSettings(max_new_tokens=6)


@pytest.fixture(scope="module", params=[*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)], ids=lambda name: name)
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp(request.param)
    world = make_rows(folder / "world", video=(QUICK | MORE)[request.param], train=3)
    return load_given(make_model(request.param, folder / "model"), world)


def asked(given: Tiny, count: int = 2, answers: int = 3) -> list[Request]:
    prompts = given.prompts(count)
    seeds = [tuple(range(10 * p + 1, 10 * p + 1 + answers)) for p in range(count)]
    return [Request(prompt=p, ks=tuple(range(answers)), seeds=s) for p, s in zip(prompts, seeds, strict=True)]


def rows_of(requests: Sequence[Request], found: Sequence[Sequence[Rollout]]) -> list[Row]:
    return [
        Row(index=10 * g + r.k, group=g, prompt=request.prompt, response=r.ids)
        for g, (request, rollouts) in enumerate(zip(requests, found, strict=True))
        for r in rollouts
    ]


def scored(given: Tiny, rows: Sequence[Row], layout: str, *, train: bool = False, **more: Any) -> TokenLogprobs:
    how = layout_of(given.policy, layout)
    batch = how.pack(rows, given.policy.positions, given.policy.device, pad_id=given.bundle.end_ids[0])
    forbidden = given.bundle.forbidden_ids
    return how.forward(given.policy, batch, given.vision, temperature=1.0, forbidden=forbidden, train=train, **more)


def test_the_engine_is_the_forked_cache(given: Tiny) -> None:
    assert isinstance(own_engine(given.policy, given.vision), ForkEngine)


def test_layouts_agree_with_each_other_and_with_what_the_engine_reports(given: Tiny) -> None:
    requests = asked(given)
    found = ForkEngine(given.policy, given.vision).generate(requests, SETTINGS)
    rows = rows_of(requests, found)
    rows = [rows[i] for i in (3, 0, 4, 1, 5, 2)]  # groups need not stand together
    with torch.no_grad():
        stats = {"surprise": TokenStat(lambda logp_MV: torch.special.entr(logp_MV.exp()).sum(1))}
        out = {name: scored(given, rows, name, stats=stats) for name in ("repeat", "fork", "shared_prefix")}
    for one in out.values():
        torch.testing.assert_close(one.stats["surprise"], one.entropy_BT, rtol=0, atol=1e-5)
    for name in ("fork", "shared_prefix"):
        torch.testing.assert_close(out[name].logp_BT, out["repeat"].logp_BT, rtol=0, atol=2e-4)
        torch.testing.assert_close(out[name].entropy_BT, out["repeat"].entropy_BT, rtol=0, atol=2e-4)
    by_place = {(g, r.k): r for g, rollouts in enumerate(found) for r in rollouts}
    for row, logp_T in zip(rows, out["repeat"].logp_BT, strict=True):
        rollout = by_place[row.group, row.index % 10]
        torch.testing.assert_close(torch.tensor(rollout.logprobs), logp_T[: len(rollout.ids)], rtol=0, atol=2e-4)
        assert float(logp_T[len(rollout.ids) :].abs().sum()) == 0.0
    assert not torch.equal(out["repeat"].logp_BT[0], out["repeat"].logp_BT[1]), "two prompts and the same log-probs"


def test_scores_are_those_of_the_models_own_forward_from_its_own_processor(given: Tiny) -> None:
    """Pixels, ids and positions as transformers makes them of the frames that were decoded here, head and all."""
    for sample, prompt in zip(given.samples[:2], given.prompts(2), strict=True):
        media = [given.store.get(ref, given.encoder.root(sample)) for ref in sample.media]
        frames = [medium_of(m.frames, m.handle.kind, m.handle.step_times, m.duration) for m in media]
        text = generic.rendered(given.bundle.processor, messages(sample, "think_or_not"))
        inputs = generic.processed(given.bundle.processor, text, frames)
        assert inputs["input_ids"][0].tolist() == list(prompt.ids)
        answer = given.bundle.tokenize("yes")[:3]
        ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], -1)
        more = {n: torch.cat([inputs[n], inputs[n].new_zeros(1, len(answer))], -1) for n in generic.TYPES if n in inputs}
        features = [generic.features(given.policy.core, h.argued.arguments, h.argued.kind) for h in media]
        wanted = inspect.signature(given.policy.core.forward).parameters
        rest = {n: v for n, v in inputs.items() if n in wanted and not n.startswith("pixel_") and n not in more}
        generic.forget(given.policy.core)
        with torch.no_grad():
            given_all = rest | {n: v for n, v in more.items() if n in wanted} | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            logits = given.policy.model(**given_all, use_cache=False, mm_encoder_outputs=generic.hand_over(features)).logits[0]
            mine = scored(given, [Row(index=0, group=0, prompt=prompt, response=tuple(answer))], "repeat").logp_BT[0]
        banned = torch.tensor(given.bundle.forbidden_ids)
        theirs = logits.index_fill(-1, banned, -1e30).log_softmax(-1)[len(prompt.ids) - 1 : -1].gather(-1, torch.tensor(answer)[:, None])
        torch.testing.assert_close(mine, theirs[:, 0], rtol=0, atol=2e-4)


def test_answers_do_not_depend_on_company(given: Tiny) -> None:
    requests = asked(given)
    engine = ForkEngine(given.policy, given.vision)
    told: list[int] = []
    together = engine.generate(requests, SETTINGS, lambda number, _: told.append(number))
    alone = [engine.generate([request], SETTINGS)[0] for request in reversed(requests)][::-1]
    assert together == alone, "to the bit, log-probs as well"
    assert told == [0, 1]
    assert together[0][0].ids != together[0][1].ids
    few = ForkEngine(given.policy, given.vision, max_num_seqs=2).generate(requests, SETTINGS)
    assert [[r.ids for r in group] for group in few] == [[r.ids for r in group] for group in together], "nor on how many decode at a time"


def test_forbidden_ids_are_never_drawn_and_an_end_ends(given: Tiny) -> None:
    request = Request(prompt=given.prompts(1)[0], ks=tuple(range(8)), seeds=tuple(range(8)))
    (rollouts,) = ForkEngine(given.policy, given.vision).generate([request], GenerationSettings(max_new_tokens=40, temperature=2.0))
    ends = set(given.bundle.end_ids)
    for rollout in rollouts:
        assert not set(rollout.ids) & set(given.bundle.forbidden_ids)
        assert not set(rollout.ids[:-1]) & ends
        assert (rollout.finish == "stop") == (rollout.ids[-1] in ends)
        assert all(map(math.isfinite, rollout.logprobs))


def test_a_prompt_planned_from_headers_is_the_prompt(given: Tiny) -> None:
    for sample, prompt in zip(given.samples[:2], given.prompts(2), strict=True):
        planned = given.encoder.plan(sample, "think_or_not")
        assert (planned.ids, planned.spans, planned.kinds, planned.owners) == (prompt.ids, prompt.spans, prompt.kinds, prompt.owners)
        assert [h.tokens for h in planned.media] == [h.tokens for h in prompt.media]
        columns = [i for start, end in prompt.spans for i in range(start, end)]
        assert columns == [i for i, token in enumerate(prompt.ids) if token in given.bundle.pad_ids.values()]


def test_control_tokens_in_a_question_are_refused_before_the_processor(given: Tiny) -> None:
    sample = given.samples[0]
    marks = [str(given.bundle.tokenizer.convert_ids_to_tokens(pad)) for pad in given.bundle.pad_ids.values()]
    for mark in marks:
        smuggled = dataclasses.replace(sample, question=f"what is {mark} here?")
        for encode in (given.encoder.encode, given.encoder.plan):
            with pytest.raises(RowError, match="control token") as caught:
                encode(smuggled, "think_or_not")
            assert caught.value.reason == "control_token"


def test_rows_of_turns_are_scored_as_the_engine_sampled_them(given: Tiny) -> None:
    """A conversation that goes on with the medium of another row: every turn is sampled under what came before it."""
    conversation = Conversation(given.encoder)
    first, other = given.prompts(2)
    chain, rows, reported = [first_segment(first)], list[Row](), list[tuple[float, ...]]()
    for turn, media in enumerate([None, other.media, ()]):
        if media is not None:
            chain.append(conversation.observation(chain[-1], "now look", media))
        prompt = joined(chain, first)
        request = Request(prompt=prompt, ks=(0,), seeds=(turn,))
        (one,) = ForkEngine(given.policy, given.vision).generate([request], SETTINGS)[0]
        rows.append(Row(index=turn, group=0, prompt=prompt, response=one.ids))
        reported.append(one.logprobs)
        chain.append(answer_segment(chain[-1], one.ids))
    assert [len(row.prompt.media) for row in rows] == [len(first.media), *[len(first.media) + len(other.media)] * 2]
    pads = set(given.bundle.pad_ids.values())
    for row in rows:
        shown = [token for start, end in row.prompt.spans for token in row.prompt.ids[start:end]]
        assert set(shown) <= pads
        assert len(shown) == sum(handle.tokens for handle in row.prompt.media)
    with torch.no_grad():
        for layout in ("repeat", "shared_prefix"):
            for logp_T, sampled in zip(scored(given, rows, layout).logp_BT, reported, strict=True):
                torch.testing.assert_close(logp_T[: len(sampled)], torch.tensor(sampled), rtol=0, atol=2e-4)
                assert float(logp_T[len(sampled) :].abs().sum()) == 0.0


def test_the_tower_trains_through_the_layouts_and_features_of_a_frozen_one_are_kept(given: Tiny) -> None:
    requests = asked(given, answers=2)
    rows = rows_of(requests, ForkEngine(given.policy, given.vision).generate(requests, SETTINGS))
    grown: dict[str, list[torch.Tensor]] = {}
    named = freeze(given.policy, ())
    try:
        for layout in ("repeat", "shared_prefix"):
            out = scored(given, rows, layout, train=True)
            found = torch.autograd.grad(out.logp_BT.sum(), [p for _, p in named], allow_unused=True)
            grown[layout] = [torch.zeros(()) if g is None else g for g in found]
        tower = [float(g.abs().sum()) for (name, _), g in zip(named, grown["repeat"], strict=True) if _part(given, name) == "vision"]
        assert sum(tower) > 0
        size = sum(float(g.square().sum()) for g in grown["repeat"]) ** 0.5
        gap = sum(float((a - b).square().sum()) for a, b in zip(*grown.values(), strict=True)) ** 0.5
        assert gap < 2e-3 * size
        freeze(given.policy, ("vision", "projector"))
        scored(given, rows, "repeat", train=True)
        before = given.vision.hits
        scored(given, rows, "repeat", train=True)
        assert given.vision.hits > before
    finally:
        freeze(given.policy, ())


def _part(given: Tiny, name: str) -> str:
    return given.bundle.family.part_of(name)

"""agents.openings: questions about the same media are answered as one by one, and what they begin with is read once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.evals.ask.engines import LocalEngine
from vlmrl.extras.agents.openings import generate, openings_of
from vlmrl.rollout.engine_fixed import FixedEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, MediaHandle, Prompt, Request

QUESTIONS = ("When is the red square visible?", "When is the circle on screen, and where?", "Is it there?")
GREEDY = GenerationSettings(max_new_tokens=8, temperature=0.0)
SAMPLED = GenerationSettings(max_new_tokens=8, temperature=0.9)


def request(prompt: Prompt, n: int = 1) -> Request:
    return Request(prompt=prompt, ks=tuple(range(n)), seeds=tuple(rng.key(0, prompt.sample.id, k) for k in range(n)))


def asked(tiny: Tiny, videos: int = 2) -> list[Prompt]:
    """Three questions about each of some videos, those about one apart from each other, and one about a video of its own."""
    first = tiny.prompts(videos + 1)
    said = [
        tiny.encoder.encode(dataclasses.replace(one.sample, id=f"{one.sample.id}-{n}", question=text), "answer_only")
        for n, text in enumerate(QUESTIONS)
        for one in first[:videos]
    ]
    return [*said, first[videos]]


def fake(ids: tuple[int, ...], *spans: tuple[int, int], media: str = "ab") -> Prompt:
    """A prompt of these ids with a medium for each span, named by a letter of `media`."""
    handles = tuple(
        MediaHandle(key=name, kind="image", grid_thw=(1, 2, 2), tokens=end - start, seconds_per_grid=None)
        for name, (start, end) in zip(media, spans, strict=False)
    )
    return Prompt(sample=None, ids=ids, media=handles, spans=spans, answer_format="answer_only")  # pyright: ignore[reportArgumentType]


def found(*prompts: Prompt) -> list[tuple[tuple[int, ...], int, list[int]]]:
    requests = [Request(prompt=prompt, ks=(0,), seeds=(0,)) for prompt in prompts]
    return [(opening.ids, len(opening.media), places) for opening, places in openings_of(requests)]


def test_openings_by_hand() -> None:
    one, other = fake((1, 9, 9, 2, 3), (1, 3)), fake((1, 9, 9, 2, 4), (1, 3))
    assert found(one, other) == [((1, 9, 9, 2), 1, [0, 1])]
    assert found(one) == [], "nobody to share with"
    assert found(one, fake((1, 9, 9, 2, 4), (1, 3), media="c")) == [], "another medium in the same columns"
    assert found(one, fake((7, 9, 9, 2, 3), (1, 3))) == [], "another word before it"
    assert found(one, one) == [((1, 9, 9, 2), 1, [0, 1])], "something is left to begin the answer from"
    assert found(fake((1, 9, 9), (1, 3)), fake((1, 9, 9), (1, 3))) == [], "a prompt that ends with its medium"
    two = fake((1, 9, 2, 9, 5), (1, 2), (3, 4))
    assert found(two, fake((1, 9, 2, 9, 6), (1, 2), (3, 4))) == [((1, 9, 2, 9), 2, [0, 1])]
    assert found(two, fake((1, 9, 3, 9, 5), (1, 2), (3, 4))) == [((1, 9), 1, [0, 1])], "words between two media"
    assert found(one, two, other, dataclasses.replace(one, owners=(0,))) == [((1, 9, 9, 2), 1, [0, 2])]
    assert found(fake((1, 2)), fake((1, 3))) == [], "text alone"


def test_an_opening_ends_where_a_medium_does_not_yet() -> None:
    """Ids of two media may be alike for longer than the prompts are: the second medium begins at other columns."""
    assert found(fake((1, 9, 9, 9, 9, 2), (1, 2), (3, 5)), fake((1, 9, 9, 9, 9, 3), (1, 2), (2, 4))) == []
    assert found(fake((1, 9, 9, 9, 2, 3), (1, 2), (2, 4)), fake((1, 9, 9, 8, 2, 4), (1, 2), (2, 4))) == [((1, 9), 1, [0, 1])]


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
@pytest.mark.parametrize("make", [HFEngine, FixedEngine])
def test_answers_are_those_of_whole_prompts(make: type[HFEngine], settings: GenerationSettings, tiny: Tiny) -> None:
    requests = [request(prompt, 2 if settings is SAMPLED else 1) for prompt in asked(tiny)]
    engine, reference = make(tiny.policy, tiny.vision), make(tiny.policy, tiny.vision)
    together, apart = generate(engine, requests, settings), reference.generate(requests, settings)
    assert [[one.ids for one in own] for own in together] == [[one.ids for one in own] for own in apart]
    logps = [torch.tensor([value for own in side for one in own for value in one.logprobs]) for side in (together, apart)]
    assert len(logps[0]) > 30
    assert (logps[0] - logps[1]).abs().max() < 1e-5
    openings = openings_of(requests)
    shared = sum(len(opening.ids) * (len(places) - 1) for opening, places in openings)
    assert [places for _, places in openings] == [[0, 2, 4], [1, 3, 5]]
    assert engine.prefilled_tokens == reference.prefilled_tokens - shared
    assert shared > reference.prefilled_tokens / 4


def test_what_does_not_fit_is_read_whole(tiny: Tiny) -> None:
    requests = [request(prompt) for prompt in asked(tiny)]
    reference = HFEngine(tiny.policy, tiny.vision).generate(requests, GREEDY)
    text = tiny.policy.model.config.get_text_config()
    token = 2 * 4 * text.num_hidden_layers * text.num_key_value_heads * text.hidden_size // text.num_attention_heads
    longest = max(len(opening.ids) for opening, _ in openings_of(requests))
    for room, kept in ((0, 0), (longest * token, 1), (longest * token * 2, 2)):
        engine = HFEngine(tiny.policy, tiny.vision, kept_bytes=room)
        assert [own[0].ids for own in generate(engine, requests, GREEDY)] == [own[0].ids for own in reference]
        assert (engine.kept_tokens > 0) == (kept > 0)
        assert engine.prefilled_prompts == len(requests) + kept


def test_evaluations_read_openings_once(tiny: Tiny) -> None:
    prompts = asked(tiny)
    engine = HFEngine(tiny.policy, tiny.vision)
    answers = LocalEngine(engine, fingerprint="f").generate(prompts, GREEDY, samples=1, seed=0)
    whole = HFEngine(tiny.policy, tiny.vision).generate([request(prompt) for prompt in prompts], GREEDY)
    assert [own[0].text for own in answers] == [own[0].text for own in whole]
    assert engine.kept_tokens > 0

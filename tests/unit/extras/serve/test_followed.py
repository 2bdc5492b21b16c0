"""Engines with a look at each token: the same answers, told token by token, and an end where the look says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.given import load_given, make_model, make_rows
from tests.support.tiny import Tiny
from vlmrl.extras.families.engine_fork import ForkEngine
from vlmrl.extras.serve.followed import FollowedEngine, followed_engine
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings, Request, Rollout

pytestmark = pytest.mark.not_fast  # builds models

SETTINGS = GenerationSettings(max_new_tokens=6)


@pytest.fixture(scope="module", params=["of Qwen-VL", "of another family"])
def world(request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The reference engine's model, and one that decodes through its own forward."""
    if request.param == "of Qwen-VL":
        return tiny
    folder = tmp_path_factory.mktemp("family")
    return load_given(make_model("lfm2_vl", folder / "model"), make_rows(folder / "world", video=False, train=2))


def asked(world: Tiny, answers: int = 3) -> list[Request]:
    ks = tuple(range(answers))
    return [Request(prompt=p, ks=ks, seeds=tuple(10 * n + k for k in ks)) for n, p in enumerate(world.prompts(2))]


def flat(rollouts: list[list[Rollout]]) -> list[Rollout]:
    return [one for own in rollouts for one in own]


def test_a_look_changes_nothing_and_sees_every_token(world: Tiny) -> None:
    requests = asked(world)
    expected = own_engine(world.policy, world.vision).generate(requests, SETTINGS)
    seen: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def look(request: int, place: int, token: int, logprob: float) -> bool:
        seen.setdefault((request, place), []).append((token, logprob))
        return True

    engine = followed_engine(world.policy, world.vision)
    assert isinstance(engine, ForkEngine if world.policy.subject is not None else FollowedEngine)
    found = engine.followed(requests, SETTINGS, look)
    assert found == expected
    told = {(n, k): list(zip(one.ids, one.logprobs, strict=True)) for n, own in enumerate(found) for k, one in enumerate(own)}
    assert seen == told


def test_answers_end_where_the_look_says_so(world: Tiny) -> None:
    requests = asked(world)
    whole = own_engine(world.policy, world.vision).generate(requests, SETTINGS)
    count: dict[tuple[int, int], int] = {}

    def look(request: int, place: int, token: int, logprob: float) -> bool:
        count[request, place] = count.get((request, place), 0) + 1
        return count[request, place] < {0: 1, 1: 3}.get(place, 99)

    found = followed_engine(world.policy, world.vision).followed(requests, SETTINGS, look)
    for own, all_of_it in zip(found, whole, strict=True):
        assert [len(one.ids) for one in own] == [min(len(w.ids), most) for w, most in zip(all_of_it, (1, 3, 99), strict=True)]
        assert [one.ids for one in own] == [w.ids[: len(one.ids)] for one, w in zip(own, all_of_it, strict=True)]
        assert own[0].finish == "stop"


def test_nothing_more_is_decoded_for_answers_that_have_all_ended(world: Tiny, tmp_path: Path) -> None:
    engine = followed_engine(world.policy, world.vision)
    found = engine.followed(asked(world), SETTINGS, lambda *drawn: False)
    assert [len(one.ids) for one in flat(found)] == [1] * 6
    most = 2 if isinstance(engine, ForkEngine) else 0
    assert engine.counts["work/decode_steps"]() <= most, "one draw from the prefill of each prompt"
    again = engine.generate(asked(world), SETTINGS)
    assert max(len(one.ids) for one in flat(again)) > 1, "the look is gone"

"""rollout.strategy.feedback: attempts are made again after feedback, and advantage `rltf_sd` compares them with first attempts."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import group, inputs, sample
from vlmrl.protocols import GuidingStrategy
from vlmrl.types import Guidance, HintRequest, HintRound
from vlmrl.zoo.advantage.rltf_sd import rltf_sd as advantage
from vlmrl.zoo.strategy.feedback import rltf_sd, teaching, with_feedback

ATTEMPTS = ("first", "second", "third", "fourth")
COMMENT = "Look again at the door."


def played(strategy, mine, rewards, *, comments, second_rewards):
    """Both rounds: `comments` by attempt, `second_rewards` by request; (feedback requests, answer requests, formed group)."""
    asked = strategy.more(mine, rewards, [], step=0)
    rounds = [written(one, comments[n]) for n, one in enumerate(asked)]
    answers = strategy.more(mine, rewards, rounds, step=0)
    rounds += [answered(one, second_rewards[n]) for n, one in enumerate(answers)]
    assert strategy.more(mine, rewards, rounds, step=0) == []
    return asked, answers, strategy.merge(mine, rewards, rounds)


def written(request: HintRequest, text: str) -> HintRound:
    return HintRound(request=request, rollouts=group([text]).rollouts)


def answered(request: HintRequest, reward: float | None) -> HintRound:
    guidance = Guidance(question=request.question, tier=request.tier)
    [made] = group([f"again {request.tier}"]).rollouts
    return HintRound(request=request, rollouts=(dataclasses.replace(made, provenance="guided", guidance=guidance),), rewards=(reward,))


def test_rltf_sd_trains_second_answers_under_the_plain_question():
    strategy, mine = rltf_sd(), group(ATTEMPTS)
    assert isinstance(strategy, GuidingStrategy)
    assert strategy.sampled(8) == 4
    asked, answers, out = played(strategy, mine, [0.0, 1.0, 0.0, None], comments=[COMMENT] * 4, second_rewards=[1.0] * 4)
    assert all(one.writes for one in asked)
    assert "Reference solution: 3.0 to 5.0" in asked[0].question
    assert answers[1].question == with_feedback("When?", "second", COMMENT)
    assert [r.text for r in out.rollouts] == [*ATTEMPTS, "again 1", "again 2", "again 3", "again 4"]
    assert [r.k for r in out.rollouts] == list(range(8))
    assert {(r.guidance.train, r.guidance.old) for r in out.rollouts[4:] if r.guidance} == {("plain", "policy")}


def test_feedback_that_gives_the_answer_away_is_not_used():
    strategy, mine = rltf_sd(), group(ATTEMPTS)
    comments = ["It is from 3.0 on.", "<answer>x</answer>", COMMENT, ""]
    _, answers, out = played(strategy, mine, [0.0] * 4, comments=comments, second_rewards=[1.0])
    assert [one.tier for one in answers] == [3]
    assert [r.text for r in out.rollouts] == [*ATTEMPTS, "again 3"]
    asked = strategy.more(mine, [0.0] * 4, [], step=0)
    failed = [HintRound(request=one, problem="overlong") for one in asked]
    assert strategy.more(mine, [0.0] * 4, failed, step=0) == []
    assert strategy.merge(mine, [0.0] * 4, failed) is mine


def test_an_endless_attempt_is_cut_and_a_solution_of_the_row_is_shown():
    of = sample(meta={"solution": "because of the door"})
    assert "because of the door" in teaching(of, "x")
    assert len(teaching(of, "x" * 10**5)) < 5000
    assert len(with_feedback("q", "x" * 10**5, COMMENT)) < 5000


def test_advantage_rltf_sd_by_hand():
    # first turn 0, 0, 1, 0: mean 1/4; second turn 1, 1, 0: the mean over both would be 3/7
    x = inputs([(r, 0, True) for r in (0, 0, 1, 0, 1, 1, 0)], off_policy=(4, 5, 6))
    assert advantage(x).tolist() == pytest.approx([-0.25, -0.25, 0.75, -0.25, 0.75, 0.75, -0.25])
    # all first answers failed, all second ones are right: each earns 1
    assert advantage(inputs([(0, 0, True), (0, 0, True), (1, 0, True)], off_policy=(2,))).tolist() == [0.0, 0.0, 1.0]
    assert advantage(inputs([(0, 0, False), (0, 0, True), (1, 0, True)], off_policy=(1, 2))).tolist() == [0.0] * 3, "no first turn"

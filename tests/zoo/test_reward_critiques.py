"""rewards.critiques (`critique_verdict`, `critique_gain_proposed`) and rewards.collective_vote."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from tests.support.judge_server import prompt_of, says, serving, text
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.collective_vote import collective_vote
from vlmrl.zoo.rewards.critiques import critique_gain_proposed, critique_verdict

CTX = RewardContext()


def critique(verdict: str, thought: str = "The legs were not counted.") -> str:
    return f"<think>{thought}</think><answer>{verdict}</answer>"


def row(attempt: str, answer: str = "7"):
    return sample(answer, meta={"attempt": attempt, "problem": "How many?"})


def test_critique_verdict_by_hand():
    texts = [critique("right"), critique("Wrong."), critique("maybe"), "nothing"]
    assert critique_verdict(group(texts, row("<think>x</think><answer>7</answer>")), CTX) == [1.0, 0.0, 0.0, 0.0]
    assert critique_verdict(group(texts, row("6")), CTX) == [0.0, 1.0, 0.0, 0.0]
    assert critique_verdict(group(texts, sample()), CTX) == [None] * 4, "a row without an attempt"
    assert critique_verdict(group(texts, row("6")), CTX, check="choice") == [None] * 4


def test_a_critic_that_says_always_the_same_earns_the_base_rate():
    attempts = ["7", "7", "6", "7"]
    earned = [critique_verdict(group([critique("right")], row(attempt)), CTX)[0] for attempt in attempts]
    assert sum(value or 0 for value in earned) / len(earned) == 0.75


def test_critique_gain_proposed_is_what_the_actor_gains():
    def actor(body):
        return {"answer": 7 if "legs" in prompt_of(body) else "6"}

    texts = [critique("wrong"), critique("wrong", "I like it."), critique("wrong", " "), "no tags"]
    with serving(otherwise=says(actor)) as s:
        assert critique_gain_proposed(group(texts, row("6")), CTX, endpoint=s.endpoint) == [1.0, 0.0, 0.0, 0.0]
        assert critique_gain_proposed(group(texts[:2], row("7")), CTX, endpoint=s.endpoint) == [0.0, -1.0]
        shown = prompt_of(s.server.requests[0][0])
    assert "How many?" in shown
    assert "The legs were not counted." in shown
    assert "<answer>" not in shown, "the actor does not see the verdict"


def test_critique_gain_proposed_needs_an_attempt():
    with serving() as s, pytest.raises(ValueError, match=r"meta\.attempt"):
        critique_gain_proposed(group([critique("right")]), CTX, endpoint=s.endpoint)


def own(*answers: str):
    return group([f"<think>t</think><answer>{answer}</answer>" for answer in answers])


def test_collective_vote_weighs_each_model_by_its_agreement():
    # the policy says b, b, c, d (agreement 1/2), the peer a, a, a, a (agreement 1): a 4, b 1
    with serving(otherwise=says({"answer": "A"}), cache=False) as s:
        assert collective_vote(own("b", "b", "c", "a"), CTX, endpoint=s.endpoint) == [0.0, 0.0, 0.0, 1.0]
        assert [body["seed"] for body, *_ in s.server.requests] == [0, 1, 2, 3]
    # a peer that answers once: 1 vote of weight 1 for a, against 4 of weight 1
    with serving(otherwise=says({"answer": "a"})) as s:
        assert collective_vote(own("b", "b", "b", "b"), CTX, endpoint=s.endpoint, answers=1) == [1.0] * 4
        assert collective_vote(own("b", "b", "b", "b"), CTX, endpoint=s.endpoint, peers=[s.endpoint] * 4, answers=1) == [0.0] * 4


def test_collective_vote_without_peers_is_no_reward():
    with serving(otherwise=text("I cannot say")) as s:
        out = collective_vote(own("b", "c"), CTX, endpoint=s.endpoint, answers=1)
        assert out == [None, None]
    with pytest.raises(ValueError, match="answers"):
        collective_vote(own("b"), CTX, endpoint={}, answers=0)

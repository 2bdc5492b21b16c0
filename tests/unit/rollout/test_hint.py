"""rollout.strategy.hint: when groups are helped, by what, and what the helped group trains on. Rounds are run by a scripted sampler."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.errors import RowError
from vlmrl.protocols import GuidingStrategy
from vlmrl.rollout.strategy.hint import clean_hint, failed, guide, hinted, sage, scaf_grpo, tiers
from vlmrl.types import Guidance, HintRequest, HintRound, Rollout

LADDER = {"knowledge": "a b c d", "solution": ["first", "second"]}


def row(text: str, *, k: int = 0, finish="stop") -> Rollout:
    return Rollout(k=k, ids=tuple(map(ord, text)), logprobs=(-0.5,) * len(text), text=text, finish=finish, policy_version=4)


def answered(request: HintRequest, rewards) -> HintRound:
    guidance = Guidance(question=request.question, tier=request.tier)
    rows = tuple(dataclasses.replace(row(f"t{request.tier}k{k}", k=k), provenance="guided", guidance=guidance) for k in range(len(rewards)))
    return HintRound(request=request, rollouts=rows, rewards=tuple(rewards))


def written(request: HintRequest, *texts: str) -> HintRound:
    return HintRound(request=request, rollouts=tuple(row(t, k=k) for k, t in enumerate(texts)))


def run(strategy, mine, rewards, outcome, *, step=100):
    """All rounds, with `outcome(request) -> HintRound`; (requests, formed group)."""
    rounds, asked = [], []
    while wishes := strategy.more(mine, rewards, rounds, step=step):
        asked += wishes
        rounds += [outcome(w) for w in wishes]
    return asked, strategy.merge(mine, rewards, rounds)


def failing(n: int = 3, **meta):
    return group([f"no{k}" for k in range(n)], sample(meta=meta))


def test_tiers_of_a_ladder_are_cumulative_pieces():
    assert tiers(sample(meta={"hints": LADDER})) == ["a", "a b", "a b c", "a b c d", "first", "first second"]
    assert tiers(sample(meta={"hints": {"solution": "a b c d e", "knowledge": "x"}})) == ["x", "a b", "a b c", "a b c d", "a b c d e"]
    assert len(tiers(sample(meta={"hints": {k: "one two three four five" for k in ("knowledge", "planning", "solution")}}))) == 12
    assert tiers(sample(meta={"hints": "look left"})) == ["look left"]
    assert tiers(sample(meta={"hints": ["a", " ", "b"]})) == ["a", "b"]
    assert tiers(sample()) == []


@pytest.mark.parametrize("bad", [3, ["a", 1], {"idea": "x"}, {"planning": 4}])
def test_hints_of_another_form_name_the_row(bad):
    with pytest.raises(RowError, match=r"row 'row'.*meta\.hints") as error:
        tiers(sample(meta={"hints": bad}))
    assert error.value.reason == "hints"


@given(st.text(alphabet="ab ", max_size=40), st.sampled_from(["knowledge", "planning"]))
def test_the_last_piece_is_the_whole_and_each_is_longer(text, name):
    out = tiers(sample(meta={"hints": {name: text}}))
    assert len(out) <= 4
    assert [len(t) for t in out] == sorted({len(t) for t in out})
    assert (out[-1:] or [""])[0] == " ".join(text.split())


def test_only_judged_failure_asks_for_help():
    assert failed([0.0, None, 0.4], 0.5)
    assert not failed([0.0, 0.5], 0.5)
    assert not failed([None, None], 0.5)


def test_empty_guidance_changes_no_prompt():
    assert hinted("When?", "  ") == "When?"
    assert hinted("When?", " look left ") == "When?\nHint: look left"


def test_scaf_grpo():
    strategy = scaf_grpo()
    assert isinstance(strategy, GuidingStrategy)
    mine = failing(hints=["one", "two", "three"])
    asked, out = run(strategy, mine, [0.0, None, 0.1], lambda w: answered(w, [1.0 if w.tier == 2 else 0.0]))
    assert [(w.tier, w.question, w.rows, w.writes) for w in asked] == [
        (1, "When?\nHint: one", 1, False),
        (2, "When?\nHint: two", 1, False),
    ]
    # exactly one replacement: the last judged failure
    assert [r.text for r in out.rollouts] == ["no0", "no1", "t2k0"]
    assert [r.k for r in out.rollouts] == [0, 1, 2]
    changed = out.rollouts[2]
    assert changed.guidance == Guidance(question="When?\nHint: two", tier=2, train="guided", old="policy")
    assert not changed.old_from_sampler
    assert out.rollouts[:2] == mine.rollouts[:2]


def test_scaf_grpo_takes_the_lowest_tier_with_a_success_and_its_first_success():
    _, out = run(scaf_grpo(at_once=3, rows=2), failing(hints=["a", "b", "c"]), [0.0] * 3, lambda w: answered(w, [0.2, float(w.tier >= 2)]))
    assert out.rollouts[2].text == "t2k1"


def test_scaf_grpo_asks_for_several_tiers_at_once():
    asked = scaf_grpo(at_once=2).more(failing(hints=["a", "b", "c"]), [0.0] * 3, [], step=50)
    assert [w.tier for w in asked] == [1, 2]
    rounds = [answered(asked[0], [0.0]), HintRound(request=asked[1], problem="overlong")]
    assert [w.tier for w in scaf_grpo(at_once=2).more(failing(hints=["a", "b", "c"]), [0.0] * 3, rounds, step=50)] == [3]


def test_scaf_grpo_switch_and_warm_up():
    mine = failing(hints=["one"])
    assert scaf_grpo().more(mine, [0.0] * 3, [], step=49) == []
    _, out = run(scaf_grpo(train="plain"), mine, [0.0] * 3, lambda w: answered(w, [1.0]))
    assert out.rollouts[2].guidance is not None
    assert (out.rollouts[2].guidance.train, out.rollouts[2].guidance.old) == ("plain", "policy")


@pytest.mark.parametrize("strategy", [scaf_grpo(), guide(), sage()])
def test_groups_with_a_success_or_without_hints_stay(strategy):
    assert strategy.more(failing(hints=["x"], solution="x"), [0.0, 0.5, 0.0], [], step=99) == []
    assert strategy.more(failing(), [0.0] * 3, [], step=99) == []
    assert strategy.sampled(8) == 8


@pytest.mark.parametrize("strategy", [scaf_grpo(), guide()])
def test_if_no_hint_helps_the_group_stays(strategy):
    mine = failing(hints=["x", "y"])
    asked, out = run(strategy, mine, [0.0] * 3, lambda w: answered(w, [0.0] * w.rows))
    assert asked
    assert out is mine


def test_guide():
    mine = failing(hints=["less", "more"])
    asked, out = run(guide(), mine, [0.0] * 3, lambda w: answered(w, [0.0, 1.0, 1.0]))
    assert [(w.question, w.rows) for w in asked] == [("When?\nHint: more", 3)]
    assert out.rollouts[:3] == mine.rollouts
    assert [r.k for r in out.rollouts] == list(range(6))
    assert {(r.guidance.train, r.guidance.old) for r in out.rollouts[3:]} == {("plain", "sampler")}
    assert all(r.old_from_sampler and not r.on_policy for r in out.rollouts[3:])
    # the loss sees the plain prompt
    assert out.trained_under(out.rollouts[3]) is mine.prompt


def test_guide_other_forms():
    outcome = lambda w: answered(w, [0.0, 1.0])  # noqa: E731
    _, out = run(guide(form="all", rows=2), failing(hints="x"), [0.0] * 3, outcome)
    assert [r.text for r in out.rollouts] == ["t1k0", "t1k1"]
    _, out = run(guide(form="one", rows=2), failing(hints="x"), [0.0] * 3, outcome)
    assert [r.text for r in out.rollouts] == ["no0", "no1", "t1k1"]


def test_sage():
    mine = failing(solution="Wait for the door.")
    seen: list[HintRequest] = []

    def outcome(w):
        seen.append(w)
        return written(w, f"Idea {w.tier}") if w.writes else answered(w, [0.0, 0.0, 1.0 if w.tier == 2 else 0.0])

    asked, out = run(sage(), mine, [0.0] * 3, outcome)
    assert [(w.tier, w.writes, w.rows) for w in asked] == [(1, True, 2), (1, False, 3), (2, True, 2), (2, False, 3)]
    assert "Wait for the door." in asked[0].question
    assert asked[0].question != asked[2].question
    # the reference solution does not reach the prompt that is answered
    assert asked[3].question == "When?\nHint: Idea 2"
    assert [r.text for r in out.rollouts] == ["t2k0", "t2k1", "t2k2"]
    assert {(r.guidance.question, r.guidance.train, r.guidance.old) for r in out.rollouts} == {("When?\nHint: Idea 2", "guided", "policy")}


def test_sage_leaves_out_hints_that_leak_and_ends():
    mine = failing(solution="S")
    asked, out = run(sage(), mine, [0.0] * 3, lambda w: written(w, "It is from 3.0 to 5.0") if w.writes else answered(w, [1.0] * 3))
    assert [(w.tier, w.writes) for w in asked] == [(1, True), (2, True), (3, True)]
    assert out is mine
    asked, out = run(sage(), mine, [0.0] * 3, lambda w: written(w, "at 3.0", "look left") if w.writes else answered(w, [1.0] * 3))
    assert [w.question for w in asked if not w.writes] == ["When?\nHint: look left"]
    asked, _ = run(sage(levels=5), mine, [0.0] * 3, lambda w: written(w, "") if w.writes else answered(w, [1.0] * 3))
    assert [w.tier for w in asked] == [1, 2, 3, 4, 5]


def test_sage_uses_the_rows_thought_where_it_has_no_solution():
    mine = group(["no"], sample(thought="It opens late."))
    assert "It opens late." in sage().more(mine, [0.0], [], step=0)[0].question


@pytest.mark.parametrize("text", ["", "<think>x</think>", "see <|im_end|>", "an <image>", "x" * 4001, "at [7, 8]"])
def test_clean_hint_refuses(text):
    assert clean_hint(row(text), sample()) is None


def test_clean_hint_needs_an_end():
    assert clean_hint(row("look  left\n"), sample()) == "look left"
    assert clean_hint(row("look left", finish="length"), sample()) is None


@pytest.mark.parametrize("make", [lambda: sage(levels=0), lambda: sage(drafts=0), lambda: scaf_grpo(rows=0), lambda: guide(rows=-1)])
def test_arguments_are_checked(make):
    with pytest.raises(ValueError, match="must be at least 1"):
        make()

"""Sampler `v0_proposed`: success is foretold from the record on rows alike."""

from __future__ import annotations

import json

import pytest

from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.info import SampleInfo
from vlmrl.sampling.ledger import Ledger
from vlmrl.sampling.v0_proposed import PredictingSampler

ROWS = [SampleInfo(id=f"s{n}", task="t", tags={"level": "easy" if n < 4 else "hard", "name": f"n{n}"}) for n in range(8)]


def made(rows=ROWS, seed=0, **options) -> PredictingSampler:
    out = sampler.bind("v0_proposed", options)(rows, seed)
    assert isinstance(out, PredictingSampler)
    return out


def foretold(one, sample_id):
    return float(one._success()[one._place[sample_id]])


def seen(ledger, rewards, step=0):
    for sample_id, values in rewards.items():
        ledger.observe(sample_id, rewards=values, lengths=[3] * len(values), step=step)


def test_v0_proposed_without_a_record_foretells_a_half():
    one = made()
    assert [foretold(one, row.id) for row in ROWS] == pytest.approx([0.5] * 8)
    assert one.weight_of("s0") == pytest.approx(0.27)


def test_rows_that_were_never_tried_are_foretold_from_those_alike():
    one, ledger = made(), Ledger()
    seen(ledger, {"s0": [1.0] * 8, "s4": [0.0] * 8})
    one.plan(ledger, prompts=1, rollouts=4)
    assert foretold(one, "s1") == foretold(one, "s2") > 0.6
    assert foretold(one, "s5") == foretold(one, "s6") < 0.4
    assert foretold(one, "s0") > foretold(one, "s1"), "its own answers count as well"
    # by hand: the trackers' start 1/2, of which 0.96 is left, and 8 each way; P 1/2; easy rows are drawn to P by 8 answers, and a row's own
    # record counts beside 8 answers at that
    easy = (8.48 + 4) / (8.96 + 8)
    assert foretold(one, "s1") == pytest.approx(easy)
    assert foretold(one, "s0") == pytest.approx((8.48 + 8 * easy) / 16.96)
    assert one.weight_of("s1") == pytest.approx(easy * (1 - easy) + 0.02)


def test_tags_that_tell_nothing_are_left_out():
    alone = [SampleInfo(id=f"s{n}", task="t", tags={"name": f"n{n}"}) for n in range(3)]
    one, ledger = made(alone), Ledger()
    seen(ledger, {"s0": [1.0] * 4})
    one.plan(ledger, prompts=1, rollouts=4)
    assert foretold(one, "s1") == foretold(one, "s2") == pytest.approx((4.48 + 0.5) / (4.96 + 1)), "the share of all"


def test_a_resumed_sampler_plans_the_same():
    ledger = Ledger()
    one, other = made(seed=3), made(seed=3)
    for step in range(6):
        plan = [planned.sample_id for planned in one.plan(ledger, prompts=3, rollouts=2)]
        seen(ledger, {sample_id: [float(len(sample_id) % 2), float(step % 2)] for sample_id in plan}, step)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [one.weight_of(row.id) for row in ROWS] == [other.weight_of(row.id) for row in ROWS]
    for _ in range(3):
        assert one.plan(ledger, prompts=3, rollouts=2) == other.plan(ledger, prompts=3, rollouts=2)
    with pytest.raises(CheckpointError):
        other.load_state_dict({})


def test_v0_proposed_refuses_its_arguments():
    with pytest.raises(ValueError, match="strength"):
        made(strength=0.0)

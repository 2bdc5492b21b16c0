"""sampling.vspo_proposed: prompts by difficulty and uncertainty."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from tests.support.samplers import broken_states, ids, resumes, run
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.sampling.vspo_proposed import ValueSampler, value

IDS = [f"s{i}" for i in range(10)]


def make(names: list[str] = IDS, seed: int = 1, **more) -> ValueSampler:
    out = sampler.bind("vspo_proposed", more)(names, seed)
    assert isinstance(out, ValueSampler)
    return out


def test_vspo_proposed():
    assert value(0.5, 0.5, 0.5) == pytest.approx(1 + 0.5 * math.sqrt(0.25 / 2))
    assert value(4.0, 4.0, 0.5) == pytest.approx(1 + 0.5 * math.sqrt(0.25 / 9)), "of equally hard prompts the less known one is worth more"
    assert value(1.0, 7.0, 0.0) == pytest.approx(4 * 7 / 64)
    assert value(8.0, 0.0, 0.5) < 1e-5
    with pytest.raises(ValueError, match="kappa is -1"):
        make(kappa=-1.0)


def test_prompts_of_uncertain_outcome_come_more_often():
    times = Counter(ids(run(make(), Ledger(), range(200), 2, rate=lambda k: 0.5 if k in ("s0", "s1") else 1.0)))
    assert min(times["s0"], times["s1"]) > 2 * max(times[k] for k in IDS[2:])
    assert min(times[k] for k in IDS) >= 1, "each is tried"


def test_resume():
    resumes(make, before=3, after=3, prompts=4)


def test_loading_is_strict():
    one = make()
    run(one, Ledger(), range(3), 4)
    for state in broken_states(one.state_dict()):
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)

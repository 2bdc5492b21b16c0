"""sampling.cascade: domains in order, each for its epochs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samplers import broken_states, infos, resumes
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.zoo.sampling.cascade import CascadeSampler

LEDGER = Ledger()
ROWS = infos(9, task=["math", "gui", "math"])
TASK = {row.id: row.task for row in ROWS}


def make(rows=ROWS, seed: int = 0, **more) -> CascadeSampler:
    out = sampler.bind("cascade", {"order": ("gui", "math"), **more})(rows, seed)
    assert isinstance(out, CascadeSampler)
    return out


def test_cascade():
    plan = make(epochs=(2.0, 1.0)).plan(LEDGER, prompts=6 + 6 + 6, rollouts=2)
    assert [TASK[p.sample_id] for p in plan] == ["gui"] * 6 + ["math"] * 12
    assert [p.epoch for p in plan] == [0, 0, 0, 1, 1, 1, *[0] * 6, *[1] * 6]
    for start, size in ((0, 3), (3, 3), (6, 6), (12, 6)):
        part = [p.sample_id for p in plan[start : start + size]]
        assert sorted(part) == [k for k in sorted(TASK) if TASK[k] == TASK[part[0]]]


def test_half_an_epoch_rounds_up():
    plan = make(epochs=(0.5, 1.0)).plan(LEDGER, prompts=4, rollouts=2)
    assert [TASK[p.sample_id] for p in plan] == ["gui", "gui", "math", "math"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=6), st.integers(0, 3))
def test_batches_do_not_matter(batches: list[int], seed: int):
    one = make(seed=seed)
    stream = [p for size in batches for p in one.plan(LEDGER, prompts=size, rollouts=1)]
    assert stream == make(seed=seed).plan(LEDGER, prompts=sum(batches), rollouts=1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9))
def test_resume_also_at_the_edge_of_domains(seed: int, before: int, prompts: int):
    resumes(lambda: make(seed=seed, epochs=(1.0, 2.0)), before=before, after=4, prompts=prompts)


def test_loading_is_strict():
    one = make()
    one.plan(LEDGER, prompts=4, rollouts=1)
    good = one.state_dict()
    swapped = make(order=("math", "gui")).state_dict()
    for state in [*broken_states(good), swapped, good | {"position": True}]:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"order": ("gui",)}, "must name each task of the rows once"),
        ({"order": ("gui", "math", "math")}, "must name each task of the rows once"),
        ({"epochs": (1.0, 1.0, 1.0)}, "one for each of 2 domains"),
        ({"epochs": (0.0,)}, "one positive number"),
        ({"by": "domain"}, "no tag 'domain'"),
    ],
)
def test_arguments_are_checked(bad: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(**bad)

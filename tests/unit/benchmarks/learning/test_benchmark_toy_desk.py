"""The control of the desk benchmark: returns are dealt anew within a group, nothing else changes; and its tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.learning import toy_desk
from tests.support.builders import GivenInputs

ROOT = Path(__file__).parents[4]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch):
    """The plug-in, without its registration staying behind."""
    from vlmrl.algo.registries import advantage

    monkeypatch.setattr(advantage, "_entries", dict(advantage._entries), raising=True)
    spec = importlib.util.spec_from_file_location("desk_plugin_under_test", ROOT / "benchmarks" / "learning" / "toy_desk_plugin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "desk_plugin_under_test", module)
    spec.loader.exec_module(module)
    return module


def inputs(progress: float):
    """Two groups of four attempts with one to three turns; the reward is on the last turn. Attempt 7 had a fault."""
    turns = [2, 1, 3, 2, 1, 2, 2, 3]
    total = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, float("nan")]
    rows = [(n, turn, total[n] if turn == turns[n] - 1 else 0.0) for n in range(8) for turn in range(turns[n])]
    reward = torch.tensor([reward for _, _, reward in rows], dtype=torch.float64)
    count = len(rows)
    return GivenInputs(
        reward_N=reward,
        rewards_NK=reward[:, None],
        valid_N=~reward.isnan(),
        group_N=torch.tensor([n // 4 for n, _, _ in rows]),
        task_N=torch.zeros(count, dtype=torch.int64),
        on_policy_N=torch.ones(count, dtype=torch.bool),
        length_N=torch.ones(count, dtype=torch.int64),
        columns=("r",),
        progress=progress,
        trajectory_N=torch.tensor([n for n, _, _ in rows]),
        turn_N=torch.tensor([turn for _, turn, _ in rows]),
        state_N=torch.tensor([10 * (n // 4) + turn for n, turn, _ in rows]),
    )


def test_returns_are_dealt_anew_within_their_group(plugin):
    from vlmrl.algo.attempts import Attempts

    seen = set()
    for step in range(20):
        x = inputs(step / 20)
        attempts = Attempts.of(x, "test")
        out = plugin.dealt(x, attempts)
        totals = attempts.totals(out)[attempts.first_N]
        groups = x.group_N[attempts.first_N]
        assert sorted(totals[groups == 0].tolist()) == [0.0, 0.0, 1.0, 1.0]
        assert sorted(totals[groups == 1].tolist()) == [0.0, 1.0, 1.0]
        assert torch.equal(out.nan_to_num(9.0), plugin.dealt(inputs(step / 20), attempts).nan_to_num(9.0)), "a resumed run deals the same"
        turn_N, trajectory_N = x.provided["turn_N"], x.provided["trajectory_N"]
        last = torch.tensor([turn_N[n] == turn_N[trajectory_N == trajectory_N[n]].max() for n in range(len(out))])
        assert not out[~last & attempts.whole_N].any()
        seen.add(tuple(totals.tolist()))
    assert len(seen) > 5


def test_a_fault_stays_without_advantage_and_returns_in_place_are_gigpo(plugin, monkeypatch: pytest.MonkeyPatch):
    from vlmrl.algo.advantage.gigpo import gigpo

    x = inputs(0.5)
    out = plugin.gigpo_shuffled(x)
    assert not out[x.provided["trajectory_N"] == 7].any()
    assert out.isfinite().all()
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.arange(n))
    assert torch.equal(plugin.gigpo_shuffled(x), gigpo(x))


def test_differences_of_all_seeds_together():
    def of(differences: list[float]) -> dict:
        return {"methods": {"gigpo": {"gain": {"differences": differences}, "against_control": None}}}

    found = toy_desk.over_seeds([of([1.0, 0.0]), of([1.0, 1.0])], "gigpo", "gain")
    assert found is not None
    assert (found["n"], found["difference"]) == (4, 0.75)
    assert 0.0 <= found["low"] <= 0.75 <= found["high"] <= 1.0
    assert toy_desk.over_seeds([of([1.0])], "gigpo", "against_control") is None
    assert "plugins=[benchmarks.learning.toy_desk_plugin]" in toy_desk.command("shuffled", 1, Path("out"), [])
    assert "toy_desk_gigpo.yaml" in " ".join(toy_desk.command("shuffled", 1, Path("out"), []))

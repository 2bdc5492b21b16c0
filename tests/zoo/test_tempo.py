"""algo.credit.tempo: the tree of arXiv:2509.18314 worked out by hand, and an independent walk over prefixes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.credit.tempo import prefix_differences, tempo

NAN = float("nan")


def tree(responses, rewards, groups=None):
    """Letters are tokens; (inputs, mask)."""
    width = max(len(r) for r in responses)
    x = inputs([(v, g, v == v) for v, g in zip(rewards, groups or [0] * len(rewards), strict=True)])
    ids = torch.tensor([[ord(c) for c in r.ljust(width, "#")] for r in responses])
    length = torch.tensor([len(r) for r in responses])
    return dataclasses.replace(x, ids_NT=ids, length_N=length), torch.arange(width) < length[:, None]


def differences(responses, rewards):
    x, _ = tree(responses, rewards)
    return prefix_differences(x.provided["ids_NT"], x.length_N, x.reward_N, x.group_N, x.valid_N)


def reference(responses, rewards):
    """V by looking at every prefix of every response."""
    value = lambda p: (lambda v: sum(v) / len(v))([r for s, r in zip(responses, rewards, strict=True) if s.startswith(p)])  # noqa: E731
    return [[value(s[: t + 1]) - value(s[:t]) for t in range(len(s))] for s in responses]


RESPONSES, REWARDS = ["abx", "aby", "ac", "d"], [1.0, 0.0, 0.0, 1.0]


def test_differences_of_the_example():
    expected = [[-1 / 6, 1 / 6, 1 / 2], [-1 / 6, 1 / 6, -1 / 2], [-1 / 6, -1 / 3, 0], [1 / 2, 0, 0]]
    torch.testing.assert_close(differences(RESPONSES, REWARDS), torch.tensor(expected, dtype=torch.float64))


def test_tempo():
    x, mask = tree(RESPONSES, REWARDS)
    out = tempo(x, grpo(x, epsilon=0.0), mask, epsilon=0.0)
    expected = [[0.5774, 1.1547, 1.7321], [-1.1547, -0.5774, -1.7321], [-1.1547, -1.4434, 0], [1.7321, 0, 0]]
    torch.testing.assert_close(out, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-4)


@given(rows=st.lists(st.tuples(st.text("ab", min_size=1, max_size=5), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=7))
def test_differences_agree_with_a_walk_over_prefixes(rows):
    responses, rewards = [s for s, _ in rows], [r for _, r in rows]
    out = differences(responses, rewards).tolist()
    for got, expected in zip(out, reference(responses, rewards), strict=True):
        assert got[: len(expected)] == pytest.approx(expected, abs=1e-12)
        assert got[len(expected) :] == [0.0] * (len(got) - len(expected))


@given(rows=st.lists(st.tuples(st.text("ab", max_size=5), st.sampled_from([0.0, 1.0])), min_size=2, max_size=7, unique_by=lambda r: r[0]))
def test_they_add_up_to_the_centred_reward_when_all_end_on_a_leaf(rows):
    responses, rewards = [s + "$" for s, _ in rows], [r for _, r in rows]
    total = differences(responses, rewards).sum(dim=1)
    mean = sum(rewards) / len(rewards)
    assert total.tolist() == pytest.approx([r - mean for r in rewards])


def test_a_split_at_the_first_token_is_credited_there_only():
    x, mask = tree(["ax", "bx", "cx"], [1.0, 0.0, 0.0])
    adv = grpo(x)
    out = tempo(x, adv, mask)
    torch.testing.assert_close(out[:, 1], adv)
    assert out[0, 0] > adv[0]


def test_identical_prefixes_get_the_advantage_itself():
    x, mask = tree(["aaax", "aaay"], [1.0, 0.0])
    adv = grpo(x)
    out = tempo(x, adv, mask)
    assert torch.equal(out[:, :3], adv[:, None].expand(2, 3))
    assert out[0, 3] > adv[0]
    assert out[1, 3] < adv[1]


def test_groups_and_unjudged_rows_are_apart():
    x, mask = tree([*RESPONSES, "ab", "zz", "zy"], [*REWARDS, NAN, 1.0, 0.0], [0, 0, 0, 0, 0, 3, 3])
    out = tempo(x, grpo(x), mask)
    alone, alone_mask = tree(RESPONSES, REWARDS)
    torch.testing.assert_close(out[:4], tempo(alone, grpo(alone), alone_mask))
    assert out[4].tolist() == [0.0] * 3


def test_no_signal_no_credit_and_nothing_outside_the_mask():
    x, mask = tree(["ab", "cd"], [0.3, 0.1 + 0.2])
    assert tempo(x, grpo(x), mask).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    x, mask = tree(["ab", "cd"], [1.0, 0.0])
    mask[0, 0] = False
    out = tempo(x, grpo(x), mask)
    assert out[0, 0] == 0
    assert out[0, 1] > 0


def test_what_is_missing_or_wrong_is_said():
    x, mask = tree(RESPONSES, REWARDS)
    with pytest.raises(ValueError, match="'tempo' needs ids_NT"):
        tempo(dataclasses.replace(x, ids_NT=None), grpo(x), mask)
    with pytest.raises(ValueError, match=r"shape \(4, 3\), the mask \(4, 2\)"):
        tempo(x, grpo(x), mask[:, :2])

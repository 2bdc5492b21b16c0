"""advantage spo_tree: numbers by hand, and what must hold for any tree of attempts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.attempts import branched, shuffled
from vlmrl.zoo.advantage.spo_tree import spo_tree
from vlmrl.zoo.branches import Branches

NAN = float("nan")
TREE = [("ax", 1.0), ("ay", 0.0), ("bx", 0.0), ("by", 0.0), ("cz", 1.0)]
"""{{1, 0}, {0, 0}, 1}: what each attempt says in its two turns, and its return."""
WORDS = st.lists(st.tuples(st.text("ab", min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=8)


def test_tree_by_hand() -> None:
    x = branched(*TREE)
    found = Branches.of(x, "test")
    assert found.copies_N.tolist() == [2, 1, 2, 1, 2, 1, 2, 1, 1, 1]
    assert found.depth_N.tolist() == [1, 2, 1, 2, 1, 2, 1, 2, 1, 1]
    # root .5; the edges 0, -.5, .5; the leaves .5, -.5 and 0, 0. What two attempts have in common is halved on each.
    assert spo_tree(x).tolist() == [0, 0.5, 0, -0.5, -0.25, 0, -0.25, 0, 0.5, 0.5]


def test_attempts_that_part_at_once_have_their_return_minus_the_mean() -> None:
    assert spo_tree(branched(("ab", 1.0), ("cd", 0.0), ("e", 0.5))).tolist() == [0.5, 0.5, -0.5, -0.5, 0.0]


def test_what_stands_in_front_of_the_first_fork_gets_nothing() -> None:
    assert spo_tree(branched(("abc", 1.0), ("abd", 0.0))).tolist() == [0, 0, 0.5, 0, 0, -0.5]


def test_a_lost_attempt_is_no_part_of_the_tree() -> None:
    whole = spo_tree(branched(("ax", 1.0), ("ay", 0.0), ("bx", 0.0)))
    assert spo_tree(branched(("ax", 1.0), ("ay", 0.0), ("bx", 0.0), ("by", NAN))).tolist() == [*whole.tolist(), 0.0, 0.0]


@given(WORDS)
def test_branches_of_a_fork_are_centred_and_a_path_adds_up_to_its_return(words: list[tuple[str, float]]) -> None:
    words = [(text + "$", reward) for text, reward in dict(words).items()]
    x = branched(*words)
    found, out = Branches.of(x, "test"), spo_tree(x)
    edges = out * found.copies_N
    n = 0
    for text, reward in words:
        rows = range(n, n := n + len(text))
        steps = {float(found.depth_N[m]): float(edges[m]) for m in rows}
        root = float(found.value_N[rows[0]] - edges[rows[0]])
        assert root + sum(steps.values()) == pytest.approx(reward)
    for fork in set(found.sibling_N.tolist()) - {-1}:
        of_fork = {(float(found.value_N[m]), int(x.provided["node_N"][m])) for m in range(n) if int(found.sibling_N[m]) == fork}  # pyright: ignore
        assert len(of_fork) >= 2
    order = list(reversed(range(n)))
    assert torch.allclose(spo_tree(shuffled(x, order)), out[torch.tensor(order)])


def test_a_missing_need_is_named() -> None:
    with pytest.raises(ValueError, match="node_N"):
        spo_tree(dataclasses.replace(branched(*TREE), node_N=None))

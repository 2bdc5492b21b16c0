"""Rank-GRPO: reweight and loss `rank_grpo`, reward `listed_items`, and which token belongs to which line."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.algo.inputs import LossInputs
from vlmrl.protocols import RewardContext
from vlmrl.rewards.lists import hits, later_gain, listed_items
from vlmrl.zoo.loss.rank_grpo import rank_grpo as loss
from vlmrl.zoo.providers.items import lines, numbered
from vlmrl.zoo.reweight.rank_grpo import by_rank, rank_grpo

ROW = sample(meta={"items": ["Cat", "dog", "dog"], "excluded": ["bird"]})


def test_listed_items_by_hand():
    assert hits(["1. cat", "- Dog", "cow", "cat", "dog", "dog"], ROW) == [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], "an item is used up"
    excluded = sample(meta={"items": ["bird", "cat"], "excluded": ["bird"]})
    assert hits(["bird", "cat"], excluded) == [0.0, 1.0]
    mine = group(["<think>t</think><answer>cat\ncow</answer>", "<answer>cat</answer>", "none"], ROW)
    assert listed_items(mine, RewardContext(), items=2) == [0.5, 0.5, 0.0]
    assert listed_items(group(["x"]), RewardContext()) == [None]
    with pytest.raises(ValueError, match=r"row 'row'.*meta\.items"):
        hits([], sample(meta={"items": "cat"}))


def test_rank_grpo_credits_what_comes_later():
    # ranks 1, 2, 3 are worth 1, 1 / log2(3), 1 / 2
    d2 = 1 / math.log2(3)
    assert later_gain([1.0, 0.0, 1.0]) == pytest.approx([1.5, 0.5, 0.5])
    assert later_gain([0.0, 1.0, 1.0]) == pytest.approx([d2 + 0.5, d2 + 0.5, 0.5])
    hit, one, all_valid = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double(), torch.zeros(2, dtype=torch.int64), torch.ones(2).bool()
    z = math.sqrt(0.5)
    out = by_rank(hit, one, all_valid, decay=True)
    assert out.tolist() == [pytest.approx([z, -z, 0.0], abs=1e-3), pytest.approx([-z, z, 0.0], abs=1e-3)]
    plain = by_rank(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double(), one, all_valid, decay=False)
    assert plain.tolist() == [pytest.approx([z, 0.0], abs=1e-3), pytest.approx([-z, 0.0], abs=1e-3)]


def test_rank_grpo_by_hand():
    x = dataclasses.replace(inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 0, False)]), length_N=torch.tensor([6, 6, 6]))
    item = torch.tensor([[-1, 0, 0, 1, 2, -1], [-1, 0, -1, -1, -1, -1], [0, 0, 0, 0, 0, 0]])
    x = dataclasses.replace(x, provided={"item_NT": item, "hit_NJ": torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]).double()})
    out = rank_grpo(x, torch.full((3, 6), 0.3), items=2)
    z = 0.70701
    # the first list has three items, so that the third is too many and its end says nothing; the second has one, and ends too early
    assert out.tolist() == [
        pytest.approx([0.3, z, z, 0.0, -0.1, 0.0], abs=1e-3),
        pytest.approx([0.3, -z, 0.3, 0.3, 0.3, -0.1], abs=1e-3),
        pytest.approx([0.3] * 6),
    ]
    with pytest.raises(ValueError, match="items"):
        rank_grpo(x, torch.zeros(3, 6), items=0)


def test_loss_rank_grpo_has_one_ratio_per_item():
    old = torch.zeros(1, 5)
    logp = torch.tensor([[0.3, 0.1, -0.1, 0.2, 0.0]], requires_grad=True)
    x = LossInputs(
        logp_BT=logp,
        logp_old_BT=old,
        logp_ref_BT=None,
        adv_BT=torch.ones(1, 5),
        mask_BT=torch.ones(1, 5, dtype=torch.bool),
        group_B=torch.zeros(1, dtype=torch.int64),
        provided={
            "item_BT": torch.tensor([[-1, 0, 0, 1, 1]]),
        },
    )
    out = loss(x).loss_BT[0]
    # outside: exp(0.3), clipped at 1.2; item 0: mean log-ratio 0; item 1: mean 0.1
    assert out.tolist() == pytest.approx([-1.2, -1.0, -1.0, -math.exp(0.1), -math.exp(0.1)])
    out.sum().backward()
    assert logp.grad is not None
    assert logp.grad[0].tolist() == pytest.approx([0.0, -1.0, -1.0, -math.exp(0.1), -math.exp(0.1)])
    with pytest.raises(ValueError, match="clip"):
        loss(x, clip=1.0)


def test_tokens_of_lines():
    text = "<answer>ab\n\ncd</answer>"
    found = lines(list(map(ord, text)), text, "answer_only", lambda ids: "".join(map(chr, ids)))
    assert found == [("ab", 8, 10), ("cd", 12, 14)]
    assert numbered(found, len(text)).tolist() == [-1] * 8 + [0, 0, -1, -1, 1, 1] + [-1] * 9
    assert lines([1], "no tags", "think", lambda ids: "x") == []

"""rollout.answer_span: the tokens of the answer and no others, whatever the tokenizer does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny import Tiny
from vlmrl.policy.average import answer_likelihood
from vlmrl.rollout.answer_span import answer_mask, answer_span, answer_tokens
from vlmrl.types import Rollout


def pieces(*texts: str):
    """(ids, decode) of a tokenizer with these tokens; id -1 is a control token without text."""
    table = [t.encode() for t in texts]

    def decode(ids):
        return b"".join(table[i] for i in ids if i >= 0).decode("utf-8", "replace")

    return (*range(len(table)), -1), decode


def covered(*texts: str, answer_format: str = "think") -> list[int]:
    ids, decode = pieces(*texts)
    text = decode(ids)
    span = answer_span(text, answer_format)
    assert span is not None
    return list(range(*answer_tokens(ids, text, span, decode)))


def test_the_answer_without_tags_and_end_token():
    assert covered("<think>", "a", "</think>", "<answer>", "3", ".0", " to", " 5", "</answer>") == [4, 5, 6, 7]


def test_white_space_next_to_the_tags_is_out_and_a_border_token_is_in():
    assert covered("<think></think>", "<answer>", "\n ", " 3", " \n", "</answer>") == [3]
    assert covered("<think></think>", "<ans", "wer>3", "4</", "answer>") == [2, 3]
    assert covered("<answer>3</answer>", answer_format="answer_only") == [0]


def test_the_last_block_outside_the_thought_counts():
    assert covered("<think>", "<answer>", "9", "</answer>", "</think>", "<answer>", "1", "</answer>", "<answer>", "2", "</answer>") == [9]


@pytest.mark.parametrize("text", ["", "<think>a</think>", "<answer>3", "<answer> </answer>", "<think><answer>3</answer></think>"])
def test_no_answer_no_span(text):
    assert answer_span(text, "think") is None


def test_characters_of_several_tokens():
    euro = "€".encode()

    def decode(ids):
        table = [b"<answer>", b"5", euro[:1], euro[1:2], euro[2:], b"</answer>"]
        return b"".join(table[i] for i in ids).decode("utf-8", "replace")

    ids = tuple(range(6))
    text = decode(ids)
    span = answer_span(text, "answer_only")
    assert span == (8, 10)
    assert answer_tokens(ids, text, span, decode) == (1, 5)


@given(st.text(alphabet="ab 3€", max_size=6), st.text(alphabet="ab 3€", min_size=1, max_size=6), st.data())
def test_any_cut_covers_exactly_the_answer(thought, answer, data):
    if not answer.strip():
        return
    text = f"<think>{thought}</think><answer>{answer}</answer>"
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=12)))
    table = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    def decode(ids):
        return b"".join(table[i] for i in ids).decode("utf-8", "replace")

    span = answer_span(text, "think")
    assert span is not None
    assert text[slice(*span)] == answer.strip()
    start, end = answer_tokens(range(len(table)), text, span, decode)
    first, last = len(text[: span[0]].encode()), len(text[: span[1]].encode())
    ends = [sum(map(len, table[: i + 1])) for i in range(len(table))]
    expected = [i for i, stop in enumerate(ends) if stop > first and stop - len(table[i]) < last]
    assert list(range(start, end)) == expected


def test_masks_and_likelihoods_with_a_real_tokenizer(tiny: Tiny):
    def rollout(text: str) -> Rollout:
        ids = (*tiny.bundle.tokenize(text), tiny.bundle.end_ids[0])
        return Rollout(k=0, ids=ids, logprobs=(0.0,) * len(ids), text=tiny.bundle.decode(ids), finish="stop", policy_version=0)

    rows = [rollout("<think>a b</think><answer>3.0 to 5.0</answer>"), rollout("no answer")]
    mask = answer_mask(rows, ["think", "think"], tiny.bundle.decode)
    assert mask.shape == (2, max(len(r.ids) for r in rows))
    assert tiny.bundle.decode([i for i, m in zip(rows[0].ids, mask[0].tolist(), strict=False) if m]).strip(" <>/") == "3.0 to 5.0"
    assert not mask[1].any()
    logp = torch.zeros(mask.shape)
    logp[~mask] = -50.0  # only tokens behind and before the answer are unlikely
    assert answer_likelihood(logp, mask)[0] == 1.0

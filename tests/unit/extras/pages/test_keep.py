"""Text of tokens that share a character; whole runs that keep groups are in tests/faults/test_kept_groups.py."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from vlmrl.extras.pages.recorder import split_tokens


def pieces(raw: bytes) -> list[str]:
    """The text of tokens of one byte each."""

    def several(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    return split_tokens(list(raw), lambda token: several((token,)), several)


def test_a_character_of_several_tokens_stands_at_the_last() -> None:
    assert pieces("aé球b".encode()) == ["a", "", "é", "", "", "球", "b"]


def test_an_answer_that_ends_inside_a_character() -> None:
    assert pieces("a球".encode()[:-1]) == ["a", "", "\ufffd"]


@given(st.text(alphabet=st.characters(exclude_characters="\ufffd", exclude_categories=("Cs",)), max_size=30))
def test_together_they_are_the_text(text: str) -> None:
    found = pieces(text.encode())
    assert "".join(found) == text
    assert len(found) == len(text.encode())

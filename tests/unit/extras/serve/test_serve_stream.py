"""Streamed answers: pieces that together are the text, whatever tokens and stop strings cut, and the events of the protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.extras.serve.answering import Answering, Item, Said
from vlmrl.extras.serve.protocol import Chat, Choice, cut_at
from vlmrl.extras.serve.stream import Events, Growing, Piece, event
from vlmrl.types import Rollout


def decode(ids: Sequence[int]) -> str:
    """Every id is a byte, as in a byte-level tokenizer at its worst."""
    return bytes(ids).decode(errors="replace")


class Bundle:
    """What an answer needs of a `ProcessorBundle`."""

    def decode(self, ids: Sequence[int]) -> str:
        return decode(list(ids))


def chat(**more: Any) -> Chat:
    return Chat(model="m", messages=(), **more)


def grown(text: bytes, stops: Sequence[str] = ()) -> tuple[list[str], Growing]:
    growing = Growing(decode, stops)
    pieces: list[str] = []
    for token in text:
        piece = growing.add(token, -1.0)
        if piece:
            pieces.append(growing.take(0, piece).text)
        if growing.stopped:
            break
    return pieces, growing


def test_a_character_waits_for_all_of_its_bytes() -> None:
    pieces, _ = grown("aß€𝄞b".encode())
    assert pieces == ["a", "ß", "€", "𝄞", "b"]


def test_the_beginning_of_a_stop_string_waits() -> None:
    assert grown(b"one </a", ["</answer>"])[0] == ["o", "n", "e", " "]
    pieces, growing = grown(b"one </a> two</answer> three", ["</answer>"])
    assert "".join(pieces) == "one </a> two"
    assert growing.stopped
    assert pieces[4:6] == ["</a>", " "], "what was held back comes when it is no stop string"


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_pieces_together_are_the_text(text: str, stops: list[str]) -> None:
    pieces, growing = grown(text.encode(), stops)
    ids = text.encode()[: len(growing._ids)]
    whole = decode(list(ids))
    final = cut_at(whole, stops)
    final = whole if final is None else final
    assert "".join(pieces) + growing.rest(final) == final
    assert growing.stopped == (cut_at(whole, stops) is not None)


def test_a_tokenizer_that_rewrites_what_was_sent_is_said() -> None:
    growing = Growing(lambda ids: "x" * len(ids) if len(ids) < 3 else "y", [])
    growing.take(0, growing.add(1, 0.0))
    growing.take(0, growing.add(2, 0.0))
    assert growing.add(3, 0.0) == ""
    with pytest.raises(RuntimeError, match="without 'stream'"):
        growing.rest("y")


def read(text: str) -> list[Any]:
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(one.startswith("data: ") for one in events)
    return [one.removeprefix("data: ") if one == "data: [DONE]" else json.loads(one.removeprefix("data: ")) for one in events]


def test_the_events_of_a_reply() -> None:
    events = Events(chat(n=2, include_usage=True, logprobs=True, token_ids=True), "id", 7)
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in read(events.opening())] == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
    ]
    (one,) = read(events.piece([1], Piece(place=1, text="ab", ids=(4, 5), logprobs=(-0.5, -1.0)), ["a", "b"]))
    assert (one["id"], one["created"], one["model"], one["object"], one["usage"]) == ("id", 7, "m", "chat.completion.chunk", None)
    (choice,) = one["choices"]
    assert (choice["index"], choice["delta"], choice["token_ids"], choice["finish_reason"]) == (1, {"content": "ab"}, [4, 5], None)
    assert [(e["token"], e["logprob"]) for e in choice["logprobs"]["content"]] == [("a", -0.5), ("b", -1.0)]
    ends = [Choice(text="ab", finish="stop", ids=(1, 2)), Choice(text="c", finish="length", ids=(3,))]
    *finished, usage, done = read(events.closing(10, ends))
    assert [c["choices"][0]["finish_reason"] for c in finished] == ["stop", "length"]
    assert (usage["choices"], usage["usage"]["total_tokens"], done) == ([], 13, "[DONE]")
    plain = Events(chat(), "id", 7)
    assert all("usage" not in c for c in read(plain.opening() + plain.closing(10, ends[:1]))[:-1])
    failed, done = read(plain.failed(RuntimeError("no memory")))
    assert (failed["error"]["type"], done) == ("server_error", "[DONE]")
    assert event({"a": "\u2028\n"}) == 'data: {"a": "\\u2028\\n"}\n\n', "no line of an event ends early"


def rollout(text: bytes, finish: Any = "stop", k: int = 0) -> Rollout:
    ids = tuple(text)
    return Rollout(k=k, ids=ids, logprobs=(-1.0,) * len(ids), text=decode(ids), finish=finish, policy_version=0)


def told(answering: Answering) -> list[Item]:
    heard: list[Item] = []
    answering.follow(heard.append)
    return heard


def test_an_answer_is_told_as_it_grows_and_once_whole() -> None:
    answering = Answering(chat(stream=True, n=2), 5, 2, Bundle())  # pyright: ignore[reportArgumentType]
    assert answering.drawn(0, ord("a"), -1.0)
    heard = told(answering)
    assert [(one.place, one.text) for one in heard if isinstance(one, Piece)] == [(0, "a")], "what was there before is heard too"
    assert answering.drawn(1, ord("x"), -1.0)
    assert answering.drawn(0, 0xC3, -1.0)
    answering.finish([rollout(b"a\xc3"), rollout(b"x", k=1)])
    pieces = [(one.place, one.text, one.ids) for one in heard if isinstance(one, Piece)]
    assert pieces == [(0, "a", (97,)), (1, "x", (120,)), (0, "\ufffd", (0xC3,))]
    last = heard[-1]
    assert isinstance(last, Said)
    assert [one.text for one in last.choices] == ["a\ufffd", "x"]


def test_one_greedy_answer_stands_for_all() -> None:
    answering = Answering(chat(n=3), 5, 1, Bundle())  # pyright: ignore[reportArgumentType]
    assert answering.choices_of(0) == [0, 1, 2]
    assert answering.drawn(0, 97, -1.0)
    answering.finish([rollout(b"a")])
    (said,) = told(answering)
    assert isinstance(said, Said)
    assert [one.text for one in said.choices] == ["a"] * 3


def test_stop_strings_and_clients_that_leave_end_the_engine() -> None:
    answering = Answering(chat(stop=("ab",)), 5, 1, Bundle())  # pyright: ignore[reportArgumentType]
    assert answering.drawn(0, ord("a"), -1.0)
    assert not answering.drawn(0, ord("b"), -1.0)
    gone = Answering(chat(stream=True), 5, 1, Bundle())  # pyright: ignore[reportArgumentType]
    heard = told(gone)
    gone.cancel()
    assert not gone.drawn(0, 97, -1.0)
    gone.finish([rollout(b"a")])
    gone.fail(RuntimeError("late"))
    assert heard == []

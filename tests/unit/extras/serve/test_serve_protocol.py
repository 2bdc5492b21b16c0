"""Chat completions as JSON: what is read, what is refused by name, and what a reply looks like."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.extras.serve.incoming import times_of
from vlmrl.extras.serve.protocol import Chat, Choice, Message, Part, Refused, completion, cut_at, read_chat

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}


def test_a_plain_request_has_the_defaults_of_the_protocol() -> None:
    chat = read_chat(ASK)
    assert (chat.n, chat.temperature, chat.top_p, chat.seed, chat.max_tokens) == (1, 1.0, 1.0, None, None)
    assert chat.messages == (Message(role="user", parts=(Part(kind="text", value="Hello?"),)),)
    assert not any((chat.stream, chat.logprobs, chat.token_ids, chat.banned, chat.pixels, chat.rate))


def test_all_that_is_obeyed_is_read() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "text", "text": "one"},
        {"type": "video_url", "video_url": "clip.mp4"},
        {"type": "text", "text": "two"},
    ]
    chat = read_chat(
        {
            "model": "m",
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": content}],
            "n": 3,
            "seed": -4,
            "temperature": 0,
            "top_p": 0.5,
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "stop": "x",
            "logprobs": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {"5": -100.0},
            "return_token_ids": True,
            "top_k": 0,
            "repetition_penalty": 1.0,
            "user": "me",
            "tools": [],
            "mm_processor_kwargs": {"min_pixels": 1},
            "media_io_kwargs": {"video": {"num_frames": -1, "fps": 2.0}},
        }
    )
    assert [part.kind for part in chat.messages[1].parts] == ["image", "text", "video", "text"]
    assert chat.messages[1].text == "one\ntwo"
    assert (chat.n, chat.seed, chat.temperature, chat.top_p, chat.max_tokens, chat.stop) == (3, -4, 0.0, 0.5, 7, ("x",))
    assert (chat.logprobs, chat.stream, chat.include_usage, chat.banned, chat.token_ids) == (True, True, True, frozenset({5}), True)
    assert (chat.pixels, chat.rate) == ({"min_pixels": 1}, {"num_frames": -1, "fps": 2.0})


@pytest.mark.parametrize(
    ("change", "param", "told"),
    [
        ({"model": ""}, "model", "expected text"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "expected one of"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "got type 'input_audio'"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages", "of the user"),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"n": True}, "n", "whole number"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"temperature": -1}, "temperature", "from 0 to 100"),
        ({"temperature": float("nan")}, "temperature", "from 0"),
        ({"top_p": 0}, "top_p", "more than 0"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"stop": ["a"] * 5}, "stop", "up to four"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"top_k": 5}, "top_k", "does not do that"),
        ({"top_logprobs": 3}, "top_logprobs", "does not do that"),
        ({"tools": [{"type": "function"}]}, "tools", "does not do that"),
        ({"response_format": {"type": "json_object"}}, "response_format", "does not do that"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "only -100"),
        ({"logit_bias": {"word": -100}}, "logit_bias", "token ids"),
        ({"mm_processor_kwargs": 3}, "mm_processor_kwargs", "an object"),
        ({"media_io_kwargs": {"image": {}}}, None, "of videos alone"),
        ({"best_of": 2}, "best_of", "unknown field"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(change: dict[str, Any], param: str | None, told: str) -> None:
    with pytest.raises(Refused, match=told) as caught:
        read_chat({**ASK, **change})
    assert caught.value.param == param
    assert caught.value.body()["error"]["type"] == "invalid_request_error"


def chat(**more: Any) -> Chat:
    return Chat(model="m", messages=(), **more)


CHOICE = Choice(text="ab", finish="stop", ids=(1, 2, 3), pieces=("a", "b", ""), logprobs=(-0.5, -1.0, -2.0))


def test_a_reply_counts_the_tokens_of_all_answers() -> None:
    made = completion(chat(logprobs=True, token_ids=True), "id", 7, 10, [CHOICE, CHOICE])
    assert made["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert [choice["index"] for choice in made["choices"]] == [0, 1]
    first = made["choices"][0]
    assert (first["message"]["content"], first["finish_reason"], first["token_ids"]) == ("ab", "stop", [1, 2, 3])
    assert [entry["logprob"] for entry in first["logprobs"]["content"]] == [-0.5, -1.0, -2.0]
    assert first["logprobs"]["content"][1] == {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []}
    plain = completion(chat(), "id", 7, 10, [CHOICE])["choices"][0]
    assert plain["logprobs"] is None
    assert "token_ids" not in plain


def test_text_ends_before_the_first_stop_string() -> None:
    assert cut_at("one two three", ["three", "two"]) == "one "
    assert cut_at("one", ["x"]) is None


def test_times_of_frames_that_are_sent() -> None:
    times, spacing = times_of({"num_frames": -1, "fps": 2.0}, 4)
    assert (times.tolist(), spacing) == ([0.0, 0.5, 1.0, 1.5], 0.5)
    times, spacing = times_of({"fps": 1_000_000, "frames_indices": [0, 1_500_000], "total_num_frames": 1_500_001}, 2)
    assert (times.tolist(), spacing) == ([0.0, 1.5], None)
    for rate in (
        {},
        {"fps": 0},
        {"fps": True},
        {"fps": 1, "other": 2},
        {"fps": 1, "frames_indices": [0]},
        {"fps": 1, "frames_indices": [1, 0]},
    ):
        with pytest.raises(Refused, match="media_io_kwargs"):
            times_of(rate, 2)

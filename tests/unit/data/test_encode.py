"""Samples to prompts: placeholders, order, limits and control tokens."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.tiny import Tiny
from vlmrl.answers.tags import FREE
from vlmrl.data.encode import ANSWER_FORMATS, Encoder, instruction, messages
from vlmrl.errors import MediaError, RowError
from vlmrl.types import Turn


def test_spans_hold_exactly_the_placeholders(tiny: Tiny) -> None:
    pad = tiny.bundle.pad_ids["video"]
    for prompt in tiny.prompts(8):
        ((start, end),) = prompt.spans
        assert end - start == prompt.media[0].tokens
        assert all(i == pad for i in prompt.ids[start:end])
        assert prompt.ids.count(pad) == end - start


@pytest.mark.parametrize("question_first", [False, True])
def test_text_around_the_media_is_the_chat_template(question_first: bool, tiny: Tiny) -> None:
    sample = dataclasses.replace(tiny.samples[0], question_first=question_first)
    prompt = tiny.encoder.encode(sample, "think")
    ((start, end),) = prompt.spans
    text = tiny.bundle.tokenizer.decode(prompt.ids[:start] + prompt.ids[start : start + 1] + prompt.ids[end:])
    media, ask = "<|vision_start|><|video_pad|><|vision_end|>", instruction("think", "time_span")
    body = f"{sample.question}{media}{ask}" if question_first else f"{media}{sample.question} {ask}"
    assert text == f"<|im_start|>user\n{body}<|im_end|>\n<|im_start|>assistant\n"


def test_earlier_turns_stand_before_the_question_with_their_own_media(tiny: Tiny) -> None:
    one, two = tiny.samples[0], tiny.samples[1]
    turns = (
        Turn(question="What is it?", answer="A ball.", media=1, question_first=True),
        Turn(question="Is it round?", answer="Yes."),
    )
    sample = dataclasses.replace(one, media=(one.media[0], two.media[0]), history=turns)
    prompt, planned = tiny.encoder.encode(sample, "think"), tiny.encoder.plan(sample, "think")
    assert (prompt.ids, prompt.spans) == (planned.ids, planned.spans)
    assert [handle.key for handle in prompt.media] == [tiny.store.get(ref, tiny.encoder.root(sample)).handle.key for ref in sample.media]
    ids: list[int] = []
    for n, token in enumerate(prompt.ids):
        ids += [] if any(start < n < end for start, end in prompt.spans) else [token]
    video = "<|vision_start|><|video_pad|><|vision_end|>"
    assert tiny.bundle.tokenizer.decode(ids) == (
        f"<|im_start|>user\nWhat is it?{video}<|im_end|>\n<|im_start|>assistant\nA ball.<|im_end|>\n"
        "<|im_start|>user\nIs it round?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
        f"<|im_start|>user\n{video}{one.question} {instruction('think', 'time_span')}<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("field", ["question", "answer"])
def test_control_tokens_in_earlier_turns_are_refused(field: str, tiny: Tiny) -> None:
    turn = dataclasses.replace(Turn(question="What?", answer="A ball."), **{field: "A <|im_end|> ball"})
    with pytest.raises(RowError, match="control_token"):
        tiny.encoder.encode(dataclasses.replace(tiny.samples[0], history=(turn,)), "think")


def test_media_first_or_question_first(tiny: Tiny) -> None:
    sample = tiny.samples[0]
    first = messages(dataclasses.replace(sample, question_first=True), "answer_only")[0]["content"]
    after = messages(dataclasses.replace(sample, question_first=False), "answer_only")[0]["content"]
    assert [part["type"] for part in first] == ["text", "video", "text"]
    assert [part["type"] for part in after] == ["video", "text"]


def test_plan_from_headers_equals_the_real_prompt(tiny: Tiny) -> None:
    for sample in tiny.samples[:8]:
        real, planned = tiny.encoder.encode(sample, "think_or_not"), tiny.encoder.plan(sample, "think_or_not")
        assert (planned.ids, planned.spans) == (real.ids, real.spans)
        assert planned.media[0].grid_thw == real.media[0].grid_thw
        assert planned.media[0].seconds_per_grid == real.media[0].seconds_per_grid


def test_every_medium_is_decoded_once(tiny: Tiny) -> None:
    tiny.prompts(8)
    before = dict(tiny.store.stats)
    for answer_format in ANSWER_FORMATS:
        tiny.prompts(8, answer_format)
    assert tiny.store.stats["decoded"] == before["decoded"]


@pytest.mark.parametrize("token", ["<|im_end|>", "<|video_pad|>", "<|vision_start|>", "<|endoftext|>"])
def test_control_tokens_in_text_are_refused(token: str, tiny: Tiny) -> None:
    with pytest.raises(RowError, match=r"control_token|placeholder"):
        tiny.encoder.encode(dataclasses.replace(tiny.samples[0], question=f"When {token} now?"), "think")


def with_limit(tiny: Tiny, limit: int) -> Encoder:
    return dataclasses.replace(tiny.encoder, max_prompt_tokens=limit)


def test_length_limit_is_exact_and_nothing_is_truncated(tiny: Tiny) -> None:
    sample = tiny.samples[0]
    length = len(tiny.encoder.encode(sample, "think").ids)
    for limit in (length, length + 1):
        assert len(with_limit(tiny, limit).encode(sample, "think").ids) == length
    with pytest.raises(RowError, match="overlong") as caught:
        with_limit(tiny, length - 1).encode(sample, "think")
    assert sample.id in str(caught.value)


def test_placeholders_and_media_must_agree(tiny: Tiny) -> None:
    sample = tiny.samples[0]

    class Silent:
        def apply_chat_template(self, conversation: object, **kwargs: object) -> str:
            return "no placeholder"

        def __call__(self, text: str, **kwargs: object) -> object:
            return tiny.bundle.tokenizer(text, **kwargs)

    with pytest.raises(RowError, match="placeholder"):
        dataclasses.replace(tiny.encoder, tokenizer=Silent()).encode(sample, "think")


def test_missing_media_is_an_error_with_the_path(tiny: Tiny) -> None:
    sample = tiny.samples[0]
    gone = dataclasses.replace(sample, media=(dataclasses.replace(sample.media[0], path="videos/none.mp4"),))
    with pytest.raises(MediaError, match=r"missing.*videos/none\.mp4"):
        tiny.encoder.encode(gone, "think")


def test_unknown_template_is_refused(tiny: Tiny) -> None:
    with pytest.raises(RowError, match="answer_format"):
        tiny.encoder.encode(tiny.samples[0], "shout")


@pytest.mark.parametrize("question_first", [False, True])
def test_the_free_template_adds_nothing_to_the_question(question_first: bool, tiny: Tiny) -> None:
    sample = dataclasses.replace(tiny.samples[0], question_first=question_first)
    prompt = tiny.encoder.encode(sample, FREE)
    ((start, end),) = prompt.spans
    text = tiny.bundle.tokenizer.decode(prompt.ids[:start] + prompt.ids[start : start + 1] + prompt.ids[end:])
    media = "<|vision_start|><|video_pad|><|vision_end|>"
    body = f"{sample.question}{media}" if question_first else f"{media}{sample.question}"
    assert text == f"<|im_start|>user\n{body}<|im_end|>\n<|im_start|>assistant\n"
    assert FREE not in ANSWER_FORMATS

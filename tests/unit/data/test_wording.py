"""A recipe's wording of the prompt: what it sees, what it may not leave out, and that it changes nothing where it says the same."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl.answers.tags import FREE
from vlmrl.data.encode import ANSWER_FORMATS, Encoder, instruction, messages
from vlmrl.data.unasked import unasked
from vlmrl.data.wording import NAMES, prompt_problem, worded
from vlmrl.errors import RowError
from vlmrl.types import Turn

SAME = "{{ question }} {{ instruction }}"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def with_prompt(tiny: Tiny, prompt: str) -> Encoder:
    return dataclasses.replace(tiny.encoder, prompt=prompt)


def said(tiny: Tiny, encoder: Encoder, **changes: object) -> str:
    """The whole prompt of the first row as text, with one placeholder."""
    prompt = encoder.encode(dataclasses.replace(tiny.samples[0], **changes), "think")
    ((start, end),) = prompt.spans
    return tiny.bundle.tokenizer.decode(prompt.ids[:start] + prompt.ids[start : start + 1] + prompt.ids[end:])


@pytest.mark.parametrize(
    ("template", "answer_format", "missing"),
    [
        (SAME, "think", None),
        ("{{ question }} Think in <Think> tags and answer in <answer> tags.", "think", None),
        ("{{ question }} Answer in <answer> tags.", "answer_only", None),
        ("{{ question }}{% if answer_format == 'think' %} Think.{% endif %}", "think_or_not", None),
        ("{{ question }} Answer in <answer> tags.", "think", "<think and <answer>"),
        ("{{ question }}", "answer_only", "neither {{ instruction }} nor <answer>"),
    ],
)
def test_a_template_that_asks_for_no_form_is_pointed_out(template: str, answer_format: str, missing: str | None) -> None:
    found = unasked(template, answer_format)
    assert (found is None) == (missing is None)
    assert missing is None or (missing in str(found) and f"'{answer_format}'" in str(found))


def test_all_that_a_template_sees() -> None:
    row = dataclasses.replace(sample(), question="How many?", answer_type="number", task="counting", meta={"place": "shelf"})
    shown = " | ".join(f"{{{{ {name} }}}}" for name in NAMES if name != "meta") + " | {{ meta.place }}"
    assert worded(shown, row, "think", instruction("think", "number")) == (
        "How many? | one number | Think in <think></think>, then give one number in <answer></answer>. | think | number | counting | shelf"
    )


def test_lines_of_statements_leave_no_lines() -> None:
    row = dataclasses.replace(sample(), question="How many?", answer_type="number")
    text = "{{ question }}\n{% if answer_type == 'number' %}\nCount.\n  {% endif %}\nAnswer.\n"
    assert worded(text, row, "think", "") == "How many?\nCount.\nAnswer."


@pytest.mark.parametrize("answer_format", ANSWER_FORMATS)
def test_the_same_words_are_the_same_tokens(answer_format: str, tiny: Tiny) -> None:
    for row in tiny.samples[:4]:
        plain, own = tiny.encoder.encode(row, answer_format), with_prompt(tiny, SAME).encode(row, answer_format)
        assert (own.ids, own.spans) == (plain.ids, plain.spans)
        assert with_prompt(tiny, SAME).plan(row, answer_format).ids == plain.ids


def test_the_text_stands_on_the_question_s_side_of_the_media(tiny: Tiny) -> None:
    encoder = with_prompt(tiny, "{{ question }} Think in <think></think>. Give {{ ask }} in <answer></answer>.")
    text = f"{tiny.samples[0].question} Think in <think></think>. Give the time span in seconds as 'start to end' in <answer></answer>."
    end = "<|im_end|>\n<|im_start|>assistant\n"
    assert said(tiny, encoder) == f"<|im_start|>user\n{VIDEO}{text}{end}"
    assert said(tiny, encoder, question_first=True) == f"<|im_start|>user\n{text}{VIDEO}{end}"


def test_earlier_turns_are_not_worded(tiny: Tiny) -> None:
    turn = Turn(question="What is it?", answer="A ball.")
    assert said(tiny, with_prompt(tiny, "Please: {{ question }}"), history=(turn,)) == (
        "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nA ball.<|im_end|>\n"
        f"<|im_start|>user\n{VIDEO}Please: {tiny.samples[0].question}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_question_that_stands_alone_stays_so(tiny: Tiny) -> None:
    row = tiny.samples[0]
    assert with_prompt(tiny, "Please: {{ question }}").encode(row, FREE).ids == tiny.encoder.encode(row, FREE).ids
    assert messages(row, FREE, "Please: {{ question }}") == messages(row, FREE)


@pytest.mark.parametrize(
    ("changes", "template"),
    [
        ({"question": "When <|im_end|> now?"}, SAME),
        ({"meta": {"place": "<|im_end|>"}}, "{{ question }} {{ meta.place }}"),
        ({"task": "<|im_end|>"}, "{{ question }} {{ task }}"),
        ({"history": (Turn(question="What?", answer="<|im_end|>"),)}, SAME),
    ],
)
def test_control_tokens_of_rows_are_refused(changes: dict[str, object], template: str, tiny: Tiny) -> None:
    row = dataclasses.replace(tiny.samples[0], **changes)
    with pytest.raises(RowError, match="control_token"):
        with_prompt(tiny, template).encode(row, "think")


def test_control_tokens_that_no_template_shows_do_no_harm(tiny: Tiny) -> None:
    row = tiny.samples[0]
    assert (
        with_prompt(tiny, SAME).encode(dataclasses.replace(row, meta={"raw": "<|im_end|>"}), "think").ids
        == tiny.encoder.encode(row, "think").ids
    )


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("Answer.", r"no \{\{ question \}\}"),
        ("", r"no \{\{ question \}\}"),
        ("{{ content }} Answer.", "names 'content', which it does not see .it sees: question, ask, "),
        ("{{ question }}\n{% if %}", "line 2 of the template"),
        ("{{ question | shout }}", "line 1 of the template: No filter named 'shout'"),
        (SAME, None),
        ("{% for i in range(2) %}{{ question }}{% endfor %}", None),
    ],
)
def test_what_is_wrong_before_any_row(template: str, problem: str | None) -> None:
    found = prompt_problem(template)
    assert (found is None) == (problem is None)
    assert problem is None or re.search(problem, found or "")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ question }} {{ meta.place }}", "'dict object' has no attribute 'place'"),
        ("{{ question + 1 }}", "TypeError"),
        ("{{ question }} {{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ question | upper }}", "does not hold the question"),
        ("{% if answer_type == 'bbox' %}{{ question }}{% endif %}", "does not hold the question"),
        ("{{ question }} {{ question.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_what_is_wrong_with_a_row_names_it_and_the_setting(template: str, told: str) -> None:
    with pytest.raises(RowError, match=rf"row '.*data.prompt.*{told}") as caught:
        worded(template, dataclasses.replace(sample(), question="When?"), "think", "")
    assert caught.value.reason == "prompt"

"""The row schema: good rows become samples, everything else is a `RowError` that names the key."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.data.row import ANSWER_TYPES, KEYS, parse_row
from vlmrl.errors import RowError
from vlmrl.types import MediaRef, Sample, Turn


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "clip-7",
        "task": "temporal_grounding",
        "answer_type": "time_span",
        "video": "clips/7.mp4",
        "prompt": "When does the door open?",
        "gt": {"time": [3, 5.5]},
    }
    return {**base, **changes}


def choice(**changes: Any) -> dict[str, Any]:
    return {"id": "q1", "task": "qa", "answer_type": "choice", "image": "a.png", "prompt": "Which?", "answer": "B", **changes}


def parse(obj: object) -> Sample:
    return parse_row(obj, source="rows.jsonl:3", media_root="media")


def refused(obj: object) -> tuple[str, str]:
    with pytest.raises(RowError) as caught:
        parse(obj)
    return caught.value.reason, str(caught.value)


def test_a_time_span_row() -> None:
    assert parse(row()) == Sample(
        id="clip-7",
        task="temporal_grounding",
        answer_type="time_span",
        question="When does the door open?",
        media=(MediaRef(kind="video", path="clips/7.mp4"),),
        answer="3.00 to 5.50",
        gt={"time": [3.0, 5.5]},
        source="rows.jsonl:3",
        media_root="media",
    )


def test_a_given_answer_is_kept() -> None:
    assert parse(row(answer="3.0 to 5.5")).answer == "3.0 to 5.5"


def test_null_is_the_same_as_absent() -> None:
    everything = {key: None for key in KEYS}
    assert parse({**everything, **row()}) == parse(row())


def test_a_box_row() -> None:
    boxes = [[1, 2, 3.5, 4]]
    sample = parse(choice(answer_type="bbox", answer=None, gt={"boxes": boxes}))
    assert sample.gt == {"boxes": boxes}
    assert json.loads(sample.answer) == {"boxes": boxes}


def test_optional_keys_go_to_meta() -> None:
    sample = parse(
        row(source="Charades", difficulty=0.5, data_type="video", meta={"duration": 9.5}, thought="It opens.", trajectory={"step": 0})
    )
    assert sample.meta == {"duration": 9.5, "source": "Charades", "difficulty": 0.5, "data_type": "video", "trajectory": {"step": 0}}
    assert sample.thought == "It opens."
    assert refused(row(source="a", meta={"source": "b"}))[0] == "bad_value"


def test_options_are_shown_once() -> None:
    options = ["A. red", "B. blue"]
    assert parse(choice(options=options)).question == "Which?\nA. red\nB. blue"
    shown = "Which?\nA. red\nB. blue"
    assert parse(choice(options=options, prompt=shown)).question == shown


def test_media_come_in_the_order_of_their_placeholders() -> None:
    both = choice(images=["1.png", "2.png"], image=None, video="3.mp4")
    assert [ref.path for ref in parse(both).media] == ["1.png", "2.png", "3.mp4"]
    sample = parse({**both, "prompt": "<image>\n<video> <image>Which is it?"})
    assert [ref.path for ref in sample.media] == ["1.png", "3.mp4", "2.png"]
    assert sample.question == "Which is it?"


def test_media_may_carry_a_hash() -> None:
    digest = "AB" * 32
    assert parse(choice(image={"path": "a.png", "sha256": digest})).media[0].sha256 == digest.lower()
    assert refused(choice(image={"path": "a.png", "sha256": "12"}))[0] == "bad_value"
    assert refused(choice(image={"path": "a.png", "bytes": "x"}))[0] == "unknown_key"
    assert refused(choice(image={"sha256": digest}))[0] == "bad_type"


def test_a_video_may_be_its_frames() -> None:
    digest = "ab" * 32
    frames = ["f/1.png", {"path": "f/2.png", "sha256": digest}]
    pictures = (MediaRef(kind="image", path="f/1.png"), MediaRef(kind="image", path="f/2.png", sha256=digest))
    timed = parse(row(video={"frames": frames, "times": [0, 0.5]}, data_type="video")).media
    assert timed == (MediaRef(kind="video", path="f/1.png", frames=pictures, times=(0.0, 0.5)),)
    at_a_rate = parse(row(video=None, videos=[{"frames": frames, "fps": 2}, "a.mp4"])).media
    assert at_a_rate == (MediaRef(kind="video", path="f/1.png", frames=pictures, fps=2.0), MediaRef(kind="video", path="a.mp4"))
    folder = parse(row(video={"frames": "clips/7", "fps": 2.5})).media
    assert folder == (MediaRef(kind="video", path="clips/7", fps=2.5),)
    assert [ref.as_frames for ref in (*timed, *folder, at_a_rate[1])] == [True, True, False]


@pytest.mark.parametrize(
    ("video", "reason", "says"),
    [
        ({"frames": ["1.png"]}, "missing_key", "'video.times' and 'video.fps' are missing"),
        ({"frames": "f", "fps": 2, "times": [0]}, "bad_value", "both given"),
        ({"frames": [], "fps": 2}, "bad_type", "'video.frames'"),
        ({"frames": 7, "fps": 2}, "bad_type", "'video.frames'"),
        ({"frames": ["1.png", 2], "fps": 2}, "bad_type", "'video.frames[1]'"),
        ({"frames": ["1.png", "../2.png"], "fps": 2}, "forbidden", "'video.frames[1]'"),
        ({"frames": "/f", "fps": 2}, "forbidden", "'video.frames'"),
        ({"frames": ["1.png"], "fps": 0}, "bad_value", "'video.fps'"),
        ({"frames": ["1.png"], "fps": True}, "bad_value", "'video.fps'"),
        ({"frames": ["1.png"], "fps": 501}, "bad_value", "at most 500"),
        ({"frames": ["1.png", "2.png"], "times": [0]}, "bad_value", "1 numbers for 2 frames"),
        ({"frames": ["1.png", "2.png"], "times": [0, 0]}, "bad_value", "'video.times[1]' is 0"),
        ({"frames": ["1.png", "2.png"], "times": [0, 0.001]}, "bad_value", "at least 0.002 s after 0"),
        ({"frames": ["1.png", "2.png"], "times": [10, 11]}, "bad_value", "subtract 10 from all of them"),
        ({"frames": ["1.png", "2.png"], "times": [0, "1"]}, "bad_type", "'video.times'"),
        ({"frames": ["1.png"], "fps": 2, "sha256": "ab" * 32}, "unknown_key", "give 'sha256' with each frame"),
        (["1.png", "2.png"], "bad_type", '{"frames": [...], "fps": ...}'),
    ],
)
def test_frames_that_say_too_little_are_refused(video: object, reason: str, says: str) -> None:
    found, text = refused(row(video=video))
    assert (found, says in text) == (reason, True), text


def test_text_rows_need_no_media() -> None:
    assert parse(choice(image=None, data_type="text")).media == ()


@pytest.mark.parametrize(
    ("obj", "reason", "named"),
    [
        ([], "not_object", "list"),
        ("x", "not_object", "str"),
        (None, "not_object", "NoneType"),
        (row(id=None), "missing_key", "'id'"),
        (row(id=7), "bad_type", "'id'"),
        (row(id=" "), "bad_value", "'id'"),
        (row(task=None), "missing_key", "'task'"),
        (row(prompt=None), "missing_key", "'prompt'"),
        (row(prompt="<video> "), "bad_value", "'prompt'"),
        (row(promt="x"), "unknown_key", "did you mean 'prompt'"),
        (row(fps=2), "unknown_key", "'fps'"),
        (row(answer_type="timespan"), "bad_value", "did you mean 'time_span'"),
        (row(thought=3), "bad_type", "'thought'"),
        (row(meta=[]), "bad_type", "'meta'"),
        (row(gt=[]), "bad_type", "'gt'"),
        (row(gt={}), "missing_key", "'gt.time'"),
        (row(gt={"time": [1]}), "bad_type", "'gt.time'"),
        (row(gt={"time": "1 to 2"}), "bad_type", "'gt.time'"),
        (row(gt={"time": [1, "2"]}), "bad_type", "'gt.time'"),
        (row(gt={"time": [False, True]}), "bad_type", "'gt.time'"),
        (row(gt={"time": [2, 2]}), "bad_value", "'gt.time'"),
        (row(gt={"time": [3, 2]}), "bad_value", "'gt.time'"),
        (row(gt={"time": [-1, 2]}), "bad_value", "'gt.time'"),
        (row(gt={"time": [0, math.inf]}), "not_finite", "gt.time[1]"),
        (row(gt={"time": [math.nan, 1]}), "not_finite", "gt.time[0]"),
        (row(gt={"time": [0, 10**400]}), "bad_value", "gt.time[1]"),
        (choice(gt={"time": [1, 2]}), "bad_value", "'gt.time'"),
        (choice(answer=None), "missing_key", "'answer'"),
        (choice(answer=2), "bad_type", "'answer'"),
        (choice(answer=""), "bad_value", "'answer'"),
        (choice(options="A"), "bad_type", "'options'"),
        (choice(options=["A", ""]), "bad_type", "'options'"),
        (choice(answer_type="bbox"), "missing_key", "'gt.boxes'"),
        (choice(answer_type="bbox", gt={"boxes": []}), "missing_key", "'gt.boxes'"),
        (choice(answer_type="bbox", gt={"boxes": [[1, 2, 3]]}), "bad_type", "gt.boxes[0]"),
        (choice(answer_type="bbox", gt={"boxes": [[0, 0, 1, 1], [3, 0, 1, 1]]}), "bad_value", "gt.boxes[1]"),
        (choice(answer_type="bbox", gt={"boxes": [[-1, 0, 1, 1]]}), "bad_value", "gt.boxes[0]"),
        (choice(image="/etc/passwd"), "forbidden", "'image'"),
        (choice(image="a/../../b.png"), "forbidden", "'image'"),
        (choice(image="https://host/a.png"), "forbidden", "URL"),
        (row(video="file:///a.mp4"), "forbidden", "'video'"),
        (choice(image=None, images=["a.png", "s3://b"]), "forbidden", "'images[1]'"),
        (choice(image=None, images="a.png"), "bad_type", "'images'"),
        (choice(image=3), "bad_type", "'image'"),
        (choice(images=["b.png"]), "bad_value", "'images'"),
        (choice(data_type="video"), "bad_value", "'data_type'"),
        (choice(data_type="multi_image"), "bad_value", "'data_type'"),
        (choice(data_type="picture"), "bad_value", "'data_type'"),
        (row(prompt="<image>When?"), "placeholder", "<image>"),
        (row(prompt="<video><video>When?"), "placeholder", "<video>"),
        (row(video=None, prompt="<video>When?"), "placeholder", "<video>"),
        (row(prompt="When is <video> over?"), "placeholder", "within its text"),
        (row(prompt="a <|im_end|> b"), "control_token", "<|im_end|>"),
        (row(prompt="<|vision_start|><|video_pad|><|vision_end|>When?"), "control_token", "<|vision_start|>"),
        (row(answer="<|image_pad|>"), "control_token", "'answer'"),
        (row(thought="<|im_start|>system"), "control_token", "'thought'"),
        (row(thought="the <image> shows"), "control_token", "'thought'"),
        (choice(options=["A", "<|endoftext|>"]), "control_token", "<|endoftext|>"),
        (row(prompt="nul \0"), "bad_value", "NUL"),
        (row(prompt="half \ud800"), "encoding", "prompt"),
        (row(meta={"a": {"b": [1.0, math.nan]}}), "not_finite", "meta.a.b[1]"),
        (row(meta={"a": b"bytes"}), "bad_type", "meta.a"),
        (row(meta={1: 2}), "bad_type", "meta"),
    ],
)
def test_refused(obj: object, reason: str, named: str) -> None:
    got, message = refused(obj)
    assert got == reason
    assert named in message


def test_deep_rows_are_refused_without_recursion() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refused(row(meta={"deep": deep}))[0] == "nesting"


def test_every_answer_type_but_two_needs_an_answer() -> None:
    ours = [name for name, kind in ANSWER_TYPES.items() if type(kind).__module__.startswith("vlmrl.answers.")]
    for kind in set(ours) - {"episode"}:  # which no row is
        gt = {"time": [0, 1]} if kind == "time_span" else {"boxes": [[0, 0, 1, 1]]}
        obj = choice(answer_type=kind, gt=gt, answer=None)
        if kind in ("time_span", "bbox"):
            parse(obj)
        else:
            assert refused(obj)[0] == "missing_key"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6))
def test_any_values_give_a_sample_or_a_row_error(changes: dict[str, Any]) -> None:
    try:
        sample = parse({**row(), **changes})
    except RowError:
        pass
    else:
        json.dumps([sample.id, sample.question, sample.answer, dict(sample.gt), dict(sample.meta)], allow_nan=False).encode()


@given(st.floats(0, 1e5), st.floats(0.02, 1e5))
def test_built_answers_read_back(start: float, length: float) -> None:
    sample = parse(row(gt={"time": [start, start + length]}))
    first, last = (float(part) for part in sample.answer.split(" to "))
    assert abs(first - start) <= 0.00501
    assert abs(last - start - length) <= 0.00501


@pytest.mark.parametrize("text", ["\u200b\u200b", "\u2060\ufeff \u200d", "\u3164", "<image>\u200b"])
def test_a_question_that_nobody_can_see_is_refused(text: str) -> None:
    reason, message = refused(choice(prompt=text))
    assert reason == "bad_value"
    assert "'prompt' has no visible" in message
    assert parse(choice(prompt=f"What\u200b is it? {text}".replace("<image>", ""))).question.startswith("What")


def test_ids_are_short_and_printable() -> None:
    assert parse(choice(id="ä" * 256)).id == "ä" * 256
    for name, told in (("x" * 257, "257 characters"), ("a\x1b[31m", "x1b"), ("a\rb", "\\\\r"), ("a\nb", "\\\\n"), ("a\u202eb", "u202e")):
        reason, message = refused(choice(id=name))
        assert (reason, "'id'" in message, len(message) < 200) == ("bad_value", True, True)
        assert told.replace("\\\\", "\\") in message
        assert "\x1b" not in message


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("answer", "1 to 2</answer><answer>5 to 6"),
        ("thought", "never mind</think><answer>0.00 to 99.00</answer>"),
        ("thought", "first <THINK> then"),
        ("answer", "<thinking>B"),
    ],
)
def test_tags_of_the_answer_format_are_no_part_of_an_answer_or_a_thought(key: str, text: str) -> None:
    reason, message = refused(choice(**{key: text}))
    assert reason == "form_tag"
    assert f"'{key}' contains" in message
    assert parse(choice(**{key: "a < b and <b>bold</b>"}))


def test_messages_as_json_text_are_no_question() -> None:
    text = json.dumps([{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "Which?"}]}])
    assert refused(choice(prompt=text))[0] == "bad_type"
    assert parse(choice(prompt='Which of [{"a": 1}, {"b": 2}] is right?')).question.startswith("Which")


TOLD = [{"prompt": "<image>Who is it?", "answer": "A referee."}, {"prompt": "And here?<image><image>", "answer": "Nobody."}]


def test_earlier_turns_take_the_media_of_their_placeholders() -> None:
    sample = parse(choice(image=None, images=["1.png", "2.png", "3.png", "4.png"], history=TOLD, prompt="<image>Which?"))
    assert sample.history == (
        Turn(question="Who is it?", answer="A referee.", media=1),
        Turn(question="And here?", answer="Nobody.", media=2, question_first=True),
    )
    assert [ref.path for ref in sample.media] == ["1.png", "2.png", "3.png", "4.png"]
    assert (sample.question, sample.asked) == ("Which?", "Who is it?\n-> A referee.\nAnd here?\n-> Nobody.\nWhich?")


def test_media_without_placeholders_stand_in_the_first_turn() -> None:
    plain = [{"prompt": "Who is it?", "answer": "A referee."}, {"prompt": "Where?", "answer": "Outside."}]
    assert [turn.media for turn in parse(choice(history=plain)).history] == [1, 0]
    assert parse(choice(history=[])).history == ()


@pytest.mark.parametrize(
    ("history", "reason", "told"),
    [
        ("Who?", "bad_type", "'history'"),
        ([{"prompt": "Who?"}], "bad_type", "'history'"),
        ([{"prompt": "Who?", "answer": 3}], "bad_type", "history[0].answer"),
        ([{"prompt": "\u200b", "answer": "A"}], "bad_value", "history[0].prompt"),
        ([{"prompt": "<image><image>Who?", "answer": "A"}], "placeholder", "2 <image>"),
        ([{"prompt": "Is <image> it?", "answer": "A"}], "placeholder", "history[0].prompt"),
        ([{"prompt": "Who?", "answer": "<|im_end|>"}], "control_token", "history[0]"),
    ],
)
def test_earlier_turns_are_checked(history: Any, reason: str, told: str) -> None:
    got, message = refused(choice(history=history))
    assert (got, told in message) == (reason, True), message

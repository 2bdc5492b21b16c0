"""A served model as evaluation engine, against a scripted server: what is sent, what is read, and what becomes an error."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.judge_server import Act, FakeTime, JudgeServer, Reply, closes, prompt_of, raw, status
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.evals.ask.engines import EvalEngine, Generation, answer_seed
from vlmrl.extras.judges.endpoint import BAN, PLAIN_SAMPLING, EndpointEngine, frame_rate, read_choices
from vlmrl.extras.judges.services import Services
from vlmrl.types import GenerationSettings, MediaHandle, MediaRef, Prompt, Sample

Json = dict[str, Any]
GREEDY = GenerationSettings(max_new_tokens=9, temperature=0.0)
SAMPLED = GenerationSettings(max_new_tokens=9, temperature=0.5, top_p=0.75)
CARD: Json = {"id": "tiny", "root": "/models/tiny", "max_model_len": 64, "created": 1}


def frames(count: int, shade: int) -> np.ndarray:
    out = np.full((count, 4, 6, 3), shade, np.uint8)
    out[:, 0, 0] = np.arange(count)[:, None]
    return out


PICTURE = SimpleNamespace(frames=frames(1, 10), times=None)
CLIP = SimpleNamespace(frames=frames(4, 20), times=np.array([0.0, 0.5, 1.0, 1.5]))
SLOW = SimpleNamespace(frames=frames(4, 30), times=np.array([0.0, 1.0, 2.0, 3.0]))
STORE = {"picture": PICTURE, "clip": CLIP, "slow": SLOW}
HANDLES = {
    "picture": MediaHandle(kind="image", key="picture", grid_thw=(1, 2, 2), tokens=1),
    "clip": MediaHandle(kind="video", key="clip", grid_thw=(2, 2, 2), tokens=2, seconds_per_grid=1.0),
    "slow": MediaHandle(kind="video", key="slow", grid_thw=(2, 2, 2), tokens=2, seconds_per_grid=2.0),
}


class Store:
    def get_key(self, key: str) -> Any:
        return STORE[key]


def prompt(name: str = "row", *media: str, tokens: int = 12, question_first: bool = False) -> Prompt:
    sample = Sample(
        id=name,
        task="t",
        answer_type="number",
        question="How many?",
        media=tuple(MediaRef(kind=HANDLES[key].kind, path=key) for key in media),
        answer="2",
        gt={"number": 2},
        question_first=question_first,
        source="rows.jsonl:3",
    )
    return Prompt(sample=sample, ids=(1,) * tokens, media=tuple(HANDLES[key] for key in media), spans=(), answer_format="answer_only")


def completion(*texts: str, prompt_tokens: int = 12, token_ids: bool = True, **more: Any) -> Json:
    """A chat completion in which an answer has as many tokens as letters."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more} for i, text in enumerate(texts)
    ]
    if token_ids:
        for choice, text in zip(choices, texts, strict=True):
            choice["token_ids"] = [7] * len(text)
    return {"choices": choices, "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": sum(map(len, texts))}}


def answers(make: Callable[[Json], Json]) -> Act:
    """A server with the model `tiny`: its card for GET, `make` of a request for POST; the canary is answered."""

    def act(body: Json) -> Reply:
        if not body:
            return Reply(body=json.dumps({"object": "list", "data": [{"id": "other"}, CARD]}).encode())
        value = completion("OK") if prompt_of(body) == "Say OK." else make(body)
        return Reply(body=json.dumps(value).encode())

    return act


@contextmanager
def engine(
    act: Act, script: tuple[Act, ...] = (), *, environ: dict[str, str] | None = None, clock: FakeTime | None = None, **options: Any
) -> Iterator[Any]:
    """(engine, server)."""
    endpoint = {"concurrency": 2, "timeout": 5.0, "max_wait": 60.0, **options.pop("endpoint", {})}
    with JudgeServer(script, otherwise=act) as server:
        services = Services(timing=(clock or FakeTime()).timing(), environ=environ or {})
        made = EndpointEngine(
            {"url": server.url, "model": "tiny", **endpoint}, media=Store(), services=services, **{"label": "seed 0", **options}
        )
        try:
            yield made, server
        finally:
            services.close()


def posts(server: JudgeServer) -> list[Json]:
    return [body for body, _, path in server.requests if path == "/v1/chat/completions"]


def test_the_task_s_words_are_sent():
    words = "{{ question }} Say {{ ask }}."
    with engine(answers(lambda body: completion("two")), prompt=words) as (made, server):
        made.generate([prompt("row", "picture")], SAMPLED, samples=1, seed=3)
        (body,) = posts(server)
    assert body["messages"][0]["content"][1] == {"type": "text", "text": "How many? Say one number."}


def decoded(png: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png, validate=True))))


def test_image_goes_as_lossless_png_and_the_rest_is_as_asked():
    with engine(answers(lambda body: completion("two")), forbidden_ids=(9, 4, 9)) as (made, server):
        typed: EvalEngine = made
        assert typed.generate([prompt("row", "picture")], SAMPLED, samples=1, seed=3) == [[Generation(text="two", n_out=3, finish="stop")]]
        (body,) = posts(server)
    image, text = body["messages"][0]["content"]
    head, _, data = image["image_url"]["url"].partition(",")
    assert (image["type"], head) == ("image_url", "data:image/png;base64")
    np.testing.assert_array_equal(decoded(data), PICTURE.frames[0])
    assert text == {"type": "text", "text": "How many? Give one number in <answer></answer>."}
    assert body["messages"][0]["role"] == "user"
    del body["messages"]
    assert body == {
        "model": "tiny",
        "n": 1,
        "seed": answer_seed(3, "row", 0) >> 10,
        "temperature": 0.5,
        "top_p": 0.75,
        "max_tokens": 9,
        "logit_bias": {"4": BAN, "9": BAN},
        "mm_processor_kwargs": {"min_pixels": 1, "max_pixels": 2**31},
        **PLAIN_SAMPLING,
    }
    assert body["repetition_penalty"] == 1.0  # a checkpoint's own would be the default otherwise
    assert body["seed"] < 2**53


def test_video_frames_go_one_after_the_other_with_their_rate():
    with engine(answers(lambda body: completion("two"))) as (made, server):
        made.generate([prompt("row", "clip", "picture", question_first=True)], GREEDY, samples=1, seed=0)
        (body,) = posts(server)
    question, video, image, instruction = body["messages"][0]["content"]
    assert (question["text"], instruction["text"]) == ("How many?", "Give one number in <answer></answer>.")
    head, *pictures = video["video_url"]["url"].split(",")
    assert head == "data:video/jpeg;base64"
    np.testing.assert_array_equal(np.stack([decoded(p) for p in pictures]), CLIP.frames)
    assert image["type"] == "image_url"
    assert body["media_io_kwargs"] == {"video": {"num_frames": -1, "fps": 2.0}}


def test_text_alone_has_no_media_arguments():
    with engine(answers(lambda body: completion("two"))) as (made, server):
        made.generate([prompt()], GREEDY, samples=1, seed=0)
        (body,) = posts(server)
    assert [part["type"] for part in body["messages"][0]["content"]] == ["text"]
    assert not {"mm_processor_kwargs", "media_io_kwargs", "logit_bias", "return_token_ids"} & set(body)


def test_frame_rate_of_times_as_text_gives_every_frame_its_own():
    handle = dataclasses.replace(HANDLES["clip"], seconds_per_grid=None, step_times=(0.25, 1.3))
    rate = frame_rate(handle, np.array([0.0, 0.5, 1.1, 1.5]))
    assert rate == {"num_frames": -1, "fps": 1_000_000, "frames_indices": [0, 500_000, 1_100_000, 1_500_000], "total_num_frames": 1_500_001}
    with pytest.raises(ValueError, match="neither step times"):
        frame_rate(dataclasses.replace(handle, step_times=None), np.zeros(4))


def test_videos_with_other_times_do_not_go_into_one_request():
    with engine(answers(lambda body: completion("two"))) as (made, server):
        made.generate([prompt("same", "clip", "clip")], GREEDY, samples=1, seed=0)
        with pytest.raises(ConfigError, match=r"row 'mixed' \(rows\.jsonl:3\): its videos have frames at different times"):
            made.generate([prompt("mixed", "clip", "slow")], GREEDY, samples=1, seed=0)
        assert len(posts(server)) == 1


@pytest.mark.parametrize("options", [{"dialect": "openai"}, {"media_arguments": False}])
def test_without_media_arguments_images_go_and_videos_do_not(options: Json):
    with engine(answers(lambda body: completion("two")), **options) as (made, server):
        made.generate([prompt("row", "picture")], SAMPLED, samples=1, seed=0)
        with pytest.raises(ConfigError, match=r"row 'film'.*needs its frame rate"):
            made.generate([prompt("film", "clip")], SAMPLED, samples=1, seed=0)
        (body,) = posts(server)
    assert not {"mm_processor_kwargs", "media_io_kwargs"} & set(body)
    known = {"model", "messages", "n", "seed", "temperature", "top_p", "max_tokens"}
    assert (set(body) == known) == ("dialect" in options)


def test_several_answers_in_one_request_come_back_by_index():
    def reply(body: Json) -> Json:
        value = completion(*("abc"[: k + 1] for k in range(body["n"])))
        value["choices"].reverse()
        value["choices"][0]["finish_reason"] = "length"
        return value

    with engine(answers(reply)) as (made, server):
        out = made.generate([prompt("x"), prompt("y")], SAMPLED, samples=3, seed=0)
        bodies = posts(server)
    assert (
        out
        == [
            [
                Generation(text="a", n_out=1, finish="stop"),
                Generation(text="ab", n_out=2, finish="stop"),
                Generation(text="abc", n_out=3, finish="length"),
            ]
        ]
        * 2
    )
    assert [body["n"] for body in bodies] == [3, 3]
    assert all(body["return_token_ids"] is True for body in bodies)
    assert {body["seed"] for body in bodies} == {answer_seed(0, name, 0) >> 10 for name in "xy"}


def test_fewer_answers_per_request_have_seeds_of_their_own():
    def reply(body: Json) -> Json:
        return completion(*(f"{body['seed']}+{i}" for i in range(body["n"])), token_ids=body["n"] > 1)

    seeds = [answer_seed(8, "row", k) >> 10 for k in range(3)]
    with engine(answers(reply), per_request=2) as (made, _):
        (pairs,) = made.generate([prompt()], SAMPLED, samples=3, seed=8)
    with engine(answers(reply), per_request=1) as (made, _):
        (singles,) = made.generate([prompt()], SAMPLED, samples=3, seed=8)
    assert [one.text for one in pairs] == [f"{seeds[0]}+0", f"{seeds[0]}+1", f"{seeds[2]}+0"]
    assert [one.text for one in singles] == [f"{seed}+0" for seed in seeds]
    assert [one.n_out for one in singles] == [len(one.text) for one in singles]


def test_greedy_is_asked_once():
    with engine(answers(lambda body: completion("two", token_ids=False))) as (made, server):
        out = made.generate([prompt()], GREEDY, samples=4, seed=0)
        assert [body["n"] for body in posts(server)] == [1]
    assert out == [[Generation(text="two", n_out=3, finish="stop")] * 4]


@pytest.mark.parametrize("seen", [11, 13, None])
def test_another_number_of_prompt_tokens_is_an_error(seen: int | None):
    def reply(_: Json) -> Json:
        return completion("two", prompt_tokens=seen)  # type: ignore[arg-type]

    message = rf"row 'row' .*counts {seen} prompt tokens, we count 12, 1 of them for media.*other pixels"
    with engine(answers(reply)) as (made, _), pytest.raises(ConfigError, match=message):
        made.generate([prompt("row", "picture")], GREEDY, samples=1, seed=0)
    with engine(answers(reply), check_tokens=False) as (made, _):
        assert made.generate([prompt("row", "picture")], GREEDY, samples=1, seed=0)[0][0].text == "two"


def test_a_refused_prompt_names_its_row_and_is_no_answer():
    with (
        engine(status(400, body=b'{"error": "too many tokens"}')) as (made, server),
        pytest.raises(RemoteError, match=r"row 'row' \(rows\.jsonl:3\).*http_400.*too many tokens"),
    ):
        made.generate([prompt()], GREEDY, samples=1, seed=0)
    assert len(posts(server)) == 1


def test_what_may_pass_is_asked_again():
    with engine(answers(lambda body: completion("two")), (status(500), closes(), status(429, {"Retry-After": "3"}))) as (made, server):
        assert made.generate([prompt()], GREEDY, samples=1, seed=0)[0][0].text == "two"
        assert len(posts(server)) == 4


def test_a_server_that_stays_down_ends_the_evaluation():
    with engine(status(503)) as (made, _), pytest.raises(RemoteError, match=r"the served model 'tiny' at .* has not answered for"):
        made.generate([prompt()], GREEDY, samples=1, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"finish_reason": "content_filter"}, "finish_reason 'content_filter'"),
        ({"finish_reason": None}, "finish_reason None"),
        ({"message": {"content": None}}, "no text"),
        ({"message": None}, "no text"),
        ({"message": {"content": "x", "reasoning": "hm"}}, "without reasoning"),
        ({"message": {"content": "x", "reasoning_content": "hm"}}, "without reasoning"),
        ({"message": {"content": "x", "tool_calls": [{}]}}, "tool parsers"),
        ({"index": 1}, r"indices \[1\]"),
    ],
)
def test_half_an_answer_is_an_error(change: Json, message: str):
    reply = completion("two")
    reply["choices"][0].update(change)
    with engine(answers(lambda _: reply)) as (made, _), pytest.raises(RemoteError, match=rf"(?s)row 'row'.*{message}"):
        made.generate([prompt()], GREEDY, samples=1, seed=0)


def test_tokens_that_cannot_be_counted_are_an_error():
    with engine(answers(lambda _: completion("a", "b", token_ids=False))) as (made, _), pytest.raises(RemoteError, match="per_request=1"):
        made.generate([prompt()], SAMPLED, samples=2, seed=0)
    reply = completion("a")
    del reply["usage"]
    with engine(answers(lambda _: reply)) as (made, _), pytest.raises(RemoteError, match="no 'usage'"):
        made.generate([prompt()], SAMPLED, samples=1, seed=0)


@given(st.permutations(range(4)), st.integers(0, 5))
def test_choices_are_read_by_index_or_not_at_all(order: list[int], drop: int):
    reply = completion("w", "xx", "yyy", "")
    reply["choices"] = [reply["choices"][i] for i in order][: 4 - max(0, drop - 3)]
    if drop <= 3:
        assert [(g.text, g.n_out) for g in read_choices(reply, 4, where="s")] == [("w", 1), ("xx", 2), ("yyy", 3), ("", 0)]
    else:
        with pytest.raises(RemoteError, match="asked for 4 answers"):
            read_choices(reply, 4, where="s")


@pytest.mark.parametrize("choices", [None, [], "x", [None], [{"index": 0}, {"index": 0}]])
def test_no_choices(choices: Any):
    with pytest.raises(RemoteError, match="asked for 1 answers"):
        read_choices({"choices": choices, "usage": {}}, 1, where="s")


def test_fingerprint_is_of_what_the_server_says_and_of_the_label():
    def of(card: Json, **options: Any) -> str:
        listed = raw(json.dumps({"data": [card]}).encode())
        with engine(listed, **options) as (made, server):
            assert made.fingerprint == made.fingerprint
            assert [path for _, _, path in server.requests] == ["/v1/models"]
            return made.fingerprint

    plain = of(CARD)
    assert len(plain) == 32
    assert of({**CARD, "created": 2}) == plain  # the time of its start is not the model
    changed = [of({**CARD, "root": "/b"}), of({**CARD, "max_model_len": 65}), of(CARD, label="b"), of(CARD, forbidden_ids=(3,))]
    assert len({plain, *changed}) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>", "the reply is not JSON"),
        (b"[1]", "the reply is a JSON list"),
        (b"{}", "not a list of models"),
        (b'{"data": 1}', "not a list of models"),
        (b'{"data": [{}]}', "not a list of models"),
        (b'{"data": []}', "no model 'tiny'"),
    ],
)
def test_card_of_something_else(data: bytes, message: str):
    with engine(raw(data)) as (made, _), pytest.raises(RemoteError, match=f"/v1/models: .*{message}"):
        _ = made.fingerprint


def test_fingerprint_of_a_server_that_is_not_there():
    with engine(status(404)) as (made, _), pytest.raises(RemoteError, match=r"/v1/models: HTTP 404.*check endpoint\.url"):
        _ = made.fingerprint
    with pytest.raises(RemoteError, match="start the server"):
        _ = made.fingerprint
    with engine(raw(b" " * (2**20 + 1))) as (made, _), pytest.raises(RemoteError, match="more than 1048576 bytes"):
        _ = made.fingerprint


@pytest.mark.parametrize(("pieces", "late"), [(3, False), (60, True)])
def test_the_card_has_one_deadline_for_all_of_it(pieces: int, late: bool):
    """A server that sends a piece now and then: no single wait is long, and all together are."""
    clock = FakeTime()

    class Ticking(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clock.sleep(1.0)
            time.sleep(0.002)  # so that two pieces are not taken in by one read
            return True

    listed = json.dumps({"object": "list", "data": [CARD]}).encode()
    with engine(lambda _: Reply(body=listed, chunks=pieces, gate=Ticking()), clock=clock) as (made, _):
        if late:
            with pytest.raises(RemoteError, match=r"/v1/models: no whole reply within 5 s"):
                _ = made.fingerprint
        else:
            assert len(made.fingerprint) == 32


def test_the_key_goes_with_every_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EVAL_KEY", " s3cret ")
    environ = {"EVAL_KEY": " s3cret "}
    with engine(answers(lambda body: completion("two")), environ=environ, endpoint={"key_env": "EVAL_KEY"}) as (made, server):
        _ = made.fingerprint
        made.generate([prompt()], GREEDY, samples=1, seed=0)
        assert [headers["Authorization"] for _, headers, _ in server.requests] == ["Bearer s3cret"] * 2
    with pytest.raises(ConfigError, match="EVAL_KEY is not set"), engine(status(500), endpoint={"key_env": "EVAL_KEY"}):
        pass


def test_wrong_use():
    with pytest.raises(ConfigError, match="label"), engine(status(500), label=" "):
        pass
    with pytest.raises(ValueError, match="per_request"), engine(status(500), per_request=0):
        pass
    with pytest.raises(ConfigError, match="http to another machine"), engine(status(500), endpoint={"url": "http://example.org/v1"}):
        pass
    with engine(status(500)) as (made, server):
        with pytest.raises(ValueError, match="samples"):
            made.generate([prompt()], SAMPLED, samples=0, seed=0)
        assert made.generate([], SAMPLED, samples=1, seed=0) == []
        assert server.requests == []

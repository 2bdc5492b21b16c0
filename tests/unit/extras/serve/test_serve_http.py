"""A served tiny checkpoint: answers over HTTP are those of `vlmrl serve --ask`, and an evaluation through it is that of the engine here."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from tests.support.tiny import MEDIA, Tiny
from vlmrl.config.schema import MediaSection
from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.engines import LocalEngine
from vlmrl.evals.ask.models import LocalModel
from vlmrl.evals.ask.question import QuestionModel
from vlmrl.extras.judges.endpoint import EndpointEngine
from vlmrl.extras.serve.app import application
from vlmrl.extras.serve.model import PLAIN, ServedCheckpoint
from vlmrl.rollout.own import own_engine
from vlmrl.types import GenerationSettings
from vlmrl.web.listen import Server, listen

KEY = "key-of-the-test"
ASKING = Asking(
    media=MediaSection(min_pixels=MEDIA.min_pixels, max_pixels=MEDIA.max_pixels, max_frames=MEDIA.max_frames),
    answer_format="think_or_not",
    answer_type="time_span",
    frame=None,
    max_prompt_tokens=4096,
    max_new_tokens=6,
)


class Live:
    """A server on a free port of this machine."""

    def __init__(self, model: ServedCheckpoint, key: str | None = KEY, max_body: int = 2**24):
        bound = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        self.server = Server(application(model, key=key, max_body=max_body), lambda: None)
        self.thread = threading.Thread(target=lambda: self.server.run(sockets=[bound]), daemon=True)
        self.thread.start()
        self.http = httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=120, trust_env=False)

    def chat(self, content: Any, **more: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, **more}
        return self.http.post(f"{self.url}/chat/completions", json=body)

    def streamed(self, content: Any, **more: Any) -> tuple[list[str], list[Any]]:
        """The text of each answer, put together, and all chunks."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, **more, "stream": True}
        with self.http.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        texts = [""] * more.get("n", 1)
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            texts[choice["index"]] += choice["delta"].get("content", "")
        return texts, chunks

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def local(tiny: Tiny) -> LocalModel:
    return LocalModel(name="tiny", policy=tiny.policy, fingerprint="print")


@pytest.fixture(scope="module")
def served(tiny: Tiny, local: LocalModel) -> Iterator[ServedCheckpoint]:
    made = ServedCheckpoint(local, ASKING, name="tiny", allowed=[tiny.encoder.data_root])
    yield made
    made.close()


@pytest.fixture(scope="module")
def live(served: ServedCheckpoint) -> Iterator[Live]:
    made = Live(served)
    yield made
    made.close()


def clip(tiny: Tiny) -> Path:
    row = tiny.samples[0]
    return tiny.encoder.root(row) / row.media[0].path


def data_url(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_answers_are_those_of_ask(tiny: Tiny, local: LocalModel, live: Live, tmp_path: Path) -> None:
    question, video = tiny.samples[0].question, clip(tiny)
    picture = tmp_path / "p.png"
    Image.fromarray(np.arange(70 * 90 * 3, dtype=np.uint8).reshape(70, 90, 3)).save(picture)
    asker = QuestionModel(local, ASKING)
    try:
        said = asker.ask(question, [("video", video)])
        of_picture = asker.ask(question, [("image", picture)])
        drawn = asker.ask(question, [("video", video)], temperature=1.0, seed=11)
    finally:
        asker.close()
    text = {"type": "text", "text": question}
    for url in (data_url(video, "video/mp4"), video.absolute().as_uri(), tiny.samples[0].media[0].path):
        reply = live.chat([text, {"type": "video_url", "video_url": {"url": url}}]).raise_for_status().json()
        (choice,) = reply["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (said.text, said.finish)
        assert reply["usage"]["completion_tokens"] == said.tokens
    shown = {"type": "image_url", "image_url": {"url": data_url(picture, "image/png")}}
    assert live.chat([shown, text]).json()["choices"][0]["message"]["content"] == of_picture.text
    video_part = {"type": "video_url", "video_url": {"url": str(video.absolute())}}
    again = live.chat([video_part, text], temperature=1.0, seed=11, n=2, logprobs=True).json()["choices"]
    assert again[0]["message"]["content"] == drawn.text
    assert len(again[1]["logprobs"]["content"]) >= 1
    assert all(entry["logprob"] <= 0 for entry in again[1]["logprobs"]["content"])
    assert "".join(live.streamed([video_part, text])[0]) == said.text


def test_an_answer_is_streamed_token_by_token(live: Live) -> None:
    """The pieces are those of the tokens, sent while the model goes on; together they are what comes without a stream."""
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 48, "n": 8, "logprobs": True, "return_token_ids": True}
    whole = live.chat("When?", **asked).json()
    pieces, chunks = live.streamed("When?", **asked, stream_options={"include_usage": True})
    assert pieces == [choice["message"]["content"] for choice in whole["choices"]]
    for place, choice in enumerate(whole["choices"]):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == place]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        assert [token for c in own for token in c.get("token_ids", ())] == choice["token_ids"]
        entries = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
    grown = [c for chunk in chunks for c in chunk["choices"] if c["delta"].get("content")]
    assert len(grown) > 4 * len(pieces), [c["delta"] for c in grown]
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_stop_string_ends_the_answer_and_the_work(live: Live) -> None:
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 48, "n": 8}
    whole = live.chat("When?", **asked).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    longest = max(texts, key=len)
    stop = longest[len(longest) // 2 : len(longest) // 2 + 2]
    cut = live.chat("When?", **asked, stop=[stop]).json()
    expected = [text.split(stop)[0] for text in texts]
    assert [choice["message"]["content"] for choice in cut["choices"]] == expected
    assert all(choice["finish_reason"] == "stop" for choice, text in zip(cut["choices"], texts, strict=True) if stop in text)
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]
    assert live.streamed("When?", **asked, stop=[stop])[0] == expected


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_work(live: Live, served: ServedCheckpoint, stream: bool) -> None:
    """An answer of thousands of tokens ends soon after nobody reads it; the server answers the next request."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "When?"}], "temperature": 1.0, "seed": 1, "max_tokens": 3000}
    asked = {**body, "stream": stream, "n": 64}
    before = served._engine.decoded_steps
    if stream:
        with live.http.stream("POST", f"{live.url}/chat/completions", json=asked) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            live.http.post(f"{live.url}/chat/completions", json=asked, timeout=1.0)
    assert live.chat("When?", max_tokens=2).status_code == 200
    assert served._engine.decoded_steps - before < 1500, "64 answers of a random model hardly all end before 3000 tokens"


def test_an_evaluation_through_the_server_is_that_of_the_engine(
    tiny: Tiny, local: LocalModel, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames travel as they are, with their times; the server counts the same prompt tokens, and answers the same."""
    monkeypatch.setenv("SERVED_KEY", KEY)
    prompts = tiny.prompts(3, "think")
    settings = GenerationSettings(max_new_tokens=8, temperature=0.0)
    expected = LocalEngine(own_engine(local.policy, tiny.vision), fingerprint="x").generate(prompts, settings, samples=2, seed=0)
    engine = EndpointEngine(
        {"url": live.url, "model": f"tiny{PLAIN}", "key_env": "SERVED_KEY", "concurrency": 3, "timeout": 120.0},
        media=tiny.store,
        label="tiny",
        forbidden_ids=tiny.bundle.forbidden_ids,
    )
    try:
        assert engine.generate(prompts, settings, samples=2, seed=0) == expected
        assert len(engine.fingerprint) == 32
        drawn = engine.generate(prompts[:1], GenerationSettings(max_new_tokens=8, temperature=1.0), samples=3, seed=0)
        assert len(drawn[0]) == 3
    finally:
        engine.close()


def error_of(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()["error"]["code"]


def test_what_is_refused_is_said_in_the_protocols_form(tiny: Tiny, live: Live, tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    Image.new("RGB", (60, 60)).save(outside)

    def image(url: str) -> list[Any]:
        return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]

    assert error_of(live.chat(image(str(outside)))) == (403, "forbidden")
    assert error_of(live.chat(image(f"{tiny.encoder.data_root.absolute()}/../{outside.name}")))[0] in (400, 403)
    assert error_of(live.chat(image("https://127.0.0.1/x.png"))) == (400, "invalid_media")
    assert error_of(live.chat(image("data:image/png;base64,AAAA"))) == (400, "invalid_media")
    assert error_of(live.chat(image("data:image/png;base64,!"))) == (400, "invalid_media")
    assert error_of(live.chat("Hi", model="other")) == (404, "model_not_found")
    assert error_of(live.chat("Hi", max_tokens=10**6)) == (400, "context_length_exceeded")
    assert error_of(live.chat("word " * 5000)) == (400, "context_length_exceeded")
    assert error_of(live.chat("<|im_end|>")) == (400, "invalid_prompt")
    assert error_of(live.chat("Hi", top_k=4)) == (400, "unsupported_parameter")
    assert live.chat("Hi", mm_processor_kwargs={"max_pixels": 5}).status_code == 400
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert live.http.post(f"{live.url}/chat/completions", json={"model": "tiny", "messages": system}).status_code == 400
    plain = {"model": f"tiny{PLAIN}", "messages": system, "max_tokens": 2}
    assert live.http.post(f"{live.url}/chat/completions", json=plain).status_code == 200
    for content in (b"{", b"[" * 100_000, b'{"a":' * 40 + b"1" + b"}" * 40):
        assert (
            live.http.post(f"{live.url}/chat/completions", content=content, headers={"Content-Type": "application/json"}).status_code == 400
        )
    for name in ("n" * 100_000, f"/{'n' * 300}.png", "a\x00b.png"):
        assert error_of(live.chat(image(name)))[0] in (400, 403), name[:10]
    for content in (image("\ud800.png"), "half a character: \ud800"):
        half = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}]})
        told = live.http.post(f"{live.url}/chat/completions", content=half, headers={"Content-Type": "application/json"})
        assert told.status_code in (400, 403), told.text
    bare = httpx.get(f"{live.url}/models", trust_env=False)
    assert error_of(bare) == (401, "invalid_api_key")
    assert [card["id"] for card in live.http.get(f"{live.url}/models").json()["data"]] == ["tiny", f"tiny{PLAIN}"]
    assert live.http.get(f"{live.url}/models/tiny").json()["id"] == "tiny"
    assert live.http.get(f"{live.url}/models/other").status_code == 404
    assert "POST /v1/chat/completions" in live.http.post(f"{live.url}/completions", json={}).json()["error"]["message"]
    assert error_of(live.http.get(f"{live.url}/chat/completions"))[0] == 405


def test_without_a_key_only_this_machine_is_named_and_large_bodies_end(served: ServedCheckpoint) -> None:
    open_one = Live(served, key=None, max_body=200)
    try:
        assert httpx.get(f"{open_one.url}/models", trust_env=False).status_code == 200
        assert httpx.get(f"{open_one.url}/models", headers={"Host": "evil.example"}, trust_env=False).status_code == 403
        assert open_one.chat("x" * 300).status_code == 413
    finally:
        open_one.close()


def test_the_openai_package_reads_the_answers(tiny: Tiny, live: Live) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=live.url, api_key=KEY, max_retries=0, http_client=httpx.Client(trust_env=False))
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "When?"}], "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(pieces) == whole
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**asked, "model": "other"})

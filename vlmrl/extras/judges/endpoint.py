"""`EndpointEngine` asks a model behind an OpenAI-compatible `chat/completions`.

The server gets the pixels that our own policy would see: the frames of the media store, already resized, as lossless PNG. An image goes
as `data:image/png`, a video as vLLM's `data:video/jpeg;base64,<frame>,<frame>,...`, which takes PNG frames too (each frame is opened by
its content; measured with vLLM 0.32), with the frames' rate beside it. Pixel limits that cut nothing keep the server from resizing
again; limits and rate are arguments that vLLM takes only when started with `--trust-request-mm-kwargs`. The server counts the prompt's
tokens: another number than ours is an error, for then it sees something else.

Requests go through `judges.client`: parallel, retried, with a breaker; no failure ever becomes an answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from vlmrl.data.encode import messages
from vlmrl.errors import ConfigError, RemoteError
from vlmrl.evals.ask.engines import WHOLE, EvalEngine, Generation, answer_seed, check_samples
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.records import REFERENCE
from vlmrl.extras.judges.material import encode_png
from vlmrl.extras.judges.services import Services
from vlmrl.extras.judges.transport import Failure
from vlmrl.media.store import MediaStore
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import FinishReason, GenerationSettings, MediaHandle, Prompt

Dialect = Literal["vllm", "openai"]
"""`openai`: fields of OpenAI's own API only, so no videos, and the server decides about sizes and sampling defaults."""

PATH = "chat/completions"
TICKS = 1_000_000
"""Frame numbers per second by which the times of single frames are sent: microseconds."""
BAN = -100.0
"""Bias of a token that must not be sampled: what the API has in place of minus infinity."""
PLAIN_SAMPLING: dict[str, Any] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "skip_special_tokens": True,
}
"""vLLM takes defaults from the checkpoint's `generation_config.json`; a repetition penalty there would be another distribution."""


class FrameSource(Protocol):
    """What this needs of `media.store.MediaStore`."""

    def get_key(self, key: str) -> Any:
        """Something with `frames` uint8 [T, h, w, 3] and `times` (float64 [T] in seconds, None for images)."""
        ...


class EndpointEngine:
    """An `engines.EvalEngine`. Close it when done.

    Answer k depends on the seed, the sample's id, k and `per_request`. With temperature 0 a prompt is asked once, and all its answers
    are that one.
    """

    def __init__(
        self,
        endpoint: Mapping[str, Any],
        *,
        media: FrameSource,
        label: str,
        prompt: str | None = None,
        dialect: Dialect = "vllm",
        media_arguments: bool = True,
        check_tokens: bool = True,
        forbidden_ids: Sequence[int] = (),
        per_request: int | None = None,
        services: Services | None = None,
    ):
        """
        Args:
            endpoint: as for judges (`judges.transport.Endpoint`): url up to and including `/v1`, model, key_env, concurrency, ...
                Its `cache`, `max_tokens` and `json_mode` are not looked at.
            media: the store that the prompts were encoded with.
            label: names the weights that the server holds, which nobody can see from here. Give other weights another label.
            prompt: the task's wording of its prompts (`data.wording`), as the prompts were encoded with.
            media_arguments: send pixel limits and frame rates (a vLLM server started with `--trust-request-mm-kwargs`). Without them
                the limits of the served processor must let our pixels pass, and videos are refused: their times would be wrong.
            check_tokens: compare the server's count of prompt tokens with ours.
            forbidden_ids: tokens that must not be sampled (`ProcessorBundle.forbidden_ids`, so that it answers as our engine does).
            per_request: answers asked for in one request; None: all of a prompt. More than one needs a server that returns the token
                ids of each answer (vLLM does), since the API counts the tokens of all answers together.
            services: whose clients and clock to use; its own by default.

        Raises:
            ConfigError: the endpoint is wrong, its key is not in the environment, or there is no label.
        """
        if not label.strip():
            raise ConfigError("evaluation of an endpoint needs a label that names the served weights")
        if per_request is not None and per_request < 1:
            raise ValueError(f"per_request must be at least 1, got {per_request}")
        self._services = Services() if services is None else services
        self._owned = services is None
        self._client = self._services.chat(endpoint).client
        self._client.breaker.name = f"the served model '{self._client.endpoint.model}' at {self._client.endpoint.url}"
        self._media = media
        self._label = label
        self._prompt = prompt
        self._dialect: Dialect = dialect
        self._media_arguments = media_arguments and dialect == "vllm"
        self._check_tokens = check_tokens
        self._bias = {str(token): BAN for token in sorted(set(forbidden_ids))}
        self._per_request = per_request
        self._fingerprint: str | None = None

    @property
    def engine_name(self) -> str:
        return REFERENCE

    @property
    def fingerprint(self) -> str:
        """Hash of what the server says of its model (`GET models`: id, root, max_model_len), of the label and of the fixed sampling
        fields; asked for once. It does not see the weights: a server restarted with others under the same name and path looks the same,
        which is what the label is for.

        Raises:
            RemoteError: the server does not answer, or does not have the model.
        """
        if self._fingerprint is None:
            card = self._card()
            seen = {name: card.get(name) for name in ("id", "root", "max_model_len")}
            whole = {"model": seen, "label": self._label, "dialect": self._dialect, "bias": self._bias}
            self._fingerprint = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]
        return self._fingerprint

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        """See `engines.EvalEngine`.

        Raises:
            RemoteError: the server stayed down, refused a prompt (too long, too many pictures), or answered with something else.
            ConfigError: it counts other prompt tokens than we do, or a prompt cannot be written in the dialect.
        """
        check_samples(samples)
        wanted = 1 if settings.temperature == 0 else samples
        size = min(wanted, self._per_request or wanted)
        jobs = [(i, k, min(size, wanted - k)) for i in range(len(prompts)) for k in range(0, wanted, size)]
        parts = self._client.map(lambda job: self._ask(prompts[job[0]], settings, first=job[1], count=job[2], seed=seed), jobs)
        out: list[list[Generation]] = [[] for _ in prompts]
        for (i, _, _), part in zip(jobs, parts, strict=True):
            out[i] += part
        return [answers * (samples // len(answers)) for answers in out]

    def close(self) -> None:
        """End connections and threads, unless they belong to `services`."""
        if self._owned:
            self._services.close()

    def body(self, prompt: Prompt, settings: GenerationSettings, *, count: int, seed: int) -> dict[str, Any]:
        """The request for `count` answers.

        Raises:
            ConfigError: see `generate`.
        """
        body: dict[str, Any] = {
            "model": self._client.endpoint.model,
            "messages": self._messages(prompt),
            "n": count,
            "seed": seed,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_new_tokens,
        }
        if self._bias:
            body["logit_bias"] = self._bias
        if self._dialect == "openai":
            return body
        body |= PLAIN_SAMPLING
        if count > 1:
            body["return_token_ids"] = True
        if prompt.media and self._media_arguments:
            body["mm_processor_kwargs"] = dict(WHOLE)
        rate = self._rate(prompt)
        if rate is not None:
            body["media_io_kwargs"] = {"video": rate}
        return body

    def _ask(self, prompt: Prompt, settings: GenerationSettings, *, first: int, count: int, seed: int) -> list[Generation]:
        name = prompt.sample.id
        number = answer_seed(seed, name, first) >> 10  # 53 bits: whole in every JSON reader, and vLLM adds the answer's index
        body = self.body(prompt, settings, count=count, seed=number)
        reply = self._client.send(PATH, body, name=f"{name}/{first}", canary=self._canary())
        if isinstance(reply, Failure):
            raise RemoteError(
                f"{_where(prompt)}: {self._client.breaker.name} gives no answer though it is up ({reply.reason}): {reply.detail}. Nothing "
                "was scored in its place. A prompt that is too long or has too many pictures needs other limits at the server; refused "
                "media arguments need --trust-request-mm-kwargs there, or media_arguments=False here"
            )
        usage = reply.get("usage")
        if not isinstance(usage, dict):
            raise RemoteError(f"{_where(prompt)}: the reply of {self._client.breaker.name} has no 'usage', so its tokens are not known")
        self._check_prompt(prompt, usage)
        return read_choices(reply, count, where=f"{_where(prompt)}: {self._client.breaker.name}")

    def _check_prompt(self, prompt: Prompt, usage: Mapping[str, Any]) -> None:
        seen = usage.get("prompt_tokens")
        if self._check_tokens and seen != len(prompt.ids):
            raise ConfigError(
                f"{_where(prompt)}: {self._client.breaker.name} counts {seen} prompt tokens, we count {len(prompt.ids)}, "
                f"{sum(handle.tokens for handle in prompt.media)} of them for media: its processor sees other pixels than we do, or its "
                "chat template differs. Serve the same checkpoint with the same processor, or pass check_tokens=False if that is meant"
            )

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """`data.encode.messages` with each placeholder replaced by its medium."""
        handles = iter(prompt.media)
        return [
            {**turn, "content": [part if part["type"] == "text" else self._part(prompt, next(handles)) for part in turn["content"]]}
            for turn in messages(prompt.sample, prompt.answer_format, self._prompt)
        ]

    def _part(self, prompt: Prompt, handle: MediaHandle) -> dict[str, Any]:
        frames = [base64.b64encode(encode_png(frame)).decode() for frame in np.asarray(self._media.get_key(handle.key).frames)]
        if handle.kind == "image":
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{frames[0]}"}}
        if not self._media_arguments:
            raise ConfigError(
                f"{_where(prompt)}: a video needs its frame rate beside it; use the dialect 'vllm' with media_arguments and start the "
                "server with --trust-request-mm-kwargs"
            )
        return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(frames)}"}}

    def _rate(self, prompt: Prompt) -> dict[str, Any] | None:
        """What the server is to know of the videos' times; one statement per request, so it must be true of all of them."""
        rates: list[dict[str, Any]] = []
        for handle in prompt.media:
            if handle.kind == "video":
                rates.append(frame_rate(handle, np.asarray(self._media.get_key(handle.key).times)))
        if any(rate != rates[0] for rate in rates):
            raise ConfigError(
                f"{_where(prompt)}: its videos have frames at different times, and a request can state those of one only; evaluate "
                "such rows with a local engine"
            )
        return rates[0] if rates else None

    def _canary(self) -> dict[str, Any]:
        return {"model": self._client.endpoint.model, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}

    def _card(self) -> Mapping[str, Any]:
        """What the server says of the model."""
        url = f"{self._client.endpoint.url.rstrip('/')}/models"
        reply = self._client.get("models")
        if isinstance(reply, Failure):
            raise RemoteError(f"{reply.detail}; start the server, then run the same command")
        return card_of(reply, self._client.endpoint.model, url)


@dataclass(kw_only=True)
class ServedModel:
    """A model behind an OpenAI-compatible endpoint (docs/serving.md). `endpoint` as for judges: url, model, key_env, concurrency."""

    name: str
    bundle: ProcessorBundle
    """Processor of the checkpoint that is served."""
    endpoint: Mapping[str, Any]
    check_tokens: bool = True
    _open: list[EndpointEngine] = field(default_factory=list)

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        engine = EndpointEngine(
            self.endpoint,
            media=store,
            label=self.name,
            prompt=task.prompt,
            check_tokens=self.check_tokens,
            forbidden_ids=self.bundle.forbidden_ids,
        )
        self._open.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._open:
            engine.close()


def frame_rate(handle: MediaHandle, times: np.ndarray) -> dict[str, Any]:
    """vLLM's `media_io_kwargs` of a video whose frames are shown at `times` (float64 [T], seconds).

    A model that reads times as text (`step_times`) gets each frame's own; for others only the spacing counts (M-RoPE).

    Raises:
        ValueError: a handle without any time.
    """
    if handle.step_times is not None:
        indices = [round(float(t) * TICKS) for t in times]
        return {"num_frames": -1, "fps": TICKS, "frames_indices": indices, "total_num_frames": max(indices[-1] + 1, len(indices))}
    if not handle.seconds_per_grid:
        raise ValueError(f"video {handle.key[:12]}: neither step times nor seconds per step; make prompts with `data.encode`")
    return {"num_frames": -1, "fps": len(times) / handle.grid_thw[0] / handle.seconds_per_grid}


def card_of(reply: Mapping[str, Any], model: str, url: str) -> Mapping[str, Any]:
    """The entry of `model` in the reply to `GET models`.

    Raises:
        RemoteError: the reply is not such a list, or does not have it.
    """
    try:
        cards = reply["data"]
        names = [card["id"] for card in cards]
    except (KeyError, TypeError) as error:
        raise RemoteError(f"{url}: not a list of models ({error!r}); is this an OpenAI-compatible server?") from error
    if model not in names:
        raise RemoteError(f"{url}: the server has no model '{model}'; it has: {', '.join(str(n) for n in names)[:200]}")
    return cards[names.index(model)]


def read_choices(reply: Mapping[str, Any], count: int, *, where: str) -> list[Generation]:
    """The `count` answers of a chat completion, by their index.

    Raises:
        RemoteError: there are fewer or more, or one of them is not a whole answer. Message begins with `where`.
    """
    choices = reply.get("choices")
    by_index = {choice.get("index"): choice for choice in choices if isinstance(choice, dict)} if isinstance(choices, list) else {}
    if set(by_index) != set(range(count)) or len(choices or ()) != count:
        raise RemoteError(f"{where} was asked for {count} answers and gave those with the indices {list(by_index)}")
    return [_generation(by_index[i], reply["usage"], count, f"{where}, answer {i}") for i in range(count)]


def _generation(choice: Mapping[str, Any], usage: Mapping[str, Any], count: int, where: str) -> Generation:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    if isinstance(message, dict) and (message.get("reasoning_content") or message.get("reasoning") or message.get("tool_calls")):
        raise RemoteError(f"{where}: the server took thoughts or tool calls out of the text; start it without reasoning and tool parsers")
    ids = choice.get("token_ids")
    n_out = usage.get("completion_tokens") if count == 1 else len(ids) if isinstance(ids, list) else None
    if not isinstance(n_out, int) or isinstance(n_out, bool) or n_out < 0:
        raise RemoteError(f"{where}: the server does not say how many tokens it has; ask for one answer per request (per_request=1)")
    if not isinstance(text, str):
        raise RemoteError(f"{where}: no text in the reply (finish_reason {choice.get('finish_reason')!r})")
    finishes: dict[Any, FinishReason] = {"stop": "stop", "length": "length"}
    finish = finishes.get(choice.get("finish_reason"))
    if finish is None:
        raise RemoteError(f"{where}: it ended with finish_reason {choice.get('finish_reason')!r}, which is neither 'stop' nor 'length'")
    return Generation(text=text, n_out=n_out, finish=finish)


def _where(prompt: Prompt) -> str:
    return f"row '{prompt.sample.id}' ({prompt.sample.source})"

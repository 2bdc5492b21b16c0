"""The served model: one thread generates, and requests that wait while it does are generated together."""

from __future__ import annotations

import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.engines import answer_seed
from vlmrl.evals.ask.models import LocalModel, open_store
from vlmrl.evals.ask.question import asked_task
from vlmrl.extras.serve.answering import Answering
from vlmrl.extras.serve.followed import followed_engine
from vlmrl.extras.serve.incoming import Incoming
from vlmrl.extras.serve.prompts import Prompts
from vlmrl.extras.serve.protocol import Chat, Refused
from vlmrl.policy.vision import VisionCache
from vlmrl.types import GenerationSettings, Prompt, Request

PLAIN = "-plain"
"""End of the name under which the messages are asked as they are."""
SEED_BITS = 53


@dataclass(frozen=True, kw_only=True)
class _Job:
    request: Request
    settings: GenerationSettings
    answering: Answering


class ServedCheckpoint:
    """Answers requests with a model of this process. Close it when done."""

    def __init__(self, model: LocalModel, asking: Asking, *, name: str, allowed: Sequence[Path] = (), max_prompt_tokens: int | None = None):
        """
        Args:
            asking: went through `asking.chosen`.
            name: of the model in requests; with `PLAIN` behind it, messages are asked as they are.
            allowed: folders whose files requests may name.
            max_prompt_tokens: of a prompt; None: as in training.
        """
        self.name, self._asking, self._model = name, asking, model
        self._allowed = [folder.absolute() for folder in allowed]
        task = asked_task(asking)
        self._store = open_store(task, model.bundle)
        vision = VisionCache(self._store, budget_bytes=task.media.cache_bytes)
        self._engine = followed_engine(model.policy, vision)
        self.context = int(model.policy.model.config.get_text_config().max_position_embeddings)
        most = min(max_prompt_tokens or asking.max_prompt_tokens, self.context - 1)
        self._prompts = Prompts(model.bundle, self._store, asking, max_prompt_tokens=most)
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._pool = ThreadPoolExecutor(1)
        self._one = threading.Lock()
        """Prompts are made one after the other: a tokenizer is not for several threads."""
        self._thread = threading.Thread(target=self._work, name="generate", daemon=True)
        self._thread.start()

    def cards(self) -> list[dict[str, Any]]:
        """What `GET models` lists."""
        root = f"{self.name}@{self._model.fingerprint}"
        made = int(time.time())
        return [
            {"id": name, "object": "model", "created": made, "owned_by": "vlmrl", "root": root, "max_model_len": self.context}
            for name in (self.name, self.name + PLAIN)
        ]

    def ask(self, chat: Chat) -> Answering:
        """Begin to answer a request; several threads may ask at once. What fails later is told to who follows the answer.

        Raises:
            Refused: it cannot be answered.
        """
        if chat.model not in (self.name, self.name + PLAIN):
            raise Refused(
                f"no model '{chat.model}'; there are: {self.name}, {self.name}{PLAIN}", status=404, param="model", code="model_not_found"
            )
        if extra := chat.banned - set(self._model.bundle.forbidden_ids):
            raise Refused(f"logit_bias: token {min(extra)} is sampled here; no bias can be given", param="logit_bias")
        with tempfile.TemporaryDirectory(prefix="vlmrl-serve-") as scratch:
            incoming = Incoming(self._store, Path(scratch), self._allowed, pixels=chat.pixels, rate=chat.rate)
            with self._one:
                prompt = (self._prompts.as_trained if chat.model == self.name else self._prompts.plain)(chat, incoming)
        return self._queued(chat, prompt)

    def _queued(self, chat: Chat, prompt: Prompt) -> Answering:
        wanted = self._asking.max_new_tokens if chat.max_tokens is None else chat.max_tokens
        room = self.context - len(prompt.ids)
        if chat.max_tokens is not None and wanted > room:
            raise Refused(
                f"max_tokens: {wanted} and the prompt's {len(prompt.ids)} are more than the model's {self.context}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        settings = GenerationSettings(max_new_tokens=min(wanted, room), temperature=chat.temperature, top_p=chat.top_p)
        seed = secrets.randbits(SEED_BITS) if chat.seed is None else chat.seed
        ks = (0,) if chat.temperature == 0 else tuple(range(chat.n))
        request = Request(prompt=prompt, ks=ks, seeds=tuple(answer_seed(seed, prompt.sample.id, k) for k in ks))
        answering = Answering(chat, len(prompt.ids), len(ks), self._model.bundle)
        self._jobs.put(_Job(request=request, settings=settings, answering=answering))
        return answering

    def _work(self) -> None:
        """Generate what waits, those of equal settings together, until None comes."""
        later: list[_Job] = []
        while True:
            first = later.pop(0) if later else self._jobs.get()
            if first is None:
                return
            waiting, ends = [first, *later], False
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    ends = True
                else:
                    waiting.append(job)
            if ends:
                self._jobs.put(None)
            waiting = [job for job in waiting if not job.answering.cancelled]
            later = [job for job in waiting if job.settings != waiting[0].settings]
            if waiting:
                self._answer([job for job in waiting if job.settings == waiting[0].settings])

    def _answer(self, together: Sequence[_Job]) -> None:
        """Generate for requests of equal settings. Whatever fails is told to those who wait, and the server goes on."""

        def look(number: int, place: int, token: int, logprob: float) -> bool:
            return together[number].answering.drawn(place, token, logprob)

        made = self._pool.submit(self._engine.followed, [job.request for job in together], together[0].settings, look)
        error = made.exception()
        for place, job in enumerate(together):
            if error is not None:
                job.answering.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                continue
            told = self._pool.submit(job.answering.finish, made.result()[place]).exception()
            if told is not None:
                job.answering.fail(told if isinstance(told, Exception) else RuntimeError(repr(told)))

    def close(self) -> None:
        """End the thread and the decoders."""
        self._jobs.put(None)
        self._thread.join()
        self._pool.shutdown()
        self._store.close()

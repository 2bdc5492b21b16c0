"""vLLM's engine behind its own server, as our routes ask it (`endpoint.Desk`)."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.argued import ServedInputs
from vlmrl.extras.vllm.inputs import Completion, Version, answer_of, engine_input_of, sampling_params
from vlmrl.extras.vllm.routes import UNSEEN, experts_of
from vlmrl.extras.vllm.scoring import ASK, ask_of
from vlmrl.extras.vllm.wire import GenerateRequest, RefusalError, ScoreRequest
from vlmrl.extras.vllm.worker import LoadReport

STILL = Version(policy=0, vision=0)
"""Of the weights that a teacher's server was started with."""
KILLED_AFTER = 30.0
"""Seconds in which an engine may end by itself once its server has gone."""


def end_with_server() -> None:
    """In an engine's process: end once the server's process has gone. vLLM's engine outlives a server that is killed, for ever and with all
    the memory of its device, so that no other one can be started there."""
    server = multiprocessing.parent_process()
    if server is None:
        return

    def watch() -> None:
        server.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(KILLED_AFTER)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-server", daemon=True).start()


@contextmanager
def _said() -> Iterator[None]:
    """What vLLM raises, as a refusal."""
    from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

    try:
        yield
    except EngineDeadError as error:
        raise RefusalError("ended", "the engine of this server has ended") from error
    except Exception as error:  # the engine lives, so it is of what was asked
        raise RefusalError("refused", f"{type(error).__name__}: {str(error)[:500]}") from error


class VllmAsync:
    """An `AsyncLLM` of one engine, with any number of workers. Whatever it cannot do is a `RefusalError`."""

    def __init__(self, client: Any, argued: ServedInputs | None = None):
        """
        Args:
            argued: makes inputs of media of a family that is run through its own processor.

        Raises:
            ConfigError: there are several engines, whose weights and answers nobody could tell apart.
        """
        self._client, self._argued = client, argued
        self._names = itertools.count()
        self._routed: list[int] | None = None
        """Layers whose routers are seen."""
        config = client.vllm_config
        if config.parallel_config.data_parallel_size != 1:
            raise ConfigError("--data-parallel-size: an address is one engine for a run; start a server for each, and name all of them")

    def facts(self) -> dict[str, Any]:
        """What it is."""
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

        config = self._client.vllm_config
        model = config.model_config
        return {
            "architecture": model.architectures[0],
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": model.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "ranks": config.parallel_config.world_size,
            "platform": str(current_platform.device_type),
            "processor": None if self._argued is None else self._argued.fingerprint,
            "routers": None if self._routed is None else len(self._routed),
        }

    @property
    def failed(self) -> bool:
        """Whether the engine has ended."""
        return bool(self._client.errored)

    def fail_with(self, code: int) -> None:
        """Have this process end with a code where the engine ends by itself. vLLM ends the server with 0 then, and whoever starts what has
        failed again would not."""
        shutdown = self._client.shutdown

        def ended() -> None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

        def first(*given: Any, **named: Any) -> Any:
            self._client.shutdown = shutdown
            if self.failed:  # before anybody has asked it to end
                atexit.register(ended)
            return shutdown(*given, **named)

        self._client.shutdown = first

    async def pulse(self) -> None:
        """Return once it gets on."""
        with _said():
            await self._client.collective_rpc("check_health")

    async def answers(self, ask: GenerateRequest, patches: Mapping[str, np.ndarray]) -> list[Completion]:
        """One for each seed; each is a request of its own, so its text does not depend on the others."""
        with _said():
            made = engine_input_of if self._argued is None else self._argued.engine_input
            given = await asyncio.to_thread(made, ask.placed, patches, ask.version)
        tasks = [asyncio.ensure_future(self._answer(given, ask, seed)) for seed in ask.seeds]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # of a group of which one was refused nobody asks for the others
                task.cancel()

    async def _answer(self, given: Any, ask: GenerateRequest, seed: int) -> Completion:
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

        parameters = sampling_params(ask.settings, seed, ends=ask.ends, forbidden=ask.forbidden)
        parameters.output_kind = RequestOutputKind.FINAL_ONLY
        with _said():
            name = f"vlmrl-{next(self._names)}"
            (last,) = [one async for one in self._client.generate(given, parameters, name)]
            if self._routed is None or not ask.settings.routes:
                return answer_of(last)
            found: list[Any] = []
            if last.outputs[0].routed_experts is None:
                found = await self._client.collective_rpc("vlmrl_experts", args=(name,))
            return replace(answer_of(last), experts=experts_of(last, found, self._routed))

    async def route(self) -> None:
        """Have answers bring the experts that routers take.

        Raises:
            ConfigError: they cannot be seen.
        """
        why, self._routed = (await self._client.collective_rpc("vlmrl_route"))[0]
        if why:
            raise ConfigError(UNSEEN.format(why))

    async def watch(self) -> None:
        """Have the workers score what requests ask.

        Raises:
            ConfigError: they cannot.
        """
        if self._client.vllm_config.parallel_config.pipeline_parallel_size != 1:
            raise ConfigError("--pipeline-parallel-size: a teacher's layers are in one place; share them by --tensor-parallel-size")
        whys = await self._client.collective_rpc("vlmrl_watch")
        if why := next(filter(None, whys), None):
            raise ConfigError(f"--teacher: vLLM cannot score here: {why}")

    async def scores(self, ask: ScoreRequest, ids: Sequence[np.ndarray], patches: Mapping[str, np.ndarray]) -> list[bytes]:
        """Log-probs of the ids of each answer, float32 [T, K]; equal answers are computed once."""
        model = self._client.vllm_config.model_config
        longest, largest = len(ask.placed.ids) + max(map(len, ids)), max(max(int(of.max()) for of in ids), *ask.forbidden, 0)
        if longest > model.max_model_len or largest >= model.get_vocab_size():
            raise RefusalError("refused", f"{longest} tokens or the id {largest}, and there is room for {model.max_model_len} tokens here")
        given = {(of.shape, of.tobytes()): of for of in ids}
        tasks = {key: asyncio.ensure_future(self._score(ask, of, patches)) for key, of in given.items()}
        try:
            await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
        return [tasks[of.shape, of.tobytes()].result() for of in ids]

    async def _score(self, ask: ScoreRequest, ids: np.ndarray, patches: Mapping[str, np.ndarray]) -> bytes:
        from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]

        # the last token of an answer predicts nothing that is asked for
        placed = replace(ask.placed, ids=(*ask.placed.ids, *ids[:-1, 0].tolist()))
        with _said():
            given = await asyncio.to_thread(engine_input_of, placed, patches, STILL)
        for past_cache in (False, True):
            name = f"vlmrl-{next(self._names)}"
            told = ask_of(name, len(ask.placed.ids) - 1, ids, temperature=ask.temperature, forbidden=ask.forbidden)
            parameters = SamplingParams(
                max_tokens=1, temperature=0.0, detokenize=False, extra_args={ASK: told}, skip_reading_prefix_cache=past_cache
            )
            with _said():
                try:
                    async for _ in self._client.generate(given, parameters, name):
                        pass
                finally:
                    found = await self._client.collective_rpc("vlmrl_scores", args=(name,))
            made = next((of for of in found if of is not None), None)
            if made is not None:
                return made
        raise RefusalError("refused", "the model gave no finite log-probs")

    async def join(self, line: dict[str, Any]) -> None:
        """Have the workers meet a trainer; whether they did is in their reports."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest  # pyright: ignore[reportMissingImports]

        with _said():
            await self._client.init_weight_transfer_engine(WeightTransferInitRequest(init_info=line))

    async def start(self) -> None:
        """Begin an update."""
        with _said():
            await self._client.start_weight_update()

    async def update(self, step: dict[str, Any]) -> None:
        """One step of it (`transfer`)."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest  # pyright: ignore[reportMissingImports]

        with _said():
            await self._client.update_weights(WeightTransferUpdateRequest(update_info=step))

    async def reports(self) -> list[LoadReport]:
        """What has become of it in each worker."""
        with _said():
            return list(await self._client.collective_rpc("vlmrl_report"))

    async def finish(self, version: str) -> None:
        """End it, as weights of this version."""
        with _said():
            await self._client.finish_weight_update(version)

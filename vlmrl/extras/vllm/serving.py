"""`vlmrl serve --rollouts`: one vLLM that answers trainers over HTTP, started as a recipe's stage needs it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmrl.config.addresses import address_of
from vlmrl.config.schema import Config, RolloutSection, RolloutStage
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.engine import Core
from vlmrl.extras.vllm.host import EngineLoop, VllmHost
from vlmrl.extras.vllm.secret import made_token
from vlmrl.extras.vllm.server import RolloutServer
from vlmrl.extras.vllm.stage import core_options, room
from vlmrl.policy.foreign import unproven
from vlmrl.policy.load import config_of, empty_model, load_processor, pick_device
from vlmrl.run.session import Places


def serve(
    cfg: Config, places: Callable[[], Places], *, listen: str, token_file: Path | None, stage: str | None, say: Callable[[str], None]
) -> None:
    """Until a signal asks to end. The weights of the model are replaced by a trainer's before anything is answered.

    Args:
        places: where the model is; asked only once the port is there.
        stage: whose settings it is started with; None: the first one that generates with vLLM.

    Raises:
        ConfigError: no stage generates with vLLM, the port or the token cannot be had, or vLLM does not start.
    """
    rollout, needed = sections(cfg, stage)
    try:
        address = address_of(listen)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from error
    token = None if token_file is None else made_token(token_file.expanduser(), "--token-file")
    server = RolloutServer(address, token=token)
    try:
        path = places().model
        bundle = load_processor(path, revision=cfg.model.revision, family=cfg.model.family, max_tiles=cfg.media.max_tiles)
        if problems := unproven(bundle.family, cfg):
            raise ConfigError(problems)
        options = core_options(
            cfg,
            rollout,
            path=path,
            architecture=type(empty_model(config_of(path, bundle, cfg.model.revision), "sdpa")).__name__,
            cpu=pick_device(cfg.model.device).type == "cpu",
        )
        core = Core(replace(options, max_model_len=max(options.max_model_len, needed)))
        try:
            loop = EngineLoop(VllmHost(core))
            with _ending(loop):
                server.open(loop)
                say(f"rollout server on {server.address}: it answers once a run has sent it weights")
                loop.run()
            server.shutdown()
        finally:
            core.close()
    finally:
        server.server_close()


def sections(cfg: Config, stage: str | None) -> tuple[RolloutSection, int]:
    """The settings that a server is started with, and the tokens that the recipe's stages need room for.

    Raises:
        ConfigError: there is no such stage, or none that generates with vLLM.
    """
    stages = {one.name: one.rollout for one in cfg.stages if isinstance(one, RolloutStage) and one.rollout.engine == "vllm"}
    if not stages:
        raise ConfigError("rollout.engine: no stage of this recipe generates with vllm")
    if stage is not None and stage not in stages:
        raise ConfigError(f"--stage: '{stage}' is no stage that generates with vllm (these do: {', '.join(stages)})")
    return stages[stage or next(iter(stages))], max(room(cfg, rollout) for rollout in stages.values())


@contextmanager
def _ending(loop: EngineLoop) -> Iterator[None]:
    """SIGTERM and SIGINT end the loop after the step that is being computed."""

    def stop(number: int, frame: Any) -> None:
        del number, frame
        loop.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

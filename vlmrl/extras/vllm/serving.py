"""`vlmrl serve --rollouts` and `--teacher`: vLLM's own server with our routes, started as a recipe's stage needs it, or for a teacher."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmrl.config.addresses import address_of, is_loopback
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config, RolloutSection, RolloutStage
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.models import compute_dtype
from vlmrl.extras.vllm.argued import lacks, require_proven
from vlmrl.extras.vllm.endpoint import NAME, PROCESSOR, ROUTES, TEACHER, TOKEN_FILE, where_of
from vlmrl.extras.vllm.engine import CoreOptions, arguments_of
from vlmrl.extras.vllm.routes import OWN
from vlmrl.extras.vllm.secret import made_token
from vlmrl.extras.vllm.stage import core_options, room
from vlmrl.policy.foreign import unproven
from vlmrl.policy.load import config_of, empty_model, load_processor, pick_device
from vlmrl.run.machine import settled
from vlmrl.run.session import Places

ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Of the server, where its variables say nothing else."""
AT_START = Path(__file__).with_name("at_start")
PACKAGE = Path(__file__).parents[3]


def serve(
    cfg: Config,
    places: Callable[[], Places],
    *,
    listen: str,
    token_file: Path | None,
    stage: str | None,
    say: Callable[[str], None],
    print_: bool = False,
    become: Callable[[str, list[str], Mapping[str, str]], Any] = os.execve,
) -> None:
    """Become vLLM's server. The weights of the model are replaced by a trainer's before anything is answered.

    Args:
        places: where the model is; asked only once the port is there.
        stage: whose settings it is started with; None: the first one that generates with vLLM.
        print_: say the line that starts it by hand, and start nothing.
        become: takes the place of this process.

    Raises:
        ConfigError: no stage generates with vLLM, the port or the token cannot be had, or others could ask without a token.
    """
    rollout, needed = sections(cfg, stage)
    door = _door(listen, token_file)
    path = places().model
    cfg = settled(loaded(cfg), path).config
    bundle = load_processor(path, revision=cfg.model.revision, family=cfg.model.family, max_tiles=cfg.media.max_tiles)
    if problems := unproven(bundle.family, cfg):
        raise ConfigError(problems)
    require_proven(bundle, path, "--rollouts")
    own: dict[str, str] = {}
    if bundle.writer is not None:
        told = {"revision": cfg.model.revision, "family": cfg.model.family, "max_tiles": cfg.media.max_tiles}
        own[PROCESSOR] = json.dumps(told | {"clips": lacks(bundle, path, "P18")})
    cpu = pick_device(cfg.model.device).type == "cpu"
    options = core_options(
        cfg,
        rollout,
        path=path,
        model=empty_model(config_of(path, bundle, cfg.model.revision), "sdpa"),
        bundle=bundle,
        cpu=cpu,
    )
    options = replace(options, max_model_len=max(options.max_model_len, needed))
    if rollout.router_replay:
        own[ROUTES] = "1"
    more = OWN if rollout.router_replay and not cpu else {}
    given = [*flags(arguments_of(options) | more), "--weight-transfer-config", json.dumps({"backend": NAME})]
    _start(path, given, own, door, cpu=cpu, say=say, print_=print_, become=become)


def serve_teacher(
    path: str,
    more: Sequence[str],
    *,
    listen: str,
    token_file: Path | None,
    device: str,
    dtype: str,
    say: Callable[[str], None],
    print_: bool = False,
    become: Callable[[str, list[str], Mapping[str, str]], Any] = os.execve,
) -> None:
    """Become vLLM's server with the weights of a model, which stay.

    Args:
        more: options of vLLM, which hold where ours say otherwise.
        print_: say the line that starts it by hand, and start nothing.
        become: takes the place of this process.

    Raises:
        ConfigError: the model is not one of ours, the port or the token cannot be had, or others could ask without a token.
    """
    door = _door(listen, token_file)
    bundle = load_processor(path)
    cpu = pick_device(device).type == "cpu"
    options = CoreOptions(
        path=path,
        revision=None,
        architecture=type(empty_model(config_of(path, bundle, None), "sdpa")).__name__,
        dtype=compute_dtype(device, dtype),
        max_model_len=0,
        max_num_seqs=64,
        memory=0.4 if cpu else 0.9,
        cache_bytes=None,
        eager=cpu,
    )
    # of vLLM's two model runners the one whose hidden states `scoring` sees
    own = {TEACHER: "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    _start(path, [*flags(arguments_of(options)), *more], own, door, cpu=cpu, say=say, print_=print_, become=become)


def _door(listen: str, token_file: Path | None) -> tuple[str, int, Path | None]:
    """Where a server listens, and the file of its token, which is made if it is not there.

    Raises:
        ConfigError: the port or the token cannot be had, or others could ask without a token.
    """
    host, port = free_address(listen, with_token=token_file is not None)
    if token_file is not None:
        token_file = token_file.expanduser().absolute()
        made_token(token_file, "--token-file")
    return host, port, token_file


def _start(
    path: str,
    given: Sequence[str],
    own: Mapping[str, str],
    door: tuple[str, int, Path | None],
    *,
    cpu: bool,
    say: Callable[[str], None],
    print_: bool,
    become: Callable[[str, list[str], Mapping[str, str]], Any],
) -> None:
    """Become vLLM's server, or say the line. `own`: variables of its environment beside those of every server of ours."""
    host, port, token_file = door
    # vLLM loads routes of plug-ins that are named alone, and none but those that are named: what the machine names stays
    plugins = dict.fromkeys([*filter(None, os.environ.get("VLLM_PLUGINS", "").split(",")), NAME])
    own = {"VLLM_PLUGINS": ",".join(plugins), **own} | ({} if token_file is None else {TOKEN_FILE: str(token_file)})
    line = ["--host", host, "--port", str(port), "--disable-uvicorn-access-log", "--disable-fastapi-docs", *given]
    if print_:
        say(f"{shlex.join(f'{name}={value}' for name, value in own.items())} {shlex.join(['vllm', 'serve', path, *line])}")
        return
    say(f"vLLM starts, and will listen on {where_of(host, port)}")
    environment = ENVIRONMENT | dict(os.environ) | own
    if cpu:
        environment["PYTHONPATH"] = os.pathsep.join([str(AT_START), str(PACKAGE), *filter(None, [environment.get("PYTHONPATH")])])
    # what `vllm serve` runs; the command itself does not start in vLLM's build for the CPU, which has another name
    become(sys.executable, [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", path, *line], environment)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Options of `vllm serve`; what is None is left to vLLM."""
    out: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{'' if value else 'no-'}{flag}")
        elif value is not None:
            out += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return out


def free_address(listen: str, *, with_token: bool) -> tuple[str, int]:
    """Host and port; a free one for port 0.

    Raises:
        ConfigError: it is no address, it is taken, or others could ask there without a token.
    """
    try:
        host, port = address_of(listen)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from error
    if not with_token and not is_loopback(host):
        raise ConfigError(f"--listen {host}: whoever reaches this port could change the weights; give --token-file, or listen on 127.0.0.1")
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            return host, int(tried.getsockname()[1])
    except OSError as error:
        raise ConfigError(f"--listen {host}:{port}: {error.strerror or error}") from error


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

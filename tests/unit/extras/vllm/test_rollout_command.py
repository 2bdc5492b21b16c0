"""`vlmrl serve --rollouts`: what it refuses before it starts vLLM, and what it starts. Without vLLM."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support import given, runs
from tests.support.reports import HERE, written
from vlmrl.cli import app
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm import serving as rollout_server
from vlmrl.run.session import Places


def config(files: tuple[Path, Path], **rollout: Any) -> dict[str, Any]:
    raw = runs.small_config(*files, Path("runs"))
    raw["stages"][1]["rollout"] |= {"engine": "vllm"} | rollout
    return raw


def test_it_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    cfg = Config.model_validate(config((tmp_path / "none", tmp_path)))
    said: list[str] = []

    def started(**given: Any) -> None:
        rollout_server.serve(cfg, lambda: pytest.fail("the model was looked for"), stage=None, say=said.append, **given)

    for listen, message in (("7000", "--listen: expected HOST:PORT"), ("0.0.0.0:0", "--listen 0.0.0.0: .* give --token-file")):
        with pytest.raises(ConfigError, match=message):
            started(listen=listen, token_file=None)
    open_to_all = tmp_path / "token"
    open_to_all.write_text("a-token-of-some-length")
    open_to_all.chmod(0o644)
    with pytest.raises(ConfigError, match="--token-file: others can read"):
        started(listen="0.0.0.0:0", token_file=open_to_all)
    assert said == []


@pytest.mark.not_fast  # builds a model
def test_a_family_through_its_own_processor_is_served_where_its_report_keeps_that(tmp_path: Path) -> None:
    """And the server is told how to have the processor that the run has."""
    model = given.make_model("internvl", tmp_path / "model")
    raw = config((model, tmp_path), vllm={"servers": ["127.0.0.1:7000"]})
    raw["model"] |= {"family": "generic"}
    raw["media"] |= {"max_tiles": 2}
    cfg, places, became = Config.model_validate(raw), Places(model=str(model), data=tmp_path), list[Any]()

    def started() -> None:
        rollout_server.serve(
            cfg, lambda: places, listen="127.0.0.1:0", token_file=None, stage=None, say=print, become=lambda *all_: became.append(all_)
        )

    written(model, versions={**HERE, "vllm": "0.1.0"}, engine="vllm")
    with pytest.raises(ConfigError, match=r"--rollouts: not proven with a 'internvl' model .*conform.json is of vllm 0\.1\.0, here "):
        started()
    written(model, red=("P18",), engine="vllm")
    started()
    ((_, command, environment),) = became
    told = json.loads(environment["VLMRL_PROCESSOR"])
    assert "does not keep P18" in told.pop("clips")
    assert told == {"revision": None, "family": "generic", "max_tiles": 2}
    assert "--no-mm-device-do-normalize" in command


def test_it_becomes_the_server_of_vllm(tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "of_a_device")
    cfg = Config.model_validate(config(tiny_files, max_new_tokens=77, vllm={"tensor_parallel": 2, "cache_bytes": 2**28}))
    became: list[Any] = []
    said: list[str] = []
    places = Places(model=cfg.model.path, data=Path(cfg.data.root))
    rollout_server.serve(
        cfg,
        lambda: places,
        listen="127.0.0.1:0",
        token_file=tmp_path / "token",
        stage=None,
        say=said.append,
        become=lambda *given: became.append(given),
    )
    ((program, command, environment),) = became
    address = re.fullmatch(r"vLLM starts, and will listen on (127\.0\.0\.1:\d+)", said[0])
    assert address is not None
    assert (program, command[:5]) == (
        sys.executable,
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", cfg.model.path],
    )
    options = dict(itertools.pairwise(command))
    assert f"{options['--host']}:{options['--port']}" == address[1]
    assert options["--max-model-len"] == str(cfg.data.max_prompt_tokens + 77)
    assert options["--tensor-parallel-size"] == "2"
    assert (cfg.model.dtype, options["--dtype"]) == ("auto", "float32"), "what the run settles it to, and not what vLLM does"
    assert options["--kv-cache-memory-bytes"] == str(2**28)
    assert json.loads(options["--limit-mm-per-prompt"]) == {"image": 64, "video": 64}
    assert json.loads(options["--weight-transfer-config"]) == {"backend": "vlmrl"}
    assert "--block-size" not in command, "left to vLLM"
    assert "--enforce-eager" in command
    assert {"--no-enable-chunked-prefill", "--enable-prefix-caching"} <= set(command), "on a CPU no prompt is read in parts"
    assert (environment["VLLM_PLUGINS"], environment["VLMRL_TOKEN_FILE"]) == ("of_a_device,vlmrl", str(tmp_path / "token"))
    assert "VLLM_SERVER_DEV_MODE" not in environment
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert not any((tmp_path / "token").read_text().strip() in word for word in (*command, *environment.values())), "others see these"


def test_the_line_by_hand_is_the_same(tiny_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    cfg = Config.model_validate(config(tiny_files))
    said: list[str] = []
    became: list[Any] = []
    places = Places(model=cfg.model.path, data=Path(cfg.data.root))
    for print_ in (True, False):
        rollout_server.serve(
            cfg,
            lambda: places,
            listen="127.0.0.1:7123",
            token_file=None,
            stage=None,
            say=said.append,
            print_=print_,
            become=lambda *given: became.append(given),
        )
    line = shlex.split(said[0])
    assert line[:4] == ["VLLM_PLUGINS=vlmrl", "vllm", "serve", cfg.model.path]
    assert line[4:] == became[0][1][5:]


def test_a_teacher_is_served_with_its_own_weights(tiny_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM takes the last of an option that is given twice: those behind `--` are behind ours."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    model, said, became = str(tiny_files[0]), list[str](), list[Any]()
    for print_ in (True, False):
        rollout_server.serve_teacher(
            model,
            ["--max-model-len", "512"],
            listen="127.0.0.1:7124",
            token_file=tmp_path / "token",
            device="cpu",
            dtype="auto",
            say=said.append,
            print_=print_,
            become=lambda *given: became.append(given),
        )
    line, (_, command, environment) = shlex.split(said[0]), became[0]
    assert line[:6] == [
        "VLLM_PLUGINS=vlmrl",
        "VLMRL_TEACHER=1",
        "VLLM_USE_V2_MODEL_RUNNER=0",
        f"VLMRL_TOKEN_FILE={tmp_path / 'token'}",
        "vllm",
        "serve",
    ]
    assert line[7:] == command[5:]
    options = dict(itertools.pairwise(command))
    assert (options["--model"], options["--dtype"], options["--max-model-len"]) == (model, "float32", "512")
    assert "--weight-transfer-config" not in command
    assert (environment["VLMRL_TEACHER"], environment["VLLM_USE_V2_MODEL_RUNNER"]) == ("1", "0")
    assert command[-2:] == ["--max-model-len", "512"]


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=re.escape(f"--listen 127.0.0.1:{port}: ")):
            rollout_server.free_address(f"127.0.0.1:{port}", with_token=False)


def test_the_command_is_there_and_wants_a_stage_with_vllm(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config(tiny_files, engine="hf")))
    done = CliRunner().invoke(app, ["serve", "--rollouts", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "no stage of this recipe generates with vllm" in str(done.exception)

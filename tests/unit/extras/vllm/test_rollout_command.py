"""`vlmrl serve --rollouts`: what it refuses before it starts vLLM, and how it begins and ends. Without vLLM."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support import runs
from tests.support.rollout_stand_in import Engine
from vlmrl.cli import app
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm import serving as rollout_server
from vlmrl.extras.vllm.remote import Remote
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


def test_it_answers_until_a_signal_and_releases_the_engine(tiny_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config.model_validate(config(tiny_files, max_new_tokens=77))
    options: list[Any] = []
    said: list[str] = []
    health: list[Any] = []

    class Core(Engine):
        def __init__(self, given: Any):
            options.append(given)
            super().__init__(given.architecture, room=given.max_model_len)

        def close(self) -> None:
            said.append("closed")

    def say(text: str) -> None:
        said.append(text)
        address = text.split()[3].rstrip(":")

        def look() -> None:
            remote = Remote(address, token=None)
            health.append(remote.health() or remote.facts)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=look).start()

    monkeypatch.setattr(rollout_server, "Core", Core)
    monkeypatch.setattr(rollout_server, "VllmHost", lambda core: core)
    before = signal.getsignal(signal.SIGTERM)
    places = Places(model=cfg.model.path, data=Path(cfg.data.root))
    rollout_server.serve(cfg, lambda: places, listen="127.0.0.1:0", token_file=None, stage=None, say=say)
    assert said[0].startswith("rollout server on 127.0.0.1:")
    assert said[1:] == ["closed"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert options[0].architecture == "Qwen2_5_VLForConditionalGeneration"
    assert options[0].max_model_len == cfg.data.max_prompt_tokens + 77
    assert health[0]["max_model_len"] == options[0].max_model_len


def test_the_command_is_there_and_wants_a_stage_with_vllm(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config(tiny_files, engine="hf")))
    done = CliRunner().invoke(app, ["serve", "--rollouts", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "no stage of this recipe generates with vllm" in str(done.exception)

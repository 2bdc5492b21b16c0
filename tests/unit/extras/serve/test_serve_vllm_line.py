"""The line of `vllm serve`: what it says of the pixels of training, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support import tiny
from vlmrl.cli import app
from vlmrl.config.schema import MediaSection
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import Asking
from vlmrl.extras.serve.vllm_line import vllm_line, what_differs

ASKING = Asking(
    media=MediaSection(min_pixels=784, max_pixels=4704, fps=1.5, max_frames=32),
    answer_format="think",
    answer_type="bbox",
    frame=None,
    max_prompt_tokens=1000,
    max_new_tokens=24,
)
USUAL = {"rule": "max", "own_code": True, "name": "mine", "host": "127.0.0.1", "port": 8000}


def options(line: list[str]) -> dict[str, str]:
    return dict(itertools.pairwise(line))


def test_the_line_says_what_training_saw() -> None:
    line = vllm_line(Path("/m/final"), ASKING, **USUAL, allowed=[Path("/videos")])
    assert line[:3] == ["vllm", "serve", "/m/final"]
    said = options(line)
    assert json.loads(said["--mm-processor-kwargs"]) == {"min_pixels": 784, "max_pixels": 4704}
    assert json.loads(said["--media-io-kwargs"]) == {"video": {"num_frames": 32, "fps": 1.5}}
    assert (said["--max-model-len"], said["--generation-config"]) == ("1024", "vllm")
    assert said["--allowed-local-media-path"] == "/videos"
    assert "--trust-request-mm-kwargs" in line
    assert "--mm-processor-kwargs" not in vllm_line(Path("m"), ASKING, **{**USUAL, "own_code": False})


def test_what_vllm_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="positions: grid"):
        vllm_line(Path("m"), ASKING, **{**USUAL, "rule": "grid"})
    with pytest.raises(ConfigError, match="takes one folder"):
        vllm_line(Path("m"), ASKING, **USUAL, allowed=[Path("a"), Path("b")])


def test_what_no_option_says_is_told() -> None:
    worded = dataclasses.replace(ASKING, prompt="{{ question }}")
    assert "put it into the Jinja template below" in what_differs(worded, own_code=True)[0]
    told = "\n".join(what_differs(ASKING, own_code=True))
    assert "fewer than 4 frames at 1.5 a second" in told
    assert "video_total_pixels" not in told
    limited = dataclasses.replace(ASKING, media=ASKING.media.model_copy(update={"video_total_pixels": 9}))
    assert "video_total_pixels (9)" in "\n".join(what_differs(limited, own_code=False))
    assert "by its documentation" in "\n".join(what_differs(limited, own_code=False))


def test_the_command_prints_the_line_with_what_is_given_behind_it(tmp_path: Path) -> None:
    model, _ = tiny.make_files(tmp_path, sft=1, train=1, test=1)
    asked = ["serve", str(model), "--engine", "vllm", "--print", "--answer-type", "time_span"]
    usual = CliRunner().invoke(app, asked)
    assert usual.exit_code == 0, usual.output
    more = ["--tensor-parallel-size", "2", "--dtype", "bfloat16"]
    given = CliRunner().invoke(app, [*asked, "--", *more])
    assert given.exit_code == 0, given.output
    assert shlex.split(given.stdout) == [*shlex.split(usual.stdout), *more]
    refused = CliRunner().invoke(app, ["serve", str(model), "--", *more])
    assert isinstance(refused.exception, ConfigError)
    assert "for --engine vllm" in str(refused.exception)

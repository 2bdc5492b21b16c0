"""scale.launch: the lines are those that the launchers understand, and restarts in vain are not asked for."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from torch.distributed.run import config_from_args, get_args_parser

from tests.support.documents import ROOT, blocks, commands, parse_vlmrl
from vlmrl.errors import ConfigError, DataError, NumericsError, RemoteError, StorageError
from vlmrl.extras.scale import launch
from vlmrl.extras.scale.launch import Job, text

TRAIN = ("configs/recipes/toy_video.yaml", "run.name=it's mine", "stages.rl.advantage={name: grpo}")


def torchrun(line: str) -> tuple[Any, list[str]]:
    """A line as torchrun reads it: its configuration, and the words of the processes."""
    words = shlex.split(line)
    if "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
    assert words[0] == "torchrun"
    config, _, rest = config_from_args(get_args_parser().parse_args(words[1:]))
    return config, [word for word in rest if word not in ("-u", "-m")]


@pytest.mark.parametrize(("nodes", "host"), [(1, ""), (4, "10.0.0.7"), (2, "first:29500")])
def test_the_line_for_torchrun(nodes: int, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    (line,) = text(Job(gpus=8, nodes=nodes, host=host, restarts=5, train=TRAIN), "torchrun").splitlines()
    config, words = torchrun(line)
    assert (config.nproc_per_node, config.min_nodes, config.max_nodes, config.max_restarts) == (8, nodes, nodes, 5)
    assert config.shutdown_timeout == 120, "a step is longer than torchrun's half minute"
    assert words == ["vlmrl", "train", *TRAIN]
    if nodes > 1:
        assert config.rdzv_backend == "c10d"
        assert config.rdzv_endpoint == (host if ":" in host else f"{host}:29400")


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_lines_for_accelerate(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ready files; accelerate itself reads both. The number of GPUs is that of this machine, so it is only read."""
    monkeypatch.chdir(ROOT)
    lines = text(Job(gpus=4, nodes=nodes, host="first", restarts=2, train=TRAIN), "accelerate").splitlines()
    assert len(lines) == nodes
    for machine, line in enumerate(lines):
        said, *words = shlex.split(line)
        assert said == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120"
        assert words[:2] == ["accelerate", "launch"]
        asked = launch_command_parser().parse_args(words[2:])
        assert (asked.num_processes, asked.max_restarts, asked.module) == (4 * nodes, 2, True)
        assert [asked.training_script, *asked.training_script_args] == ["vlmrl", "train", *TRAIN]
        read, kind, _ = _validate_launch_command(asked)
        assert kind == "MULTI_GPU" or read.multi_gpu
        assert (read.num_processes, read.mixed_precision) == (4 * nodes, "no")
        if nodes > 1:
            assert read.rdzv_backend == "c10d"
            assert (read.num_machines, read.machine_rank, read.main_process_ip, read.main_process_port) == (3, machine, "first", 29400)


def test_the_ready_files_split_nothing() -> None:
    """How the weights are split is a matter of the recipe."""
    for path in sorted((ROOT / "configs" / "accelerate").glob("*.yaml")):
        value = yaml.safe_load(path.read_text())
        assert value["distributed_type"] == "MULTI_GPU"
        assert not [key for key in value if "fsdp" in key or "deepspeed" in key]


def test_the_script_for_slurm(tmp_path: Path) -> None:
    """bash reads it; what `srun` is given is a line for torchrun on each machine."""
    script = tmp_path / "train.sbatch"
    script.write_text(text(Job(gpus=8, nodes=4, restarts=3, train=TRAIN), "slurm"))
    for name, body in (("scontrol", "echo node7; echo node8"), ("srun", 'printf "%s\\0" "$TORCH_ELASTIC_SHUTDOWN_TIMEOUT" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node[7-8]"}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=env, timeout=60, check=True)
    words = done.stdout.split("\0")[:-1]
    assert words[0] == "120"
    config, train = torchrun(shlex.join(words[words.index("torchrun") :]))
    assert (config.rdzv_endpoint, config.run_id, config.min_nodes, config.nproc_per_node) == ("node7:29400", "17", 4, 8)
    assert train == ["vlmrl", "train", *TRAIN]
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script.read_text(), re.M))
    assert (asked["nodes"], asked["gpus-per-node"], asked["ntasks-per-node"]) == ("4", "8", "1")


def test_the_lines_that_the_page_shows_are_those_that_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each `vlmrl plan --launch` stands what it prints."""
    shown = 0
    for block in blocks("docs/launch.md"):
        lines = commands(block.text)
        for first, rest in ((words, lines[n + 1 :]) for n, words in enumerate(lines) if words[:2] == ["vlmrl", "plan"]):
            found = parse_vlmrl(first[1 : first.index(">")] if ">" in first else first[1:])
            job = Job(
                gpus=found["gpus"],
                nodes=found["nodes"] or 1,
                host=found["host"],
                restarts=found["restarts"],
                train=(str(found["recipe"]), *(found["overrides"] or [])),
            )
            if rest and ">" not in first:
                assert [shlex.join(words) for words in rest] == text(job, found["with_"]).splitlines(), block
                shown += 1
    assert shown == 3


@pytest.mark.parametrize("code", [ConfigError.exit_code, DataError.exit_code, 75, 76])
def test_what_would_come_again_ends_the_launcher(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(launch.os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(launch, "_is_agent", lambda pid: pid == os.getppid())
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    launch.stop_restarts(code)
    assert sent == [], "nobody restarts this process"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    launch.stop_restarts(code)
    assert sent == [], "the last start: the launcher ends by itself, with the failures of all ranks"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("VLMRL_FINAL_EXIT_CODE", str(tmp_path / "code"))
    launch.stop_restarts(code)
    assert sent == [(os.getppid(), signal.SIGTERM)]
    assert (tmp_path / "code").read_text() == str(code)
    monkeypatch.setattr(launch, "_is_agent", lambda pid: False)
    launch.stop_restarts(code)
    assert len(sent) == 1, "a shell between the two is left alone"


@pytest.mark.parametrize("code", [1, RemoteError.exit_code, NumericsError.exit_code, StorageError.exit_code, 73])
def test_what_may_pass_is_started_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_is_agent", lambda pid: pytest.fail("not asked"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    launch.stop_restarts(code)

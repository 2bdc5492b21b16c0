"""Two trainers and a rollout server with vLLM, each on a host of its own, for ten steps in which every link and every process fails once.
The same command ends the run: every group trained, on the answers that were sampled for it, and no step left out.

The hosts are network namespaces (`tests.support.netns`). Needs vLLM (its CPU build is enough) in the environment of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import ahead, media_layouts, runs, served
from tests.support.host_ranks import Training, environment
from tests.support.netns import Hosts, unavailable
from vlmrl.run.tracking import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "there are namespaces")]

STEPS, PROMPTS, ANSWERS = 10, 4, 4
SERVER, PORT = 2, 7000
LOST = 45.0
"""Seconds within which all have ended when a rank is lost; on a machine that is not busy it is 15."""
LONG = 900.0


@dataclass
class Site:
    """Three hosts, a config, and what runs on them."""

    hosts: Hosts
    config: dict[str, Any]
    folder: Path
    server: subprocess.Popen[bytes] | None = None
    starts: int = 0
    events: list[str] = field(default_factory=list[str])

    def serve(self) -> None:
        """Start the server, and wait for it."""
        self.starts += 1
        said = self.folder / f"server{self.starts}.txt"
        env = environment(**served.ENVIRONMENT, VLLM_HOST_IP="127.0.0.1")
        command = served.command(str(self.folder / "recipe.yaml"), f"{self.hosts.addresses[SERVER]}:{PORT}", self.folder / "token")
        self.server = self.hosts.start(SERVER, command, env=env, log=said)
        served.address(self.server, said)

    def train(self) -> Training:
        return Training(self.hosts, self.config, "audit")

    def steps(self) -> int:
        """Steps that are saved."""
        return max((int(p.parent.name[-8:]) for p in (runs.run_dir(self.config) / "checkpoints").glob("step-*/manifest.json")), default=0)

    def wait(self, training: Training, steps: int) -> None:
        """Until so many steps are saved."""
        end = time.monotonic() + LONG
        while self.steps() < steps:
            assert training.running, training.text(0)[-3000:] + training.text(1)[-3000:]
            assert time.monotonic() < end, training.text(0)[-3000:]
            time.sleep(0.05)

    def note(self, what: str, began: float) -> None:
        self.events.append(f"{what}: {time.monotonic() - began:.1f} s")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hosts")
    media_layouts.make(folder, "qwen2_5_vl")
    with Hosts(3) as hosts:
        config = runs.small_config(folder / "model", folder / "world", folder / "runs", steps=STEPS, beta=0.0)
        rl = config["stages"][1]
        rl["freeze"] = []
        rl["rollout"] |= {
            "engine": "vllm",
            "vllm": {
                "servers": [f"{hosts.addresses[SERVER]}:{PORT}"],
                "token_file": str(folder / "token"),
                "patience": LONG,
                "cache_bytes": 2**28,
                "max_model_len": 1024,
                "block_size": 32,
            },
            "num_generations": ANSWERS,
            "prompts_per_step": PROMPTS,
            "max_new_tokens": 8,
            "max_gap": {"stop": 5.0},
        }
        config["model"]["positions"] = "max"
        config |= {"eval": {}, "stages": [rl], "checkpoint": {"every": 1}}
        (folder / "recipe.yaml").write_text(json.dumps(config))  # JSON is YAML
        yield Site(hosts, config, folder)


def lose(site: Site, training: Training, kind: str, hit: int) -> Training:
    """A trainer's host is cut off, or its process killed: all end, and the same command goes on."""
    began = time.monotonic()
    if kind == "link":
        site.hosts.cut(hit)
    else:
        training.ranks[hit].send_signal(signal.SIGKILL)
    try:
        codes = training.codes(LOST)
    finally:
        site.hosts.mend(hit)
    assert codes[1 - hit] == 70, training.text(1 - hit)[-3000:]
    assert codes[hit] == (70 if kind == "link" else -signal.SIGKILL), training.text(hit)[-3000:]
    site.note(f"{kind} of rank {hit}, after step {site.steps()}: all have ended", began)
    return site.train()


def cut_server(site: Site, training: Training) -> None:
    """For longer than a server may be silent: the run waits, and goes on by itself."""
    began = time.monotonic()
    site.hosts.cut(SERVER)
    time.sleep(25.0)
    assert training.running, training.text(0)[-3000:] + training.text(1)[-3000:]
    done = site.steps()
    site.hosts.mend(SERVER)
    site.wait(training, done + 1)
    site.note(f"link of the server, after step {done}: the next step is saved", began)


def kill_server(site: Site, training: Training) -> Training:
    """The new one has no weights. A run that waits for answers ends with 69 then; one that had not asked yet goes on."""
    began = time.monotonic()
    assert site.server is not None
    for pid in site.hosts.pids(SERVER):  # vLLM's engine is a process of its own, and outlives its server
        os.kill(pid, signal.SIGKILL)
    site.server.wait(30)
    done = site.steps()
    site.serve()
    end = time.monotonic() + LONG
    while training.running and site.steps() <= done + 1:
        assert time.monotonic() < end, training.text(0)[-3000:]
        time.sleep(0.05)
    if training.running:
        site.note(f"server killed, after step {done}: the run went on", began)
        return training
    assert training.codes(LOST) == [69, 69], training.text(0)[-3000:] + training.text(1)[-3000:]
    site.note(f"server killed, after step {done}: the run has ended with 69", began)
    return site.train()


def test_ten_steps_in_which_every_link_and_every_process_is_lost_once(site: Site) -> None:
    site.serve()
    training = site.train()
    site.wait(training, 1)
    cut_server(site, training)
    site.wait(training, 3)
    training = kill_server(site, training)
    for steps, kind, hit in ((5, "link", 1), (6, "kill", 0), (7, "link", 0), (8, "kill", 1)):
        site.wait(training, steps)
        training = lose(site, training, kind, hit)
    assert training.codes(LONG) == [0, 0], training.text(0)[-3000:] + training.text(1)[-3000:]
    print(*site.events, sep="\n")

    path = runs.run_dir(site.config)
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "grad_norm" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "each step is counted once"
    assert sum(line["grad_norm"] > 0 for line in lines) > STEPS // 2
    weights = load_file(path / "final" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    start = load_file(site.folder / "model" / "model.safetensors")
    assert sum(not torch.equal(tensor, start[name]) for name, tensor in weights.items()) > len(weights) // 2

    trained: dict[str, set[str]] = {}
    versions: dict[str, set[int]] = {}
    for name, version, answers in (group for step in ahead.lines(site.config, "trained.jsonl") for group in step):
        trained.setdefault(name, set()).add(answers)
        versions.setdefault(name, set()).update(version)
    wanted = {f"rl/{step}/{place}" for step in range(STEPS) for place in range(PROMPTS)}
    assert {"/".join(name.split("/")[:3]) for name in trained} == wanted, "no group is lost, and none is of no plan"
    assert len(trained) == len(wanted)
    assert [name for name, answers in trained.items() if len(answers) > 1] == [], "a step that is trained again has the answers of before"
    assert all(len(of) == 1 for of in versions.values()), "all answers of a group are of one version"

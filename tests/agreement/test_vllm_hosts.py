"""Two trainers and two rollout servers with vLLM, each on a host of its own, started by the script that `vlmrl plan --launch` writes for
slurm. While it trains every link is cut and every process killed once. The script, submitted again where it has ended, ends the run: every
group trained once, on the answers that were sampled for it, and no step left out.

The hosts are network namespaces (`tests.support.netns`), and slurm is `tests.support.slurm`. Needs vLLM (its CPU build is enough) in the
environment of the tests.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import ahead, media_layouts, runs, served, slurm
from tests.support.host_ranks import environment
from tests.support.netns import Hosts, unavailable
from vlmrl.run.tracking import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "there are namespaces")]

STEPS, PROMPTS, ANSWERS = 80, 4, 4
TRAINERS, SERVERS = (0, 1), (2, 3)
CUT = 25.0
"""Seconds for which a link is cut: longer than a rank or a server may be silent."""
LONG = 900.0
ENDS = (69, 70, 75, 128 + signal.SIGKILL)
"""Exit codes of a job after which it is submitted again; 75 is that of a host which slurm has stopped since the other one failed."""
RANK, LAUNCHER, SERVER, ENGINE = "a rank", "a launcher", "a server", "an engine"
EVENTS = (
    *(("the link", host) for host in (3, 1, 2, 0)),
    (RANK, 0),
    (SERVER, 2),
    (LAUNCHER, 1),
    (ENGINE, 3),
    (RANK, 1),
    (SERVER, 3),
    (LAUNCHER, 0),
    (ENGINE, 2),
)
"""One after each of the first steps: what is lost, and on which host."""


@dataclass
class Site:
    """Four hosts, a config, its script, and the job that runs."""

    hosts: Hosts
    config: dict[str, Any]
    script: Path
    jobs: list[slurm.Job] = field(default_factory=list[slurm.Job])
    events: list[str] = field(default_factory=list[str])

    def submit(self) -> None:
        folder = self.script.with_name(f"job{len(self.jobs)}")
        env = environment(**served.ENVIRONMENT, VLLM_HOST_IP="127.0.0.1", **{ahead.FOLDER: str(self.config["run"]["root"])})
        self.jobs.append(slurm.Job(self.hosts, self.script, folder, env=env))

    @property
    def job(self) -> slurm.Job:
        return self.jobs[-1]

    def steps(self) -> int:
        """Steps that are saved."""
        return max((int(p.parent.name[-8:]) for p in (runs.run_dir(self.config) / "checkpoints").glob("step-*/manifest.json")), default=0)

    def wait(self, steps: int) -> list[int]:
        """Until so many steps are saved; where the job ends before, it is submitted again. The codes that it ended with."""
        end, codes = time.monotonic() + LONG, list[int]()
        while self.steps() < steps:
            assert time.monotonic() < end, self.job.said()
            if (code := self.job.process.poll()) is not None:
                assert code in ENDS, f"{code}\n{self.job.said()}"
                codes.append(code)
                assert len(codes) < 3, self.job.said()
                self.submit()
            time.sleep(0.05)
        return codes

    def pids(self, what: str, host: int) -> list[int]:
        """Processes of a kind on a host."""
        found: list[int] = []
        for pid in self.hosts.pids(host):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if KINDS[what](words):
                found.append(pid)
        return found

    def lose(self, what: str, host: int) -> None:
        """Cut a link for a while, or kill a process at once."""
        if what == "the link":
            self.hosts.cut(host)
            time.sleep(CUT)
            self.hosts.mend(host)
            return
        end = time.monotonic() + LONG
        while not (pids := self.pids(what, host)):  # one that was lost before may still be coming up
            assert time.monotonic() < end, self.job.said()
            time.sleep(0.1)
        os.kill(pids[0], signal.SIGKILL)
        if what == LAUNCHER:  # then slurm ends the others
            self.job.process.wait(LONG)
        while what == SERVER and self.pids(ENGINE, host) and time.monotonic() < end:
            time.sleep(0.1)


KINDS = {
    RANK: lambda words: words[1:5] == ["-u", "-m", "vlmrl", "train"],
    LAUNCHER: lambda words: words[1:4] == ["-m", "vlmrl", "train"] and "--gpus" in words,
    SERVER: lambda words: "vllm.entrypoints.openai.api_server" in words,
    ENGINE: lambda words: words[0].startswith("VLLM::EngineCore"),
}
"""Kind of a process -> whether these are the words of its command line."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    media_layouts.make(tmp_path, "qwen2_5_vl")
    with Hosts(4) as hosts:
        config = runs.small_config(tmp_path / "model", tmp_path / "world", tmp_path / "runs", steps=STEPS, beta=0.0)
        rl = config["stages"][1]
        rl["freeze"] = []
        rl["rollout"] |= {
            "engine": "vllm",
            "vllm": {"patience": LONG, "cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32},
            "num_generations": ANSWERS,
            "prompts_per_step": PROMPTS,
            "max_new_tokens": 8,
            "max_gap": {"stop": 5.0},
        }
        config["model"]["positions"] = "max"
        config |= {"eval": {}, "stages": [rl], "checkpoint": {"every": 1}, "plugins": [*config["plugins"], "tests.support.audited"]}
        Path(config["run"]["root"]).mkdir()
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps(config))  # JSON is YAML
        asked = ["--launch", "--gpus", "1", "--nodes", "2", "--servers", "2x1", "--restarts", "20", "--with", "slurm"]
        done = subprocess.run(
            [sys.executable, "-m", "vlmrl", "plan", str(recipe), *asked],
            env={**os.environ, **environment(), ahead.FOLDER: str(tmp_path / "runs")},
            capture_output=True,
            text=True,
            check=True,
        )
        (tmp_path / "train.sbatch").write_text(done.stdout)
        assert shlex.quote(str(recipe)) in done.stdout
        yield Site(hosts, config, tmp_path / "train.sbatch")


def test_a_launched_job_in_which_every_link_and_every_process_is_lost_once(site: Site) -> None:
    site.submit()
    for step, (what, host) in enumerate(EVENTS, 1):
        site.wait(step)
        began = time.monotonic()
        site.lose(what, host)
        done = site.steps()
        codes = site.wait(done + 1)
        ended = f", and the job had ended with {codes}" if codes else ""
        site.events.append(
            f"{what} of host {host}, after step {step}: step {done + 1} is saved after {time.monotonic() - began:.1f} s{ended}"
        )
    site.wait(STEPS)
    while (code := site.job.process.wait(LONG)) != 0:
        assert code in ENDS, site.job.said()
        site.submit()
    print(*site.events, sep="\n")

    path = runs.run_dir(site.config)
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "grad_norm" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), "each step is counted once"
    assert sum(line["grad_norm"] > 0 for line in lines) > STEPS // 2
    weights = load_file(path / "final" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    start = load_file(site.script.with_name("model") / "model.safetensors")
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

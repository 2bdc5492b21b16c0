"""Memory by phase: against a gauge that is told what to say, storages of the CPU, and what torch tells of a pretended CUDA device."""

from __future__ import annotations

import json
import resource
import threading
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import saved_bytes
from tests.support.runs import small_config
from vlmrl.config.schema import Config
from vlmrl.extras.plan import slack
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.ledger import keep, planned
from vlmrl.extras.plan.memory import memory
from vlmrl.extras.plan.model import shape_of
from vlmrl.extras.plan.settings import SLACK, Settings, settings_of
from vlmrl.registry import Catalogue
from vlmrl.run.open_stage import ledger_of
from vlmrl.train.memory_ledger import MIB, CudaGauge, HostGauge, MemoryLedger, MemoryReading, gauge_of, resident


@dataclass
class Told:
    """A device whose memory a test sets. `most` is the peak of both numbers since the last reset."""

    name: str | None = "NVIDIA H100"
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    beside: int = 0
    most: list[int] = field(default_factory=lambda: [0, 0])
    emptied: list[int] = field(default_factory=list[int])

    def use(self, allocated: int, reserved: int) -> None:
        self.allocated, self.reserved = allocated * MIB, reserved * MIB
        self.most = [max(a, b) for a, b in zip(self.most, (self.allocated, self.reserved), strict=True)]

    def read(self) -> MemoryReading:
        return MemoryReading(allocated=self.most[0], reserved=self.most[1], retries=self.retries)

    def reset(self) -> None:
        self.most = [self.allocated, self.reserved]

    def empty(self) -> None:
        self.emptied.append(self.reserved // MIB)
        self.reserved = self.allocated

    def outside(self) -> int:
        return self.beside * MIB


def test_each_phase_has_its_own_peak_and_the_step_the_largest() -> None:
    told = Told()
    ledger = MemoryLedger(gauge=told, planned={"rollout": 20 * MIB, "sync": 5})
    told.use(9, 9)
    told.use(1, 9)  # before any phase
    with ledger.phase("rollout"):
        told.use(8, 16)
        told.use(1, 16)
    told.use(3, 16)
    told.use(1, 16)
    with ledger.phase("rollout"):  # a second attempt of the step
        told.use(10, 12)
        told.retries = 2
        told.use(1, 12)
    with ledger.phase("update"):
        told.use(2, 12)
    found = ledger.metrics()
    rollout = {name.removeprefix("memory/rollout/"): value for name, value in found.items() if "/rollout/" in name}
    assert rollout == {"allocated": 10.0, "reserved": 16.0, "retries": 2.0, "plan_ratio": 2.0}
    assert (found["memory/update/allocated"], found["memory/update/retries"]) == (2.0, 0.0)
    assert (found["memory/cuda_allocated"], found["memory/cuda_reserved"]) == (10.0, 16.0)
    assert "memory/update/plan_ratio" not in found
    assert not any("sync" in name for name in found), "a phase that the step did not have"
    told.use(1, 12)
    ledger.metrics()
    assert ledger.metrics()["memory/cuda_allocated"] == 1.0, "peaks are those since the last line"


def test_rewards_beside_a_rollout_and_on_another_thread() -> None:
    told = Told()
    ledger = MemoryLedger(gauge=told)

    def judge() -> None:
        with ledger.phase("reward"):
            told.use(7, 7)
            told.use(1, 7)

    with ledger.phase("rollout"):
        thread = threading.Thread(target=judge)
        thread.start()
        thread.join()
        told.use(5, 7)
    found = ledger.metrics()
    assert (found["memory/reward/allocated"], found["memory/rollout/allocated"]) == (7.0, 7.0)


def test_a_phase_that_raises_is_over() -> None:
    ledger = MemoryLedger(gauge=(told := Told()))

    def fails() -> None:
        with ledger.phase("forward_backward"):
            told.use(4, 4)
            raise torch.OutOfMemoryError("too little")

    with pytest.raises(torch.OutOfMemoryError):
        fails()
    told.use(6, 6)
    assert ledger.metrics()["memory/forward_backward/allocated"] == 4.0


def test_the_cache_is_emptied_where_rollout_and_training_take_turns() -> None:
    told = Told()
    ledger = MemoryLedger(gauge=told)
    for name in ("rollout", "rollout", "forward_backward", "update", "forward_backward", "update", "sync", "rollout"):
        with ledger.phase(name):
            told.use(1, 10)
    assert told.emptied == [10, 10], "between the turns, and neither within a step's rollouts nor between its updates"
    assert ledger.metrics()["memory/rollout/reserved"] == 10.0


def kept(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def test_slack_is_what_the_peaks_take_beyond_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache" / "slack.json"
    monkeypatch.setattr(slack, "FILE", file)
    told, said = Told(beside=3), list[str]()
    ledger = MemoryLedger(gauge=told, keep=keep)
    ledger.remember("r", said.append)
    assert kept(file) == {}, "nothing was seen yet"
    with ledger.phase("rollout"):
        told.use(40, 50)
        told.use(2, 50)
    ledger.metrics()
    with ledger.phase("forward_backward"):
        told.use(30, 60)
    ledger.remember("r", said.append)
    seen = {"allocated": 40 * MIB, "reserved": 60 * MIB, "slack": (60 - 40 + 3) * MIB, "run": "r"}
    assert kept(file) == {f"NVIDIA H100, torch {version('torch')}": seen}
    assert slack.slack_of(gpu_of("h100")).bytes == 23 * MIB
    told = Told(name=None)
    ledger = MemoryLedger(gauge=told, keep=keep)
    with ledger.phase("rollout"):
        told.use(1, 1)
    ledger.remember("another", said.append)
    assert len(kept(file)) == 1
    assert said == []
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("no folder")
    told.name = "NVIDIA H100"
    ledger.remember("another", said.append)
    assert "not kept for the next plan" in said[0], "and the run goes on"


def test_what_is_planned_for_a_stage_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved_bytes.build("qwen2_5_vl", vocab=300, hidden=96, layers=2, heads=6, kv_heads=2, mlp=128)
    policy = saved_bytes.policy_of(model, compute=torch.bfloat16)
    config = Config.model_validate(small_config(Path("m"), Path("w"), Path("r")))
    stage = config.stages[1]
    assert planned(config, stage, policy, longest=50, world=1) == {}, "no plan is about a CPU"
    policy.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=10**10))
    found = planned(config, stage, policy, longest=50, world=1)
    assert set(found) == {"forward_backward", "update", "rollout"}
    settings = settings_of(config, stage, shape=shape_of(model.config.to_dict()), gpu=gpu_of("h100"), gpus=1, given={"prompt": 50})
    assert found["rollout"] == memory(settings).phases["rollout"] - SLACK
    assert found["rollout"] < planned(config, stage, policy, longest=100, world=1)["rollout"]
    rows = SimpleNamespace(prompt_tokens={"a": 20, "b": 50})
    session: Any = SimpleNamespace(cfg=config, policy=policy, rows_of=lambda source, answers: rows)
    ledger = ledger_of(session, stage)
    assert (ledger.planned, ledger.keep) == (found, keep), "with the longest prompt of the rows"
    monkeypatch.setattr("vlmrl.run.open_stage.FORECASTS", Catalogue[Any]("forecast without extras"))
    ledger = ledger_of(session, stage)
    assert (dict(ledger.planned), ledger.keep) == ({}, None), "a run goes without"


class Storages(saved_bytes.Live):
    """Storages of the CPU as a gauge: they are counted as they come and go."""

    name = "the CPU"

    def read(self) -> MemoryReading:
        return MemoryReading(allocated=self.most, reserved=self.most)

    def reset(self) -> None:
        self.most = self.now

    def empty(self) -> None: ...

    def outside(self) -> int:
        return 0


def test_forward_and_backward_and_update_against_the_plan() -> None:
    """Storages of a step that is not the first: moments are there."""
    model = saved_bytes.build("qwen2_5_vl", vocab=3000, hidden=192, layers=4, heads=6, kv_heads=2, mlp=512)
    frozen = ("vision", "projector")
    plain: dict[str, Any] = {"compute": torch.float32, "recompute": False, "grid": None, "chunk": None, "lora": None}
    run = saved_bytes.ready(model, [(400, (60,) * 4)], frozen=frozen, **plain)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, fused=True)
    for p in trained:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    settings: dict[str, Any] = {"shape": shape_of(model.config.to_dict()), "gpu": gpu_of("h100"), "gpus": 1, "backend": "merge"}
    work = {"groups": 1, "answers": 4, "prompt": 400, "answer": 60, "visual": 0, "engine": "none", "freeze": frozen}
    said = memory(Settings(**settings, **work)).tensors
    live = Storages()
    ledger = MemoryLedger(gauge=live, planned={name.replace("/", "_"): size for name, size in said.items()})
    held = [*model.parameters(), *(p.grad for p in trained), *(value for one in optimizer.state.values() for value in one.values())]
    for tensor in held:
        live.add(tensor.detach())
    with live:
        with ledger.phase("forward_backward"):
            run.forward().sum().backward()
        with ledger.phase("update"):
            optimizer.step()
    found = ledger.metrics()
    assert found["memory/forward_backward/plan_ratio"] == pytest.approx(1, abs=0.05)
    assert found["memory/update/plan_ratio"] == pytest.approx(1, abs=0.1)
    assert found["memory/update/allocated"] < found["memory/forward_backward/allocated"] == found["memory/cuda_allocated"]


def test_what_torch_tells_of_a_cuda_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stats = {"allocated_bytes.all.peak": 3 * MIB, "reserved_bytes.all.peak": 5 * MIB, "num_alloc_retries": 4}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats if device == torch.device("cuda", 1) else {})
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append(f"reset {device}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * MIB, 80 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * MIB)
    gauge = gauge_of(torch.device("cuda", 1))
    assert isinstance(gauge, CudaGauge)
    assert gauge.read() == MemoryReading(allocated=3 * MIB, reserved=5 * MIB, retries=4)
    assert gauge.outside() == 8 * MIB
    ledger = MemoryLedger(gauge=gauge, keep=keep)
    for name in ("rollout", "forward_backward"):
        with ledger.phase(name):
            pass
    assert done.count("empty") == 1
    found = ledger.metrics()
    assert (found["memory/cuda_allocated"], found["memory/cuda_reserved"], found["memory/rollout/retries"]) == (3.0, 5.0, 0.0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card at {device}")
    monkeypatch.setattr(slack, "FILE", tmp_path / "slack.json")
    ledger.remember("r", done.append)
    assert kept(tmp_path / "slack.json")[f"a card at cuda:1, torch {version('torch')}"]["slack"] == (5 - 3 + 8) * MIB


def test_memory_of_this_process() -> None:
    ledger = MemoryLedger()
    assert isinstance(gauge_of(torch.device("cpu")), HostGauge)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = ledger.metrics()
    assert set(found) == {"memory/peak_rss"}
    assert found["memory/peak_rss"] == pytest.approx(before, rel=0.01)
    with ledger.phase("rollout"):
        held = b"x" * (200 * 2**20)
    found = ledger.metrics()
    assert found["memory/peak_rss"] >= len(held) / MIB
    assert len(held) / MIB < found["memory/rollout/reserved"] <= found["memory/peak_rss"] + 1
    assert resident() < len(held) + 2**34
    assert set(found) == {"memory/peak_rss", "memory/rollout/reserved", "memory/rollout/retries"}


@pytest.mark.gpu
def test_memory_of_an_accelerator_is_that_of_the_step() -> None:
    device = torch.device("cuda")
    ledger = MemoryLedger(gauge=gauge_of(device))
    ledger.metrics()
    with ledger.phase("rollout"):
        big = torch.ones(64 * 2**20, dtype=torch.uint8, device=device)
        del big
    found = ledger.metrics()
    assert found["memory/rollout/allocated"] >= 64
    assert found["memory/cuda_allocated"] >= 64
    assert ledger.metrics()["memory/cuda_allocated"] < 64

"""train.dist: control traffic goes over gloo on the CPU, tensors of the device over its own library."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ranks import Ranks
from vlmrl.extras.scale import join
from vlmrl.train import dist


@pytest.mark.not_fast
def test_control_traffic_needs_no_backend_for_the_cpu_in_the_group_of_the_device(tmp_path: Path) -> None:
    """With a group for a device alone, as accelerate makes with NCCL, a tensor on the CPU cannot be reduced."""
    job = Ranks("device_only", tmp_path)
    try:
        assert [job.code(rank) for rank in range(2)] == [0, 0], job.text(0) + job.text(1)
        assert "ASKED gloo 600.0" in job.text(0)
        assert "CPU TENSOR: No backend type associated with device type cpu" in job.text(0), "the control: this group is of that kind"
        assert "DONE" in job.text(1).splitlines()
    finally:
        job.close()


@pytest.mark.parametrize(("offloads", "backend"), [(False, "nccl"), (True, "cpu:gloo,cuda:nccl")])
def test_on_a_gpu_the_group_speaks_nccl(offloads: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gloo where gradients are summed in the machine's memory. The arguments alone: nothing is started."""
    asked: list[tuple[Any, ...]] = []

    def started(*args: Any, **options: Any) -> None:
        asked.append((*args, options))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_GLOO_LAZY_INIT"):
        monkeypatch.setenv(name, "1")  # put back afterwards
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: started("device", device))
    monkeypatch.setattr(join.torch_dist, "init_process_group", started)
    monkeypatch.setattr("accelerate.PartialState", lambda **options: started("accelerate", **options))
    monkeypatch.setattr(join.atexit, "register", lambda function: None)
    monkeypatch.setattr(join, "_start_control", lambda waits: started("control", waits.patience) or (None, None))
    monkeypatch.setattr(join, "raise_descriptors", lambda: None)
    dist.start(patience=120.0, offloads=offloads)
    assert asked == [
        ("device", 1, {}),
        (backend, {"timeout": timedelta(seconds=120)}),
        ("accelerate", {"cpu": False}),
        ("control", 120.0, {}),
    ]


def test_several_ranks_do_not_start_without_what_watches_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(dist.SEVERAL, "join")  # pyright: ignore
    with pytest.raises(KeyError, match="unknown function of several ranks 'join'"):
        dist.start()


def test_a_restart_does_not_find_what_the_start_before_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's store is the same for all starts, so a rank may read there where a rank 0 listened that has gone."""
    library: Any = torch.distributed
    launcher = library.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(launcher.port))
    patience = timedelta(seconds=60)
    before = join._fresh_store(0, patience)
    before.set("where", "of the start before")
    del before  # its process has gone, and with it its port
    found: list[bytes] = []

    def other() -> None:
        found.append(join._fresh_store(1, patience).get("where"))

    rank_1 = threading.Thread(target=other)
    rank_1.start()
    time.sleep(0.5)
    assert found == []
    now = join._fresh_store(0, patience)
    now.set("where", "here")
    rank_1.join(60)
    assert found == [b"here"]

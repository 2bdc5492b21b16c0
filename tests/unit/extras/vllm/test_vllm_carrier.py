"""The group that weights go over: real gloo between threads, and what becomes of a member that is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
import torch

from vlmrl.extras.vllm import carrier as carrier_module
from vlmrl.extras.vllm.carrier import Carrier, CarrierError, Line, cut, facing, meeting, packed

CPU = torch.device("cpu")
Group = tuple[Carrier, list[Carrier]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as out:
        yield out


def met(pool: ThreadPoolExecutor, workers: int, name: str = "a") -> Group:
    meets = meeting("127.0.0.1", 1)
    line = Line(host="127.0.0.1", port=meets.getsockname()[1], world=1 + workers, kind="gloo", name=name)
    others = [pool.submit(Carrier, Line(**asdict(line)), 1 + n, device=CPU) for n in range(workers)]
    return Carrier(line, 0, device=CPU, meets=meets), [other.result(30) for other in others]


def taken(pool: ThreadPoolExecutor, carrier: Carrier, told: dict[str, Any]) -> Future[list[tuple[str, torch.Tensor]]]:
    def take(size: int) -> torch.Tensor:
        row = torch.empty(size, dtype=torch.uint8)
        carrier.cast(row)
        return row

    return pool.submit(lambda: cut(told["names"], told["dtypes"], told["shapes"], take))


def test_tensors_of_every_type_come_to_all_workers_bit_for_bit(pool: ThreadPoolExecutor) -> None:
    given = [
        ("bf16", torch.randn(3, 5).bfloat16()),
        ("u8", torch.arange(7, dtype=torch.uint8)),
        ("f32", torch.randn(4, 3).t()),
        ("nothing", torch.zeros(0, 4)),
        ("f64", torch.tensor(float("nan"), dtype=torch.float64)),
        ("i64", torch.tensor([-(2**62)])),
    ]
    trainer, workers = met(pool, 2)
    for _ in range(2):
        row, told = packed(given)
        coming = [taken(pool, worker, told) for worker in workers]
        trainer.cast(row)
        for one in coming:
            for (name, tensor), (as_name, got) in zip(given, one.result(20), strict=True):
                assert (as_name, got.dtype, got.shape) == (name, tensor.dtype, tensor.shape)
                assert torch.equal(got.reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8))
    for one in (trainer, *workers):
        one.leave()


@pytest.mark.parametrize(
    "told",
    [
        {"names": ["a", "b"], "dtypes": ["float32"], "shapes": [[1]]},
        {"names": ["a"], "dtypes": ["save"], "shapes": [[1]]},
        {"names": ["a"], "dtypes": ["no_such_type"], "shapes": [[1]]},
    ],
)
def test_what_does_not_fit_together_is_not_waited_for(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        cut(told["names"], told["dtypes"], told["shapes"], lambda size: pytest.fail("it was asked for bytes"))


def test_a_member_that_goes_breaks_its_own_group_and_no_other(pool: ThreadPoolExecutor) -> None:
    trainer, (going,) = met(pool, 1)
    elsewhere, (staying,) = met(pool, 1, "b")
    row, told = packed([("w", torch.randn(2**20))])
    going.leave()
    with pytest.raises(CarrierError):
        trainer.cast(row)
    trainer.leave()
    coming = taken(pool, staying, told)
    elsewhere.cast(row)
    assert coming.result(20)[0][0] == "w"
    staying.leave()
    elsewhere.leave()


def test_nobody_waits_for_a_bucket_that_is_not_taken(pool: ThreadPoolExecutor) -> None:
    """More than the line has room for, to a worker that does not look."""
    trainer, (silent,) = met(pool, 1)
    row, _ = packed([("w", torch.randn(2**24))])
    began = time.monotonic()
    with pytest.raises(CarrierError, match="the server has refused it"):
        trainer.cast(row, lambda: "the server has refused it" if time.monotonic() > began + 0.3 else None)
    silent.leave()
    trainer.leave()


def test_a_group_that_does_not_meet_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier_module, "JOIN", 0.3)
    for lost, why in (
        (lambda: None, r"did not meet at 127\.0\.0\.1:\d+: not within 0\.3 s"),
        (lambda: "refused", "did not meet .*: refused"),
    ):
        meets = meeting("127.0.0.1", 1)
        line = Line(host="127.0.0.1", port=meets.getsockname()[1], world=2, kind="gloo", name="a")
        with pytest.raises(CarrierError, match=why):
            Carrier(line, 0, device=CPU, meets=meets, lost=lost)


def test_it_meets_on_the_way_to_the_server_alone() -> None:
    assert facing("127.0.0.1", 7000) == "127.0.0.1"
    with meeting("127.0.0.1", 7000) as port:
        assert port.getsockname()[0] == "127.0.0.1"


WORKER = """
import sys, torch
from vlmrl.extras.vllm.carrier import Carrier, Line
line = Line(host="127.0.0.1", port=int(sys.argv[1]), world=2, kind="gloo", name="a")
row = torch.zeros(3, dtype=torch.uint8)
Carrier(line, 1, device=torch.device("cpu")).cast(row)
print(row.tolist())
"""


def test_a_trainer_of_several_ranks_meets_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's ranks connect lazily to each other, which the server knows nothing of: that killed its worker."""
    meets = meeting("127.0.0.1", 1)
    line = Line(host="127.0.0.1", port=meets.getsockname()[1], world=2, kind="gloo", name="a")
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(line.port)], stdout=subprocess.PIPE, text=True)
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    trainer = Carrier(line, 0, device=CPU, meets=meets, lost=lambda: None if worker.poll() is None else f"the worker: {worker.poll()}")
    trainer.cast(torch.tensor([1, 2, 3], dtype=torch.uint8), lambda: None if worker.poll() in (None, 0) else f"the worker: {worker.poll()}")
    assert worker.communicate(timeout=60)[0].strip() == "[1, 2, 3]"
    trainer.leave()

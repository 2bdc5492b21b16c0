"""The pretended device refuses and counts what it says."""

from __future__ import annotations

import pytest
import torch

from tests.support.pretend import MixedDevices, OnDevice, Pretend, Unordered


def test_values_are_real_and_backward_runs() -> None:
    with Pretend() as fake:
        x = fake.put(torch.tensor([1.0, 2.0])).requires_grad_()
        (x * x).sum().backward()
        assert x.grad.device == fake.device
        assert x.grad.tolist() == [2.0, 4.0]


def test_two_devices_are_refused() -> None:
    with Pretend() as fake:
        x = fake.put(torch.arange(3))
        with pytest.raises(MixedDevices, match="add"):
            x + torch.arange(3)
        with pytest.raises(MixedDevices, match="index"):
            torch.arange(3)[x]
        with pytest.raises(MixedDevices, match="cat"):
            torch.cat([torch.arange(3), x])
        with pytest.raises(MixedDevices):
            x[x] = torch.arange(3)
        assert (x + torch.tensor(1)).tolist() == [1, 2, 3], "a number of the host is an argument"
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()


def test_copies_and_waits_are_counted() -> None:
    with Pretend() as fake:
        x = torch.arange(4).to(fake.device)
        assert isinstance(x, OnDevice)
        y = torch.tensor([1, 2, 3, 4], device=fake.device)
        assert fake.total("to device") == 2
        assert fake.total("wait") == 2, "both copies are out of pageable memory"
        fake.reset()
        torch.arange(4).pin_memory().to(fake.device, non_blocking=True)
        torch.zeros(4, dtype=torch.int64, device=fake.device).copy_(torch.arange(4).pin_memory(), non_blocking=True)
        assert fake.total("to device") == 2
        assert fake.total("wait") == 0
        torch.arange(4).pin_memory().to(fake.device)
        torch.arange(4).to(fake.device, non_blocking=True)
        assert fake.total("wait") == 2, "one half of it is not enough"
        fake.reset()
        x.cpu(), x.max().item(), x.tolist(), (x > 1).nonzero(), x[x > 1], bool((x == y).any())
        assert fake.total("to host") == 1
        assert fake.total("wait") == 6
        torch.zeros(4, dtype=torch.int64).copy_(x)
        assert fake.total("to host") == 2
        assert fake.total("hidden") == 0
        x[torch.tensor([0, 1])]
        assert fake.total("hidden") == 1
        assert fake.total("wait") == 8, "that of the index and those of the copies count too"
        fake.reset()
        assert fake.total("wait") == 0


def test_operations_without_an_order_are_refused_in_deterministic_mode() -> None:
    with Pretend() as fake:
        x = fake.put(torch.rand(4))
        with pytest.raises(Unordered, match="cumsum"):
            x.cumsum(0)
        assert x.long().cumsum(0).tolist() == [0, 0, 0, 0], "whole numbers have one sum in any order"
        torch.use_deterministic_algorithms(False)
        x.cumsum(0)


def test_autocast_is_played_and_ends_with_the_device() -> None:
    real = torch.autocast
    with Pretend() as fake:
        x, w = fake.put(torch.rand(2, 3)), torch.nn.Parameter(fake.put(torch.rand(3, 3)))
        with torch.autocast(fake.device.type, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled(fake.device.type)
            y = x @ w
            with torch.autocast(fake.device.type, enabled=False):
                assert (x @ w).dtype == torch.float32
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert w.grad.dtype == torch.float32
        assert (x @ w).dtype == torch.float32
    assert torch.autocast is real
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype == torch.bfloat16

"""The suite's own guard rails."""

from __future__ import annotations

import gc
import os
import socket
import threading

import numpy as np
import pytest
import torch

from tests import conftest


@pytest.mark.parametrize("address", [("93.184.216.34", 80), ("169.254.169.254", 80), ("2606:2800:220:1::", 80)])
@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_leaving_the_machine_is_blocked(address, method):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as s, pytest.raises(RuntimeError, match="loopback"):
        getattr(s, method)(address)


def test_names_are_not_looked_up():
    with pytest.raises(RuntimeError, match="loopback"):
        socket.create_connection(("example.com", 443), timeout=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, pytest.raises(RuntimeError, match="loopback"):
        s.sendto(b"x", ("8.8.8.8", 53))


def test_loopback_works():
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer: list[bytes] = []

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                answer.append(peer.recv(4))

        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=10) as client:
            client.sendall(b"ping")
        thread.join(10)
        assert answer == [b"ping"]


def test_one_thread_and_offline():
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_starts_with_the_same_seed(attempt):
    assert torch.rand(1).item() == pytest.approx(0.4962566, abs=1e-6)


@pytest.mark.skipif(conftest.resident() == 0, reason="the machine does not say how much memory a process has")
def test_what_a_module_left_in_a_cycle_is_given_back(monkeypatch):
    gc.disable()
    try:
        monkeypatch.setattr(conftest, "_kept", conftest.resident())
        left = [np.ones(2 * conftest.GROWN // 8)]
        left.append(left)
        del left
        before = conftest.resident()
        conftest.give_back()
        assert before - conftest.resident() > conftest.GROWN
        assert conftest._kept <= conftest.resident() + 2**20
    finally:
        gc.enable()


@pytest.mark.skipif(conftest.resident() == 0, reason="the machine does not say how much memory a process has")
def test_kernels_of_shapes_that_are_over_are_given_back():
    weight = torch.randn(128, 64, dtype=torch.bfloat16, requires_grad=True)
    before = conftest.resident()
    for rows in range(1, 151):
        torch.nn.functional.linear(torch.randn(rows, 64, dtype=torch.bfloat16), weight).sum().backward()
    conftest._libc.malloc_trim(0)
    assert conftest.resident() - before < 96 * 2**20


def test_a_test_on_the_shared_model_is_not_of_the_fast_lane(request, tiny_files):
    assert request.node.get_closest_marker("not_fast") is not None
    assert tiny_files[0].is_dir()

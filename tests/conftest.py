"""What holds for the whole suite: one thread, fixed seeds, deterministic kernels, no network beyond this machine."""

from __future__ import annotations

import os

# Before any import that reads them, and inherited by child processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.pop("VLMRL_FAULT", None)
# A product of matrices in bfloat16 has a kernel for each shape on a CPU, of about a MB. oneDNN and torch keep the last 1,024 of them each.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

import ctypes
import functools
import gc
import ipaddress
import random
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.testing
from hypothesis import settings

import vlmrl  # noqa: F401 (torchvision next to a CPU-only torch, also for tests that import transformers first)

settings.register_profile("thorough", derandomize=True, deadline=None, database=None, max_examples=300)  # the nightly tests
settings.register_profile("suite", settings.get_profile("thorough"), max_examples=50)
settings.register_profile("fast", settings.get_profile("suite"), max_examples=20)  # scripts/test.sh --fast
settings.load_profile(os.environ.get("VLMRL_TEST_PROFILE", "suite"))
torch.set_num_threads(1)
seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
"""Where no device is, `manual_seed` writes down for each kind of device by which calls it was reached: a millisecond for every test."""
# A runner of commands makes the parsers of all of them, which takes 70 ms, at every invocation.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # pyright: ignore[reportPrivateUsage]


class NetworkBlocked(RuntimeError):
    """A test tried to leave this machine."""


def _is_local(host: Any) -> bool:
    if host in (None, "", b"", "localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host).is_loopback
    except ValueError:
        return False


def _guarded(name: str) -> Any:
    real = getattr(socket.socket, name)

    def call(self: socket.socket, *args: Any) -> Any:
        address = args[-1]
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            raise NetworkBlocked(f"socket.{name} to {address[0]}: tests reach loopback addresses only")
        return real(self, *args)

    return call


for _name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, _name, _guarded(_name))

_getaddrinfo = socket.getaddrinfo


def _local_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_local(host):
        raise NetworkBlocked(f"name lookup of {host!r}: tests reach loopback addresses only")
    return _getaddrinfo(host, *args, **kwargs)


socket.getaddrinfo = _local_getaddrinfo


GROWN = 64 * 2**20
"""Bytes that a module may add to this process before what it left behind is given back to the machine."""
_libc = ctypes.CDLL(None)
_kept = 0


def resident() -> int:
    """Bytes of this process in memory; 0 where the machine does not say."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 0


def give_back() -> None:
    """If this process has grown: collect models, which are parts of cycles, and ask the allocator for the pages that they lay in."""
    global _kept
    if resident() > _kept + GROWN:
        gc.collect()
        if hasattr(_libc, "malloc_trim"):
            _libc.malloc_trim(0)
        _kept = resident()


def pytest_collection_finish() -> None:
    """Modules and thousands of collected tests live to the end: collections look at what comes after them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a loaded model are not of the fast lane; `-m` is applied after this."""
    for item in items:
        if "tiny_files" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.not_fast)


@pytest.fixture(scope="module", autouse=True)
def _give_back():
    """The models of a module go with it. Set up before all other fixtures of the module, so it ends after them."""
    yield
    give_back()


@pytest.fixture(autouse=True)
def _same_start():
    """Global generators start equal in every test, and deterministic mode does not leak from one test to the next."""
    random.seed(0)
    np.random.seed(0)
    seed_torch(0)
    deterministic, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)

"""Two ranks of a run, each on a host of its own (`tests.support.netns`)."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.netns import Hosts

TRAIN = """
import json, sys
from pathlib import Path
from tests.support import preload
from tests.support.runs import _run
from tests.support import ahead
config = json.load(open(sys.argv[1]))
for change in sys.argv[2:]:
    getattr(ahead, change)(Path(config["run"]["root"]))
_run(config, None)
"""


def environment(**more: str) -> dict[str, str]:
    here = {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "eth0"}
    return here | more


class Training:
    """Two ranks of a run, on the first two hosts."""

    def __init__(self, hosts: Hosts, config: dict[str, Any], *changes: str, fault: str = "", full: Path | None = None):
        """
        Args:
            changes: functions of `tests.support.ahead` that are applied in each rank first.
            fault: of `vlmrl.faults`.
            full: a folder that is a small file system of its own on the second host.
        """
        root = Path(config["run"]["root"])
        root.mkdir(exist_ok=True)
        (root / "config.json").write_text(json.dumps(config))
        (root / "train.py").write_text(TRAIN)
        self.logs = [root / f"rank{rank}-{time.time():.0f}.log" for rank in range(2)]
        env = environment(MASTER_ADDR=hosts.addresses[0], MASTER_PORT="29400", WORLD_SIZE="2", LOCAL_RANK="0", VLMRL_FAULT=fault)
        self.ranks = [
            hosts.start(
                rank,
                [sys.executable, str(root / "train.py"), str(root / "config.json"), *changes],
                env=env | {"RANK": str(rank)},
                log=self.logs[rank],
                mount=(full, "8k") if full is not None and rank == 1 else None,
            )
            for rank in range(2)
        ]

    def codes(self, timeout: float) -> list[int]:
        """Exit codes of both, which have to be there in time."""
        end = time.monotonic() + timeout
        return [rank.wait(max(0.1, end - time.monotonic())) for rank in self.ranks]

    @property
    def running(self) -> bool:
        """Whether both are."""
        return all(rank.poll() is None for rank in self.ranks)

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")

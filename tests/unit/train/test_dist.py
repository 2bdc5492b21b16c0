"""Two ranks equal one, and one rank's failure is every rank's failure with the origin's trace."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.ranks import Ranks
from vlmrl.extras.scale.join import raise_descriptors

pytestmark = pytest.mark.not_fast  # starts processes

SCRIPT = """
import os, sys, json
import torch
torch.set_num_threads(1)
from vlmrl.train import dist
dist.start()
{body}
dist.stop()
"""


def launch(body: str, tmp_path: Path, ranks: int = 2, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(body=textwrap.dedent(body)))
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=0", "--rdzv-backend=c10d"]
    return subprocess.run(
        [*command, "--rdzv-endpoint=localhost:0", str(script)], capture_output=True, text=True, timeout=timeout, env=env, check=False
    )


def test_gather_sum_and_gradients(tmp_path: Path) -> None:
    done = launch(
        f"""
        assert dist.world() == 2
        assert dist.gather(dist.rank() * 10) == [0, 10]
        assert float(dist.sum_(torch.tensor(1.0 + dist.rank()))) == 3.0
        a, b = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))
        a.grad = torch.full((3,), 1.0 + dist.rank())
        if dist.rank() == 1:
            b.grad = torch.ones(2, 2)
        dist.sum_gradients([a, b], bucket=2)
        assert a.grad.tolist() == [3.0] * 3 and b.grad.tolist() == [[1.0, 1.0]] * 2
        assert dist.on_main(lambda: 5) == (5 if dist.rank() == 0 else None)
        from tests.support.calls import Calls
        from vlmrl.extras.scale.lockstep import largest
        with Calls() as calls:
            assert dist.gather({{"rank": dist.rank()}}) == [{{"rank": 0}}, {{"rank": 1}}]
            assert largest([3, dist.rank()] + [5] * dist.rank()) == [3, 1, 5]
        assert calls.of("control") == 2, "a call each"
        with Calls() as calls:
            assert dist.gather("x" * 3000 * (1 + dist.rank())) == ["x" * 3000, "x" * 6000]
            assert largest([2] * 700 * dist.rank()) == [2] * 700
        assert calls.of("control") == 4, "two where it is large"
        open({str(tmp_path)!r} + f"/ok{{dist.rank()}}", "x").close()
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "ok0").exists()
    assert (tmp_path / "ok1").exists()


@pytest.mark.parametrize("failing", [0, 1])
def test_one_rank_fails_and_all_know_why(failing: int, tmp_path: Path) -> None:
    done = launch(
        f"""
        def work():
            if dist.rank() == {failing}:
                raise ValueError("bad file on purpose")
        try:
            dist.run_synchronized(work)
        except ValueError as error:
            assert dist.rank() == {failing}
        except dist.RankFailed as error:
            assert dist.rank() != {failing} and "rank {failing}" in str(error) and "bad file on purpose" in str(error)
        else:
            raise SystemExit("no error on rank " + str(dist.rank()))
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("world", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_connections_of_a_rank_grow_with_the_logarithm_of_the_ranks(world: int, tmp_path: Path) -> None:
    """Three groups, and in each the partners of rings and trees; connected with everyone they would be 3 x (world - 1). Rank 0 has a
    connection to each, of the store that it holds."""
    ranks = Ranks("connected", tmp_path, world=world)
    try:
        found = [int(ranks.wait_for(rank, "SOCKETS", timeout=600).split()[1]) for rank in range(world)]
        assert all(ranks.code(rank) == 0 for rank in range(world))
    finally:
        ranks.close()
    assert max(found[1:]) <= 4 + 3 * world.bit_length()
    assert found[0] <= 4 + 3 * world.bit_length() + 2 * world


def test_a_rank_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

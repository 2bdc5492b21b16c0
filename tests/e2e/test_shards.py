"""Every training engine makes the same update as one process, whatever the rows and media of its ranks, and resumes to the same bits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.test_two_ranks import SCRIPT
from tests.support import runs, shard_ranks
from tests.support.ranks import run_ranks
from tests.support.shard_ranks import CASES, COPIES, FOUR, OFFLOADED, SHARDINGS
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import shape_of
from vlmrl.extras.plan.settings import Settings
from vlmrl.extras.plan.time import between_copies
from vlmrl.families.qwen_vl import part_of
from vlmrl.run import checkpoint
from vlmrl.run.tracking import read_metrics
from vlmrl.types import PARTS

ROUNDING = {"float32": 2e-5, "bfloat16": 0.05}
"""Largest difference of a tensor's gradient to that of one process, by its largest element. FSDP gathers bfloat16 weights, so embeddings
are rounded as well."""
LEAST = 1e-2
"""Gradients are what an update took away, and a weight near 1 is rounded by 1.2e-7: nothing is said about those smaller than this."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}


def rounding(case: shard_ranks.Case) -> float:
    """Of two small updates the weights' own rounding shows; an update that is made twice differs by 1."""
    return 1e-3 if case.then else ROUNDING[case.dtype]


def made(folder: Path, family: str, number: int, cases: Mapping[str, Any], zero: Collection[str] | None = None) -> Path:
    """Gradients of all cases by one process and by `number` ranks; those of DeepSpeed's engines for the cases `zero`."""
    shard_ranks.make_files(folder, family)
    for of in (1, number):
        run_ranks(of, folder / f"logs{of}", shard_ranks.main, folder, tuple(cases), None, zero, timeout=1500)
    return folder / "gradients"


def difference(folder: Path, case: str, one: str, other: str) -> float:
    a, b = (load_file(folder / f"{case} {name}.safetensors") for name in (one, other))
    assert set(a) == set(b)
    assert max(float(value.abs().max()) for value in a.values()) > 0.01
    return max(float((a[name] - b[name]).abs().max() / a[name].abs().max().clamp(min=LEAST)) for name in a)


QUICK = ("alike", "apart", "unequal", "idle rank", "frozen tower", "then text", "rehearsed", "rates of parts", "tower by chunks")
ZERO = ("apart", "unequal", "then text", "rehearsed", "rates of parts")
"""By day DeepSpeed's engines run these of them, at night every case."""
PAIRS = [(case, s) for case in QUICK for s in CASES[case].among(SHARDINGS) if case in ZERO or not s.startswith("zero")]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("quick"), "qwen2_5_vl", 2, {case: CASES[case] for case in QUICK}, ZERO)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def every(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp(request.param), request.param, 2, CASES)


@pytest.mark.parametrize(("case", "sharding"), PAIRS)
def test_the_gradient_of_one_process(two: Path, case: str, sharding: str) -> None:
    assert difference(two, case, "ddp 1", f"{sharding} 2") < rounding(CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "sharding"), [(name, s) for name, case in CASES.items() for s in case.among(SHARDINGS)])
def test_the_gradient_of_one_process_in_every_case(every: Path, case: str, sharding: str) -> None:
    assert difference(every, case, "ddp 1", f"{sharding} 2") < rounding(CASES[case])


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_rehearsal_changes_no_bit(two: Path, sharding: str) -> None:
    """Ranks with other media and unequal numbers of micro-batches; the largest of each goes first and leaves nothing behind."""
    assert CASES["rehearsed"] == dataclasses.replace(CASES["unequal"], rehearse=True)
    one, other = (load_file(two / f"{case} {sharding} 2.safetensors") for case in ("unequal", "rehearsed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_every_part_moves_at_its_own_rate(two: Path, sharding: str) -> None:
    one, other = (load_file(two / f"{case} {sharding} 2.safetensors") for case in ("apart", "rates of parts"))
    moved = dict.fromkeys(PARTS, 0)
    for name in sorted(set(one) - {"norm"}):
        rate = {"vision": 0.5, "projector": 2.0, "language": 1.0}[part_of(name)]
        moved[part_of(name)] += int(bool(one[name].abs().max() > 1e-4))
        assert (other[name] - rate * one[name]).abs().max() <= 1e-5 * max(1.0, float(one[name].abs().max())), name
    assert all(moved.values())


def test_shards_sum_as_replicas_do(two: Path) -> None:
    """One micro-batch per rank: the same two numbers are added for every weight, in shards as in replicas. Gathered weights lie elsewhere
    in memory, and the kernels of a CPU round by alignment."""
    for case in ("alike", "apart", "frozen tower"):
        assert difference(two, case, "ddp 2", "fsdp 2") < 1e-6, case


@pytest.fixture(scope="module")
def offloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On a CPU both memories are the same one; what is tested is the way that gradients, moments and weights go."""
    return made(tmp_path_factory.mktemp("offloaded"), "qwen2_5_vl", 2, OFFLOADED | {"unequal": CASES["unequal"]})


@pytest.mark.slow
@pytest.mark.parametrize(("case", "sharding"), [(name, s) for name, case in OFFLOADED.items() for s in case.among(SHARDINGS)])
def test_what_lies_in_the_machines_memory_is_trained_alike(offloaded: Path, case: str, sharding: str) -> None:
    """Several micro-batches of which the last is text, and a second update with text alone."""
    assert difference(offloaded, case, "ddp 1", f"{sharding} 2") < rounding(OFFLOADED[case])


@pytest.mark.slow
def test_shards_in_the_machines_memory_have_the_same_bits(offloaded: Path) -> None:
    assert OFFLOADED["all in the machine's memory"] == dataclasses.replace(CASES["unequal"], rehearse=True, offload="all")
    one, other = (load_file(offloaded / f"{case} fsdp 2.safetensors") for case in ("unequal", "all in the machine's memory"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each of two ranks is a group that has all weights."""
    return made(tmp_path_factory.mktemp("copies"), "qwen2_5_vl", 2, COPIES)


def calls(folder: Path, case: str, *, control: bool, operation: str = "") -> tuple[int, int]:
    """(calls, bytes) of rank 0 in the first update of two ranks with fsdp: those in which ranks agree, or the others."""
    found = json.loads((folder / f"{case} fsdp 2.json").read_text())
    of = [(number, size) for name, group, number, size in found if (group == "control") == control and operation in (name, "")]
    return sum(number for number, _ in of), sum(size for _, size in of)


@pytest.mark.parametrize("case", COPIES)
def test_copies_are_summed_once_a_step(copies: Path, case: str) -> None:
    """Several micro-batches; the tower's gradients are complete at its last one, whichever that is. The rehearsal sums once more."""
    assert difference(copies, case, "ddp 1", "fsdp 2") < ROUNDING["float32"]
    times = 2 if COPIES[case].rehearse else 1
    number, size = calls(copies, case, control=False, operation="allreduce_")
    assert number == times * shard_ranks.units(copies.parent)
    shape = shape_of(json.loads((copies.parent / "model" / "config.json").read_text()))
    # a sum over two sends as many bytes as it has
    planned = Settings(shape=shape, gpu=gpu_of("h100"), gpus=2, sharding="fsdp", dtype="float32", shard_size=1)
    assert size == times * between_copies(planned, 1)


@pytest.mark.parametrize("case", ["alike", "apart", "unequal", "idle rank", "tower by chunks"])
def test_ranks_agree_three_times_a_step(two: Path, case: str) -> None:
    """On the passes of all micro-batches, on the number of tokens, and on what is logged with whether it is finite."""
    assert calls(two, case, control=True)[0] == 3


@pytest.mark.slow
def test_groups_of_ranks_that_share_a_copy(tmp_path: Path) -> None:
    folder = made(tmp_path, "qwen2_5_vl", 4, FOUR)
    for case in FOUR:
        for sharding in FOUR[case].among(SHARDINGS):
            assert difference(folder, case, "ddp 1", f"{sharding} 4") < ROUNDING["float32"], (case, sharding)


@pytest.mark.slow
@pytest.mark.parametrize("control", ["left out", "behind"])
def test_without_idle_passes_in_their_place_it_fails(control: str, tmp_path: Path) -> None:
    shard_ranks.make_files(tmp_path, "qwen2_5_vl")
    with pytest.raises(AssertionError, match="ended with"):
        run_ranks(2, tmp_path / "logs", shard_ranks.main, tmp_path, ("apart",), f"{control}/fsdp")
    assert not (tmp_path / "gradients").exists()


# ---- whole runs ------------------------------------------------------------------------------------------------------------


def configured(files: tuple[Path, Path], folder: Path, sharding: str, **more: Any) -> dict[str, Any]:
    folder.mkdir()
    config = runs.small_config(*files, folder) | {"train": {"sharding": sharding}}
    for section, values in more.items():
        config[section] = config.get(section, {}) | values
    (folder / "run.py").write_text(SCRIPT)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def launched(folder: Path, number: int = 2) -> subprocess.Popen[str]:
    command = [*TORCHRUN, f"--nproc-per-node={number}", str(folder / "run.py"), str(folder / "config.json")]
    log = (folder / "log.txt").open("a")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=os.environ | ENVIRONMENT)


def finish(folder: Path, number: int = 2) -> None:
    run_ranks(number, folder / "logs", runs._run, json.loads((folder / "config.json").read_text()), None)


def steps(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]


def weights(config: Mapping[str, Any]) -> dict[str, Any]:
    return load_file(runs.run_dir(config) / "final" / "model.safetensors")


def digest(config: Mapping[str, Any]) -> str:
    """Of all tensors of the last checkpoint, by file and name, and of the final weights. Headers of shards are not in one order."""
    out = hashlib.sha256()
    last = checkpoint.steps(runs.run_dir(config) / "checkpoints")[-1]
    for path in [*sorted(last.rglob("*.safetensors")), runs.run_dir(config) / "final" / "model.safetensors"]:
        for name, tensor in sorted(load_file(path).items()):
            out.update(f"{path.name} {name} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return out.hexdigest()


def test_a_run_in_shards_is_the_run_of_replicas(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    check_same_run(tiny_files, tmp_path, ("fsdp",))


@pytest.mark.slow
def test_a_run_of_zero_is_the_run_of_replicas(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    check_same_run(tiny_files, tmp_path, ("zero2", "zero3"))


@pytest.mark.slow
def test_adapters_in_shards(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    check_same_run(tiny_files, tmp_path, ("fsdp", "zero2", "zero3"), model={"lora": {"rank": 4, "alpha": 8.0}})


@pytest.mark.slow
def test_a_run_whose_rows_are_shared_is_the_run_of_replicas(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    check_same_run(tiny_files, tmp_path, ("ddp", "fsdp"), train={"sequence": 2})


def check_same_run(
    files: tuple[Path, Path], folder: Path, shardings: tuple[str, ...], train: Mapping[str, Any] | None = None, **more: Any
) -> None:
    """`train`: what all but the replicas have in that section."""
    configs = {"replicas": configured(files, folder / "replicas", "ddp", **more)}
    configs |= {name: configured(files, folder / name, name, train=train or {}, **more) for name in shardings}
    for name in configs:
        finish(folder / name)
    base = (runs.run_dir(configs["replicas"]) / "eval" / "base.jsonl").read_bytes()
    for name in shardings:
        assert (runs.run_dir(configs[name]) / "eval" / "base.jsonl").read_bytes() == base
        assert len(steps(configs[name])) == 7
        for a, b in zip(steps(configs["replicas"]), steps(configs[name]), strict=True):
            for key in ("loss", "grad_norm", "reward", "completions/mean_length", "entropy", "kl"):
                if key in a:
                    assert b[key] == pytest.approx(a[key], rel=1e-4, abs=1e-5), (name, a["stage"], a["step"], key)
        assert set(weights(configs[name])) == set(weights(configs["replicas"]))
        for key, value in weights(configs["replicas"]).items():
            assert (value - weights(configs[name])[key]).abs().max() < 1e-4, (name, key)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_killed_three_times_it_ends_with_the_same_bits(sharding: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole, cut = (configured(tiny_files, tmp_path / name, sharding, checkpoint={"every": 1}) for name in ("whole", "cut"))
    finish(tmp_path / "whole")
    for lines in (2, 4, 6):
        kill_a_rank_after(tmp_path / "cut", cut, lines)
    finish(tmp_path / "cut")
    assert digest(cut) == digest(whole)
    assert [line["loss"] for line in steps(cut)] == [line["loss"] for line in steps(whole)]


def kill_a_rank_after(folder: Path, config: Mapping[str, Any], lines: int) -> None:
    """Start the run and kill one of its ranks when it has logged so many steps."""
    launcher = launched(folder)
    metrics = runs.run_dir(config) / "metrics.jsonl"
    end = time.monotonic() + 300
    while not metrics.exists() or len(steps(config)) < lines:
        assert launcher.poll() is None, (folder / "log.txt").read_text()[-4000:]
        assert time.monotonic() < end
        time.sleep(0.05)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(int(children[lines % len(children)]), signal.SIGKILL)
    assert launcher.wait(timeout=120) != 0


@pytest.mark.slow
def test_shards_of_two_ranks_are_read_by_four(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = configured(tiny_files, tmp_path / "run", "fsdp", checkpoint={"every": 1, "keep": 20})
    kill_a_rank_after(tmp_path / "run", config, 5)
    before = checkpoint.steps(runs.run_dir(config) / "checkpoints")
    finish(tmp_path / "run", 4)
    said = (tmp_path / "run" / "said.txt").read_text()
    assert f"{before[-1].name} was saved by 2 ranks and 4 go on from it" in said
    assert len(steps(config)) == 7


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "zero3"])
def test_killed_while_checkpoints_are_written_in_the_background(sharding: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The background has files, hashes and a group of ranks of its own; its checkpoints hold what those of the foreground hold."""
    plain = configured(tiny_files, tmp_path / "plain", sharding, checkpoint={"every": 1, "keep": 20})
    cut = configured(tiny_files, tmp_path / "cut", sharding, checkpoint={"every": 1, "keep": 20, "asynchronous": True})
    finish(tmp_path / "plain")
    for lines in (2, 5):
        kill_a_rank_after(tmp_path / "cut", cut, lines)
    finish(tmp_path / "cut")
    assert digest(cut) == digest(plain)
    for path in checkpoint.steps(runs.run_dir(plain) / "checkpoints"):
        other = runs.run_dir(cut) / "checkpoints" / path.name
        assert checkpoint.verify(other) == []
        for file in path.rglob("*.safetensors"):
            a, b = load_file(file), load_file(other / file.relative_to(path))
            assert set(a) == set(b)
            assert all(a[name].equal(b[name]) for name in a), (path.name, file.name)

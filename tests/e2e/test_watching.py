"""What only watches or hurries a run does not change it: prefetching and profiling on or off, the same bits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.run.tracking import read_metrics

Whole = tuple[dict[str, Any], dict[str, Any]]


def config_of(files: tuple[Path, Path], root: Path, **media: Any) -> dict[str, Any]:
    config = runs.small_config(*files, root)
    config["media"] |= media
    config["stages"][1]["freeze"] = ["vision", "projector"]
    return config


def steps_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]


@pytest.fixture(scope="module")
def plain(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Neither prefetched nor profiled."""
    config = config_of(tiny_files, tmp_path_factory.mktemp("plain"), prefetch=False)
    assert runs.run(config) == 0
    return config, runs.outcome(config)


def test_prefetching_changes_no_bit(plain: Whole, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = config_of(tiny_files, tmp_path, prefetch=True)
    assert runs.run(config) == 0
    assert runs.outcome(config) == plain[1]
    assert sum(line["cache/media_prefetched"] for line in steps_of(config)) > 0
    assert all(line["cache/media_prefetched"] == 0 for line in steps_of(plain[0]))


@pytest.mark.slow
def test_prefetching_changes_no_bit_where_torch_has_several_threads(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """A main thread that computes with another number of threads would show in the last bits."""
    outcomes = []
    for prefetch in (True, False):
        config = config_of(tiny_files, tmp_path / str(prefetch), prefetch=prefetch)
        config["run"]["threads"], config["eval"]["limit"] = 2, 2
        config["stages"] = [stage | {"steps": 2} for stage in config["stages"]]
        assert runs.run(config) == 0
        outcomes.append(runs.outcome(config))
    assert outcomes[0] == outcomes[1]


def test_a_signal_ends_a_run_that_prefetches(plain: Whole, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Saved and ended with the background thread, then resumed with another cache and without prefetching, which is no change of the
    recipe. The first cache is too small for a step's media."""
    config = config_of(tiny_files, tmp_path, prefetch=True, cache_bytes=2_000_000)
    assert runs.run(config, "step.before_update@2:term") == 75
    config["media"] |= {"prefetch": False, "cache_bytes": 2**30}
    assert runs.run(config) == 0
    assert runs.outcome(config) == plain[1]


def test_an_exception_ends_a_run_that_prefetches(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    assert runs.run(config_of(tiny_files, tmp_path, prefetch=True), "step.before_update@2:raise", timeout=60) == 1


@pytest.mark.slow
def test_a_profile_of_each_stage(plain: Whole, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = config_of(tiny_files, tmp_path, prefetch=False)
    assert runs.run(config, profile_steps=2) == 0
    assert runs.outcome(config) == plain[1]
    folder = runs.run_dir(config) / "profile"
    assert sorted(p.name for p in folder.iterdir()) == ["rl.json.gz", "rl.txt", "sft.json.gz", "sft.txt"]
    for stage in ("sft", "rl"):
        trace = json.loads(gzip.decompress((folder / f"{stage}.json.gz").read_bytes()))
        counts: dict[str, int] = {}
        for event in trace["traceEvents"]:
            counts[event.get("name", "")] = counts.get(event.get("name", ""), 0) + 1
        # two steps: two updates, in each of which every operation of a transformer's forward and backward runs
        assert counts["phase: forward_backward"] == 2
        assert sum(n for name, n in counts.items() if name.startswith("Optimizer.step#")) == 2
        assert {"aten::mm", "aten::embedding", "aten::silu", "MmBackward0"} <= set(counts)
        lines = (folder / f"{stage}.txt").read_text().splitlines()
        assert lines[0] == f"2 steps; the trace is in {stage}.json.gz"
        operations = [line for line in lines if "%" in line and not line.lstrip().startswith("Name")]
        assert len(operations) == 30
        assert any("aten::" in line for line in operations)


def test_a_stage_without_a_step_after_the_warm_up_leaves_no_profile(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = config_of(tiny_files, tmp_path)
    config["stages"] = [config["stages"][0] | {"steps": 1}]
    assert runs.run(config, profile_steps=3) == 0
    assert not (runs.run_dir(config) / "profile").exists()
    config["run"]["name"], config["stages"][0]["steps"] = "two", 2
    assert runs.run(config, profile_steps=3) == 0
    table = (runs.run_dir(config) / "profile" / "sft.txt").read_text()
    assert table.startswith("1 steps;")


def test_what_a_step_costs_is_logged(plain: Whole) -> None:
    steps = steps_of(plain[0])
    sft, rl = ([line for line in steps if line["stage"] == stage] for stage in ("sft", "rl"))
    assert (len(sft), len(rl)) == (3, 4)
    for line in steps:
        whole = line["tokens/forward"] + line["tokens/saved"]
        assert 0 < line["tokens/prompt"] + line["tokens/response"] == line["tokens/forward"] <= whole
        assert line["memory/peak_rss"] > 50
        assert "memory/cuda_allocated" not in line
        assert all(line[f"memory/{phase}/reserved"] > 50 for phase in ("forward_backward", "update"))
    assert [line["memory/peak_rss"] for line in steps] == sorted(line["memory/peak_rss"] for line in steps)
    for line in rl:
        assert all(line[f"memory/{phase}/reserved"] > 50 for phase in ("sync", "rollout", "reward"))
        # four prompts, each once; their four answers each were generated from one prefill per prompt
        assert line["work/prefilled_prompts"] == 4
        assert 0 < line["work/decode_steps"] <= 2 * 10
        assert line["tokens/saved"] > 2 * line["tokens/prompt"], "three more copies of each prompt, where all rows train"
    assert all("work/decode_steps" not in line for line in sft)
    assert sft[0]["work/vision_patches"] > 0
    assert sum(line["work/media_decoded"] for line in steps) > 0
    assert all(line["cache/vision_hits"] >= 8 for line in rl), "reference and update use the features of the rollout"

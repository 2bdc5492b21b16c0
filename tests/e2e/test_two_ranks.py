"""Two data-parallel ranks train like one: the same rollouts, the same losses, weights equal up to summation order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.faults.test_resume_families import small
from tests.support import runs
from tests.support.given import make_model, make_rows
from tests.support.ranks import run_ranks
from vlmrl.run.tracking import read_metrics

SCRIPT = """
import json, sys
from tests.support import preload
from tests.support.runs import _run
_run(json.load(open(sys.argv[1])), None)
"""


def launch(config: dict[str, Any], ranks: int, folder: Path) -> None:
    run_ranks(ranks, folder, runs._run, config, None)


def test_one_rank_equals_two(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    configs = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = runs.small_config(*tiny_files, folder)
        launch(config, ranks, folder)
        configs.append(config)
    assert_same(configs, steps=7)


@pytest.mark.parametrize(("family", "choice", "forward"), [("lfm2_vl", "generic", "repeat"), ("qwen3_5", "qwen_vl", "shared_prefix")])
def test_one_rank_equals_two_with_recurrent_layers(family: str, choice: str, forward: str, tmp_path: Path) -> None:
    """Through the model's own forward, or ours. The tower trains in the second stage, and one rank has other rows than the other."""
    model, world = make_model(family, tmp_path / "model"), make_rows(tmp_path / "world", video=False, train=4, test=1)
    configs = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = small(model, world, folder, forward=forward, choice=choice)
        config["eval"]["at_start"] = True
        launch(config, ranks, folder)
        configs.append(config)
    # a delta net's state in float32 rounds more than attention does, whoever computes it
    assert_same(configs, steps=4, **({"rel": 1e-3, "start": model} if family == "qwen3_5" else {}))


def assert_same(configs: list[dict[str, Any]], *, steps: int, **how: Any) -> None:
    """Runs of one recipe on other numbers of ranks: the same answers at the start, the same updates up to summation order."""
    bases = [(runs.run_dir(c) / "eval" / "base.jsonl").read_bytes() for c in configs]
    assert bases[0] == bases[1]  # the same weights, so the same answers, whoever gave them
    assert_same_updates(configs, steps=steps, **how)


def assert_same_updates(configs: list[dict[str, Any]], *, steps: int, rel: float = 1e-4, start: Path | None = None) -> None:
    """The losses and the final weights of two runs, up to summation order.

    `rel`: of what is logged. `start`: the model before, where rounding is large; gradient norms are then held against the largest, since
    what remains of a group whose answers cancel keeps the rounding of its terms, and the weights against the way that they have gone.
    """
    one, two = (read_metrics(runs.run_dir(c) / "metrics.jsonl") for c in configs)
    updates = [([line for line in of if "grad_norm" in line]) for of in (one, two)]
    assert len(updates[0]) == len(updates[1]) == steps
    largest = max(line["grad_norm"] for line in updates[0])
    for a, b in zip(*updates, strict=True):
        for name in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length", "entropy", "kl"):
            if name in a:
                least = rel * largest if start is not None and name == "grad_norm" else 1e-5
                assert b[name] == pytest.approx(a[name], rel=rel, abs=least), (a["stage"], a["step"], name)
    weights = [load_file(runs.run_dir(c) / "final" / "model.safetensors") for c in configs]
    if start is not None:
        before = load_file(start / "model.safetensors")
        way, gap = (sum(float((x[n] - y[n]).norm()) ** 2 for n in before) for x, y in ((weights[0], before), weights))
        assert before.keys() == weights[0].keys()
        assert gap < 0.03**2 * way, (gap, way)
        return
    for name, value in weights[0].items():
        apart = (value - weights[1][name]).abs()
        # AdamW divides a gradient by its own size: one that is all rounding moves its weight by up to `lr`, to either side.
        assert (apart > 1e-4).sum() <= 3 + value.numel() // 10_000, (name, apart.max())
        assert apart.max() < 1e-3, name

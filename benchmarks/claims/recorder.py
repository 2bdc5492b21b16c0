"""Rewards of every step of a claims run in a file, so that other advantages are computed on the same groups.

As the first entry of `reward_shaping` (`plugin`) the recorder sees the raw reward columns and changes nothing. A mechanism that is
compared on identical groups has no noise of training: what differs is the method alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import BenchmarkError
from vlmrl import fs
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.extras.study.plan import RUN


def groups_file(run: Path) -> Path:
    """The file that the steps of a run are appended to, beside its folder."""
    return run.with_name(f"{run.name}.groups.jsonl")


def claims_recorder(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs) -> Tensor:
    """The rewards as they are, after a line with them in the file beside the run's folder, which the study's environment names: it is no
    argument of the recipe, because a path must not change what a run is.

    Raises:
        ValueError: the environment names no run.
    """
    run = os.environ.get(RUN)
    if not run:
        raise ValueError(f"reward_shaping 'claims_recorder' needs the environment variable {RUN}, which a study sets: the run's folder")
    numbers = [[None if math.isnan(value) else value for value in row] for row in rewards_NK.tolist()]
    line = {
        "progress": float(need(x, "progress", "reward_shaping 'claims_recorder'")),
        "columns": list(x.columns),
        "tasks": list(x.tasks),
        "rewards": numbers,
        "valid": valid_N.tolist(),
        "group": x.group_N.tolist(),
        "task": x.task_N.tolist(),
        "own": x.on_policy_N.tolist(),
    }
    # the newline before it keeps a line that a kill cut off from spoiling this one
    fs.append(groups_file(Path(run)), b"\n" + json.dumps(line).encode() + b"\n")
    return rewards_NK


def read_steps(path: Path, steps: int, weights: Mapping[str, float]) -> list[AdvantageInputs]:
    """The groups of each recorded step, in order.

    A step that a resumed run repeated is there twice, and the later line counts. Lines that a kill cut off are left out: the run then did
    that step again.

    Args:
        steps: how many there must be.
        weights: reward column -> its weight in the sum.

    Raises:
        BenchmarkError: there are not so many steps, or a column has no weight.
    """
    found: dict[float, dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found[float(line["progress"])] = line
    if len(found) != steps:
        raise BenchmarkError(f"{path} has {len(found)} steps, not {steps}; delete it and the run's folder, and run the same command again")
    return [_of_line(found[progress], path, weights) for progress in sorted(found)]


def _of_line(line: Mapping[str, Any], path: Path, weights: Mapping[str, float]) -> AdvantageInputs:
    if unknown := [name for name in line["columns"] if name not in weights]:
        raise BenchmarkError(f"{path}: no weight for the reward columns {', '.join(unknown)}; known: {', '.join(weights)}")
    rewards_NK = torch.tensor([[math.nan if v is None else v for v in row] for row in line["rewards"]], dtype=torch.float64)
    rows = len(rewards_NK)
    bare = AdvantageInputs(
        reward_N=torch.zeros(rows, dtype=torch.float64),
        rewards_NK=rewards_NK,
        valid_N=torch.tensor(line["valid"], dtype=torch.bool),
        group_N=torch.tensor(line["group"], dtype=torch.int64),
        task_N=torch.tensor(line["task"], dtype=torch.int64),
        on_policy_N=torch.tensor(line["own"], dtype=torch.bool),
        length_N=torch.ones(rows, dtype=torch.int64),
        columns=tuple(line["columns"]),
        tasks=tuple(line["tasks"]),
        weights_K=torch.tensor([weights[name] for name in line["columns"]], dtype=torch.float64),
    )
    return with_columns(bare, rewards_NK)


def with_columns(x: AdvantageInputs, rewards_NK: Tensor) -> AdvantageInputs:
    """The same groups with other reward columns [N, K] and their weighted sum; what a column did not judge adds nothing."""
    assert x.weights_K is not None
    total_N = (rewards_NK.nan_to_num(0.0) * x.weights_K).sum(1)
    return replace(x, rewards_NK=rewards_NK, reward_N=torch.where(x.valid_N, total_N, torch.full_like(total_N, math.nan)))

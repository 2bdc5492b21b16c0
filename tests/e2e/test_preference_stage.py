"""Stage `preference`: it starts where policy and reference agree, learns its pairs, and resumes to the bit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.builders import sample
from vlmrl.errors import ConfigError
from vlmrl.run.tracking import read_metrics
from vlmrl.train.stage.preference import check_plain, pair


def config(files: tuple[Path, Path], root: Path, steps: int = 3, loss: dict[str, Any] | None = None) -> dict[str, Any]:
    rows = files[1] / "pairs.jsonl"
    if not rows.exists():
        lines = [json.loads(line) for line in (files[1] / "sft.jsonl").read_text().splitlines()]
        for i, line in enumerate(lines):
            if i % 3:  # the others have no partner
                line["meta"] = line.get("meta", {}) | {"rejected": "<answer>no</answer>"}
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = runs.small_config(*files, root)
    stage = {key: value for key, value in out["stages"][0].items() if key != "thought_dropout"}
    loss = loss or {"name": "c3po_proposed", "imitate": 0.2}
    out["stages"] = [stage | {"kind": "preference", "steps": steps, "source": {"path": "pairs.jsonl"}, "group_loss": loss}]
    out["eval"] = {}
    return out


def test_a_killed_preference_stage_ends_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole, killed = config(tiny_files, tmp_path / "whole"), config(tiny_files, tmp_path / "killed")
    assert runs.run(whole) == 0
    losses = [line["loss"] for line in read_metrics(runs.run_dir(whole) / "metrics.jsonl") if "grad_norm" in line]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5), "policy and reference are the same, and imitation counts from there"
    assert losses[-1] < losses[0], "the chosen answers became likelier"
    assert runs.run(killed, "step.before_update@2:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)


@pytest.mark.parametrize("name", ["dpo", "mpo_proposed"])
def test_a_preference_stage_with_other_losses(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    out = config(tiny_files, tmp_path, steps=2, loss={"name": name})
    assert runs.run(out) == 0
    losses = [line["loss"] for line in read_metrics(runs.run_dir(out) / "metrics.jsonl") if "grad_norm" in line]
    assert len(losses) == 2
    assert losses[1] < losses[0], "the chosen answers became likelier"
    if name == "dpo":
        assert losses[0] == pytest.approx(math.log(2), abs=1e-5)


def test_a_pair_is_read_from_its_row() -> None:
    assert pair(sample("7", meta={"rejected": "x"}, thought="t"), "think") == ("<think>t</think><answer>7</answer>", "x")
    assert pair(sample(meta={"chosen": "y"}), "think") == ("y", None)
    for wrong in ({"rejected": 3}, {"chosen": " "}, {"chosen": "x", "rejected": "x"}):
        with pytest.raises(ConfigError, match=r"row 'row'.*meta\."):
            pair(sample(meta=wrong), "think")


def test_a_control_token_in_a_completion_is_refused() -> None:
    check_plain((1, 2), {9}, sample())
    with pytest.raises(ConfigError, match="control token 9"):
        check_plain((1, 9), {9}, sample())

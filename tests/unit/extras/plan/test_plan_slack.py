"""What a plan takes for memory that is not tensors: as a run on this machine measured it, else a guess, and which of them is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vlmrl import cli
from vlmrl.extras.plan import slack
from vlmrl.extras.plan.gpus import GPUS, gpu_of
from vlmrl.extras.plan.settings import SLACK
from vlmrl.extras.plan.slack import RunPeaks, Slack, is_a, remember, slack_of

H100, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA A10"


def seen(size: int, run: str = "one") -> RunPeaks:
    return RunPeaks(slack=size, allocated=10 * size, reserved=11 * size, run=run)


def test_the_last_run_on_such_a_device_with_this_torch_counts(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "slack.json"
    assert slack_of(gpu_of("h100"), "2.13.0", file) == Slack(bytes=SLACK)
    remember(H100, "2.13.0", seen(5), file)
    remember(H100, "2.13.0", seen(7, "two"), file)
    remember(H100, "2.12.0", seen(8), file)
    remember(A10, "2.13.0", seen(9), file)
    found = slack_of(gpu_of("h100"), "2.13.0", file)
    assert found == Slack(bytes=7, source=f"measured on {H100} with torch 2.13.0 by the run 'two'")
    assert slack_of(gpu_of("a10"), "2.13.0", file).bytes == 9
    assert slack_of(gpu_of("h200"), "2.13.0", file) == Slack()
    assert slack_of(gpu_of("a10"), "2.12.0", file) == Slack()


@pytest.mark.parametrize("text", ["{", "[]", '{"NVIDIA H100, torch 2.13.0": {"slack": "much", "run": "r"}}'])
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "slack.json"
    file.write_text(text)
    found = slack_of(gpu_of("h100"), "2.13.0", file)
    assert (found.bytes, found.source) == (SLACK, f"a guess: {file} cannot be read")
    remember(H100, "2.13.0", seen(5), file)
    assert slack_of(gpu_of("h100"), "2.13.0", file).bytes == 5


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (H100, "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        (A10, "a10"),
    ],
)
def test_a_device_is_of_one_type(device: str, name: str) -> None:
    assert [gpu.name for gpu in GPUS.values() if is_a(gpu, device)] == [name]


def test_the_plan_says_which_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "r.yaml"
    stage = "{kind: sft, name: s, source: {path: a.jsonl}, steps: 1}"
    recipe.write_text(f"model: {{path: Qwen/Qwen2.5-VL-3B-Instruct}}\nstages: [{stage}]\n")
    monkeypatch.setattr(slack, "FILE", tmp_path / "slack.json")
    monkeypatch.setattr(slack, "_installed", lambda: "2.13.0")
    monkeypatch.setenv("COLUMNS", "200")

    def planned(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["vlmrl", "plan", str(recipe), *more])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out

    def of(text: str) -> dict[str, Any]:
        return json.loads(text)

    before = of(planned("--json"))
    assert "2.0 GB of each phase are no tensors: a guess" in planned()
    remember(H100, "2.13.0", seen(3 * 10**9))
    after = of(planned("--json"))
    assert f"3.0 GB of each phase are no tensors: measured on {H100} with torch 2.13.0 by the run 'one'" in planned()
    assert (before["memory_bytes"]["slack"], after["memory_bytes"]["slack"]) == (SLACK, 3 * 10**9)
    assert after["memory_bytes"]["peak"] - before["memory_bytes"]["peak"] == 10**9
    assert after["slack_source"].startswith("measured on")

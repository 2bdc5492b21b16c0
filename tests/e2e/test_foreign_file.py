"""Files of other trainers, as they are: a Parquet file of verl with pictures inside, and a conversation file of LLaMA-Factory with videos.
Both pass `vlmrl check` and train, and the user writes a recipe and no code.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import runs
from vlmrl import cli
from vlmrl.extras.toy import multitask
from vlmrl.extras.toy.picture import png
from vlmrl.run.tracking import read_metrics

STEPS, ROWS, PER_PROMPT = 2, 4, 4
Command = Callable[..., tuple[int, str, str]]


def verl_rows() -> list[dict[str, Any]]:
    """As verl's preprocessing of a data set with pictures leaves them: bytes in the row, the answer in `reward_model`."""
    items = [item for index in range(ROWS) for item in multitask.items(0, "train", index)][:ROWS]
    return [
        {
            "data_source": "hiyouga/geometry3k",
            "prompt": [{"role": "user", "content": f"<image>How many is {n} + {n}? Put your final answer in \\boxed{{}}."}],
            "images": [{"bytes": png(item.pixels), "path": None}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
            "extra_info": {"split": "train", "index": n, "answer": str(2 * n)},
        }
        for n, item in enumerate(items)
    ]


def conversations(world: Path) -> list[dict[str, Any]]:
    """`messages` with lists of media beside them, which LLaMA-Factory reads as `sharegpt` with the tags of OpenAI."""
    rows = [json.loads(line) for line in (world / "train.jsonl").read_text().splitlines()]
    out: list[dict[str, Any]] = []
    for row in rows[:ROWS]:
        start, end = row["gt"]["time"]
        told = f"<think>It comes and goes.</think><answer>{start} to {end}</answer>"
        turns = [{"role": "user", "content": f"<video>{row['prompt']}"}, {"role": "assistant", "content": told}]
        out.append({"messages": turns, "videos": [row["video"]]})
    return out


def recipe(model: Path, data: Path, root: Path) -> dict[str, Any]:
    """One stage per file."""
    # Untrained answers earn nothing; with the gold answer among them there is something to learn, if it is read as the row means it.
    strategy = {"name": "offpolicy_gt", "gt_cot": "answer_only"}
    common = {
        "kind": "grpo",
        "steps": STEPS,
        "answer_format": "think_or_not",
        "freeze": ["vision"],
        "rollout": {
            "num_generations": PER_PROMPT,
            "prompts_per_step": 2,
            "generation_batch_size": 2,
            "max_new_tokens": 24,
            "strategy": strategy,
        },
        "optim": {"lr": 1e-3},
    }
    verl = {"path": "verl.parquet", "media_root": "pictures", "media_folder": "stored"}
    chat = {"path": "llama_factory.jsonl", "answer_type": "time_span", "time_unit": "s"}
    return {
        "run": {"name": "foreign", "root": str(root), "trackers": [], "threads": 1},
        "model": {"path": str(model), "device": "cpu"},
        "data": {"root": str(data)},
        "media": {"min_pixels": 3136, "max_pixels": 4704, "max_frames": 8},
        "stages": [
            common | {"name": "verl", "source": verl, "rewards": [{"name": "math"}, {"name": "format", "weight": 0.1}]},
            common | {"name": "chat", "source": chat, "rewards": [{"name": "temporal_iou"}, {"name": "format", "weight": 0.1}]},
        ],
    }


@pytest.fixture(scope="module")
def files(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model, folder with both files and the videos)."""
    model, world = tiny_files
    data = tmp_path_factory.mktemp("foreign")
    rows = conversations(world)
    for (name,) in (row["videos"] for row in rows):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(world / name, data / name)
    pq.write_table(pa.Table.from_pylist(verl_rows()), data / "verl.parquet")
    (data / "llama_factory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "pictures").mkdir()
    return model, data


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return run


def test_both_files_pass_the_check_and_train(files: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
    model, data = files
    config = recipe(model, data, tmp_path)
    (tmp_path / "recipe.yaml").write_text(json.dumps(config))  # JSON is YAML
    code, out, err = command("check", str(tmp_path / "recipe.yaml"))
    assert code == 0, err + out
    assert "data: ok" in out
    cells = [[c.strip() for c in line.split("│")[1:6]] for line in out.splitlines() if "think_or_not" in line]
    assert cells == [[name, "think_or_not", stage, "4", "4"] for name, stage in (("verl.parquet", "verl"), ("llama_factory.jsonl", "chat"))]
    stored = sorted((data / "pictures" / "stored").rglob("*.png"))
    assert {path.read_bytes() for path in stored} == {row["images"][0]["bytes"] for row in verl_rows()}

    assert runs.run(config) == 0, (tmp_path / "error.txt").read_text()
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
    assert [(line["stage"], line["step"]) for line in lines] == [("verl", 1), ("verl", 2), ("chat", 1), ("chat", 2)]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert {"rewards/math/mean", "rewards/format/mean"} <= set(lines[0])
    assert "rewards/temporal_iou/mean" in lines[2]
    assert not [name for line in lines for name in line if name.startswith("fault/")]
    weights = [runs.run_dir(config) / name / "model.safetensors" for name in ("stages/verl", "final")]
    assert len({path.read_bytes() for path in [*weights, model / "model.safetensors"]}) == 3  # each stage moved them
    assert not (runs.run_dir(config) / "judges").exists()  # nobody was asked


def test_the_same_files_without_what_they_do_not_say_are_refused_with_the_key(
    files: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    model, data = files
    config = recipe(model, data, tmp_path)
    for stage, key, reason in ((0, "media_folder", "media_folder"), (1, "answer_type", "answer_type"), (1, "time_unit", "time_unit")):
        source = {name: value for name, value in config["stages"][stage]["source"].items() if name != key}
        one = config | {"stages": [config["stages"][stage] | {"source": source}]}
        (tmp_path / "recipe.yaml").write_text(json.dumps(one))
        code, _, err = command("check", str(tmp_path / "recipe.yaml"))
        assert code == 65
        assert "none of 4 rows can be used" in " ".join(err.split())
        assert reason in err

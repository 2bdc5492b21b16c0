"""Two data-parallel ranks play the episodes that one plays: the same turns, the same faults, the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from tests.e2e.test_two_ranks import assert_same_updates, launch
from tests.support import runs
from tests.support.episodes import family_episodes, family_model, small_episodes
from vlmrl.evals.score.records import read_records
from vlmrl.run.tracking import read_metrics


def played(config: dict[str, Any]) -> list[dict[str, Any]]:
    """What each step says of its episodes, over all ranks; how many workers started differs."""
    lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "environment/attempts" in line]
    names = [name for name in lines[0] if name.startswith("environment/") and "retried" not in name]
    return [{name: line[name] for name in names} for line in lines]


def test_two_ranks_play_the_episodes_of_one(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Each rank has worlds of its own, which crash in some episodes; seeds say nothing of the rank."""
    configs: list[dict[str, Any]] = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = small_episodes(*tiny_files, folder, history={}, steps=2)
        config["stages"][0]["environment"] |= {"crash_share": 0.3, "max_turns": 2}
        launch(config, ranks, folder)
        configs.append(config)
    one, two = (played(config) for config in configs)
    assert one == two
    assert [line["environment/attempts"] for line in one] == [12.0, 12.0]
    screens = [{path.name for path in (runs.run_dir(config) / "screens").iterdir()} for config in configs]
    assert screens[0] == screens[1]
    assert_same_updates(configs, steps=2)


SLOW = ("internvl", "smolvlm", "qwen3_5", "gemma3", "gemma4", "llama4")


@pytest.mark.parametrize("family", ["lfm2_vl", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_two_ranks_with_shards_play_and_train_as_one_process(family: str, tmp_path: Path) -> None:
    """A family through its own forward: conversations that grow by a screen, and a tower that trains. Held-out tasks are played too."""
    model = family_model(family, tmp_path / "model")
    configs = [family_episodes(family, model, tmp_path / str(n), sharding="ddp" if n == 1 else "fsdp") for n in (1, 2)]
    for ranks, config in enumerate(configs, start=1):
        config["eval"] = {"source": {"path": config["stages"][0]["source"]["path"]}, "max_new_tokens": 4, "batch_prompts": 1}
        launch(config, ranks, tmp_path / str(ranks))
    before = [read_records(runs.run_dir(config) / "eval" / "base.jsonl") for config in configs]
    assert len(before[0]) == 3
    assert [sorted((r.sample_id, r.text) for r in records) for records in before] == [sorted((r.sample_id, r.text) for r in before[0])] * 2
    one, two = (played(config) for config in configs)
    assert one == two
    assert [line["environment/turns"] for line in one] == [8.0, 8.0]
    assert_same_updates(configs, steps=2)
    for config in configs:
        lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
        assert all(line["grad_norm"] > 0 and line["sampling/logp_gap"] < 1e-4 for line in lines)


def test_two_ranks_with_shards_replay_the_experts_of_one_process(tmp_path: Path) -> None:
    """Experts that were taken turn by turn, under weights that lay whole, are taken again under weights in shards."""
    model = family_model("qwen3_vl_moe", tmp_path / "model")
    configs = [family_episodes("qwen3_vl_moe", model, tmp_path / str(n), sharding="ddp" if n == 1 else "fsdp") for n in (1, 2)]
    for ranks, config in enumerate(configs, start=1):
        config["stages"][0] |= {"optim": {"lr": 1e-2}, "importance_correction": {"name": "tis"}}
        config["stages"][0]["rollout"] |= {"router_replay": True, "staleness": 1}
        config["model"]["gradient_checkpointing"] = ranks == 2
        launch(config, ranks, tmp_path / str(ranks))
    # as runs write them: published files hold the weights of experts the other way round
    AutoModelForImageTextToText.from_pretrained(model).save_pretrained(tmp_path / "start")
    assert_same_updates(configs, steps=2, start=tmp_path / "start")
    flips: list[list[float]] = []
    for config in configs:
        lines = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]
        assert lines[0]["sampling/logp_gap"] < 1e-4
        flips.append([line["sampling/router_flips"] for line in lines])
    assert flips[0] == flips[1]
    assert flips[0][0] == 0, "float32, and the weights that sampled"
    assert flips[0][1] > 0.1, "the step before was a large one, and experts are those from before it"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"lora": {"rank": 4, "alpha": 8.0, "vision": True}}, {"gradient_checkpointing": True}], ids=["adapters", "recomputed"]
)
def test_shards_of_adapters_and_of_layers_that_are_computed_again(more: dict[str, Any], tmp_path: Path) -> None:
    model = family_model("gemma3", tmp_path / "model")
    configs = [family_episodes("gemma3", model, tmp_path / str(n), sharding="ddp" if n == 1 else "fsdp") for n in (1, 2)]
    for ranks, config in enumerate(configs, start=1):
        config["model"] |= more
        launch(config, ranks, tmp_path / str(ranks))
    assert_same_updates(configs, steps=2)

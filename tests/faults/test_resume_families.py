"""Families without code of their own, and Qwen3.5 with its own: killed and started again with the same command, a run ends with the same
bits, pictures and clips among its rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from tests.support.episodes import family_episodes, family_model
from tests.support.given import make_model, make_rows
from tests.support.ranks import run_ranks
from tests.support.reports import written

VIDEO = {"qwen3_5": True, "gemma3": False, "smolvlm": True, "internvl": True, "qwen3_vl_moe": True, "qwen3_5_moe": True}
"""Families, and whether they have videos."""
KILLS = ("step.before_update@3", "rollout.chunk@2")
SLOW = ("step.after_update@1", "ckpt.after_tensors@2", "stage.exported@1", "eval.record@2")


def small(model: Path, world: Path, root: Path, *, forward: str = "repeat", choice: str = "generic") -> dict[str, Any]:
    """A supervised stage and a GRPO stage of two steps each, the second one with a tower that trains."""
    config = runs.small_config(model, world, root)
    optim = {"lr": 1e-3}
    config["model"]["family"] = choice
    config["media"] = {"max_frames": 6, "fps": 1.0, "max_pixels": 9216}
    config["eval"] = {"source": {"path": "test.jsonl"}, "limit": 2, "max_new_tokens": 4, "at_start": False}
    config["checkpoint"] = {"every": 1}
    sft, rl = config["stages"]
    sft |= {"source": {"path": "train.jsonl"}, "steps": 2, "batch": 2, "freeze": ["vision"], "optim": optim, "forward": forward}
    rl |= {"steps": 2, "freeze": [], "optim": optim, "forward": forward}
    # in this process: a worker would import all plug-ins first, and one of them imports transformers
    rl["rewards"] = [{"name": "first_letter", "isolate": False}, {"name": "format", "weight": 0.1}]
    rl["rollout"] |= {"num_generations": 2, "prompts_per_step": 2, "generation_batch_size": 1, "max_new_tokens": 5}
    return config


def check_resume(
    family: str,
    folder: Path,
    kills: Sequence[Sequence[str]],
    forward: str = "repeat",
    choice: str = "generic",
    rollout: Mapping[str, Any] | None = None,
    stage: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """One run to its end, and others that are killed at some points in turn. Gives what the steps of the GRPO stage logged."""
    world = make_rows(folder / "world", video=VIDEO[family], train=4, test=1)
    model = make_model(family, folder / "model")
    if forward != "repeat" and choice == "generic":
        written(model, layouts=("repeat", forward), model_type=family)
    whole = small(model, world, folder / "whole", forward=forward, choice=choice)
    whole["stages"][1] |= stage or {}
    whole["stages"][1]["rollout"] |= rollout or {}
    if family == "smolvlm":
        whole["plugins"] += ["tests.support.numerals"]
    assert runs.run(whole, timeout=900) == 0
    expected = runs.outcome(whole)
    rl = [line for line in expected["metrics"] if line["stage"] == "rl" and "grad_norm" in line]
    assert [line["grad_norm"] > 0 for line in rl] == [True, True]
    assert expected["weights"]["stages/sft"] != expected["weights"]["stages/rl"], "training must change the weights"
    assert rollout or max(line["sampling/logp_gap"] for line in rl) < 1e-4
    assert {name.rpartition("/")[2] for line in rl for name in line if name.startswith("sampling/logp_gap/")} == (
        {"image", "video"} if VIDEO[family] else {"image"}
    )
    for number, points in enumerate(kills):
        mine = copy.deepcopy(whole)
        mine["run"]["root"] = str(folder / f"killed-{number}")
        for point in points:
            assert runs.run(mine, f"{point}:kill", timeout=900) == -9, f"{point} is never passed"
        assert runs.run(mine, timeout=900) == 0
        assert runs.outcome(mine) == expected
    return rl


def test_killed_with_a_delta_net_pictures_and_clips(tmp_path: Path) -> None:
    check_resume("qwen3_5", tmp_path, [KILLS])


def test_killed_with_code_of_its_own_for_delta_nets(tmp_path: Path) -> None:
    """The prompt once for its answers, in both engines."""
    check_resume("qwen3_5", tmp_path, [KILLS], "shared_prefix", "qwen_vl")


@pytest.mark.parametrize("family", ["qwen3_vl_moe", pytest.param("qwen3_5_moe", marks=pytest.mark.slow)])
def test_killed_while_experts_of_sampling_are_replayed(family: str, tmp_path: Path) -> None:
    """Answers are sampled a step ahead, so the experts of an older policy go through the journal to an update."""
    ahead = {"importance_correction": {"name": "tis"}, "updates_per_step": 2}
    # sampling first: how much of the next step is sampled before an update is a matter of time
    kills = [tuple(reversed(KILLS))]
    rl = check_resume(family, tmp_path, kills, "shared_prefix", rollout={"router_replay": True, "staleness": 1}, stage=ahead)
    assert all(0 <= line["sampling/router_flips"] < 1 for line in rl)
    assert rl[-1]["rollout/staleness"] == 2, "updates, of which a step has two"


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in VIDEO if not name.endswith("_moe")])
@pytest.mark.parametrize("forward", ["repeat", "shared_prefix"])
def test_killed_at_more_moments(family: str, forward: str, tmp_path: Path) -> None:
    check_resume(family, tmp_path, [KILLS, *([point] for point in SLOW)], forward)


TURNS = ("rollout.turn@2", "step.before_update@2")


@pytest.mark.parametrize(("choice", "forward"), [("generic", "shared_prefix"), ("qwen_vl", "chains")])
def test_killed_between_the_turns_of_a_delta_net(choice: str, forward: str, tmp_path: Path) -> None:
    """Conversations of two turns; nothing that was sampled is sampled otherwise by the process that goes on."""
    whole = family_episodes("qwen3_5", family_model("qwen3_5", tmp_path / "model"), tmp_path / "whole", choice=choice)
    whole["stages"][0]["forward"] = forward
    assert runs.run(whole, timeout=900) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    mine = copy.deepcopy(whole)
    mine["run"]["root"] = str(tmp_path / "killed")
    for point in TURNS:
        assert runs.run(mine, f"{point}:kill", timeout=900) == -9, f"{point} is never passed"
    assert runs.run(mine, timeout=900) == 0
    assert runs.outcome(mine) == runs.outcome(whole)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2_vl", "internvl", "smolvlm", "qwen3_5"])
def test_killed_with_shards_between_turns(family: str, tmp_path: Path) -> None:
    """Both ranks die at the same place, one after the other as it is reached."""
    whole = family_episodes(family, family_model(family, tmp_path / "model"), tmp_path / "whole", sharding="fsdp")
    run_ranks(2, tmp_path / "logs", runs._run, whole, None)
    mine = copy.deepcopy(whole)
    mine["run"]["root"] = str(tmp_path / "killed")
    for number, point in enumerate((*TURNS, "ckpt.after_tensors@1")):
        with pytest.raises(AssertionError, match="ended with -9"):
            run_ranks(2, tmp_path / f"logs-{number}", runs._run, mine, f"{point}:kill")
    run_ranks(2, tmp_path / "logs-last", runs._run, mine, None)
    assert runs.outcome(mine) == runs.outcome(whole)

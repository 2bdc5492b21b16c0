"""Rewards that score nothing, too much, or all alike: whole runs stop or say so, by the reward's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.errors import DataError
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui


class Told(Ui):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def recipe(files: tuple[Path, Path], root: Path, rewards: list[dict[str, Any]], *, steps: int) -> Config:
    """One RL stage of a few small steps."""
    config = runs.small_config(*files, root)
    del config["eval"]
    rl = config["stages"][1]
    rl |= {"steps": steps, "beta": 0.0, "advantage": {"name": "grpo"}}
    rl["rollout"] |= {"num_generations": 2, "prompts_per_step": 2, "max_new_tokens": 4}
    rl["rewards"] = [{"isolate": False} | reward for reward in rewards]
    return Config.model_validate(config | {"stages": [rl], "plugins": ["tests.support.odd_rewards"]})


def train(config: Config, ui: Ui) -> Path:
    return train_from(loaded(config), Places(model=config.model.path, data=Path(config.data.root)), ui)


def test_a_reward_that_scores_nothing_is_named_early_and_stops_the_stage_at_its_end(tiny_files, tmp_path) -> None:
    config, told = recipe(tiny_files, tmp_path, [{"name": "temporal_iou"}, {"name": "nothing"}], steps=4), Told()
    text = "reward 'nothing' scored none of the rollouts of 4 steps: None, which means 'cannot judge', came back for each"
    for _ in range(2):  # the same command says the same
        with pytest.raises(DataError, match=text) as caught:
            train(config, told)
        assert caught.value.exit_code == 65
    early = [line for line in told.lines if "reward 'nothing' has judged no rollout of the last 3 steps" in line]
    assert len(early) == 1
    assert early[0].startswith("warning: rl step 3: ")
    assert not any("'temporal_iou' has judged no" in line for line in told.lines)
    assert not (runs.run_dir({"run": {"root": config.run.root, "name": config.run.name}}) / "final").exists()


def test_a_reward_that_only_watches_may_score_nothing(tiny_files, tmp_path) -> None:
    rewards = [{"name": "temporal_iou"}, {"name": "nothing", "weight": 0.0}, {"name": "box_iou"}]
    config, told = recipe(tiny_files, tmp_path, rewards, steps=3), Told()
    train(config, told)
    assert {name for name in ("nothing", "box_iou") if any(f"reward '{name}' has judged no rollout" in line for line in told.lines)} == {
        "nothing",
        "box_iou",
    }


@pytest.mark.parametrize("isolate", [False, True], ids=["in this process", "in a worker"])
def test_a_reward_beyond_all_measure_is_refused_where_it_is_scored(isolate, tiny_files, tmp_path) -> None:
    config = recipe(tiny_files, tmp_path, [{"name": "temporal_iou"}, {"name": "huge", "isolate": isolate}], steps=4)
    with pytest.raises(DataError, match=r"huge on row 'toy-train-\d+': (contract: .*: )?value 0 is 1e\+300, beyond 1e\+12") as caught:
        train(config, Ui(quiet=True))
    assert caught.value.exit_code == 65
    lines = read_metrics(Path(config.run.root) / config.run.name / "metrics.jsonl")
    assert lines, "one bad step alone does not stop a run"
    assert not [(key, value) for line in lines for key, value in line.items() if value in ("Infinity", "-Infinity", "NaN")]


def test_steps_without_signal_are_said_at_the_beginning_and_counted_at_the_end(tiny_files, tmp_path) -> None:
    config, told = recipe(tiny_files, tmp_path, [{"name": "equal"}], steps=4), Told()
    train(config, told)
    (early,) = [line for line in told.lines if "answers that differ in reward" in line]
    assert early.startswith("warning: rl step 3: no group of the last 3 steps")
    assert "(equal 0.5 on average)" in early
    assert "warning: rl: 4 of 4 steps had no group with signal" in told.lines

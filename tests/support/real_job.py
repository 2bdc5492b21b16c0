"""Makes what the real job is given, in miniature: a folder of a random model of a real family, and rows with videos.

    python -m tests.support.real_job DIR --family qwen3_vl

prints the command lines of `scripts/train_video.sh` and `vlmrl train` that train it, so that anybody can see whole runs of the shipped
recipes in bfloat16 on a CPU, in a minute each.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import get_args

from tests.support.tiny import make_files
from vlmrl.extras.toy.model import ModelFamily

LORA = ("model.lora={rank: 4, alpha: 8}",)
"""Overrides that train adapters in place of the weights."""
GIVEN = "{name: offpolicy_gt, gt_cot: answer_only}"
"""A ground-truth row in every group: a random model writes no form whose thought could be spliced, and never earns anything itself."""
ONCE = ("run.trackers=[]", "run.threads=1", "checkpoint.every=2")


def tempsamp(*, steps: int = 2, tokens: int = 16) -> list[str]:
    """Overrides that make `video_tempsamp_3b` small: two phases of RL, answers only and with thoughts."""
    stages = ("answer", "think")
    small = {"steps": steps, "rollout.max_new_tokens": tokens, "rollout.prompts_per_step": 2, "rollout.generation_batch_size": 2}
    return [*ONCE, *(f"stages.{stage}.{key}={value}" for stage in stages for key, value in small.items())]


def ton(model: Path, data: Path, *, steps: int = 2, tokens: int = 16) -> list[str]:
    """Overrides that make `ton` small, with its model and rows: SFT with thought dropout, then RL."""
    paths = [f"model.path={quoted(model)}", f"data.root={quoted(data)}"]
    rollout = {"max_new_tokens": tokens, "num_generations": 4, "prompts_per_step": 2, "generation_batch_size": 2}
    rewards = "stages.rl.rewards=[{name: temporal_iou}, {name: format}]"
    return [
        *paths,
        *ONCE,
        f"stages.sft.steps={steps}",
        "stages.sft.batch=4",
        f"stages.rl.steps={steps}",
        *(f"stages.rl.rollout.{key}={value}" for key, value in rollout.items()),
        f"stages.rl.rollout.strategy={GIVEN}",
        rewards,
    ]


def quoted(path: Path) -> str:
    """For YAML, whatever the path holds."""
    return "'" + str(path).replace("'", "''") + "'"


def make(folder: Path, family: ModelFamily) -> tuple[Path, Path]:
    """(model folder, folder with `train.jsonl`, `sft.jsonl` and their videos)."""
    return make_files(folder, sft=16, train=16, test=2, family=family)


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write; it must not be there")
    parser.add_argument("--family", choices=get_args(ModelFamily), default="qwen2_5_vl")
    asked = parser.parse_args()
    if asked.folder.exists():
        parser.error(f"{asked.folder} is there already; give a new folder")
    model, data = make(asked.folder.absolute(), asked.family)
    runs = asked.folder.absolute() / "runs"
    script = ["bash", "scripts/train_video.sh", "--model", str(model), "--data", str(data / "train.jsonl")]
    print("two phases of RL (add `--gpus 2` for two processes):")
    print(shlex.join([*script, f"run.root={quoted(runs)}", *tempsamp()]))
    print("SFT with thought dropout, then RL:")
    print(shlex.join(["vlmrl", "train", "configs/recipes/ton.yaml", f"run.root={quoted(runs)}", *ton(model, data)]))
    print("with either, adapters in place of the weights:")
    print(shlex.join(["run.name=lora", *LORA]))


if __name__ == "__main__":
    main()

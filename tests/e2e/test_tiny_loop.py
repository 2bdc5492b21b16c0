"""`examples/tiny_loop.py` and the trainer on the same recipe give the same numbers, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples import tiny_loop
from tests.support import runs
from tests.support.plugin_rewards import first_letter
from vlmrl.config.load import load
from vlmrl.run.tracking import read_metrics

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples" / "tiny_loop.yaml"
SOURCE = ROOT / "examples" / "tiny_loop.py"


def test_same_numbers_as_the_trainer(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Three steps on the tiny model. It is untrained, so a reward is added that it earns now and then."""
    model, data = tiny_files
    config = load(RECIPE, []).config.model_dump(mode="json")
    config |= {"run": {"name": "tiny", "root": str(tmp_path), "trackers": [], "threads": 1}, "plugins": ["tests.support.plugin_rewards"]}
    config["model"]["path"], config["data"]["root"], config["toy"] = str(model), str(data), None
    stage = config["stages"][0]
    stage["steps"] = 3
    stage["rewards"].append({"name": "first_letter"})
    assert runs.run(config) == 0, (tmp_path / "error.txt").read_text() if (tmp_path / "error.txt").exists() else ""
    trainer = [line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "grad_norm" in line]

    loop = list(tiny_loop.train(model, data, steps=3, rewards=tiny_loop.REWARDS | {first_letter: 1.0}))

    assert loop == [{name: line[name] for name in ("loss", "grad_norm", "reward")} for line in trainer]
    assert len(loop) == 3
    assert all(line["grad_norm"] > 0.1 for line in loop), "the steps must learn something, or equal numbers say nothing"
    assert len({line["loss"] for line in loop}) == 3


def test_it_stays_short() -> None:
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) <= 150


def test_its_constants_are_those_of_the_recipe() -> None:
    cfg = load(RECIPE, []).config
    stage = cfg.stages[0]
    assert (stage.name, cfg.run.seed) == (tiny_loop.STAGE, tiny_loop.SEED)
    assert stage.rollout.prompts_per_step == tiny_loop.PROMPTS_PER_STEP
    assert stage.rollout.num_generations == tiny_loop.NUM_GENERATIONS
    assert stage.rollout.max_new_tokens == tiny_loop.MAX_NEW_TOKENS
    assert (stage.optim.lr, stage.optim.max_grad_norm) == (tiny_loop.LEARNING_RATE, tiny_loop.MAX_GRAD_NORM)
    assert stage.max_tokens_per_microbatch == tiny_loop.MAX_TOKENS_PER_MICROBATCH


def test_it_does_not_use_the_trainer() -> None:
    """The parts work without `vlmrl.train`; only the call that makes the toy world uses it."""
    code = "import sys; import examples.tiny_loop; print([m for m in sys.modules if m.startswith('vlmrl.train')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_it_shares_the_pretrained_model_of_the_toy_recipe() -> None:
    """What is cached by its settings is made once for both recipes."""
    mine, toy = (load(ROOT / path, []).config for path in ("examples/tiny_loop.yaml", "configs/recipes/toy_grounding.yaml"))
    assert (mine.toy, mine.media, mine.model) == (toy.toy, toy.media, toy.model)

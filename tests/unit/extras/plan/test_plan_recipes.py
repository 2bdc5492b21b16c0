"""The recipes for given machines fit them by the plan, with the numbers that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vlmrl.config.load import load
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import named_shape
from vlmrl.extras.plan.recipe import heaviest, shape_in

ROOT = Path(__file__).parents[4]
ROWS = re.findall(
    r"^\| `(\w+)` \| (\d+) x (\w+): .* \| ([\d.]+) \| (\d+) \|$", (ROOT / "docs" / "scaling.md").read_text(), flags=re.MULTILINE
)


def test_every_recipe_for_a_machine_is_shown() -> None:
    assert {name for name, *_ in ROWS} == {path.stem for path in (ROOT / "configs" / "recipes").glob("video_*x*gb.yaml")}


@pytest.mark.parametrize(("name", "gpus", "gpu", "peak", "step"), ROWS)
def test_it_fits(name: str, gpus: str, gpu: str, peak: str, step: str) -> None:
    cfg = load(ROOT / "configs" / "recipes" / f"{name}.yaml", []).config
    _, found = heaviest(cfg, list(cfg.stages), shape=shape_in(cfg, None), gpu=gpu_of(gpu), gpus=int(gpus))
    assert found.fits == "yes"
    assert f"{found.memory.peak / 1e9:.1f}" == peak
    assert f"{found.time.step:.0f}" == step


def test_adapters_of_the_7b_model_fit_a_card_of_24_gb() -> None:
    """As docs/lora.md says: the base takes 2 bytes a weight, in training and in generation."""
    cfg = load(ROOT / "configs" / "recipes" / "video_3b_1x24gb.yaml", ["stages.rl.max_tokens_per_microbatch=2560"]).config
    _, found = heaviest(cfg, list(cfg.stages), shape=named_shape("qwen2.5-vl-7b"), gpu=gpu_of("rtx4090"), gpus=1)
    assert found.fits == "yes"
    assert 2 < found.memory.state.weights / found.settings.parameters.n_frozen < 2.05

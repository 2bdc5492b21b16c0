"""Weights that are not finite stop the run with 70 and the checkpoint to go on from; they are never drawn from, saved or exported."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import runs
from tests.support.tiny import Tiny
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.errors import NumericsError
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.export import export
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.ui import Ui
from vlmrl.train.stage.base import Stage
from vlmrl.train.tensors import not_finite, require_finite
from vlmrl.types import GenerationSettings, Request

HEAD = "lm_head.weight"


def recipe(files: tuple[Path, Path], root: Path, *, every: int) -> dict[str, Any]:
    """Four RL steps."""
    config = runs.small_config(*files, root)
    del config["eval"]
    rl = config["stages"][1]
    rl["rollout"] |= {"num_generations": 2, "prompts_per_step": 2, "max_new_tokens": 6}
    return config | {"stages": [rl], "checkpoint": {"every": every, "keep": 9}}


def train(config: dict[str, Any]) -> Path:
    cfg = Config.model_validate(config)
    return train_from(loaded(cfg), Places(model=cfg.model.path, data=Path(cfg.data.root)), Ui(quiet=True))


def after_update(patch: pytest.MonkeyPatch, step: int, spoil: Callable[[Stage], None]) -> None:
    """Do something to a stage after the update of its step `step` (from 1)."""
    real = Stage.weights_changed

    def changed(stage: Stage) -> None:
        real(stage)
        if stage.state.step == step - 1:
            with torch.no_grad():
                spoil(stage)

    patch.setattr(Stage, "weights_changed", changed)


def spoil_head(stage: Stage) -> None:
    dict(stage.learner.named)[HEAD][7, 3] = float("nan")


def spoil_moment(stage: Stage) -> None:
    stage.learner.updates.optimizer.state[dict(stage.learner.named)[HEAD]]["exp_avg_sq"][0, 0] = float("inf")


def saved(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of every file that the run has, by path."""
    return {str(p.relative_to(run)): load_file(p) for p in run.rglob("*.safetensors")}


@pytest.mark.parametrize(("spoil", "name"), [(spoil_head, HEAD), (spoil_moment, f"exp_avg_sq/{HEAD}")], ids=["weight", "moment"])
def test_a_state_that_is_not_finite_is_not_saved_and_the_run_goes_on_from_before(spoil, name, tiny_files, tmp_path, monkeypatch) -> None:
    whole, hurt = (recipe(tiny_files, tmp_path / folder, every=1) for folder in ("whole", "hurt"))
    with monkeypatch.context() as patch:
        after_update(patch, 3, spoil)
        with pytest.raises(NumericsError) as caught:
            train(hurt)
    assert caught.value.exit_code == 70
    text = str(caught.value)
    assert text.startswith("stage 'rl', step 3: step-00000003: not saved, 1 of ")
    assert f"tensors are not finite: {name}" in text
    assert "the last good checkpoint is step-00000002" in text
    assert [p.name for p in sorted((runs.run_dir(hurt) / "checkpoints").iterdir())] == ["step-00000001", "step-00000002"]
    files = saved(runs.run_dir(hurt))
    assert files
    assert all(not not_finite(tensors) for tensors in files.values())
    train(hurt)
    train(whole)
    one, two = (saved(runs.run_dir(config)) for config in (whole, hurt))
    assert all(torch.equal(value, two["final/model.safetensors"][key]) for key, value in one["final/model.safetensors"].items())


def test_the_next_rollout_stops_before_a_token_is_drawn(tiny_files, tmp_path, monkeypatch) -> None:
    config = recipe(tiny_files, tmp_path, every=2)
    after_update(monkeypatch, 3, spoil_head)
    with pytest.raises(NumericsError) as caught:
        train(config)
    assert re.search(
        r"stage 'rl', step 4: logits not finite: \d+ of \d+ running answers, first at token 1 of an answer to '\S+'", str(caught.value)
    )
    assert "weights: 1 of " in str(caught.value)
    assert HEAD in str(caught.value)
    assert "the last good checkpoint is step-00000002" in str(caught.value)


def test_a_frozen_weight_is_not_exported(tiny_files, tmp_path, monkeypatch) -> None:
    """Checkpoints hold what trains; an export holds everything, and the next stage starts from it."""
    config = recipe(tiny_files, tmp_path, every=4)
    after_update(monkeypatch, 4, lambda stage: next(stage.policy.core.visual.parameters()).view(-1)[:1].fill_(float("inf")))
    with pytest.raises(NumericsError, match=r"stages/rl: not saved, 1 of \d+ tensors are not finite: model\.visual\.") as caught:
        train(config)
    assert caught.value.exit_code == 70
    assert not list((runs.run_dir(config) / "stages").glob("*"))


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), 1e30], ids=["nan", "inf", "overflow"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.9}], ids=["sampled", "greedy", "nucleus"])
def test_no_token_is_drawn_from_logits_that_are_not_finite(spoilt, settings, tiny: Tiny) -> None:
    """Among such tokens would be those of visual control, whose probability is zero."""
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    layer = policy.core.language_model.layers[1]
    with torch.no_grad():
        layer.mlp.up_proj.weight.fill_(spoilt)
        layer.mlp.gate_proj.weight.fill_(spoilt)
    drawn: list[Any] = []
    request = Request(prompt=tiny.prompts(1)[0], ks=(0, 1), seeds=(1, 2))
    with pytest.raises(NumericsError, match="logits not finite: 2 of 2 running answers, first at token 1"):
        HFEngine(policy, tiny.vision).generate(
            [request], GenerationSettings(max_new_tokens=4, **settings), lambda *done: drawn.append(done)
        )
    assert not drawn


def test_supervised_steps_say_which_weights(tiny_files, tmp_path, monkeypatch) -> None:
    config = recipe(tiny_files, tmp_path, every=9)
    sft = runs.small_config(*tiny_files, tmp_path)["stages"][0] | {"steps": 5, "batch": 2}
    real = Stage.set_rate

    def set_rate(stage: Stage) -> None:
        real(stage)
        if stage.state.step == 1:
            with torch.no_grad():
                spoil_head(stage)

    monkeypatch.setattr(Stage, "set_rate", set_rate)
    with pytest.raises(
        NumericsError, match=rf"not finite 3 steps in a row .* weights: 1 of \d+ tensors are not finite: {HEAD}; there is no ch"
    ):
        train(config | {"stages": [sft]})


def test_names_of_tensors_that_are_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    tensors = {
        "fine": torch.tensor([1.0, -3e38]),
        "half": torch.tensor([1.0, nan], dtype=torch.bfloat16),
        "plus": torch.tensor([[inf], [0.0]]),
        "minus": torch.tensor([-inf, nan], dtype=torch.float64),
        "whole": torch.tensor([2**62]),
        "empty": torch.zeros(0),
        "scalar": torch.tensor(nan),
    }
    assert not_finite(tensors) == ["half", "plus", "minus", "scalar"]
    require_finite({"fine": tensors["fine"]}, "here")
    with pytest.raises(NumericsError, match=r"here: not saved, 4 of 7 tensors are not finite: half, plus, minus, scalar$"):
        require_finite(tensors, "here")
    with pytest.raises(NumericsError, match=r"7 of 7 tensors are not finite: 0, 1, 2, 3, 4, \.\.\.$"):
        require_finite({str(n): torch.tensor(nan) for n in range(7)}, "here")


def test_an_export_of_weights_that_are_not_finite_leaves_no_folder(tiny: Tiny, tmp_path) -> None:
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    with torch.no_grad():
        policy.head[0, 0] = float("nan")
    with pytest.raises(NumericsError, match=HEAD):
        export(policy, tmp_path / "out")
    assert not list(tmp_path.iterdir())

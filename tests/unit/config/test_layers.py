"""`algorithm:` of a stage: a preset expands to slots below the stage; what stands beside it, then the command line, win over it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.recipes import repeated_defaults
from vlmrl.config.layers import presets
from vlmrl.config.load import annotated, load, load_mapping
from vlmrl.config.schema import GrpoSection
from vlmrl.errors import ConfigError

ROOT = Path(__file__).parents[3]
MINE = """
title: Mine
grpo:
  loss: {name: ppo_clip, clip_low: 0.1, clip_high: 0.5}
  filters: [{name: zero_variance}, {name: overlong}]
  rollout: {temperature: 0.7, strategy: {name: offpolicy_gt}}
  beta: 0.2
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a recipe with one GRPO stage beside a folder `algorithms`, where the preset `mine` is, and return its path."""
    monkeypatch.chdir(tmp_path)
    for folder in ("recipes", "algorithms"):
        (tmp_path / folder).mkdir()
    (tmp_path / "algorithms" / "mine.yaml").write_text(MINE)

    def _write(**stage: Any) -> Path:
        path = tmp_path / "recipes" / "r.yaml"
        rl = {"name": "rl", "kind": "grpo", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "exact"}], **stage}
        path.write_text(
            yaml.safe_dump({"model": {"path": "m"}, "stages": [{k: v for k, v in rl.items() if v is not None}]}, sort_keys=False)
        )
        return path

    return _write


def stage(path: Path, *overrides: str) -> GrpoSection:
    (rl,) = load(path, list(overrides)).config.stages
    assert isinstance(rl, GrpoSection)
    return rl


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, list(overrides))
    return caught.value.problems


def test_preset_beats_default_recipe_beats_preset_command_line_beats_all(write):
    plain, preset = stage(write()), stage(write(algorithm="mine"))
    assert (plain.beta, preset.beta) == (0.0, 0.2)
    assert preset.loss.arguments == {"clip_low": 0.1, "clip_high": 0.5}
    beside = write(algorithm="mine", beta=0.3, loss={"clip_high": 0.6})
    assert stage(beside).beta == 0.3
    assert stage(beside).loss.arguments == {"clip_low": 0.1, "clip_high": 0.6}
    assert stage(beside, "stages.rl.beta=0.4", "stages.rl.loss.clip_low=0.05").loss.arguments == {"clip_low": 0.05, "clip_high": 0.6}
    assert stage(beside, "stages.rl.beta=0.4").beta == 0.4


def test_mappings_merge_lists_and_other_methods_replace(write):
    rl = stage(write(algorithm="mine", rollout={"num_generations": 4}, filters=[{"name": "overlong"}], loss={"name": "cispo"}))
    assert (rl.rollout.num_generations, rl.rollout.temperature, rl.rollout.strategy.name) == (4, 0.7, "offpolicy_gt")
    assert [one.name for one in rl.filters] == ["overlong"]
    assert (rl.loss.name, rl.loss.arguments) == ("cispo", {})


def test_command_line_reaches_into_a_list_of_the_preset(write):
    rl = stage(write(algorithm="mine"), "stages.rl.filters.overlong.max_share=0.5")
    assert [one.arguments for one in rl.filters] == [{}, {"max_share": 0.5}]


@pytest.mark.parametrize("algorithm", [None, "dapo"])
def test_command_line_names_another_preset_wherever_it_stands(write, algorithm):
    path = write(algorithm=algorithm, beta=0.7)
    for overrides in (
        ["stages.rl.algorithm=mine", "stages.rl.loss.clip_high=0.9"],
        ["stages.rl.loss.clip_high=0.9", "stages.rl.algorithm=mine"],
        ["stages.rl.loss.clip_high=0.9", "stages.rl={algorithm: mine}"],
    ):
        rl = stage(path, *overrides)
        assert rl.loss.arguments == {"clip_low": 0.1, "clip_high": 0.9}
        assert (rl.beta, rl.reduce.name) == (0.7, "seq_mean")  # what the recipe says stays; what dapo says is gone
    assert stage(write(algorithm="mine"), "stages.rl.algorithm=null").beta == 0.0


def test_expansion_is_the_recipe_with_the_slots_written_out(write):
    preset = load(write(algorithm="dapo", rollout={"num_generations": 16}), [])
    written = load(
        write(
            rollout={"num_generations": 16},
            advantage={"name": "grpo"},
            filters=[{"name": "zero_variance"}],
            dynamic_sampling={"max_batches": 10},
            loss={"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28},
            reduce={"name": "token_mean"},
            beta=0.0,
        ),
        [],
    )
    assert preset.config == written.config
    assert (preset.text, preset.hash) == (written.text, written.hash)  # what a run is known by


def test_print_shows_the_slots_and_where_they_are_from_and_loads_to_the_same(write, tmp_path):
    out = load(write(algorithm="mine", beta=0.3), ["stages.rl.loss.clip_high=0.9"])
    lines = list(annotated(out))
    preset = "algorithms/mine.yaml"
    assert any("clip_low: 0.1" in line and line.endswith(f"# {preset}:4") for line in lines)
    assert out.origins["stages.rl.filters.overlong.name"] == f"{preset}:5"
    assert out.origins["stages.rl.loss.clip_high"] == "command line"
    assert out.origins["stages.rl.beta"].startswith(str(tmp_path / "recipes" / "r.yaml"))
    (tmp_path / "printed.yaml").write_text("\n".join(lines))
    again = load(tmp_path / "printed.yaml", [])
    assert (again.config, again.hash) == (out.config, out.hash)


def test_a_mapping_takes_a_preset_too(write):
    write()
    one = {"kind": "preference", "source": {"path": "a"}, "steps": 1, "algorithm": "dpo"}
    out = load_mapping({"model": {"path": "m"}, "stages": [{**one, "name": "p"}, {**one, "name": "q"}]}, [])
    assert [pairs.model_dump()["group_loss"] for pairs in out.config.stages] == [{"name": "dpo", "beta": 0.1}] * 2
    assert len(out.notes) == 1  # which file was taken is said once


# ---- which file -----------------------------------------------------------------------------------------------------------


def test_where_a_preset_is_looked_for(write, tmp_path):
    recipe = write(algorithm="dapo")
    ours = ROOT / "configs" / "algorithms" / "dapo.yaml"
    assert load(recipe, []).notes == (f"algorithm dapo: {ours} (comes with vlmrl)",)
    (tmp_path / "dapo.yaml").write_text(recipe.read_text())  # a recipe by the name of its preset is not taken for one
    assert load(tmp_path / "dapo.yaml", []).config == load(recipe, []).config
    (tmp_path / "configs" / "algorithms").mkdir(parents=True)
    (tmp_path / "configs" / "algorithms" / "dapo.yaml").write_text("grpo: {beta: 0.6}")
    assert stage(recipe).beta == 0.6
    assert load(recipe, []).notes == ("algorithm dapo: configs/algorithms/dapo.yaml (working folder)",)
    (tmp_path / "algorithms" / "dapo.yaml").write_text("grpo: {beta: 0.9}")
    assert stage(recipe).beta == 0.9
    assert stage(write(algorithm="../algorithms/mine.yaml")).beta == 0.2


def test_an_installed_package_has_ours(tmp_path, monkeypatch):
    from vlmrl import paths

    shutil.copytree(ROOT / "configs", tmp_path / "vlmrl" / "shipped" / "configs")
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "vlmrl")
    assert [preset.name for preset in presets()] == sorted(path.stem for path in (ROOT / "configs" / "algorithms").glob("*.yaml"))


# ---- mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("dappo", "stages.rl.algorithm: no algorithm 'dappo'; did you mean 'dapo'? (known: cispo, dapo,"),
        ("nowhere.yaml", "stages.rl.algorithm: no file "),
        ({"adv_estimator": "grpo"}, "stages.rl.algorithm: expected the name of a file in configs/algorithms/"),
        ("dpo", "stages.rl.algorithm: 'dpo' is for stages of kind preference, not 'grpo'"),
    ],
)
def test_a_wrong_preset_is_told_with_its_line(write, algorithm, expected):
    (problem,) = problems(write(algorithm=algorithm))
    assert expected in problem
    assert "r.yaml:" in problem.partition(": ")[0]


def test_a_preset_that_is_wrong_itself_is_told_with_its_own_line(write, tmp_path):
    file = tmp_path / "algorithms" / "mine.yaml"
    for text, expected in (
        ("grpo:\n  los: {name: cispo}\n", "algorithms/mine.yaml:2: stages.rl.los: unknown key 'los'; did you mean 'loss'?"),
        ("grpo:\n  beta: -1\n", "algorithms/mine.yaml:2: stages.rl.beta: must be greater than or equal to 0"),
        ("grpo:\n  algorithm: dapo\n", "algorithms/mine.yaml:2: algorithm: a preset names no other"),
        ("beta: 0.1\ngrpo: {beta: 0.2}\n", "algorithms/mine.yaml:1: beta: expected the keys of a stage of this kind"),
        ("grpo: {beta: [}\n", "algorithms/mine.yaml:1: not valid YAML"),
    ):
        file.write_text(text)
        assert any(problem.startswith(expected) for problem in problems(write(algorithm="mine"))), problems(write(algorithm="mine"))


def test_a_misspelt_key_is_pointed_at(write):
    (problem,) = problems(write(algoritm="dapo"))
    assert "unknown key 'algoritm'; did you mean 'algorithm'?" in problem


@pytest.mark.parametrize("kind", [None, "grppo", ["grpo"]])
def test_a_wrong_kind_of_stage_is_told_beside_a_preset(write, kind):
    assert any("stages.rl.kind: " in problem for problem in problems(write(algorithm="mine", kind=kind)))


def test_base_and_stage_of_the_toy_model_take_none(write):
    assert any("unknown key 'algorithm'" in p for p in problems(write(), "toy.base.algorithm=ton"))
    assert any("unknown key 'algorithm'" in p for p in problems(write(), "algorithm=dapo"))


def test_a_recipe_with_a_preset_can_say_only_what_differs(write):
    assert repeated_defaults(write(algorithm="mine", beta=0.0)) == []  # the default, but not what the preset says
    assert any("is what the preset says already" in line for line in repeated_defaults(write(algorithm="mine", beta=0.2)))

"""What a recipe may say of a stage `distill`, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vlmrl.api import load_recipe
from vlmrl.config.load import load
from vlmrl.config.schema import SECTIONS, Config
from vlmrl.errors import ConfigError
from vlmrl.extras.distill.section import DistillSection, Imitate, TeacherMediaSection
from vlmrl.extras.distill.stage import refused
from vlmrl.run.kinds import KINDS
from vlmrl.run.session import fixed_options

EXAMPLE = Path(__file__).parents[4] / "examples" / "distill.yaml"
SERVED = {"weights": "server", "servers": ["127.0.0.1:7000"]}


def recipe(**stage: Any) -> dict[str, Any]:
    out: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    out["stages"][0] |= stage
    return out


def problems(**stage: Any) -> str:
    with pytest.raises(ConfigError) as found:
        load_recipe(recipe(**stage))
    return "\n".join(found.value.problems)


def test_it_is_a_kind_of_stage_that_nobody_has_to_import() -> None:
    config = load_recipe(recipe()).config
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert SECTIONS["distill"] is DistillSection
    assert callable(KINDS["distill"])
    assert stage.rewards == ()
    assert [method.name for method in stage.reweight] == ["teacher_reverse_kl"]
    assert stage.teacher.media == TeacherMediaSection(min_pixels=3136, max_pixels=4704)
    assert refused(config, stage) == []


def test_beside_rewards_and_with_the_whole_vocabulary() -> None:
    config = load_recipe(recipe(rewards=[{"name": "temporal_iou"}], auxiliary_losses=[{"name": "teacher_jsd", "beta": 1.0}])).config
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert stage.rewards[0].name == "temporal_iou"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"reweight": []}, "teacher: nothing asks it"),
        ({"teacher": {"hint": "solution"}}, "teacher.hint 'solution': expected answer, thought or meta.<name>"),
        ({"teacher": {"media": {"crop": "box"}}}, "teacher.media.crop 'box': expected meta.<name>"),
        ({"teacher": {"media": {"crop": "meta."}}}, "teacher.media.crop 'meta.': expected meta.<name>"),
        ({"teacher": {"media": {"margin": 0.5}}}, "teacher.media.margin and beside are of a crop"),
        ({"teacher": {"media": {"beside": True}}}, "teacher.media.margin and beside are of a crop"),
        ({"teacher": {"media": {"crop": "meta.box", "margin": -0.1}}}, "margin"),
        ({"teacher": {"average": {"every": 5}}}, "teacher.average is of a teacher that follows the policy"),
        ({"rollout": {"strategy": {"name": "offpolicy_gt"}}}, "rollout.strategy 'offpolicy_gt': a teacher scores answers"),
        ({"rewards": [{"name": "format"}, {"name": "format"}]}, "reward 'format' is listed twice"),
        ({"kind": "grpo", "teacher": {}, "rewards": [{"name": "format"}]}, "teacher"),
        ({"teacher": {"weights": "server"}}, "teacher.servers and teacher.weights: server go together"),
        ({"teacher": {"servers": ["127.0.0.1:7000"]}}, "teacher.servers and teacher.weights: server go together"),
        ({"teacher": {**SERVED, "servers": ["127.0.0.1"]}}, "teacher.servers: expected HOST:PORT"),
        (
            {"teacher": {**SERVED, "servers": ["10.0.0.9:7000"]}},
            "teacher.servers: 10.0.0.9:7000 is on another machine, and teacher.token_file",
        ),
        ({"teacher": {**SERVED, "servers": ["127.0.0.1:7000"] * 2}}, "teacher.servers: 127.0.0.1:7000 is there twice"),
        ({"teacher": SERVED, "auxiliary_losses": [{"name": "teacher_jsd"}]}, "'teacher_jsd' compares whole distributions"),
        ({"teacher": {"media": {"crop": "meta.box"}}, "environment": {"name": "toy_desk"}}, "screens of an environment have none"),
    ],
)
def test_what_cannot_be_is_refused_by_name(stage: dict[str, Any], said: str) -> None:
    assert said in problems(**stage)


@pytest.mark.parametrize("field", ["reweight", "auxiliary_losses"])
def test_a_stage_without_a_teacher_cannot_ask_one(field: str) -> None:
    given = recipe(kind="grpo", rewards=[{"name": "format"}])
    del given["stages"][0]["teacher"]
    given["stages"][0][field] = [{"name": "teacher_reverse_kl" if field == "reweight" else "teacher_jsd"}]
    with pytest.raises(ConfigError, match="only a stage of kind distill has one; set kind: distill"):
        load_recipe(given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"teacher": {"weights": "adapter_off"}}, "there is no model.lora; take start"),
        ({"teacher": {"weights": "average"}, "lora": {}}, "average needs weights of its own"),
        ({"auxiliary_losses": [{"name": "teacher_jsd"}, {"name": "teacher_jsd", "beta": 1.0}]}, "teacher_jsd is listed twice"),
        ({"auxiliary_losses": [{"name": "teacher_topk_kl"}, {"name": "teacher_topk_kl", "k": 8}]}, "teacher_topk_kl is listed twice"),
        ({"teacher": {"weights": "average"}, "train": {"sharding": "zero3"}}, "zero3 has none whole; take train.sharding: fsdp or zero2"),
        (
            {"auxiliary_losses": [{"name": "teacher_jsd"}], "train": {"sequence": 2}},
            "hidden states of a row, which lie on 2 ranks with train.sequence; take train.sequence: 1, or teacher_reverse_kl",
        ),
    ],
)
def test_what_the_rest_of_the_recipe_forbids(changes: dict[str, Any], said: str) -> None:
    changes = dict(changes)
    lora, train = changes.pop("lora", None), changes.pop("train", {})
    made = recipe(**changes) | {"train": train}
    made["model"] |= {"lora": lora}
    config = Config.model_validate(made)
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert said in "\n".join(refused(config, stage))


def test_on_servers_with_the_likeliest_ids_and_where_they_are_may_change() -> None:
    config = load_recipe(recipe(teacher=SERVED, reweight=[], auxiliary_losses=[{"name": "teacher_topk_kl", "k": 8}])).config
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert stage.teacher.served
    assert not stage.teacher.at_hand
    assert refused(config, stage) == []
    kept = fixed_options(config)["stages"][0]["teacher"]
    assert kept["weights"] == "server"
    assert not {"servers", "token_file", "patience"} & kept.keys()


def test_runs_that_were_begun_before_there_were_crops_and_widths_go_on() -> None:
    """What a run was begun with is compared key by key, so keys that came later count once they say something."""
    old, new = (load_recipe(recipe(teacher=teacher)).config for teacher in ({}, {"media": {"crop": "meta.box", "margin": 0.1}}))
    kept, changed = (fixed_options(one)["stages"][0]["teacher"]["media"] for one in (old, new))
    assert not {"crop", "margin", "beside"} & kept.keys()
    assert (changed["crop"], changed["margin"], changed["beside"]) == ("meta.box", 0.1, False)
    for width, said in (([], False), (["toy.base_width=64"], True)):
        assert ("base_width" in fixed_options(load("toy_video", width).config)["toy"]) == said


@pytest.mark.parametrize("train", [{"sharding": "fsdp"}, {"sharding": "zero2"}, {"sharding": "zero3"}, {"sharding": "fsdp", "sequence": 2}])
@pytest.mark.parametrize("weights", ["start", "some/folder"])
def test_weights_may_lie_in_shards(weights: str, train: dict[str, Any]) -> None:
    config = Config.model_validate(recipe(teacher={"weights": weights}) | {"train": train})
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert refused(config, stage) == []


def test_rows_may_be_tasks_of_an_environment() -> None:
    stage = {"environment": {"name": "toy_desk"}, "history": {"screens": 1}, "forward": "chains", "advantage": {"name": "trajectory"}}
    config = load_recipe(recipe(**stage)).config
    (stage,) = config.stages
    assert isinstance(stage, DistillSection)
    assert refused(config, stage) == []


def imitate(**stage: Any) -> dict[str, Any]:
    out = recipe()
    kept = {key: out["stages"][0][key] for key in ("name", "source", "steps", "teacher", "optim", "rollout")}
    out["stages"] = [kept | {"kind": "teacher_sft"} | stage]
    return out


def test_fine_tuning_on_the_teachers_answers() -> None:
    config = load_recipe(imitate()).config
    (stage,) = config.stages
    assert isinstance(stage, Imitate)
    assert (stage.rollout.num_generations, stage.rewards) == (4, ())
    assert refused(config, stage) == []
    assert callable(KINDS["teacher_sft"])


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"rewards": [{"name": "format"}]}, "rewards: nothing scores answers of a teacher"),
        ({"environment": {"name": "toy_desk"}}, "plays no episodes; take kind: distill"),
        ({"teacher": {"weights": "average"}}, "a policy that learns from answers of its own average stays where it is"),
        ({"rollout": {"top_p": 0.9}}, "take engine: hf and top_p: 1"),
        ({"teacher": SERVED}, "teacher.weights: server: it scores answers and gives none"),
        ({"rollout": {"strategy": {"name": "offpolicy_gt"}}}, "rollout.strategy 'offpolicy_gt'"),
        ({"teacher": {"hint": "solution"}}, "teacher.hint 'solution'"),
    ],
)
def test_what_the_teachers_answers_cannot_be(stage: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_recipe(imitate(**stage))
    assert said in "\n".join(found.value.problems)

"""What a family without code of its own is refused, each with what to do, and which layout trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.reports import HERE, written
from tests.support.runs import small_config
from vlmrl.config.schema import Config
from vlmrl.extras.families import verdict
from vlmrl.extras.families.family import GenericFamily
from vlmrl.families.registry import FAMILIES
from vlmrl.policy.foreign import unproven
from vlmrl.run.open_stage import layout_told
from vlmrl.train import dist

GENERIC = GenericFamily(name="gemma3", config=None, generation=None)
OWN = FAMILIES["qwen2_5_vl"]


def recipe(model: dict[str, Any] | None = None, rollout: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    config = small_config(Path("m"), Path("w"), Path("r"))
    config["model"] |= model or {}
    config["stages"][1]["rollout"] |= rollout or {}
    return Config.model_validate(config | sections)


def episodes(**history: Any) -> Config:
    config = small_config(Path("m"), Path("w"), Path("r"))
    config["stages"][1] |= {
        "environment": {"name": "toy_desk", "max_turns": 3},
        "history": history,
        "rewards": [{"name": "environment_reward"}],
        "advantage": {"name": "trajectory"},
    }
    return Config.model_validate(config)


REFUSED: list[tuple[Config, str]] = [
    (recipe({"attention": "flash_attention_2"}), "leave it at 'sdpa'"),
    (recipe({"prefix_backend": "merge"}), "model.prefix_backend: 'merge'"),
    (recipe({"kernels": "liger"}), "model.kernels: 'liger'"),
    (recipe({"positions": "grid"}), "model.positions: 'grid'"),
    (recipe({"vision_chunk_patches": 64}), "model.vision_chunk_patches: 64"),
    (recipe(media={"vision_cache_dir": "x"}), "media.vision_cache_dir: 'x'"),
    (
        recipe(train={"sharding": "fsdp"}),
        "train.sharding: 'fsdp' is not proven with a 'gemma3' model under model.family 'generic'; take ddp; no report lies beside it",
    ),
    (recipe(train={"sharding": "zero3"}), "train.sharding: 'zero3'"),
    (recipe(train={"offload": "optimizer"}), "train.offload: 'optimizer'"),
    (recipe(train={"sequence": 2}), "train.sequence: 2"),
    (recipe(rollout={"engine": "vllm"}), "stages[1].rollout.engine: 'vllm'"),
    (recipe(rollout={"graphs": True}), "stages[1].rollout.graphs: True"),
    (episodes(), "stages[1].environment: 'toy_desk' is not proven"),
    (episodes(screens=1), "`vlmrl check` of a folder with the model tries promise P17"),
]


@pytest.mark.parametrize(("cfg", "said"), REFUSED, ids=[said.split(":")[0] for _, said in REFUSED])
def test_what_is_not_proven_is_refused_with_what_to_do(cfg: Config, said: str) -> None:
    (problem,) = unproven(GENERIC, cfg)
    assert said in problem
    assert unproven(OWN, cfg) == []


PROMISED = [
    (recipe(train={"sharding": "fsdp"}), "P16", "an update of shards"),
    (episodes(), "P17", "conversations"),
    (recipe(rollout={"engine": "vllm"}), "P14", "vLLM takes our weights"),
]


@pytest.mark.parametrize(("cfg", "promise", "about"), PROMISED)
def test_what_a_report_promises_is_taken_and_nothing_else(cfg: Config, promise: str, about: str, tmp_path: Path) -> None:
    family = replace(GENERIC, path=str(written(tmp_path, engine="vllm")))
    assert unproven(family, cfg) == []
    written(tmp_path, red=(promise,), engine="vllm")
    (problem,) = unproven(family, cfg)
    assert f"conform.json says that it does not keep {promise} ({about}" in problem
    assert "see its `checks`" in problem
    other = next(one for one, number, _ in PROMISED if number != promise)
    assert unproven(family, other) == [], "each is refused for its own promise alone"
    written(tmp_path, without=(promise,), engine="vllm")
    (problem,) = unproven(family, cfg)
    how = " --engine vllm" if promise == "P14" else ""
    assert f"does not say whether it keeps {promise}: run `vlmrl check {tmp_path}{how}` again" in problem
    written(tmp_path, versions={"transformers": "4.0.0", "torch": HERE["torch"]}, engine="vllm")
    (problem,) = unproven(family, cfg)
    assert "conform.json is of transformers 4.0.0, here" in problem


def test_vllm_is_taken_with_the_version_that_was_tried_where_it_runs(tmp_path: Path) -> None:
    family = replace(GENERIC, path=str(written(tmp_path, engine="vllm")))
    written(tmp_path, versions={**HERE, "vllm": "0.1.0"}, engine="vllm")
    (problem,) = unproven(family, recipe(rollout={"engine": "vllm"}))
    assert "take hf: the policy itself answers; " in problem
    assert f"is of vllm 0.1.0, here {verdict.installed('vllm')}: run `vlmrl check {tmp_path} --engine vllm` again" in problem
    assert verdict.read(str(tmp_path)).older() == [], "and nobody who does without vLLM has to have it"
    served = recipe(rollout={"engine": "vllm", "vllm": {"servers": ["127.0.0.1:7000"]}})
    assert unproven(family, served) == [], "a server looks at what is installed there"
    written(tmp_path, red=("P14",), engine="vllm")
    (problem,) = unproven(family, served)
    assert "does not keep P14" in problem


@pytest.mark.parametrize("cfg", [recipe(), recipe({"lora": {"rank": 4}}), recipe({"lora": {"rank": 4, "vision": True}})])
@pytest.mark.parametrize("processes", [1, 2])
def test_plain_recipes_and_adapters_are_taken_in_any_number_of_replicas(
    cfg: Config, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "world", lambda: processes)
    assert unproven(GENERIC, cfg) == []


def chosen(asked: str, *layouts: str, recomputes: bool = False, shards: bool = False, family: Any = GENERIC) -> tuple[str, str]:
    """(the layout of a stage, what was said of it)."""
    said: list[str] = []
    policy = SimpleNamespace(bundle=SimpleNamespace(family=family, layouts=layouts), shards=SimpleNamespace(collective=shards))
    session = SimpleNamespace(policy=policy, recomputes=recomputes, ui=SimpleNamespace(say=said.append))
    taken = layout_told(cast(Any, session), cast(Any, SimpleNamespace(name="rl", forward=asked)))
    return taken, "".join(said)


@pytest.mark.parametrize(
    ("layouts", "asked", "recomputes", "taken"),
    [
        ((), "repeat", False, "repeat"),
        ((), "shared_prefix", False, "repeat"),
        (("repeat",), "shared_prefix", False, "repeat"),
        (("repeat", "fork"), "shared_prefix", False, "fork"),
        (("repeat", "fork"), "shared_prefix", True, "repeat"),
        (("repeat", "fork", "shared_prefix"), "shared_prefix", True, "shared_prefix"),
        (("repeat", "fork", "shared_prefix"), "repeat", False, "repeat"),
    ],
)
def test_the_layout_is_the_best_that_the_kit_admits(layouts: tuple[str, ...], asked: str, recomputes: bool, taken: str) -> None:
    layout, why = chosen(asked, *layouts, recomputes=recomputes)
    assert layout == taken
    assert ("vlmrl check" in why) == (layout != asked)


def test_weights_in_shards_have_no_forked_cache() -> None:
    """Its passes are as many as a rank has prompts, and every rank has to make the same."""
    assert chosen("shared_prefix", "repeat", "fork", shards=True)[0] == "repeat"
    assert chosen("shared_prefix", "repeat", "fork", "shared_prefix", shards=True) == ("shared_prefix", "")


@pytest.mark.parametrize("asked", ["chains", "trees"])
def test_what_turns_share_needs_code_of_a_familys_own(asked: str) -> None:
    layout, why = chosen(asked, "repeat", "fork", "shared_prefix")
    assert layout == "shared_prefix"
    assert f"shared_prefix in place of {asked}" in why
    assert chosen(asked, "repeat", "fork")[0] == "fork"
    assert chosen(asked, "repeat", "fork", recomputes=True)[0] == "repeat"
    assert chosen(asked, recomputes=True, family=OWN) == (asked, "")


def test_code_of_a_familys_own_trains_in_what_is_asked_for() -> None:
    assert chosen("shared_prefix", recomputes=True, family=OWN) == ("shared_prefix", "")

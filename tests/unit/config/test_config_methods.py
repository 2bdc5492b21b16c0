"""Pass 2: names and arguments of methods against the registries."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.documents import names_sources
from vlmrl.config.load import load
from vlmrl.config.methods import SLOTS, check_methods, used
from vlmrl.config.schema import Config, GrpoSection, Method, RewardMethod
from vlmrl.errors import ConfigError
from vlmrl.registry import Registry


def config(**stage: Any) -> Config:
    rl = {"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "iou", "weight": 0.5, "power": 2.0}]}
    return Config.model_validate(
        {"model": {"path": "m"}, "stages": [{"kind": "sft", "name": "s", "source": {"path": "a"}, "steps": 1}, rl | stage]}
    )


@pytest.fixture
def registries() -> dict[str, Registry[Any]]:
    """Small registries under the real slot names."""
    out: dict[str, Registry[Any]] = {slot: Registry(slot) for slot in (*SLOTS.values(), "strategy")}

    def method(x: Any, *, clip_low: float = 0.2, clip_high: float = 0.2, mode: Literal["a", "b"] = "a") -> Any:
        """A method."""
        return x

    def needs(x: Any, *, tau: float, reward: str = "iou") -> Any:
        """A method with a required argument."""
        return x

    def iou(x: Any, *, power: float = 1.0) -> Any:
        """A reward."""
        return x

    defaults = [("advantage", "grpo"), ("credit", "broadcast"), ("policy_loss", "ppo_clip"), ("reducer", "seq_mean")]
    defaults += [
        ("kl_estimator", "k3"),
        ("sampler", "uniform"),
        ("strategy", "plain"),
        ("importance_correction", "none"),
        ("budget", "fixed"),
    ]
    for slot, name in defaults:
        out[slot](name)(method)
    out["reward_shaping"]("bend")(needs)
    out["filter"]("zero_variance")(method)
    out["reward"]("iou")(iou)
    return out


def test_a_right_config_has_no_problems(registries):
    assert check_methods(config(reward_shaping=[{"name": "bend", "tau": 0.8}], filters=[{"name": "zero_variance"}]), registries) == []


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({"advantage": {"name": "grop"}}, "stages.rl.advantage.name: unknown advantage 'grop'; did you mean 'grpo'? (known: grpo)"),
        (
            {"loss": {"name": "ppo_clip", "clip_hgih": 0.3}},
            "stages.rl.loss.clip_hgih: unknown 'clip_hgih'; did you mean 'clip_high'? (policy_loss 'ppo_clip' takes: clip_low, clip_high",
        ),
        ({"loss": {"name": "ppo_clip", "clip_high": "a"}}, "stages.rl.loss.clip_high: expected float, got str 'a'"),
        ({"loss": {"name": "ppo_clip", "clip_high": True}}, "stages.rl.loss.clip_high: expected float, got bool True"),
        ({"loss": {"name": "ppo_clip", "mode": "c"}}, "stages.rl.loss.mode: expected one of 'a', 'b', got str 'c'"),
        ({"reward_shaping": [{"name": "bend"}]}, "stages.rl.reward_shaping.0.tau: missing, reward_shaping 'bend' needs it"),
        (
            {"reward_shaping": [{"name": "bend", "tau": 0.8, "reward": "iuo"}]},
            "stages.rl.reward_shaping.0.reward: no reward 'iuo'; did you mean 'iou'? (stages.rl.rewards has: iou)",
        ),
        ({"filters": [{"name": "zero_varianc"}]}, "stages.rl.filters.0.name: unknown filter 'zero_varianc'; did you mean 'zero_variance'?"),
        ({"rollout": {"strategy": {"name": "plane"}}}, "stages.rl.rollout.strategy.name: unknown strategy 'plane'; did you mean 'plain'?"),
        ({"sampler": {"name": "unifrom"}}, "stages.rl.sampler.name: unknown sampler 'unifrom'; did you mean 'uniform'?"),
        ({"reduce": {"name": "seq_men"}}, "stages.rl.reduce.name: unknown reducer 'seq_men'; did you mean 'seq_mean'?"),
        ({"kl": {"name": "k4"}}, "stages.rl.kl.name: unknown kl_estimator 'k4'"),
        ({"credit": {"name": "brodcast"}}, "stages.rl.credit.name: unknown credit 'brodcast'; did you mean 'broadcast'?"),
        ({"rewards": [{"name": "iou", "wieght": 2}]}, "stages.rl.rewards.0.wieght: unknown 'wieght'; did you mean 'weight'?"),
        ({"rewards": [{"name": "iou", "labl": "a"}]}, "stages.rl.rewards.0.labl: unknown 'labl'; did you mean 'label'?"),
        ({"rewards": [{"name": "iou", "column": "a"}]}, "stages.rl.rewards.0.column: 'column' is now called 'label'"),
        (
            {"reward_shaping": [{"name": "bend", "tau": 0.8, "column": "iou"}]},
            "stages.rl.reward_shaping.0.column: 'column' is now called 'reward'",
        ),
        ({"rewards": [{"name": "iou", "isolated": True}]}, "stages.rl.rewards.0.isolated: unknown 'isolated'; did you mean 'isolate'?"),
        (
            {"rewards": [{"name": "iou", "powr": 2}]},
            "stages.rl.rewards.0.powr: unknown 'powr'; did you mean 'power'? (reward 'iou' takes: power)",
        ),
        ({"rewards": [{"name": "iuo"}]}, "stages.rl.rewards.0.name: unknown reward 'iuo'; did you mean 'iou'?"),
    ],
)
def test_wrong_names_and_arguments(registries, stage, expected):
    found = check_methods(config(**stage), registries)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_everything_wrong_is_told_at_once(registries):
    found = check_methods(
        config(advantage={"name": "x"}, loss={"name": "ppo_clip", "y": 1, "z": 2}, reward_shaping=[{"name": "bend"}]), registries
    )
    assert len(found) == 4


def test_every_method_field_of_the_schema_is_checked():
    """A new field that holds a method must be added to SLOTS, or nothing would check it."""

    def methods(model: Any, skip: frozenset[str] = frozenset()) -> set[str]:
        return {name for name, info in model.model_fields.items() if "Method" in str(info.annotation)} - skip

    assert methods(GrpoSection) == set(SLOTS)
    assert {where.removeprefix("stages.rl.") for where, _, _ in used(config())} >= {"advantage", "rewards.0", "rollout.strategy"}
    assert issubclass(RewardMethod, Method)


ASKED = {("offpolicy_gt", "fallback")}
"""(method, argument) that `vlmrl check` asks a recipe to say, its default too."""
RECIPES = sorted((Path(__file__).parents[3] / "configs" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=[p.stem for p in RECIPES])
def test_recipes_name_real_methods_and_repeat_no_default_of_theirs(path):
    from vlmrl.methods import registries as real

    loaded = load(path, [])
    found = real(loaded.config.plugins)
    assert check_methods(loaded.config, found) == []
    repeated = [
        f"{where}.{key}: {value!r} is the default of {slot} '{method.name}'"
        for where, slot, method in used(loaded.config)
        for key, value in method.arguments.items()
        if (method.name, key) not in ASKED
        if not (parameter := found[slot].get(method.name).parameters[key]).required and parameter.default == value
    ]
    assert names_sources(path) or repeated == []


def test_real_registries_hold_every_slot_and_the_defaults():
    from vlmrl.methods import registries as real

    found = real()
    assert set(found) == {*SLOTS.values(), "strategy", "environment"}
    defaults = config(rewards=[{"name": found["reward"].names()[0]}])
    needed = [p for p in check_methods(defaults, found) if not p.startswith("stages.rl.rewards")]
    assert needed == []


@pytest.mark.not_fast
def test_plugins_register_and_missing_ones_are_config_errors(tmp_path):
    (tmp_path / "my_rewards.py").write_text(
        textwrap.dedent(
            '''
            from vlmrl.protocols import reward

            @reward("always_one")
            def always_one(group, context, *, value: float = 1.0):
                """The same for everyone."""
                return [value for _ in group.rollouts]
            '''
        )
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from vlmrl.methods import registries\n"
        "assert 'always_one' in registries(['my_rewards'])['reward'].names()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr

    from vlmrl.methods import registries as real

    with pytest.raises(ConfigError, match=r"plugins\.0: cannot import 'no_such_module_here'"):
        real(["no_such_module_here"])

"""Every problem of a recipe in one go, each with the place that gives the value: recipe, base or command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmrl.config.load import load
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.methods import method_doubts, method_problems

STAGE = "stages:\n  - kind: grpo\n    name: rl\n    source: {path: a}\n    steps: 3\n"


def problems(recipe: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(recipe, list(overrides), also=method_problems)
    return caught.value.problems


def only(found: list[str], text: str) -> str:
    """The one problem with this text."""
    (one,) = [problem for problem in found if text in problem]
    return one


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return tmp_path / "recipe.yaml"


def test_problems_of_methods_have_file_and_line(recipe: Path) -> None:
    recipe.write_text(
        f"model: {{path: m}}\n{STAGE}"
        "    rewards:\n      - {name: exact}\n      - name: temporal_iuo\n        weight: 0.5\n"
        "    advantage:\n      name: grpo\n      epsilom: 0.1\n"
        "    filters:\n      - {name: podz}\n"
        "    group_loss: {name: disco}\n    beta: 0.1\n"
    )
    found = problems(recipe)
    assert only(found, "temporal_iuo").startswith(f"{recipe}:9: stages.rl.rewards.1.name: unknown reward")
    assert only(found, "epsilom").startswith(f"{recipe}:13: stages.rl.advantage.epsilom: ")
    assert only(found, "unknown filter 'podz'").startswith(f"{recipe}:15: stages.rl.filters.0.name: ")
    assert only(found, "ignores beta").startswith(f"{recipe}:16: stages.rl.group_loss: ")
    assert all(problem.startswith(f"{recipe}:") for problem in found)


def test_a_value_of_the_base_has_the_line_of_the_base(tmp_path: Path) -> None:
    base, recipe = tmp_path / "shared.yaml", tmp_path / "recipe.yaml"
    base.write_text(f"model: {{path: m}}\n{STAGE}    rewards: [{{name: exact}}]\n    kl: {{name: k9}}\n")
    recipe.write_text("base: shared.yaml\nrun: {seed: 3}\n")
    (found,) = problems(recipe)
    assert found.startswith(f"{base}:8: stages.rl.kl.name: unknown kl_estimator 'k9'")


def test_a_value_of_the_command_line_says_so(recipe: Path) -> None:
    recipe.write_text(f"model: {{path: m}}\n{STAGE}    rewards: [{{name: exact}}]\n")
    found = problems(
        recipe, "stages.rl.kl.name=k9", "stages.rl.rewards.exact.wieght=2", "stages.rl.rollout.num_generations=1", "eval.limt=3"
    )
    for text in ("'k9'", "'wieght'", "num_generations (1)", "'limt'"):
        assert only(found, text).startswith("command line: ")
    assert len(found) == 4


def test_contradictions_between_fields_have_file_and_line(recipe: Path) -> None:
    recipe.write_text(
        f"model: {{path: m}}\nmedia:\n  max_pixels: 5000\n  min_pixels: 9000\n{STAGE}"
        "    rewards: [{name: exact}]\n    updates_per_step: 3\n"
    )
    found = problems(recipe)
    assert only(found, "is larger than media.max_pixels").startswith(f"{recipe}:4: ")
    assert only(found, "is not a multiple of updates_per_step (3)").startswith(f"{recipe}:11: ")
    assert all(problem.startswith(f"{recipe}:") for problem in found)
    assert len(found) == 2


def test_rows_that_cannot_be_shared_are_refused(recipe: Path) -> None:
    recipe.write_text(
        f"model: {{path: m}}\ntrain: {{sequence: 2, sharding: zero3}}\n{STAGE}    rewards: [{{name: exact}}]\n    forward: repeat\n"
    )
    found = problems(recipe)
    assert only(found, "take ddp or fsdp").startswith(f"{recipe}:2: train.sequence (2): ")
    assert "forward: repeat has none" in only(found, "take shared_prefix")
    assert len(found) == 2
    with pytest.raises(ConfigError) as caught:
        load(recipe, ["train.sequence=3"], also=method_problems)
    assert "train.sequence" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("run: {naem: x}\nmodel: {path: m}", "'naem'"),
        ("run: {name: x}", "model: missing"),
        ("model: {dtype: float32}", "model.path: missing"),
        ("model: {path: m}\nplugins: [no_such_module]", ":2: plugins.0: cannot import 'no_such_module'"),
        ("model: {path: m}\nmedia: {max_pixels: many}", "got str 'many'"),
        ("model: {path: m}\nlearning_rate: 1e-6", "'optim.lr'"),
    ],
)
def test_methods_are_checked_beside_every_other_mistake(recipe: Path, wrong: str, expected: str) -> None:
    recipe.write_text(f"{wrong}\n{STAGE}    rewards: [{{name: exat}}]\n    loss: {{name: ppo_clp}}\n    kl: {{name: k1, wrong: 2}}\n")
    found = problems(recipe)
    for text in (expected, "unknown reward 'exat'", "unknown policy_loss 'ppo_clp'", "unknown 'wrong'"):
        only(found, text)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (f"model: {{path: m}}\n{STAGE}    rewards: [{{name: exat}}]\n{{top}}", "more unknown keys"),
        (f"model: {{path: m}}\n{STAGE}{{stage}}    rewards: [{{name: exat}}]\n", "more unknown keys"),
        (
            f"model: {{path: m}}\n{STAGE}    rewards: [{{name: exat}}]\n    kl:\n      name: k1\n{{method}}",
            "stages.rl.kl: 950 more unknown keys",
        ),
    ],
)
def test_unknown_keys_beyond_fifty_are_counted(recipe: Path, monkeypatch: pytest.MonkeyPatch, text: str, more: str) -> None:
    checked = []
    validate = Config.model_validate
    monkeypatch.setattr(Config, "model_validate", lambda data: checked.append(data) or validate(data))
    keys = [f"odd_{i}: 1\n" for i in range(1000)]
    indented = {"top": "".join(keys), "stage": "".join(f"    {k}" for k in keys), "method": "".join(f"      {k}" for k in keys)}
    recipe.write_text(text.replace("{top}", indented["top"]).replace("{stage}", indented["stage"]).replace("{method}", indented["method"]))
    found = problems(recipe)
    assert len([problem for problem in found if ".odd_" in problem or " odd_" in problem]) == 50
    assert "950" in only(found, more)
    assert only(found, "unknown reward 'exat'")  # what else is wrong is found behind a thousand keys
    assert len(checked) <= 3  # all unknown keys are taken out together


def test_what_is_missing_is_told_once_and_the_rest_of_its_stage_is_checked(recipe: Path) -> None:
    recipe.write_text(
        "model: {path: m}\nstages:\n  - kind: grpo\n    steps: 3\n    advantage: {name: g2rpo}\n"
        "    reward_shaping: [{name: tempsamp_nonlinear, reward: exact}]\n"
        "  - {kind: grpo, name: b, source: {path: a}, steps: 0, rewards: [{nmae: exact}, 3], sampler: {name: unifrom}}\n"
    )
    found = problems(recipe)
    for text in ("stages.0.name: missing", "stages.0.source: missing", "stages.0.rewards: missing", "ranks only", "'unifrom'", "'nmae'"):
        assert only(found, text).startswith(f"{recipe}:")
    assert only(found, "ranks only").startswith(f"{recipe}:6: stages.0.reward_shaping.0: ")
    assert not any("rewards is empty" in problem or "no reward 'exact'" in problem for problem in found), found
    assert len(found) == 9


def test_arguments_in_a_mapping_of_their_own(recipe: Path) -> None:
    recipe.write_text(
        f'model: {{path: m}}\n{STAGE}    rewards:\n      - {{name: python, arguments: {{function: "my.py:score", form: verl}}}}\n'
        "    loss: {name: ppo_clip, args: {clip_hihg: 0.3}}\n"
    )
    found = problems(recipe)
    told = "arguments stand beside the name: {name: python, function: ..., form: ...}"
    assert only(found, "stages.rl.rewards").endswith(told)
    assert "clip_hihg: ..." in only(found, "stages.rl.loss.args")
    assert "did you mean 'clip_high'" in only(found, "stages.rl.loss.clip_hihg")
    assert len(found) == 3


def test_a_base_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the recipe, wherever the command runs."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    recipe = tmp_path / "here" / "recipe.yaml"
    (tmp_path / "there" / "common.yaml").write_text("model: {path: common}\n")
    recipe.write_text(f"base: ../there/common.yaml\n{STAGE}    rewards: [{{name: exact}}]\n")
    monkeypatch.chdir("/")
    assert load(recipe, []).config.model.path == "common"
    recipe.write_text(f"base: ../there/comon.yaml\n{STAGE}    rewards: [{{name: exact}}]\n")
    assert "a path is relative to the recipe" in only(problems(recipe), "base: no file")


def test_a_warning_has_file_and_line(recipe: Path) -> None:
    recipe.write_text(f"model: {{path: m}}\n{STAGE}    rewards: [{{name: exact, weight: 0.5}}, {{name: format, weight: 0.5}}]\n")
    loaded = load(recipe, [], also=method_problems)
    (text,) = method_doubts(loaded.config)
    assert loaded.located(text).startswith(f"{recipe}:7: stages.rl.rewards: ")

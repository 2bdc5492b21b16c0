"""What `vlmrl check` finds by calling methods of plug-ins on made-up groups; and that it takes no method that runs for one that cannot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command import vlmrl
from vlmrl import api
from vlmrl.config.methods import SLOTS
from vlmrl.config.section import Method
from vlmrl.errors import ConfigError
from vlmrl.extras.trial.step import _CALLS
from vlmrl.extras.trial.theirs import try_methods
from vlmrl.methods import registries
from vlmrl.registry import Registry

FIELDS = {slot: field for field, slot in SLOTS.items()}
FOUND = registries()
PLUGIN = '''"""Methods of a user."""

import torch

from vlmrl.algo.inputs import LossOutput
from vlmrl.algo.registries import advantage, auxiliary_loss, reweight


@advantage("misspelt")
def misspelt(x):
    """Reads a field that there is not."""
    return x.rewards_N - x.reward_N.mean()


def update(state, x):
    """What is remembered."""
    return {"seen": state.get("seen", 0.0) + float(x.reward_N.sum())}


@reweight("at_second", remembers=update)
def at_second(x, adv_N):
    """Fails when it has something to remember."""
    return adv_N * missing if "seen" in x.memory else adv_N


@auxiliary_loss("undeclared")
def undeclared(x):
    """Reads what it does not say that it needs."""
    return LossOutput((x.logp_BT - x.logp_ref_BT).square())


@auxiliary_loss("odd_rows")
def odd_rows(x):
    """Wants rows that the made-up groups are not."""
    raise ValueError(f"an odd number of rows, not {len(x.group_B)}")


@advantage("right")
def right(x, *, scale: float = 1.0):
    """Runs."""
    return scale * (x.reward_N - x.reward_N.mean())
'''


def recipe(folder: Path, **stage: Any) -> None:
    """Write `mine.yaml`, with methods of the plug-in."""
    (folder / "their_methods.py").write_text(PLUGIN)
    rl = {"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, "beta": 0.0, "rewards": [{"name": "exact"}], **stage}
    (folder / "mine.yaml").write_text(json.dumps({"model": {"path": "m"}, "plugins": ["their_methods"], "stages": [rl]}))


def check(folder: Path, **stage: Any) -> Any:
    """`vlmrl check` of a recipe with methods of the plug-in, without data."""
    recipe(folder, **stage)
    return vlmrl("check", "mine.yaml", "--no-data", cwd=folder)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(PLUGIN.splitlines(), 1) if text in line)


@pytest.mark.not_fast
def test_methods_that_cannot_run_are_problems_with_their_place(tmp_path: Path) -> None:
    done = check(
        tmp_path,
        advantage={"name": "misspelt"},
        reweight=[{"name": "at_second"}],
        auxiliary_losses=[{"name": "undeclared"}, {"name": "odd_rows"}],
    )
    assert done.returncode == 64, done.stderr
    assert "methods: ok" not in done.stdout
    for where, said, text in (
        ("stages.rl.advantage", "has no field 'rewards_N'", "x.rewards_N"),
        ("stages.rl.reweight.0", "NameError: name 'missing' is not defined", "adv_N * missing"),
        ("stages.rl.auxiliary_losses.0", "TypeError", "x.logp_ref_BT)"),
    ):
        (line,) = [line for line in done.stderr.splitlines() if where in line]
        assert said in line
        assert line.endswith(f"{tmp_path / 'their_methods.py'}:{line_of(text)})")
    assert "odd_rows" not in done.stderr, "what the made-up groups may be the cause of is no problem"


@pytest.mark.not_fast
def test_training_does_not_begin_with_a_method_that_cannot_run(tmp_path: Path) -> None:
    """Neither is the model looked for nor a folder made: on a real recipe the fault would show in the first step after the SFT stage."""
    recipe(tmp_path, advantage={"name": "misspelt"})
    done = vlmrl("train", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 64, done.stderr
    (line,) = done.stderr.splitlines()
    assert "mine.yaml" in line
    assert "stages.rl.advantage" in line
    assert "has no field 'rewards_N'" in line
    assert line.endswith(f"{tmp_path / 'their_methods.py'}:{line_of('x.rewards_N')})")
    assert not (tmp_path / "runs").exists()


def test_training_from_python_does_not_begin_with_a_method_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> list[str]:
        raise ConfigError("stages.rl.advantage: cannot run")

    monkeypatch.setitem(api.TRIALS, "trial", cannot)
    monkeypatch.chdir(tmp_path)
    rl = {"kind": "grpo", "name": "rl", "source": {"path": "a.jsonl"}, "steps": 1, "beta": 0.0, "rewards": [{"name": "exact"}]}
    with pytest.raises(ConfigError, match="cannot run"):
        api.train({"model": {"path": "m"}, "stages": [rl]}, quiet=True)


@pytest.mark.not_fast
def test_what_may_be_due_to_the_groups_is_a_warning(tmp_path: Path) -> None:
    done = check(tmp_path, advantage={"name": "right"}, auxiliary_losses=[{"name": "odd_rows"}])
    assert done.returncode == 0, done.stderr
    assert "methods: ok" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "odd_rows" in line]
    assert "warning: " in line
    assert "an odd number of rows, not 8" in line


def as_theirs(slot: str) -> dict[str, Registry[Any]]:
    """The registry of a slot with our methods as if a plug-in had registered them."""
    known: Registry[Any] = Registry(slot)
    known._entries.update({name: dataclasses.replace(FOUND[slot].get(name), ours=False) for name in FOUND[slot].names()})
    return {slot: known}


@pytest.mark.parametrize("slot", _CALLS)
def test_no_method_of_ours_is_taken_for_one_that_cannot_run(slot: str) -> None:
    """Hundreds of methods that run: none raises what would be called a problem."""
    found = as_theirs(slot)
    wrong: list[str] = []
    for name in found[slot].names():
        required = [p for p in found[slot].get(name).parameters.values() if p.required]
        given = {p.name: "exact" if p.annotation is str else 1.0 for p in required if p.annotation in (str, float)}
        if len(given) < len(required):
            continue
        method = Method.model_validate({"name": name, **given})
        stage = SimpleNamespace(name="rl", beta=0.1, rewards=(SimpleNamespace(key="exact"),), **{FIELDS[slot]: method})
        try:
            try_methods(SimpleNamespace(stages=[stage]), found)  # pyright: ignore[reportArgumentType]
        except ConfigError as error:
            wrong += error.problems
    assert not wrong, "\n".join(wrong)


def test_methods_of_the_package_are_not_called() -> None:
    calls: list[str] = []
    known: Registry[Any] = Registry("advantage")
    known._entries["grpo"] = dataclasses.replace(FOUND["advantage"].get("grpo"), function=lambda x: calls.append("called"))
    stage = SimpleNamespace(name="rl", advantage=Method(name="grpo"))
    assert api.TRIALS["trial"](SimpleNamespace(stages=[stage]), {"advantage": known}) == []
    assert not calls


def test_an_environment_looks_at_its_arguments(tmp_path: Path) -> None:
    """What names nothing is a problem of the recipe, with its place."""
    stage = SimpleNamespace(name="rl", environment=Method.model_validate({"name": "web_page", "folder": str(tmp_path)}))
    cfg: Any = SimpleNamespace(stages=[stage])
    with pytest.raises(ConfigError, match=rf"stages\.rl\.environment: environment 'web_page': folder '{tmp_path}': it has no index\.html"):
        try_methods(cfg, FOUND)
    (tmp_path / "index.html").write_text("<p>")
    assert try_methods(cfg, FOUND) == []

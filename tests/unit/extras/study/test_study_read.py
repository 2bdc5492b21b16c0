"""The file of a study: what it may say, and every problem with its file, line and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.documents import blocks, marks, tables
from tests.unit.extras.study.conftest import Place
from vlmrl.errors import ConfigError
from vlmrl.extras.study.plan import Plan
from vlmrl.extras.study.read import find_study, read_study
from vlmrl.extras.study.spec import Study
from vlmrl.extras.study.stats import HOLDS, NO_EFFECT, NO_PREMISE, OPEN
from vlmrl.paths import names


def problems(path: Path, asked: dict[str, Any]) -> list[str]:
    path.write_text(yaml.safe_dump(asked, sort_keys=False))
    with pytest.raises(ConfigError) as error:
        read_study(path)
    return error.value.problems


@pytest.mark.parametrize("name", names("study"))
def test_shipped_studies_are_valid(name: str, tmp_path: Path) -> None:
    study = read_study(find_study(name))
    recipes = Plan(study, tmp_path).recipes()
    assert recipes.keys() == study.arms.keys()
    assert all(Plan(study, tmp_path).run(arm, 0).words[0] == "train" for arm in study.arms)


def test_the_page_shows_the_shipped_one(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("docs/study.md") if block.info == "yaml study"]
    (tmp_path / "toy_shell.yaml").write_text(block.text)
    assert read_study(tmp_path / "toy_shell.yaml") == read_study(find_study("toy_shell"))


def test_the_page_names_every_key_and_verdict() -> None:
    keys, verdicts = tables("docs/study.md")
    named = [key for row in keys.rows for key in marks(row[0])]
    assert sorted(named) == sorted(Study.model_fields.keys() - {"name"})
    assert {row[0] for row in verdicts.rows} == {HOLDS, NO_EFFECT, NO_PREMISE, OPEN}


def test_short_forms(place: Place) -> None:
    study = Study.model_validate(
        place.asked(
            arms={"slow": None, "fast": ["stages.rl.optim.lr=1e-5"], "few": {"set": {"run.x": [1]}, "seeds": 2}},
            measure={"metric": "exact", "at": "auc", "task": "quiz", "category": "hard"},
            secondary=[{"measure": "end tokens", "direction": "lower", "margin": 1}, {"arm": "few", "measure": "end exact"}],
        )
    )
    assert [arm.set for arm in study.arms.values()] == [(), ("stages.rl.optim.lr=1e-5",), ("run.x=[1]",)]
    assert study.seeds == (0, 1, 2)
    assert study.seeds_of("few", study.seeds) == (0, 1)
    (question,) = study.questions()
    assert (question.name, question.measure, question.delta) == ("fast-slow", "auc exact in quiz of hard", 0.1)
    assert [(one.arm, one.control) for one in question.secondary] == [("fast", "slow"), ("few", None)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"comparisons": [{"arm": "fsat", "control": "slow"}]}, "comparisons.0.arm: no arm 'fsat'; did you mean 'fast'?"),
        ({"comparisons": [{"arm": "slow", "control": "slow"}]}, "comparisons.0: 'slow' is compared with itself"),
        ({"comparisons": [{"arm": "fast", "control": "slow"} for _ in "ab"]}, "comparisons: 'fast-slow' is there twice"),
        ({"pair": ["toy.base_seed"]}, "pair: run.seed is not in it"),
        ({"seeds": [0, 0]}, "seeds: expected different numbers"),
        ({"seeds": 0}, "seeds: expected different numbers"),
        ({"spread": None}, "spread: how much the difference varies over seeds is not said"),
        ({"pilot": {"seeds": [100, 101]}}, "spread: there is a pilot too"),
        ({"spread": None, "pilot": {"seeds": [2, 101]}}, "pilot.seeds: [2] are seeds of the study too"),
        ({"looks": {"at": [2, 4]}}, "looks.at: expected rising numbers of seeds from 2 to all 3, got [2, 4]"),
        ({"set": ["run.seed=3"]}, "set: run.seed is set by the study for each run"),
        ({"arms": {"slow": ["lr"], "fast": []}}, "arms.slow: 'lr': expected section.key=value"),
        ({"machine": ["stages.rl.steps=3"]}, "machine: 'stages.rl.steps=3': only what changes no number"),
        ({"measure": None}, "measure: neither the study nor the comparison 'fast-slow' says it"),
        ({"measure": {"metric": "exact", "when": "end"}}, "measure: unknown key 'when'"),
        ({"measure": {"metric": "exact", "at": "last"}}, "measure: at: expected one of start, end, auc, got 'last'"),
        ({"delta": -1}, "delta: Input should be greater than 0, got -1"),
        ({"premises": [{"arm": "slow", "measure": "end exact"}]}, "premises.0: a premise has a bound"),
        ({"arms": {"slow": {"start": "warm"}, "fast": []}}, "arms.slow.start: no 'warm' in starts"),
        ({"seedz": 3}, "seedz: unknown key 'seedz'; did you mean 'seeds'?"),
        ({"comparisons": [{"arm": "fast", "contrl": "slow"}]}, "comparisons.0.contrl: unknown key 'contrl'; did you mean 'control'?"),
    ],
)
def test_each_problem_has_its_line_and_key(place: Place, changes: dict[str, Any], said: str) -> None:
    path = place.folder / "study.yaml"
    found = problems(path, place.asked(**changes))
    assert any(text.startswith(f"{path}:") and said in text for text in found), found


def test_several_problems_at_once(place: Place) -> None:
    found = problems(place.folder / "study.yaml", place.asked(pair=[], delta=None))
    assert len(found) == 2


def test_a_bad_override_is_that_of_its_arm(place: Place) -> None:
    study = Study.model_validate(place.asked(arms={"slow": [], "fast": ["stages.rl.optim.lrr=1"]}))
    with pytest.raises(ConfigError, match=r"arms\.fast: .*unknown key 'lrr'; did you mean 'lr'\?"):
        Plan(study, place.folder).recipes()


def test_overrides_are_of_all_arms(place: Place) -> None:
    asked = place.asked(pair=["run.seed", "toy.base_seed"], set=["stages.rl.steps=4"])
    study = Study.model_validate(asked).given(["toy.base_seed=7", "run.threads=2", "stages.rl.steps=3"])
    assert study.set == ("stages.rl.steps=4", "toy.base_seed=7", "stages.rl.steps=3")  # the last one counts
    assert study.pair == ("run.seed",)
    assert study.machine == ("run.threads=1", "run.threads=2")
    words = Plan(study, place.folder).run("fast", 2).words
    assert words.index("toy.base_seed=7") < words.index("run.seed=2")
    assert "toy.base_seed=2" not in words
    assert Study.model_validate(asked).given([]) == Study.model_validate(asked)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stages.rl.steps", "expected section.key=value"),
        ("run.seed=3", "run.seed is set by the study for each run"),
        ("stages.rl.optim.lr=1", "arms.fast sets stages.rl.optim.lr itself"),
        ("stages.rl.optim={lr: 1}", "arms.fast sets stages.rl.optim.lr itself"),
        ("toy.base_width=4", "starts.warm sets toy.base_width itself"),
    ],
)
def test_an_override_that_an_arm_would_undo_is_refused(place: Place, line: str, said: str) -> None:
    arms = {"slow": {"start": "warm"}, "fast": ["stages.rl.optim.lr=1e-5"]}
    study = Study.model_validate(place.asked(arms=arms, starts={"warm": {"set": ["toy.base_width=8"]}}))
    with pytest.raises(ConfigError, match=f"'{re.escape(line)}': {said}"):
        study.given([line])


def test_a_recipe_beside_the_file(place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    path = place.folder / "x.yaml"
    path.write_text(yaml.safe_dump(place.asked(name=None, recipe="mine.yaml")))
    study = read_study(path)
    assert study.name == "x"
    assert Path(study.recipe) == place.recipe
    with pytest.raises(ConfigError, match="no such study"):
        find_study("toy_shel")

"""extras.wording: the base model in several wordings: what is read, asked, chosen, and given to the recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vlmrl.answers  # noqa: F401 (registers them)
from tests.support import tiny
from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.evals.score.summary import Interval
from vlmrl.extras.wording.ask import ask_in_wordings
from vlmrl.extras.wording.wordings import Wording, choose, read_wordings
from vlmrl.paths import shipped
from vlmrl.run.session import Places

RECIPES = shipped("configs", "recipes")


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in shipped("configs", "prompts").glob("*.yaml")))
def test_ours_are_three_each(name: str) -> None:
    assert len(read_wordings(shipped("configs", "prompts", name))) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own: {}\n", "two or more names"),
        ("- own\n- other\n", "expected a mapping"),
        ("a: {}\nb: {promt: x}\n", "b: unknown key 'promt'; did you mean 'prompt'"),
        ("a: {}\nb: {prompt: 'Answer!'}\n", "b: the template has no {{ question }}"),
        ("a: {extraction: whole}\nb: {extraction: lenient}\n", "no wording could be trained with"),
        ("a: {}\nb: {answer_format: thinking}\n", "b: answer_format Input should be 'think', 'answer_only'"),
        ("a: {}\nb: words\n", "b: expected a mapping of prompt, "),
        ("a b: {}\nb: {}\n", "a b: "),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_wordings(written(tmp_path, text))


def test_the_best_that_could_be_trained_is_chosen_and_of_equal_ones_the_first() -> None:
    wordings = {"a": Wording(), "b": Wording(prompt="{{ question }}"), "bare": Wording(extraction="lenient")}
    values = {name: Interval(mean=mean, low=None, high=None) for name, mean in (("a", 0.5), ("b", 0.5), ("bare", 0.9))}
    assert choose(wordings, values, "point").best == "a"
    values["b"] = Interval(mean=0.6, low=None, high=None)
    assert choose(wordings, values, "point").best == "b"


def test_what_is_chosen_is_a_recipe_that_is_asked_so() -> None:
    for wording in read_wordings(shipped("configs", "prompts", "click.yaml")).values():
        given = wording.overrides(load(RECIPES / "click.yaml", []).config)
        config = load(RECIPES / "click.yaml", given).config
        (stage,) = config.stages
        assert config.data.prompt == wording.prompt
        assert stage.answer_format == wording.answer_format
        most = wording.max_new_tokens or 64
        assert (stage.rollout.max_new_tokens, config.eval.max_new_tokens) == (most, most)
    assert Wording().overrides(load(RECIPES / "ton.yaml", []).config) == []


def test_all_wordings_are_asked_the_same_rows(tmp_path: Path) -> None:
    """A tiny random model, the rows of a recipe's last stage; a second call asks nothing again."""
    model, data = tiny.make_files(tmp_path / "files", sft=1, train=6, test=1)
    wordings = read_wordings(written(tmp_path, "own: {}\ndirect: {prompt: null, answer_format: answer_only, max_new_tokens: 4}\n"))
    stage = "{name: rl, kind: grpo, source: {path: train.jsonl}, steps: 1, rollout: {max_new_tokens: 3}, rewards: [{name: temporal_iou}]}"
    given = [f"stages=[{stage}]", "toy=null", f"model.path='{model}'", f"data.root='{data}'", "media.max_pixels=3136"]
    config = load(RECIPES / "toy_grounding.yaml", [*given, "data.prompt='{{ question }} {{ instruction }}'"]).config
    out, said = tmp_path / "out", []
    choice, result = ask_in_wordings(config, Places(model=str(model), data=Path(data)), wordings, out, limit=4, say=said.append)
    asked = {name: [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()] for name in wordings}
    assert [record["sample_id"] for record in asked["own"]] == [record["sample_id"] for record in asked["direct"]]
    assert len(asked["own"]) == 4
    assert choice.best == max(choice.values, key=lambda name: choice.values[name].mean)
    assert [task.asked for task in result.suite.tasks] == ["think_or_not", "answer_only"]
    assert json.loads((out / "best.json").read_text()) == wordings[choice.best].overrides(config)
    page = (out / "prompts.md").read_text()
    assert "| own | 4 |" in page
    assert "| direct | 4 |" in page
    before = (out / "own.jsonl").read_bytes()
    ask_in_wordings(config, Places(model=str(model), data=Path(data)), wordings, out, limit=4, say=said.append)
    assert (out / "own.jsonl").read_bytes() == before

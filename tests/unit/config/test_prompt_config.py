"""What a recipe may say of the words of its prompts, and that a run keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.load import load
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError
from vlmrl.methods import method_problems
from vlmrl.run.rundir import Options, open_run
from vlmrl.run.session import fixed_options

WORDS = "{{ question }} Give {{ ask }} in <answer></answer>."


def recipe(folder: Path, prompt: str | None, **stage: Any) -> Path:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    raw["data"]["prompt"] = prompt
    raw["stages"][-1] |= stage
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(raw, indent=1))
    return path


def config(folder: Path, prompt: str | None) -> Config:
    return load(recipe(folder, prompt), [], also=method_problems).config


def test_a_template_that_is_none_is_an_error_at_its_line(tmp_path: Path) -> None:
    path = recipe(tmp_path, "Say something.")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if '"prompt": "Say' in text)
    with pytest.raises(ConfigError) as caught:
        load(path, [], also=method_problems)
    assert caught.value.problems == [
        f"{path}:{line}: data.prompt: the template has no {{{{ question }}}}, so that every row would be asked the same"
    ]


def test_it_is_refused_where_an_environment_asks(tmp_path: Path) -> None:
    path = recipe(tmp_path, WORDS, environment={"name": "toy_desk"}, rewards=[{"name": "environment"}])
    with pytest.raises(ConfigError, match=r"data\.prompt: stages\[\d\] \(rl\) has an environment"):
        load(path, [], also=method_problems)


def test_a_run_goes_on_with_the_words_that_it_was_begun_with(tmp_path: Path) -> None:
    def options(prompt: str | None) -> Options:
        return Options("", "", fixed_options(config(tmp_path, prompt)))

    assert "prompt" not in options(None).fixed["data"], "runs that were begun before there was a choice go on"
    with open_run(tmp_path, "run", options(WORDS)):
        pass
    with open_run(tmp_path, "run", options(WORDS)) as run:
        assert run.resumed
    for other in (None, WORDS + " Please."):
        with pytest.raises(ConfigError, match=r"data\.prompt: \"\{\{ question \}\} Give"), open_run(tmp_path, "run", options(other)):
            pass

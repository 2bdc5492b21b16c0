"""Code marks of the documentation agree with the code: snippets of recipes, options, paths, names of methods, exit codes."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import yaml

from tests.support.documents import (
    GENERATED,
    MINIMAL,
    PAGES,
    ROOT,
    check_recipe,
    inline,
    methods_found,
    options_of_commands,
    parse_vlmrl,
    read,
)
from tests.test_glossary import is_key
from vlmrl import errors
from vlmrl.config.layers import PRESET, presets
from vlmrl.config.methods import SLOTS
from vlmrl.config.schema import Config, GrpoSection, LoraSection, SourceSection
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.ask.tasks import Task
from vlmrl.train.stage import providers  # noqa: F401 (registers them)

WRITTEN = [page for page in PAGES if page != GENERATED]
FIELDS = {**SLOTS, "strategy": "strategy"}
PRESETS = {preset.name for preset in presets()}
OTHERS = {
    "docs/coming_from.md": "commands and options of other trainers; tests/unit/config/test_foreign_keys.py",
    "docs/glossary.md": "names of other programs; tests/test_glossary.py",
    "docs/serving.md": "options of vLLM, and arguments of EndpointEngine",
    "docs/judges.md": "options of vLLM",
    "docs/lmms-eval.md": "options and keys of lmms-eval",
}
"""Pages whose options (`--x`) and settings (`key: value`) may be another program's."""
SETTINGS = {
    "ability: math": "a column of verl's rows",
    "extraction: lenient": "a key of a task",
    'prompt: "=Describe the video."': "an entry of `columns` of a source",
    "transform: sigmoid": "an argument of the reward `reward_model`",
    "path: /models/my-rm": "an argument of the reward `reward_model`",
}
"""Settings that are no keys of a recipe."""
EVERY = [(page, line, mark) for page in WRITTEN for line, mark in inline(page)]


def where(item: Any) -> str:
    return f"{item[0]}:{item[1]} {item[2][:40]}" if isinstance(item, tuple) else str(item)


def every(pattern: str) -> list[tuple[str, int, str]]:
    return [item for item in EVERY if re.match(pattern, item[2])]


def value_of(mark: str) -> Any:
    """The YAML of a snippet; `N` stands for a number."""
    return yaml.safe_load(re.sub(r"(?<=: )N(?=[,}])", "8", mark))


def method_problems(slot: str, method: dict[str, Any]) -> list[str]:
    own = {"name", "weight", "label", "isolate"} if slot == "reward" else {"name", "weight"} if slot == "auxiliary_loss" else {"name"}
    return methods_found()[slot].problems(method["name"], {key: value for key, value in method.items() if key not in own}, slot)


def snippet_problems(mark: str) -> list[str]:
    """What is wrong with `{name: ...}`, `key: {name: ...}` or `key: [{name: ...}]`."""
    value = value_of(mark)
    if "name" in value:
        problems = {slot: method_problems(slot, value) for slot in methods_found() if value["name"] in methods_found()[slot].names()}
        return [] if any(not one for one in problems.values()) else [f"{mark}: {problems or 'no such method'}"]
    if "use" in value:
        return [key for key in value if key != "use" and key not in Task.model_fields]
    ((key, given),) = value.items()
    methods = given if isinstance(given, list) else [given]
    if key in FIELDS:
        return [problem for method in methods for problem in method_problems(FIELDS[key], method)]
    return [] if is_key(key, GrpoSection) else [f"{key} is no key of a stage"]


@pytest.mark.parametrize("item", [i for i in every(r"(\w+: )?\[?\{(name|use|max_batches): ")], ids=where)
def test_snippets_of_recipes(item: tuple[str, int, str]) -> None:
    assert snippet_problems(item[2]) == []


@pytest.mark.parametrize(
    "mark",
    [
        '{name: python, arguments: {function: "my.py:score", form: verl}}',
        "{name: no_such_method}",
        "advantage: {name: ppo_clip}",
        "filters: [{name: overlong, wrong: 1}]",
        "advantag: {name: grpo}",
        "{use: mmstar, limt: 3}",
    ],
)
def test_a_wrong_snippet_would_be_found(mark: str) -> None:
    assert snippet_problems(mark)


OVERRIDES = [i for i in every(r"[a-z_]+(\.[a-z_]+)+=.") if i[0] != "docs/coming_from.md" or i[2].startswith("stages.")]


@pytest.mark.parametrize("item", OVERRIDES, ids=where)
def test_overrides(item: tuple[str, int, str], tmp_path: Any) -> None:
    check_recipe(yaml.safe_dump(MINIMAL, sort_keys=False), tmp_path, [item[2].replace("length: N", "length: 8")])


def known_setting(page: str, mark: str) -> bool:
    """Whether `key: value` is one of a recipe, of a method, or of a program that the page is about."""
    if mark in SETTINGS or page in OTHERS:
        return True
    if mark.startswith(f"{PRESET}: "):
        return mark.partition(": ")[2] in ("NAME", "mine.yaml", *PRESETS)
    models = (Config, GrpoSection, SourceSection, LoraSection, Task, Suite)
    keys = {key for model in models for key in model.model_fields} | {"weight", "label", "isolate"}
    keys |= {key for registry in methods_found().values() for name in registry.names() for key in registry.get(name).parameters}
    return set(value_of("{" + mark + "}")) <= keys


@pytest.mark.parametrize("item", [i for i in every(r"[a-z_]+: [^{]") if "{" not in i[2]], ids=where)
def test_settings_have_keys_that_exist(item: tuple[str, int, str]) -> None:
    assert known_setting(item[0], item[2])


def test_a_setting_that_does_not_exist_would_be_methods_found() -> None:
    assert not known_setting("README.md", "clip_hihg: 0.28")
    assert not known_setting("README.md", "algorithm: dappo")
    assert not known_setting("README.md", "clip_high: 0.28, clip_lwo: 0.1")


@pytest.mark.parametrize("item", every(r"(vlmrl|torchrun .* -m vlmrl\.cli) "), ids=where)
def test_commands_parse(item: tuple[str, int, str]) -> None:
    words = re.sub(r"^torchrun .* -m vlmrl\.cli", "vlmrl", item[2]).split(" > ")[0].split()[1:]
    words = ["8" if word == "N" else word for word in words]
    if words[0] == "tools" and (len(words) == 2 or words[-1].startswith("--")):
        words = words[1:]
    if len(words) == 1 or words[-1] == "...":
        assert words[0] in options_of_commands() or words == ["--help"], item
    elif words[-1].startswith("--") and words[-1] != "--help":  # of a command that is named with its option alone
        assert words[-1] in options_of_commands()[words[0]], item
    else:
        parse_vlmrl(words)


@pytest.mark.parametrize("item", [i for i in every(r"--[a-z]") if i[0] not in OTHERS], ids=where)
def test_options_exist(item: tuple[str, int, str]) -> None:
    known = set().union(*options_of_commands().values()) | {"--help", "--torch-backend"}  # the second is uv's
    known |= {"--max-model-len", "--pipeline-parallel-size"}  # of vLLM, behind `--`
    known |= set(re.findall(r'"(--[a-z-]+)"', read("vlmrl/extras/importers/prepare/prepare.py")))
    known |= set(re.findall(r'"(--[a-z-]+)"', read("tests/faults/drill/__main__.py") + read("benchmarks/gpu_check/__main__.py")))
    prepared = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "data").glob("*/prepare.py"))
    known |= {f"--{name}" for one in re.findall(r"options=\{(.*?)\}", prepared) for name in re.findall(r'"([\w-]+)":', one)}
    assert set(re.findall(r"--[a-z_-]+", item[2])) <= known


ELSEWHERE = re.compile(r"(runs|suites|rows|judges|questions|eval|frames)/")
"""Folders of runs and of prepared data."""
PATHS = [i for i in every(r"[\w.-]+(/[\w.-]+)+\.(py|md|yaml|sh|json|jsonl)$") if not ELSEWHERE.match(i[2])]
MADE = {"evals/suites/mine.yaml", "docs/benchmarks/README.md"}


@pytest.mark.parametrize("item", PATHS, ids=where)
def test_paths_exist(item: tuple[str, int, str]) -> None:
    page, _, mark = item
    if page == "CONTRIBUTING.md":
        return  # an errand writes the files that it names (tests/e2e/test_errands.py)
    folders = (ROOT, ROOT / "vlmrl", (ROOT / page).parent, (ROOT / page).parent / "suites")
    assert mark in MADE or "/NAME." in mark or any((folder / mark).exists() for folder in folders)


def test_the_first_page_is_short() -> None:
    """README shows what the project is for; what is behind it stands in docs/."""
    assert len(read("README.md").split()) <= 900


@pytest.mark.parametrize("page", WRITTEN)
def test_exit_codes(page: str) -> None:
    """Every exit code that a page names is one of an error, and README names them all."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.VlmrlError)]
    known = {kind.exit_code for kind in kinds}
    text = " ".join(read(page).split())
    assert {int(code) for code in re.findall(r"[Ee]xit codes? (\d+)", text)} <= known | {0, 1}
    if page == "README.md":
        listed = re.search(r"Exit codes: (.*?)\.", text)
        assert listed is not None
        assert {int(code) for code in re.findall(r"\b\d+\b", listed[1])} == known | {0}


def test_modules_named_as_plugins_can_be_imported() -> None:
    for page, line, mark in every(r"plugins: \["):
        for name in value_of("{" + mark + "}")["plugins"]:
            assert importlib.import_module(name), (page, line)

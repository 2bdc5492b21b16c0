"""Code marks and tables of the documentation agree with the code: snippets of recipes, options, paths, names of methods, exit codes.

A table that no rule knows fails, as a block does (`test_docs.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

import vlmrl
from tests.support.documents import GENERATED, MINIMAL, PAGES, ROOT, Table, check_recipe, inline, marks, parse_vlmrl, read, tables
from tests.test_glossary import is_key
from vlmrl import errors
from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.answers.base import ANSWER_TYPES, AnswerType
from vlmrl.config.layers import PRESET, presets
from vlmrl.config.methods import SLOTS
from vlmrl.config.schema import Config, GrpoSection, LoraSection, SourceSection
from vlmrl.config.section import EnvironmentMethod, HistorySection
from vlmrl.data.adapters import ADAPTERS
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.ask.tasks import Task
from vlmrl.methods import registries
from vlmrl.registry import Registry
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.provide import provided_fields
from vlmrl.zoo.rewards.run.foreign import Form

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


@functools.cache
def found() -> dict[str, Registry[Any]]:
    """All methods, those of the examples too. Asked by tests only: what is registered while tests are collected is in all of them."""
    return registries(["examples.my_method", "examples.anchor_loss", "examples.entropy_weights", "examples.polygon"])


def where(item: Any) -> str:
    return f"{item[0]}:{item[1]} {item[2][:40]}" if isinstance(item, tuple) else str(item)


def every(pattern: str) -> list[tuple[str, int, str]]:
    return [item for item in EVERY if re.match(pattern, item[2])]


def value_of(mark: str) -> Any:
    """The YAML of a snippet; `N` stands for a number."""
    return yaml.safe_load(re.sub(r"(?<=: )N(?=[,}])", "8", mark))


def method_problems(slot: str, method: dict[str, Any]) -> list[str]:
    own = {"name", "weight", "label", "isolate"} if slot == "reward" else {"name", "weight"} if slot == "auxiliary_loss" else {"name"}
    return found()[slot].problems(method["name"], {key: value for key, value in method.items() if key not in own}, slot)


def snippet_problems(mark: str) -> list[str]:
    """What is wrong with `{name: ...}`, `key: {name: ...}` or `key: [{name: ...}]`."""
    value = value_of(mark)
    if "name" in value:
        problems = {slot: method_problems(slot, value) for slot in found() if value["name"] in found()[slot].names()}
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
    keys |= {key for registry in found().values() for name in registry.names() for key in registry.get(name).parameters}
    return set(value_of("{" + mark + "}")) <= keys


@pytest.mark.parametrize("item", [i for i in every(r"[a-z_]+: [^{]") if "{" not in i[2]], ids=where)
def test_settings_have_keys_that_exist(item: tuple[str, int, str]) -> None:
    assert known_setting(item[0], item[2])


def test_a_setting_that_does_not_exist_would_be_found() -> None:
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
        assert words[0] in options() or words == ["--help"], item
    elif words[-1].startswith("--") and words[-1] != "--help":  # of a command that is named with its option alone
        assert words[-1] in options()[words[0]], item
    else:
        parse_vlmrl(words)


def options() -> dict[str, set[str]]:
    """Command -> its options."""
    from typer.main import get_command

    from vlmrl.cli import app

    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    found = {name: {option for p in command.params for option in p.opts} for name, command in commands.items()}
    tools = commands["tools"].commands
    own = {name: list(getattr(one, "commands", {"": one}).values()) for name, one in tools.items()}
    return found | {name: {option for one in inner for p in one.params for option in p.opts} for name, inner in own.items()}


@pytest.mark.parametrize("item", [i for i in every(r"--[a-z]") if i[0] not in OTHERS], ids=where)
def test_options_exist(item: tuple[str, int, str]) -> None:
    known = set().union(*options().values()) | {"--help", "--torch-backend"}  # the second is uv's
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


# ---- tables --------------------------------------------------------------------------------------------------------------


def methods_of(slot: str) -> Callable[[Table], None]:
    def check(table: Table) -> None:
        for row in table.rows:
            assert [name for name in marks(row[0]) if name not in found()[slot].names() and name != "mc_grpo_pivot"] == []

    return check


def pairs_and_their_losses(table: Table) -> None:
    """The keys of a pair, or losses that compare pairs."""
    known = {"meta.chosen", "meta.rejected", *found()["group_loss"].names()}
    for row in table.rows:
        assert [name for name in marks(row[0]) if name not in known] == []


def keys_of(model: type[BaseModel]) -> Callable[[Table], None]:
    def check(table: Table) -> None:
        for row in table.rows:
            assert [name for name in marks(row[0]) if name not in model.model_fields] == []

    return check


def in_a_recipe(table: Table) -> None:
    """Keys of a recipe, those of its stage `rl` too."""
    for row in table.rows:
        for name in marks(row[0]):
            stage = name.removeprefix("stages.rl.")
            assert stage == PRESET or (is_key(name, Config) if stage == name else is_key(stage, GrpoSection)), name


def lora_defaults(table: Table) -> None:
    keys_of(LoraSection)(table)
    given = {name: LoraSection.model_fields[name].default for row in table.rows for name in marks(row[0])}
    assert table.rows[0][1] == f"{given['rank']}, {given['alpha']:g}"
    assert table.rows[1][2] == "`" + " ".join(given["targets"]) + "`"
    assert [row[1] for row in table.rows[2:]] == [str(given["vision"]).lower(), f"{given['dropout']:g}"]


def options_of_eval(table: Table) -> None:
    for row in table.rows:
        assert set(re.findall(r"--[a-z-]+", row[0].partition("torchrun")[0])) <= options()["eval"], row[0]


def inputs_and_providers(table: Table) -> None:
    fields = {f.name for inputs in (AdvantageInputs, LossInputs) for f in dataclasses.fields(inputs)} | provided_fields()
    for row in table.rows:
        assert set(marks(row[0])) <= fields, row[0]


def parts_of_answer_types(table: Table) -> None:
    for row in table.rows:
        assert [name for name in marks(row[0]) if not hasattr(AnswerType, name) and name not in AnswerType.__annotations__] == []


def arguments_of_trl(table: Table) -> None:
    trl = pytest.importorskip("trl")
    known = {f.name for c in (trl.GRPOConfig, trl.RLOOConfig) for f in dataclasses.fields(c)} | {"RLOOTrainer", "_clip_max"}
    values = {value for mode in ("token", "sequence") for value in (f'"{mode}_truncate"', f'"{mode}_mask"', f'"{mode}"')}
    for row in table.rows:
        for mark in marks(row[0]):
            assert set(re.findall(r"^[a-z_]+|(?<= / )[a-z_]+", mark.partition("=")[0])) <= known or mark in values | {"cispo", *known}, mark


def answer_types_of_rows(table: Table) -> None:
    row = next(row for row in table.rows if row[0] == "`answer_type`")
    ours = {name for name, kind in ANSWER_TYPES.items() if type(kind).__module__.startswith("vlmrl.answers.")}
    assert {*marks(row[2])} - {"docs/adding_an_answer_type.md"} == ours


def adapters(table: Table) -> None:
    ours = {name for name, adapter in ADAPTERS.items() if getattr(adapter, "__name__", type(adapter).__module__).startswith("vlmrl.")}
    assert {marks(row[0])[0] for row in table.rows} == ours != set()


def lines_of_the_gpu_check(table: Table) -> None:
    from benchmarks.gpu_check.base import CHECKS as checks

    told = [name for row in table.rows for name in marks(row[0])]
    assert sorted(told) == sorted(f"{check.name}.{line}" for check in checks.values() for line in check.lines)
    assert list(dict.fromkeys(name.partition(".")[0] for name in told)) == list(checks), "in the order in which they run"


def arguments_of_the_bridge(table: Table) -> None:
    source = read("vlmrl/extras/bridge/model.py") + read("vlmrl/extras/bridge/options.py") + read("vlmrl/config/schema.py")
    for row in table.rows:
        for name in marks(row[0]):
            assert re.search(rf"\b{name}\b", source), name


def keys_of_turns(table: Table) -> None:
    model = EnvironmentMethod if "max_turns" in str(table.rows) else HistorySection
    assert {name for row in table.rows for name in marks(row[0])} == set(model.model_fields)
    for row in table.rows:
        found = [model.model_fields[name].default for name in marks(row[0])]
        if found[0] is not None and not isinstance(found[0], bool) and row[1] and len(found) == 1:
            assert float(row[1]) == found[0], row


def functions_and_arguments_of_a_page(table: Table) -> None:
    if table.header[0] == "function":
        called = set(re.findall(r"'(\w+)'", read("vlmrl/extras/agents/browser/contract.js")))
        assert {marks(row[0])[0].partition("(")[0] for row in table.rows} <= called
        return
    known = found()["environment"].get("web_page").parameters
    assert [name for row in table.rows for name in marks(row[0])] == list(known)
    for row in table.rows[1:]:
        assert ", ".join(json.dumps(known[name].default) for name in marks(row[0])) == row[1], row


def extras_of_the_package(table: Table) -> None:
    text = read("pyproject.toml").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert {marks(row[0])[0] for row in table.rows} == set(re.findall(r"^(\w+) = \[", text, flags=re.M))


def files_of_pins(table: Table) -> None:
    assert {marks(row[0])[0] for row in table.rows} == {path.name for path in (ROOT / "constraints").glob("*.txt")}


def versions_that_were_tested(table: Table) -> None:
    """The first table is `constraints/tested.json`; the second is about versions of two packages."""
    rows = json.loads((ROOT / "constraints" / "tested.json").read_text(encoding="utf-8"))
    if len(table.rows[0]) == 2:
        assert all(row[0].split()[0] in ("torch", "transformers") for row in table.rows)
        return
    facts = ("python", "torch", "torchvision", "transformers")
    assert [[marks(row[0])[0], *row[1:5]] for row in table.rows] == [[one["name"], *(one[fact] for fact in facts)] for one in rows]
    assert all(one["ran"] in row[5].replace("`", "") for row, one in zip(table.rows, rows, strict=True))


def mistakes_and_their_tests(table: Table) -> None:
    code = "".join(
        (ROOT / "tests/unit/extras/families/conform" / name).read_text() for name in ("test_conform.py", "test_conform_inputs.py")
    )
    for _, promise, test in table.rows:
        _, _, body = code.partition(f"def {marks(test)[0]}(")
        assert f'"{promise}"' in body.partition("\ndef ")[0], f"{test} tries no {promise}"


def names_from_python(table: Table) -> None:
    assert {marks(row[0])[0].partition("(")[0] for row in table.rows} == {
        f"vlmrl.{name}" for name in vlmrl.__all__ if name != "__version__"
    }


def keys_of_the_log(table: Table) -> None:
    """Keys of metrics.jsonl in the first column: tests/e2e/test_docs_curves.py looks at those of the whole page."""
    from tests.e2e.test_docs_curves import is_logged

    for row in table.rows:
        assert [mark for mark in marks(row[0]) if not is_logged(mark)] == [], row[0]


def alarms(table: Table) -> None:
    from vlmrl.train import meter

    assert [marks(row[0])[0] for row in table.rows] == [rule.__name__ for rule in meter.RULES]
    source = read("vlmrl/train/meter.py")
    for row in table.rows:
        assert row[2] in source, row[2]
    text = {marks(row[0])[0]: row[1] for row in table.rows}
    said = {
        "constant_columns": meter.WINDOW,
        "silent_columns": meter.EARLY,
        "no_signal": meter.EARLY,
        "apart": meter.APART,
        "no_given_rows": meter.EARLY,
    }
    said |= {"rising_faults": meter.EDGE, "truncated": meter.TRUNCATED, "unreadable": meter.READABLE, "longer": meter.WINDOW}
    for rule, number in said.items():
        assert re.search(rf"(?<![\d.]){number:g}(?![\d.])", text[rule]), (rule, number)


def forms_of_rewards(table: Table) -> None:
    assert [marks(row[0])[0] for row in table.rows] == list(get_args(Form))


CHECKS: dict[tuple[str, str], Callable[[Table], None] | str] = {
    ("README.md", "Beside TRL"): "measured; docs/benchmarks/vs_trl.md",
    ("README.md", "Try it without data"): "measured; docs/benchmarks/toy_video.md",
    ("docs/first_run.md", "A toy run"): "measured; docs/benchmarks/toy_video.md",
    ("docs/six_settings.md", "Start here: six settings"): in_a_recipe,
    ("SECURITY.md", "What vlmrl promises"): "tests/test_security.py",
    ("data/README.md", "Data sets"): "tests/unit/extras/importers/test_every_dataset.py",
    ("data/README.md", "Official files"): "tests/unit/extras/importers/test_official_statements.py",
    ("evals/README.md", "Suites"): "tests/unit/evals/test_evals_tasks.py",
    ("evals/README.md", "Protocols"): "tests/unit/evals/test_evals_protocol.py",
    ("docs/adding_a_method.md", "What a method needs"): inputs_and_providers,
    ("docs/adding_an_answer_type.md", "Adding an answer type"): parts_of_answer_types,
    ("docs/architecture.md", "What lives where"): "tests/test_architecture.py",
    ("docs/architecture.md", "One training step"): "tests/test_architecture.py",
    ("docs/coming_from.md", "*"): "tests/unit/config/test_foreign_keys.py",
    ("docs/compare.md", "Two methods: several seeds"): "prose; tests/unit/extras/seeds/test_seeds_compare.py",
    ("docs/compare.md", "What is compared"): "prose; tests/unit/evals/test_evals_compare.py",
    ("docs/data.md", "Our schema"): answer_types_of_rows,
    ("docs/data.md", "Rows of other trainers"): adapters,
    ("docs/data.md", "Boxes, points and times"): keys_of(SourceSection),
    ("docs/data.md", "*"): "prose and forms of answers; tests/unit/data",
    ("docs/environments.md", "Evaluation"): "tests/unit/extras/agents/test_evals_episodes.py",
    ("docs/environments.md", "Training"): keys_of_turns,
    ("docs/environments.md", "Your own web page"): functions_and_arguments_of_a_page,
    ("docs/evaluation.md", "What happens"): options_of_eval,
    (
        "docs/evaluation.md",
        "What rows say of themselves",
    ): "tests/unit/evals/test_evals_levels.py, tests/unit/extras/pages/test_evals_steps.py",
    ("docs/families.md", "Other model families"): "tests/unit/extras/families/test_tiles.py",
    ("docs/families.md", "What exact training needs of a model"): mistakes_and_their_tests,
    ("docs/glossary.md", "*"): "tests/test_glossary.py",
    ("docs/gpu_check.md", "What the lines mean"): lines_of_the_gpu_check,
    ("docs/install.md", "Names"): "tests/unit/test_paths.py",
    ("docs/install.md", "Extras"): extras_of_the_package,
    ("docs/install.md", "Pins"): files_of_pins,
    ("docs/install.md", "Versions"): versions_that_were_tested,
    ("docs/judges.md", "Rewards that ask a model"): methods_of("reward"),
    ("docs/judges.md", "What happens when it goes wrong"): "prose; tests/faults/test_judge_server.py",
    ("docs/launch.md", "When something fails"): "prose; tests/unit/extras/scale/test_watchdog.py, tests/faults/test_hosts.py",
    ("docs/lmms-eval.md", "Their tasks, on our checkpoints"): arguments_of_the_bridge,
    ("docs/lmms-eval.md", "What goes wrong without care"): "tests/agreement/test_lmms_traps.py",
    ("docs/lora.md", "Low-rank adapters"): lora_defaults,
    ("docs/methods.md", "Presets"): "tests/unit/test_methods.py",
    ("docs/methods.md", "advantage"): methods_of("advantage"),
    ("docs/methods.md", "reweight and auxiliary losses"): methods_of("reweight"),
    ("docs/methods.md", "loss"): methods_of("policy_loss"),
    ("docs/methods.md", "reward_shaping"): methods_of("reward_shaping"),
    ("docs/methods.md", "Pairs of rows"): pairs_and_their_losses,
    ("docs/methods.md", "filters"): methods_of("filter"),
    ("docs/methods.md", "rewards"): methods_of("reward"),
    ("docs/methods.md", "Reward functions of yours"): forms_of_rewards,
    ("docs/overlap.md", "Measured"): "measured; tests/faults/test_resume_ahead.py",
    ("docs/serving.md", "Serving a checkpoint"): "prose; tests/unit/extras/serve/test_serve_http.py",
    ("docs/your_model.md", "Your model"): "prose; tests/unit/extras/families/conform/test_conform.py",
    ("docs/your_reward.md", "*"): "prose; tests/unit/rewards, tests/faults/test_rewards_without_signal.py",
    (
        "docs/plan.md",
        "*",
    ): "tests/unit/extras/plan/test_plan_page.py, tests/unit/extras/plan/test_plan_memory.py, tests/unit/extras/plan/test_plan_time.py",
    ("docs/python.md", "All names"): names_from_python,
    ("docs/python.md", "*"): "prose; tests/unit/extras/python",
    ("docs/reading_the_curves.md", "Alarms"): alarms,
    ("docs/reading_the_curves.md", "*"): keys_of_the_log,
    ("docs/reproduce/differences.md", "*"): "prose; tests/unit/evals/test_evals_protocol.py, tests/unit/run/test_flagship_recipes.py",
    ("docs/reproduce/tempsamp.md", "*"): "prose; tests/unit/evals/test_evals_protocol.py, tests/unit/run/test_flagship_recipes.py",
    ("docs/resume.md", "*"): "tests/faults",
    ("docs/rollout.md", "Which engine when"): "prose; tests/unit/config/test_rollout_config.py",
    ("docs/rollout.md", "Versions that work together"): "tests/agreement/test_vllm_rollout.py, tests/agreement/test_vllm_training.py, "
    "tests/agreement/test_vllm_servers.py, tests/agreement/test_vllm_hosts.py",
    ("docs/scaling.md", "What ran where"): "tests/e2e/test_shards.py; prose",
    ("docs/scaling.md", "Recipes for four machines"): "tests/unit/extras/plan/test_plan_recipes.py",
    ("docs/scaling.md", "Which engine when"): "prose; tests/unit/extras/plan/test_plan_memory.py",
    ("docs/scaling.md", "Four models on 1, 8 and 64 GPUs"): "tests/unit/extras/plan/test_plan_page.py",
    ("docs/serving.md", "Evaluating a served model"): "prose; tests/agreement/test_vllm_endpoint.py",
    ("docs/study.md", "*"): "tests/unit/extras/study/test_study_read.py, tests/unit/extras/study/test_study_stats.py",
    ("docs/trl.md", "Differences in convention"): "numbers; tests/agreement/test_trl.py",
    ("docs/trl.md", "*"): arguments_of_trl,
}
"""(page, heading) -> how the table is checked, or why not here. `*` is every other table of the page."""
TABLES = [table for page in WRITTEN for table in tables(page)]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_table(table: Table) -> None:
    check = CHECKS.get((table.page, table.heading)) or CHECKS.get((table.page, "*"))
    assert check is not None, f"{table} ({table.heading}): say in CHECKS how it is checked"
    if callable(check):
        check(table)
    else:
        for path in re.findall(r"(?:tests|docs)/[\w/]+(?:\.\w+)?", check):
            assert (ROOT / path).exists(), path


def test_the_first_page_is_short() -> None:
    """README shows what the project is for; what is behind it stands in docs/."""
    assert len(read("README.md").split()) <= 900


def test_no_check_is_left_over() -> None:
    there = {(table.page, table.heading) for table in TABLES}
    assert {key for key in CHECKS if key[1] != "*"} <= there


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

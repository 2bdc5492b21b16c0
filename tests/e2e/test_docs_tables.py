"""Tables of the documentation agree with the code. A table that no rule knows fails, as a block does (`test_docs.py`)."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import get_args

import pytest
from pydantic import BaseModel

import vlmrl
from tests.support.documents import (
    GENERATED,
    PAGES,
    ROOT,
    Table,
    marks,
    methods_found,
    options_of_commands,
    read,
    tables,
)
from tests.test_glossary import is_key
from vlmrl.algo.inputs import AdvantageInputs, LossInputs
from vlmrl.answers.base import ANSWER_TYPES, AnswerType
from vlmrl.config.layers import PRESET
from vlmrl.config.schema import Config, GrpoSection, LoraSection, SourceSection
from vlmrl.config.section import EnvironmentMethod, HistorySection
from vlmrl.data.adapters import ADAPTERS
from vlmrl.methods import registries
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.provide import provided_fields
from vlmrl.zoo.rewards.run.foreign import Form

registries()  # a page may name what the zoo provides

WRITTEN = [page for page in PAGES if page != GENERATED]


def methods_of(slot: str) -> Callable[[Table], None]:
    def check(table: Table) -> None:
        for row in table.rows:
            assert [name for name in marks(row[0]) if name not in methods_found()[slot].names() and name != "mc_grpo_pivot"] == []

    return check


def pairs_and_their_losses(table: Table) -> None:
    """The keys of a pair, or losses that compare pairs."""
    known = {"meta.chosen", "meta.rejected", *methods_found()["group_loss"].names()}
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
        assert set(re.findall(r"--[a-z-]+", row[0].partition("torchrun")[0])) <= options_of_commands()["eval"], row[0]


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
    known = methods_found()["environment"].get("web_page").parameters
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
        (ROOT / "tests/unit/extras/families/conform" / f"test_conform{name}.py").read_text()
        for name in ("", "_inputs", "_shards", "_turns")
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
    ("docs/distillation.md", "A larger teacher"): "measured; docs/benchmarks/distill_larger.json",
    ("docs/distillation.md", "A teacher that looks closer"): "measured; docs/benchmarks/distill_crop.json",
    ("docs/distillation.md", "Beside other ways to learn the same"): "measured; docs/benchmarks/distill_grounding.json",
    ("docs/distillation.md", "Half of the frames"): "measured; docs/benchmarks/distill_shell.json",
    ("docs/distillation.md", "Three bases, five seeds each"): "measured; docs/benchmarks/distill_base0.json",
    ("docs/distillation.md", "What a step costs"): "measured; docs/benchmarks/distill.md",
    ("docs/distillation.md", "*"): "numbers of three runs of examples/distill.yaml",
    ("docs/environments.md", "Evaluation"): "tests/unit/extras/agents/test_evals_episodes.py",
    ("docs/environments.md", "MiniWoB++ in a browser"): "measured; benchmarks/learning/toy_pages.py",
    ("docs/environments.md", "Training"): keys_of_turns,
    ("docs/environments.md", "Your own web page"): functions_and_arguments_of_a_page,
    ("docs/evaluation.md", "What happens"): options_of_eval,
    (
        "docs/evaluation.md",
        "What rows say of themselves",
    ): "tests/unit/evals/test_evals_levels.py, tests/unit/extras/pages/test_evals_steps.py",
    ("docs/families.md", "Mixture of experts"): "measured; tests/unit/benchmarks/rollout/test_router_flips.py",
    ("docs/families.md", "What a recipe may ask for"): "prose; tests/unit/extras/families/test_admission.py",
    ("docs/families.md", "Tiles"): "tests/unit/extras/families/test_tiles.py",
    ("docs/families.md", "What exact training needs of a model"): mistakes_and_their_tests,
    ("docs/glossary.md", "*"): "tests/test_glossary.py",
    ("docs/gpu_check.md", "What the lines mean"): lines_of_the_gpu_check,
    ("docs/install.md", "Names"): "tests/unit/test_paths.py",
    ("docs/install.md", "Extras"): extras_of_the_package,
    ("docs/install.md", "Pins"): files_of_pins,
    ("docs/install.md", "Versions"): versions_that_were_tested,
    ("docs/judges.md", "Rewards that ask a model"): methods_of("reward"),
    ("docs/judges.md", "What happens when it goes wrong"): "prose; tests/faults/test_judge_server.py",
    ("docs/launch.md", "With servers"): "prose; tests/unit/extras/scale/test_launch_together.py",
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
    ("docs/reproduce/click.md", "*"): "prose; tests/unit/extras/study/test_study_read.py, tests/e2e/test_reproduce.py",
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


def test_no_check_is_left_over() -> None:
    there = {(table.page, table.heading) for table in TABLES}
    assert {key for key in CHECKS if key[1] != "*"} <= there

"""Protocols: named settings of tasks. Each shipped one loads with every task that it names; mistakes are named with file and line."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.support.builders import sample
from vlmrl import paths
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.config.load import load as load_recipe
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import Generation
from vlmrl.evals.ask.evaluate import RecordBuilder
from vlmrl.evals.ask.protocol import FOLDER
from vlmrl.evals.ask.run import eval_options
from vlmrl.evals.ask.suite import DEFINITIONS, load_suite, suite_path, task_names
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.extraction import answer_of
from vlmrl.evals.score.records import Record
from vlmrl.types import Prompt

OWN = """id: theirs
source: their page
settings: {max_new_tokens: 64, media: {fps: 1.0}}
tasks:
  charades_sta: {max_new_tokens: 32, scoring: {take: first}}
  mmstar: {}
"""


def load(folder: Path, tasks: str, protocol: str = OWN, head: str = "") -> tuple[Task, ...]:
    (folder / "theirs.yaml").write_text(protocol)
    (folder / "s.yaml").write_text(f"id: s\nversion: 1\n{head}tasks: {tasks}\n")
    return load_suite(folder / "s.yaml").tasks


def record(task: Task, text: str) -> Record:
    """What `vlmrl eval` makes of an answer; the true span is 3 to 5 seconds."""
    reading = RecordBuilder(options=eval_options(task, batch_prompts=1, seed=0), fingerprint="", model="", tokenizer_len=len)
    prompt = Prompt(sample=sample(), ids=(1,), media=(), spans=(), answer_format=task.asked)
    return reading.record(prompt, Generation(text=text, n_out=1, finish="stop"))


@pytest.mark.parametrize("name", paths.names("protocol"))
def test_every_protocol_loads_with_each_of_its_tasks(name: str, tmp_path: Path) -> None:
    from vlmrl.config import tree

    problems: list[str] = []
    root = tree.read(FOLDER / f"{name}.yaml", problems).plain()
    assert not problems
    assert root["id"] == name
    assert root["source"]
    assert set(root["tasks"]) <= set(task_names())
    (tmp_path / "s.yaml").write_text(f"id: s\nversion: 1\nprotocol: {name}\ntasks: [{', '.join(root['tasks'])}]\n")
    tasks = load_suite(tmp_path / "s.yaml").tasks
    assert {task.id.partition("@")[0] for task in tasks} == set(root["tasks"])
    assert {task.protocol for task in tasks} == {name}
    assert f"`{name}`" in (DEFINITIONS / "README.md").read_text(encoding="utf-8")


def test_its_settings_stand_between_the_tasks_and_the_suites(tmp_path: Path) -> None:
    plain = load(tmp_path, "[charades_sta]")[0]
    assert plain.protocol == ""
    charades, mmstar, own = load(
        tmp_path,
        "[charades_sta, {use: mmstar, max_new_tokens: 8}, {use: charades_sta, id: plain, protocol: ''}]",
        head="protocol: theirs\n",
    )
    assert (charades.max_new_tokens, charades.media.fps, charades.scoring, charades.protocol) == (32, 1.0, {"take": "first"}, "theirs")
    assert charades.source == plain.source
    assert charades.media.max_pixels != plain.media.max_pixels, "a key is replaced as a whole"
    assert (mmstar.max_new_tokens, mmstar.media.fps, mmstar.scoring) == (8, 1.0, {})
    assert own == plain.model_copy(update={"id": "plain"})


def test_a_task_may_name_one_and_state_itself(tmp_path: Path) -> None:
    text = "[{id: charades_sta, source: a.jsonl, answer_format: think, answer_type: time_span, protocol: theirs}, charades_sta]"
    text = text.replace("charades_sta]", "{use: charades_sta, id: other}]")
    stated, other = load(tmp_path, text)
    assert (stated.max_new_tokens, stated.scoring, other.scoring) == (32, {"take": "first"}, {})


@pytest.mark.parametrize(
    ("change", "tasks", "message"),
    [
        (("settings:", "setings:"), "[charades_sta]", "theirs.yaml:3: setings: unknown key 'setings'; did you mean 'settings'?"),
        (("fps: 1.0", "fsp: 1.0"), "[charades_sta]", "theirs.yaml:3: tasks.0.media.fsp: unknown key 'fsp'; did you mean 'fps'?"),
        (("max_new_tokens: 64", "source: x"), "[charades_sta]", "theirs.yaml:3: settings.source: unknown key 'source'"),
        (("{max_new_tokens: 32", "{official_count: 3"), "[charades_sta]", "theirs.yaml:5: tasks.charades_sta.official_count: unknown key"),
        (
            ("max_new_tokens: 32", "max_new_tokens: 0"),
            "[charades_sta]",
            "theirs.yaml:5: tasks.0.max_new_tokens: Input should be greater than 0",
        ),
        (("take: first", "takes: first"), "[charades_sta]", "tasks.charades_sta.scoring.takes: unknown 'takes'; did you mean 'take'?"),
        (("take: first", "take: best"), "[charades_sta]", "tasks.charades_sta.scoring.take: expected one of 'first', 'last'"),
        (("mmstar: {}", "mmstar: {scoring: {take: first}}"), "[mmstar]", "(answer type 'choice' takes: nothing)"),
        (("mmstar: {}", "mmstar: 3"), "[mmstar]", "theirs.yaml:6: tasks.mmstar: expected a mapping of settings"),
        (("", ""), "[geoqa]", "s.yaml:3: protocol 'theirs' says nothing of task 'geoqa' (it has: charades_sta, mmstar)"),
        (("tasks:\n  charades_sta", "nothing:\n  charades_sta"), "[charades_sta]", "theirs.yaml: tasks: is missing"),
    ],
)
def test_mistakes_are_named(change: tuple[str, str], tasks: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, tasks, OWN.replace(*change, 1), head="protocol: theirs\n")
    assert message in str(caught.value)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s.yaml:3: no protocol 'tempsamp_papr'; did you mean 'tempsamp_paper'\?"):
        load(tmp_path, "[charades_sta]", head="protocol: tempsamp_papr\n")


@pytest.mark.parametrize("kit", ["g2rpo", "fgrpo", "ton", "tempsamp", "curriculum_gui", "click"])
def test_every_kit_is_evaluated_at_the_resolution_that_it_trains_at(kit: str) -> None:
    script = (DEFINITIONS.parent / "scripts" / "reproduce.sh").read_text(encoding="utf-8")
    suite = re.search(rf"^  {kit}\) .*suite=(\w+)", script, re.M)
    assert suite is not None
    trained = load_recipe(paths.shipped("configs", "recipes", f"{kit}.yaml"), []).config.media.of_task()
    tasks = load_suite(suite_path(suite[1])).tasks
    assert {(task.id, task.media == trained) for task in tasks} == {(task.id, True) for task in tasks}


def test_kits_are_asked_in_the_words_that_they_train_with() -> None:
    """TON's script for counts says `first`, and nothing else differs there."""
    kits = ("g2rpo", "ton", "ton_maths", "ton_gui")
    words = {name: load_recipe(paths.shipped("configs", "recipes", f"{name}.yaml"), []).config.data.prompt for name in kits}
    for name in ("g2rpo", "ton_gui"):
        assert {task.prompt for task in load_suite(suite_path(name)).tasks} == {words[name]}
    super_clevr, clevr, geoqa = load_suite(suite_path("ton")).tasks
    assert geoqa.prompt == words["ton"] == words["ton_maths"]
    assert words["ton"] is not None
    assert super_clevr.prompt == clevr.prompt == words["ton"].replace("Write", "First write")


def test_ton_reads_counts_from_the_tags_and_results_from_the_whole_text() -> None:
    """By hand; of the other arm, too."""
    _, clevr, geoqa = load_suite(suite_path("ton")).tasks
    assert [(task.max_new_tokens, task.temperature) for task in (clevr, geoqa)] == [(256, 0.0), (1024, 0.0)]
    (aitz,) = load_suite(suite_path("ton_gui")).tasks
    assert aitz.media == load_recipe(paths.shipped("configs", "recipes", "ton_gui.yaml"), []).config.media.of_task()
    cut = "<think>the angle is 180 - 60 = 120"
    assert answer_of(cut, "think", clevr.extraction) is None
    gold = dataclasses.replace(sample("120"), answer_type="math")
    for text, right in [(cut, 1.0), ("<think>a</think><answer> 120 </answer>", 1.0), ("<think>it is 60</think>", 0.0)]:
        found = answer_of(text, "think", geoqa.extraction)
        assert ANSWER_TYPES["math"].score(found, gold, **geoqa.scoring)[2]["exact"] == right, text


def test_tempsamp_is_evaluated_at_the_resolution_that_it_trains_at() -> None:
    """By its authors' protocol and by our own settings; both arms of the recipe."""
    kit = load_suite(suite_path("tempsamp")).tasks
    assert {task.protocol for task in kit} == {"tempsamp_paper"}
    named = {task.id.partition("@")[0] for task in kit}
    assert named == {"charades_sta", "activitynet_captions", "qvhighlights_highlight"}
    ours = [task for task in load_suite(suite_path("temporal")).tasks if task.id in named]
    recipes = [recipe for recipe in paths.names("recipe") if "tempsamp" in recipe]
    assert len(recipes) == 5
    trained = load_recipe(recipes[0], []).config.media.of_task()
    for media in (*(load_recipe(recipe, []).config.media.of_task() for recipe in recipes), *(task.media for task in (*kit, *ours))):
        assert media == trained


def test_tempsamp_reads_the_first_span_in_whole_seconds() -> None:
    """By hand, beside our own settings; the true span is 3 to 5 seconds."""
    ours = load_suite(suite_path("temporal")).tasks[0]
    theirs = load_suite(suite_path("tempsamp")).tasks[0]
    assert (ours.id, theirs.id, theirs.max_new_tokens) == ("charades_sta", "charades_sta@think", 512)
    for text, expected, own in [
        ("<think>a</think><answer>3.40 to 5.40</answer>", 1.0, 1.6 / 2.4),  # 3 to 5
        ("<think>a</think><answer>2.50 to 5.00</answer>", 2 / 3, 2 / 2.5),  # 2 to 5: halves go to the even number
        ("<think>a</think><answer>3 to 5, or 8 to 9</answer>", 1.0, 0.0),
        ("<answer>3 to 5</answer><answer>8 to 9</answer>", 1.0, 0.0),
        ("<think>3 to 5, I think", 1.0, 0.0),  # without an answer the whole text is read
        ("<think>a</think><answer>5 to 3</answer>", 0.0, 1.0),
        ("<think>a</think><answer>later</answer>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ]:
        assert record(theirs, text).scores["tiou"] == pytest.approx(expected), text
        assert record(ours, text).scores["tiou"] == pytest.approx(own), text

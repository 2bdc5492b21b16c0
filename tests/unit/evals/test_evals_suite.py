"""Suites: the shipped one loads, and mistakes are named with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import data_root_of, load_suite, suite_path, task_names
from vlmrl.evals.score.measures import COMMON, metrics_of

ROOT = Path(__file__).parents[3]
SUITES = sorted((ROOT / "evals" / "suites").glob("*.yaml"))
TASK = "{id: t, source: a.jsonl, answer_format: think, answer_type: time_span, max_new_tokens: 8}"


def write(path: Path, task: str = TASK, head: str = "id: s\nversion: 1\ndata_root: data\n") -> Path:
    path.write_text(f"{head}tasks:\n  - {task}\n")
    return path


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_shipped_suites(path):
    suite = load_suite(path)
    assert suite.id == path.stem
    assert suite.tasks


@pytest.mark.parametrize(
    ("name", "world", "kind", "answer_type"),
    [
        ("toy_video", "shell", "shell_stays", "exact_text"),  # the held-out questions of both shell games are the same
        ("toy_grounding", "grounding", "grounding", "time_span"),
    ],
)
def test_there_are_toy_suites_that_ask_as_their_recipes_do(name, world, kind, answer_type):
    suite = load_suite(next(p for p in SUITES if p.stem == name))
    (task,) = suite.tasks
    assert (suite.data_root, suite.toy_world, task.source, task.answer_type) == ("toy", world, "test.jsonl", answer_type)
    recipe = load(ROOT / f"configs/recipes/{name}.yaml", []).config
    assert recipe.toy is not None
    assert recipe.toy.world.kind == kind
    assert task.answer_format == recipe.stages[-1].answer_format
    assert task.max_new_tokens == recipe.eval.max_new_tokens
    kept = {"cache_bytes": task.media.cache_bytes}  # what is kept of clips changes nothing that is seen
    assert task.media == recipe.media.of_task().model_copy(update=kept)


@pytest.mark.parametrize(
    ("suite", "recipe"),
    [
        ("toy_desk", "toy_desk_grpo"),
        ("toy_desk", "toy_desk_gigpo"),
        ("toy_zoom", "toy_zoom"),
        ("miniwob_click", "miniwob_click"),
    ],
)
def test_the_suite_of_episodes_plays_as_its_recipes_do(suite, recipe):
    (task,) = load_suite(next(p for p in SUITES if p.stem == suite)).tasks
    config = load(ROOT / f"configs/recipes/{recipe}.yaml", []).config
    stage = config.stages[-1]
    assert (task.environment, task.history, task.asked) == (stage.environment, stage.history, stage.answer_format)
    assert (task.max_new_tokens, task.max_prompt_tokens) == (stage.rollout.max_new_tokens, config.data.max_prompt_tokens)
    assert task.max_new_tokens == config.eval.max_new_tokens
    assert task.media == config.media.of_task()


def test_defaults(tmp_path):
    (task,) = load_suite(write(tmp_path / "s.yaml")).tasks
    assert (task.media_root, task.limit, task.primary) == (".", None, "miou")
    own = ("miou", "r1@0.3", "r1@0.5", "r1@0.7", "parse_rate", "format_rate", "think_rate", "tokens", "truncation_rate")
    assert task.metrics == metrics_of("time_span") == own


def test_defaults_follow_the_answer_type(tmp_path):
    (task,) = load_suite(write(tmp_path / "s.yaml", TASK.replace("answer_type: time_span", "answer_type: bbox"))).tasks
    assert task.primary == "box_iou"
    assert task.metrics[:2] == ("box_iou", "box_r@0.5")
    assert "miou" not in task.metrics
    assert task.media.fps == 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("max_new_tokens: 8", "max_new_token: 8"),
            "s.yaml:5: tasks.0.max_new_token: unknown key 'max_new_token'; did you mean 'max_new_tokens'?",
        ),
        (("max_new_tokens: 8", "max_new_tokens: 0"), "s.yaml:5: tasks.0.max_new_tokens: Input should be greater than 0, got 0"),
        (("max_new_tokens: 8", "max_new_tokens: many"), "tasks.0.max_new_tokens: Input should be a valid integer"),
        (("source: a.jsonl, ", ""), "s.yaml: tasks.t: source: is missing"),
        (
            ("answer_format: think", "answer_format: thinks"),
            "s.yaml:5: tasks.0.answer_format: Input should be 'think', 'answer_only' or 'think_or_not'",
        ),
        (("max_new_tokens: 8", "max_new_tokens: 8, media: {fsp: 2}"), "tasks.0.media.fsp: unknown key 'fsp'; did you mean 'fps'?"),
        (("answer_type: time_span", "answer_type: caption"), "tasks.t.answer_type: unknown answer type 'caption'"),
        (("answer_type: time_span", "answer_type: ocr"), "tasks.t.answer_type: answer type 'ocr' is called 'short_text' now"),
        (
            ("max_new_tokens: 8", "max_new_tokens: 8, primary: tokens, metrics: [exact, tokens]"),
            "tasks.t: metric 'exact' does not apply to answer type 'time_span' (it has: score, miou",
        ),
        (("max_new_tokens: 8", "max_new_tokens: 8, metrics: [moiu]"), "tasks.t: unknown metric 'moiu'; did you mean 'miou'?"),
        (
            ("max_new_tokens: 8", "max_new_tokens: 8, primary: tokens, metrics: [miou]"),
            "tasks.t: primary 'tokens' is not among its metrics",
        ),
        (("id: t", "id: ../t"), "is not a plain name"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(ConfigError) as caught:
        load_suite(write(tmp_path / "s.yaml", TASK.replace(*change)))
    assert message in str(caught.value)


def test_all_mistakes_at_once(tmp_path):
    task = TASK.replace("answer_format: think", "answer_format: x").replace("max_new_tokens: 8", "max_new_tokens: -1")
    with pytest.raises(ConfigError) as caught:
        load_suite(write(tmp_path / "s.yaml", task, head="id: s\nversoin: 1\ndata_root: data\n"))
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 4
    for part in (
        "s.yaml:2: versoin: unknown key 'versoin'; did you mean 'version'?",
        "version: Field required",
        "answer_format",
        "max_new_tokens",
    ):
        assert part in text


def test_twice_the_same_task_none_at_all_and_no_file(tmp_path):
    with pytest.raises(ConfigError, match="id 't' is used twice"):
        load_suite(write(tmp_path / "s.yaml", f"{TASK}\n  - {TASK}"))
    (tmp_path / "s.yaml").write_text("id: s\nversion: 1\ndata_root: data\ntasks: []\n")
    with pytest.raises(ConfigError, match="tasks: is empty"):
        load_suite(tmp_path / "s.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_suite(tmp_path / "none.yaml")


def test_suites_and_tasks_by_name(tmp_path, monkeypatch):
    (tmp_path / "suites").mkdir()
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "charts.yaml").write_text(
        "id: charts\nversion: 2\nsource: charts/rows/test.jsonl\nmedia_root: charts\nanswer_format: [think, answer_only]\n"
        "answer_type: [choice, number]\nmax_new_tokens: 8\nprepare: {dataset: charts, split: test, options: {form: open}}\n"
    )
    path = write(tmp_path / "suites" / "two.yaml", f"charts\n  - {{use: charts, id: few, limit: 4, answer_format: think}}\n  - {TASK}")
    monkeypatch.setattr("vlmrl.evals.ask.suite.DEFINITIONS", tmp_path)
    assert suite_path("two") == path == suite_path(path)
    suite = load_suite(suite_path("two"))
    assert [t.id for t in suite.tasks] == ["charts@think", "charts@answer_only", "few", "t"]
    assert [(t.asked, t.limit, t.version) for t in suite.tasks] == [
        ("think", None, 2),
        ("answer_only", None, 2),
        ("think", 4, 2),
        ("think", None, 1),
    ]
    charts = suite.tasks[0]
    assert charts.primary == "score"
    assert charts.metrics == ("score", "exact", "relative_accuracy", *COMMON)
    assert charts.make_command() == "python data/charts/prepare.py ROOT DATA_ROOT/charts/rows --split test --form open"
    assert task_names() == ["charts"]
    assert suite.tasks[0].answer_types == ("choice", "number")
    with pytest.raises(ConfigError, match="no such suite; did you mean 'two'"):
        suite_path("twoo")
    write(path, "chart")
    with pytest.raises(ConfigError, match=r"two\.yaml:5: no task 'chart'; did you mean 'charts'"):
        load_suite(path)


def test_several_greedy_answers_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="4 samples at temperature 0 are 4 times the same answer"):
        load_suite(write(tmp_path / "s.yaml", TASK.replace("max_new_tokens: 8", "max_new_tokens: 8, samples: 4")))


def test_where_the_data_are(tmp_path, monkeypatch):
    monkeypatch.delenv("VLMRL_DATA", raising=False)
    suite = load_suite(write(tmp_path / "s.yaml", head="id: s\nversion: 1\n"))
    with pytest.raises(ConfigError, match="Give --data-root, or set VLMRL_DATA"):
        data_root_of(suite, None)
    assert data_root_of(suite, tmp_path) == tmp_path
    monkeypatch.setenv("VLMRL_DATA", "/data")
    assert data_root_of(suite, None) == Path("/data")
    assert data_root_of(load_suite(write(tmp_path / "s.yaml")), None) == Path("data")


@pytest.mark.parametrize(
    ("line", "now"),
    [("made: {dataset: d, split: s}", "prepare"), ("view: lenient", "extraction"), ("template: think", "answer_format")],
)
def test_an_earlier_key_names_the_one_of_now(tmp_path, line, now):
    path = write(tmp_path / "old.yaml", TASK[:-1] + f", {line}}}")
    with pytest.raises(ConfigError, match=rf"old\.yaml:\d+: tasks\.0\.{line.split(':')[0]}: unknown key .*; it is called '{now}' now"):
        load_suite(path)

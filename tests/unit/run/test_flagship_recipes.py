"""The recipes of the five flagship methods on rows of every task that they are for: what `vlmrl check` says of them, which columns
judge which rows, and which groups their filters keep."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.judge_server import JudgeServer, prompt_of, says
from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.config.load import load
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.data.encode import ANSWER_FORMATS, instruction
from vlmrl.data.row import parse_row
from vlmrl.data.wording import worded
from vlmrl.extras.judges.services import Services, session
from vlmrl.extras.toy.model import build_model
from vlmrl.extras.toy.tasks import tokenizer_corpus
from vlmrl.methods import method_problems, registries
from vlmrl.protocols import RewardContext
from vlmrl.run.audit import audit
from vlmrl.run.columns import reward_runner
from vlmrl.run.ui import Ui
from vlmrl.types import Group, Prompt, Rollout, Sample

pytestmark = pytest.mark.not_fast  # builds models

RECIPES = Path(__file__).parents[3] / "configs" / "recipes"
ROWS = 50
"""Of each task."""
ROLLOUTS = 8
TASKS = {
    "choice": lambda i: {"answer_type": "choice", "options": ["a cat", "a dog", "a cow"], "answer": "ABC"[i % 3]},
    "math": lambda i: {"answer_type": "math", "answer": f"\\frac{{{i + 1}}}{{7}}"},
    "number": lambda i: {"answer_type": "number", "answer": f"{i + 2}", "gt": {"number": i + 2}},
    "count": lambda i: {"answer_type": "number", "answer": f"{i % 9 + 1}", "gt": {"count": i % 9 + 1}},
    "regression": lambda i: {"answer_type": "regression", "answer": f"{i + 0.5}", "gt": {"number": i + 0.5}},
    "ocr": lambda i: {"answer_type": "short_text", "answer": f"EXIT {i}"},
    "open": lambda i: {"answer_type": "exact_text", "answer": f"a man opens door {i}"},
    "boxes": lambda i: {"answer_type": "bbox", "gt": {"boxes": [[i, 10, i + 100, 90]]}, "meta": {"frame": "norm1000"}},
    "time": lambda i: {"answer_type": "time_span", "gt": {"time": [i, i + 4.5]}},
    "highlight": lambda i: {"answer_type": "highlight", "gt": {"highlights": [[2 * i, 3], [2 * i + 2, 4]]}},
    "track": lambda i: {
        "answer_type": "tracking",
        "gt": {"track": {"0": [i, 2, 90, 40], "5": [2, 3, 31, 41]}},
        "meta": {"frame": "norm1000"},
    },
    "tube": lambda i: {
        "answer_type": "spatio_temporal",
        "gt": {"tube": {"time": [i, i + 3], "boxes": {"1": [1, 2, 30, 40]}}},
        "meta": {"frame": "norm1000"},
    },
    "segmentation": lambda i: {
        "answer_type": "segmentation",
        "gt": {"segmentation": {"boxes": [1, 2, 30 + i, 40], "positive_points": [[5, 5]], "negative_points": [[90, 90]]}},
        "meta": {"frame": "norm1000"},
    },
    "step": lambda i: {
        "answer_type": "action",
        "answer": json.dumps({"action": "click", "coordinate": [10 + i, 20]}),
        "gt": {"action": {"action": "click", "coordinate": [10 + i, 20]}},
        "meta": {"frame": "norm1000"},
        "trajectory": {"id": f"t{i // 5}", "step": i % 5, "length": (2, 5, 9)[i // 5 % 3]},
    },
}
GENERAL = ("choice", "math", "number", "count", "regression", "ocr", "open", "boxes", "time", "track", "tube", "segmentation")


@dataclass(frozen=True)
class Case:
    """A recipe, the tasks whose rows it is for, and what each of its columns of weight is for; no entry: every row."""

    recipe: str
    tasks: tuple[str, ...]
    of: dict[str, tuple[str, ...]]
    right: tuple[str, ...]
    """The columns that say what is right: of each row exactly one judges."""


CASES = [
    Case("g2rpo", GENERAL, {}, ("accuracy",)),
    Case("fgrpo", ("choice", "open", "count"), {"spatial_grounding": ()}, ("accuracy",)),
    Case("ton", ("count",), {}, ("accuracy",)),
    Case("ton_maths", ("math",), {}, ("accuracy",)),
    Case("ton_gui", ("step",), {}, ("gui_action",)),
    Case("tempsamp", ("time",), {}, ("temporal_iou",)),
    Case("tempsamp_downscale", ("time",), {}, ("temporal_iou",)),
    Case("tempsamp_anchor", ("time",), {}, ("temporal_iou",)),
    Case("tempsamp_highlight", ("highlight",), {}, ("highlight",)),
    Case("curriculum_gui", ("step", "open", "ocr"), {"gui_action": ("step",), "judge": ("open", "ocr")}, ("gui_action", "judge")),
]
every_recipe = pytest.mark.parametrize("case", CASES, ids=[case.recipe for case in CASES])


def rows(tasks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for task, i in itertools.product(tasks, range(ROWS)):
        yield {"id": f"{task}-{i}", "task": task, "prompt": f"What about {task} {i}?", "thought": "I look.", **TASKS[task](i)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flagship") / "model"
    build_model(folder, seed=0, corpus=tokenizer_corpus([instruction(t, "time_span") for t in ANSWER_FORMATS]))
    return folder


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    """A judge that finds every wrong answer wrong, and every thought consistent and grounded."""

    def verdict(body: dict[str, Any]) -> dict[str, Any]:
        text = prompt_of(body)
        return {"label": "YES" if "YES" in text else "CORRECT", "score": 0}

    with JudgeServer((), otherwise=says(verdict)) as server, session(Services(None)):
        yield server.url


def recipe(case: Case, data: Path, judge: str, *, isolate: bool = False) -> Config:
    """With the judge's address; without `isolate` all rules are run in this process."""
    path = RECIPES / f"{case.recipe}.yaml"
    given = [f"data.root={data}"]
    for stage in stages(load(path, []).config):
        for reward in stage.rewards:
            place = f"stages.{stage.name}.rewards.{reward.key}"
            given += [f"{place}.endpoint.url={judge}"] if "endpoint" in reward.arguments else []
            given += [] if isolate else [f"{place}.isolate=false"]
    return load(path, given, also=method_problems).config


def samples(case: Case) -> dict[str, list[Sample]]:
    out: dict[str, list[Sample]] = {}
    for row in rows(case.tasks):
        out.setdefault(row["task"], []).append(parse_row(row, source="rows:1", media_root=""))
    return out


def stages(cfg: Config) -> list[GrpoSection]:
    return [stage for stage in cfg.stages if isinstance(stage, GrpoSection)]


def answered(sample: Sample, answer_format: str, right: int) -> Group:
    """`right` true answers, then wrong ones in the right form."""
    thought = "" if answer_format == "answer_only" else "<think>The man looks at a red door. So it is.</think>"
    texts = [f"{thought}<answer>{sample.answer if k < right else 'neither of these'}</answer>" for k in range(ROLLOUTS)]
    prompt = Prompt(sample=sample, ids=(1,), media=(), spans=(), answer_format=answer_format)
    rollouts = tuple(
        Rollout(k=k, ids=(1,) * 4, logprobs=(-0.5,) * 4, text=text, finish="stop", policy_version=0) for k, text in enumerate(texts)
    )
    return Group(id=f"{sample.id}/{right}", prompt=prompt, rollouts=rollouts)


@every_recipe
def test_check_finds_nothing_wrong(case: Case, model: Path, judge: str, tmp_path: Path) -> None:
    cfg = recipe(case, tmp_path, judge, isolate=True)
    for stage in cfg.stages:
        (tmp_path / stage.source.path).write_text("".join(json.dumps(row) + "\n" for row in rows(case.tasks)))
    report = audit(cfg, model=str(model), data=tmp_path, ui=Ui(quiet=True))
    assert report.problems == []
    assert {source.good for source in report.sources} == {ROWS * len(case.tasks)}


@every_recipe
def test_every_column_judges_the_rows_that_it_is_for(case: Case, judge: str, tmp_path: Path) -> None:
    """Of right answers in the right form; each row has exactly one column that says what is right."""
    for stage in stages(recipe(case, tmp_path, judge)):
        with closing(reward_runner(stage, ())) as runner:
            names = [name for name, _, _ in runner.columns]
            for task, found in samples(case).items():
                for sample in found[:: 1 if task == "step" else 5]:
                    scores = runner.score(answered(sample, stage.answer_format, ROLLOUTS), RewardContext()).scores
                    assert not scores.reasons, sample.id
                    judged = {name for name, value in zip(names, scores.rewards_GK[0], strict=True) if value is not None}
                    assert judged == {name for name in names if task in case.of.get(name, case.tasks)}, sample.id
                    assert len(judged & set(case.right)) == 1, sample.id


@every_recipe
def test_filters_keep_mixed_groups(case: Case, judge: str, tmp_path: Path) -> None:
    """From one right answer of 8 to seven, of every task; where a recipe filters, all or none right is dropped."""
    for stage in stages(recipe(case, tmp_path, judge)):
        with closing(reward_runner(stage, ())) as runner:
            for (task, found), right in itertools.product(samples(case).items(), range(ROLLOUTS + 1)):
                scored = runner.score(answered(found[3], stage.answer_format, right), RewardContext())
                table = torch.tensor([[float("nan") if v is None else v for v in row] for row in scored.scores.rewards_GK]).double()
                total = torch.tensor([float("nan") if v is None else v for v in scored.scores.total()]).double()
                x = AdvantageInputs(
                    reward_N=total,
                    rewards_NK=table,
                    valid_N=~total.isnan(),
                    group_N=torch.zeros(ROLLOUTS, dtype=torch.int64),
                    task_N=torch.zeros(ROLLOUTS, dtype=torch.int64),
                    on_policy_N=torch.ones(ROLLOUTS, dtype=torch.bool),
                    length_N=torch.full((ROLLOUTS,), 4),
                    columns=tuple(name for name, _, _ in runner.columns),
                )
                mixed = 0 < right < ROLLOUTS
                assert mixed == (not segments.flat(x.reward_N, x.group_N, x.valid_N).all()), f"{task}: right answers earn more"
                for method in stage.filters:
                    keep_N, _ = registries()["filter"].bind(method.name, method.arguments)(x)
                    assert bool(keep_N.all()) == mixed, f"{method.name}: {task} with {right} of {ROLLOUTS} right"


def test_prompts_of_think_or_not_never_offer_to_skip() -> None:
    """The paper's prompt asks for a thought; that one may be empty is learnt in fine-tuning alone."""
    for name in ("ton", "ton_maths", "ton_gui"):
        cfg = load(RECIPES / f"{name}.yaml", []).config
        assert {stage.answer_format for stage in cfg.stages} == {"think"}
        assert all("empty" not in (cfg.data.prompt or instruction(stage.answer_format, "number")) for stage in cfg.stages)


def test_g2rpo_asks_for_literals_that_its_rewards_read() -> None:
    """The example behind each question is an answer of its type; where it holds names in the place of numbers, the type is in its words."""
    prompt = load(RECIPES / "g2rpo.yaml", []).config.data.prompt
    assert prompt is not None
    found = samples(Case("g2rpo", GENERAL, {}, ()))
    for task, (sample, *_) in found.items():
        text = worded(prompt, dataclasses.replace(sample, task=f"{task}_image"), "think", "")
        assert text.startswith(f"{sample.question} FIRST reason, as an inner monologue, within <thinking> </thinking> tags, ")
        answer = parse(text, "answer_only").answer or ""
        assert text.endswith(f"\nExample:\n<answer>{answer}</answer>")
        if task == "segmentation":
            answer = re.sub(r"\b[xy][12]?\b", lambda name: {"x1": "1", "y1": "2", "x2": "30", "y2": "40"}.get(name[0], "5"), answer)
        if task == "track":
            answer = answer.replace(" ...,", "")
        assert ANSWER_TYPES[sample.answer_type].score(answer, sample)[0] is not None, task


def test_judged_rows_of_the_curriculum_enter_at_the_second_level() -> None:
    (stage,) = load(RECIPES / "curriculum_gui.yaml", []).config.stages
    assert isinstance(stage, GrpoSection)
    assert stage.sampler.arguments["understanding_from"] == 2

"""Every suite from end to end on generated stand-ins in the official layouts: a model that gives the true answers gets full marks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.fixtures import make_fixture
from vlmrl.answers.tags import gold_text
from vlmrl.evals.ask.engines import EvalEngine, Generation
from vlmrl.evals.ask.run import evaluate_model
from vlmrl.evals.ask.suite import DEFINITIONS, load_suite
from vlmrl.evals.ask.tasks import Task
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_processor
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import GenerationSettings, Prompt

SUITES = sorted(p.stem for p in (DEFINITIONS / "suites").glob("*.yaml") if not p.stem.startswith(("toy_", "miniwob_")))
"""Suites of data: those of generated worlds and of environments have no files to stand in for."""
CEILING = {"highlight_map": 11 / 15}
"""The three annotators of a clip disagree, and the true answer is their mean."""


@dataclasses.dataclass(frozen=True)
class Knowing:
    """Says the true answer, or, where `silent`, nothing."""

    bundle: ProcessorBundle
    silent: bool = False
    name: str = "knowing"
    fingerprint: str = "knowing"
    engine_name: str = "hf"

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        return self

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        def text(prompt: Prompt) -> str:
            return "" if self.silent else gold_text(prompt.sample, prompt.answer_format, "It can be seen.")

        return [[Generation(text=text(prompt), n_out=9, finish="stop")] * samples for prompt in prompts]


@pytest.fixture(scope="module")
def bundle(tiny_files: tuple[Path, Path]) -> ProcessorBundle:
    return load_processor(str(tiny_files[0]))


@pytest.mark.parametrize("name", SUITES)
def test_true_answers_get_full_marks_and_silence_none(bundle: ProcessorBundle, tmp_path: Path, name: str):
    suite = load_suite(DEFINITIONS / "suites" / f"{name}.yaml")
    rows = {task.id: make_fixture(task, tmp_path / "data", DEFINITIONS.parent / "data") for task in suite.tasks}
    result = evaluate_model(Knowing(bundle), suite, tmp_path / "out", data_root=tmp_path / "data")
    for task in suite.tasks:
        assert result.summaries[task.id].n == rows[task.id] >= 5
        primary = result.primary(task)
        assert primary is not None, task.id
        assert primary.mean == pytest.approx(CEILING.get(task.primary, 1.0)), (task.id, task.primary)
        assert result.summaries[task.id].metrics["parse_rate"].mean == 1.0
    ceilings = [CEILING.get(task.primary, 1.0) for task in suite.tasks]
    assert result.macro() == (pytest.approx(sum(ceilings) / len(ceilings)) if len(ceilings) > 1 else None)
    silent = evaluate_model(
        dataclasses.replace(Knowing(bundle), silent=True, fingerprint="silent"), suite, tmp_path / "none", data_root=tmp_path / "data"
    )
    for task in suite.tasks:
        primary = silent.primary(task)
        assert primary is not None
        assert primary.mean <= 0.3, (task.id, task.primary, primary)  # mAP of equal scores is above 0

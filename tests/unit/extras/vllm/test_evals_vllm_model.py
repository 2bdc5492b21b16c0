"""A checkpoint that vLLM answers for: what is refused before anything is loaded, when vLLM starts and with what, what records say.

vLLM itself is not needed: a stand-in generates with the reference engine. The real one: `tests/agreement/test_vllm_eval.py`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.given import make_model
from tests.support.reports import written
from tests.unit.cli.test_cli_eval import SUITE, invoke
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.run import Changes, evaluate_model
from vlmrl.evals.ask.suite import load_suite
from vlmrl.evals.score.records import read_records
from vlmrl.extras.vllm import evaluation as vllm_model
from vlmrl.extras.vllm.engine import CoreOptions
from vlmrl.extras.vllm.evaluation import VllmModel
from vlmrl.policy.load import SETTINGS
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train import dist


class Started:
    """A core that only says that it was started and ended."""

    all: ClassVar[list[Started]] = []

    def __init__(self, options: CoreOptions):
        self.options = options
        self.open = True
        self.all.append(self)

    def close(self) -> None:
        self.open = False


class Reference:
    """The reference engine under the name of vLLM's."""

    def __init__(self, core: Started, policy: Any, pixels: Any, *, clips: str):
        assert not clips
        self.core, self.policy = core, policy
        self.within = 0
        self.look_at(pixels)

    def look_at(self, pixels: Any) -> None:
        self.pixels = pixels

    def ready(self) -> Any:
        self.within += 1
        return self.policy.shards.whole()

    def generate(self, requests: Sequence[Any], settings: Any) -> Any:
        assert self.core.open
        assert self.within, "weights are sent before anything is asked"
        vision = VisionCache(self.pixels, budget_bytes=2**28)
        return HFEngine(self.policy, vision).generate(requests, settings)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    monkeypatch.setattr(Started, "all", [])
    for name, value in {"Core": Started, "VllmEngine": Reference, "platform": lambda: "cpu"}.items():
        monkeypatch.setattr(vllm_model, name, value)
    return Started.all


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SUITE)
    return path


def test_records_and_tables_are_those_of_the_reference_engine_but_for_its_name(tiny_files, suite, tmp_path, stand_in):
    model, world = tiny_files
    given = ["--suite", suite, "--data-root", world, "--device", "cpu"]
    invoke("eval", model, *given, "--out", tmp_path / "hf")
    text = invoke("eval", model, *given, "--out", tmp_path / "vllm", "--engine", "vllm")
    assert "tiny v1: first" in text
    for task in ("first", "second"):
        ours, theirs = ([json.loads(r.line()) for r in read_records(tmp_path / name / f"{task}.jsonl")] for name in ("hf", "vllm"))
        assert {r["settings"].pop("engine") for r in theirs} == {"vllm"}
        assert ours == theirs
    assert (tmp_path / "vllm" / "results.md").read_text() == (tmp_path / "hf" / "results.md").read_text()
    (core,) = stand_in
    assert not core.open
    assert core.options.max_model_len == 8192 + 6
    assert (core.options.architecture, core.options.dtype, core.options.eager) == ("Qwen2_5_VLForConditionalGeneration", "float32", True)
    assert core.options.path == str(model)


def test_vllm_is_not_started_for_answers_that_are_there(tiny_files, suite, tmp_path, stand_in):
    model, world = tiny_files
    given = ["eval", model, "--suite", suite, "--data-root", world, "--device", "cpu", "--out", tmp_path / "out"]
    invoke(*given, "--engine", "vllm")
    before = (tmp_path / "out" / "first.jsonl").read_bytes()
    invoke(*given, "--engine", "vllm")
    invoke("eval", model, "--suite", suite, "--data-root", world, "--out", tmp_path / "out", "--rescore")
    assert (tmp_path / "out" / "first.jsonl").read_bytes() == before
    assert len(stand_in) == 1
    invoke(*given)
    assert {r.settings.get("engine", "hf") for r in read_records(tmp_path / "out" / "first.jsonl")} == {"hf"}
    assert (tmp_path / "out" / "first.jsonl.superseded").read_bytes() == before


def test_results_lie_beside_those_of_the_other_engine(tiny_files, suite, tmp_path, stand_in):
    model, world = tiny_files
    shutil.copytree(model, tmp_path / "final")
    text = invoke(
        *("eval", tmp_path / "final", "--suite", suite, "--data-root", world, "--device", "cpu"),
        *("--engine", "vllm", "--task", "second", "--limit", "1"),
    )
    assert str(tmp_path / "suites" / "final-tiny-vllm") in text
    assert (tmp_path / "suites" / "final-tiny-vllm" / "second.jsonl").is_file()


def test_a_task_that_needs_more_room_starts_vllm_anew(tiny_files, suite, tmp_path, stand_in):
    model, world = tiny_files
    loaded = VllmModel.load(model, device="cpu")  # without its tasks
    checked = load_suite(suite)
    longer = checked.tasks[1].model_copy(update={"max_prompt_tokens": 9000})
    mixed = checked.model_copy(update={"tasks": (checked.tasks[0], longer)})
    evaluate_model(loaded, mixed, tmp_path / "out", data_root=world, changes=Changes(limit=1))
    assert [(core.options.max_model_len, core.open) for core in stand_in] == [(8198, False), (9006, True)]
    loaded.close()
    assert not stand_in[1].open
    loaded.close()
    huge = longer.model_copy(update={"max_prompt_tokens": 10**6})
    loaded = VllmModel.load(model, device="cpu", tasks=(huge,))
    evaluate_model(loaded, mixed, tmp_path / "again", data_root=world, changes=Changes(limit=1))
    assert len(stand_in) == 3
    assert stand_in[2].options.max_model_len == 32768, "no more than the model has positions for"


def test_a_model_of_the_other_position_rule_is_refused_before_its_weights_are_read(tiny_files, suite, tmp_path, stand_in, monkeypatch):
    model, world = tiny_files
    shutil.copytree(model, tmp_path / "grid")
    (tmp_path / "grid" / SETTINGS).write_text('{"positions": "grid"}\n')
    monkeypatch.setattr(vllm_model, "load_policy", lambda *a, **k: pytest.fail("weights were read"))
    with pytest.raises(ConfigError, match=r"grid: .*model.positions: grid.*'max' only.*evaluate it with --engine hf"):
        invoke("eval", tmp_path / "grid", "--suite", suite, "--data-root", world, "--device", "cpu", "--engine", "vllm")
    assert not stand_in


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"conform.json does not say whether it keeps P14: run `vlmrl check .* --engine vllm` again"),
        ({"engine": "vllm", "red": ("P14",)}, r"conform.json says that it does not keep P14 \(vLLM takes our weights and pictures"),
    ],
)
def test_a_family_that_is_run_through_its_own_processor_needs_its_report(given, said, tmp_path, stand_in, monkeypatch):
    folder = written(make_model("internvl", tmp_path / "given"), **given)
    monkeypatch.setattr(vllm_model, "load_policy", lambda *a, **k: pytest.fail("weights were read"))
    who = "--engine vllm: not proven with a 'internvl' model under model.family 'generic'; take hf: the policy itself answers; "
    with pytest.raises(ConfigError, match=who + ".*" + said):
        VllmModel.load(folder, device="cpu")


def test_without_vllm_it_is_said_what_to_do(tiny_files, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "vllm.platforms", raising=False)
    with pytest.raises(ConfigError, match=r"--engine vllm: vLLM does not load here .*docs/rollout.md.*--engine hf needs nothing more"):
        VllmModel.load(tiny_files[0], device="cpu")


def test_vllm_of_another_device_is_refused(tiny_files, monkeypatch):
    monkeypatch.setattr(vllm_model, "platform", lambda: "cuda")
    with pytest.raises(ConfigError, match=r"computes on 'cuda', and --device cpu is 'cpu' here; give --device cuda, .*--engine hf"):
        VllmModel.load(tiny_files[0], device="cpu")


def test_one_process_only(tiny_files, suite, monkeypatch):
    monkeypatch.setattr(dist, "world", lambda: 2)
    with pytest.raises(ConfigError, match="--engine vllm runs in one process for now, and here are 2"):
        invoke("eval", tiny_files[0], "--suite", suite, "--data-root", tiny_files[1], "--engine", "vllm")

"""`vlmrl eval --engine vllm` against the reference engine: equal greedy answers, records that differ in the engine's name alone.

Needs vLLM (its CPU build is enough) in the environment of the tests. Qwen3.5 has the recurrence of `tests.support.delta_kernel`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import delta_kernel, given, tiny
from tests.support.reports import written
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.models import LocalModel
from vlmrl.evals.ask.run import Changes, evaluate_model
from vlmrl.evals.ask.suite import Suite, load_suite
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.extras.families.conform.engine import HEAD
from vlmrl.extras.toy.multitask import items
from vlmrl.extras.toy.picture import png
from vlmrl.extras.vllm.evaluation import VllmModel

pytestmark = pytest.mark.slow

MEDIA = "{min_pixels: 3136, max_pixels: 4704, max_frames: 32}"
SUITE = f"""
id: both
version: 1
batch_prompts: 2
tasks:
  - {{id: videos, source: test.jsonl, answer_format: think_or_not, answer_type: time_span, max_new_tokens: 10, media: {MEDIA}}}
  - {{id: pictures, source: pictures.jsonl, answer_format: answer_only, answer_type: [number, bbox], max_new_tokens: 8, media: {MEDIA}}}
"""
TASKS = ("videos", "pictures")


@dataclass
class Both:
    """A tiny model of a family, its rows, and both engines."""

    folder: Path
    world: Path
    suite: Suite
    hf: LocalModel
    vllm: VllmModel

    def ask(self, engine: str, out: str, **changes: Any) -> dict[str, list[dict[str, Any]]]:
        model = self.hf if engine == "hf" else self.vllm
        evaluate_model(model, self.suite, self.folder / out, data_root=self.world, changes=Changes(**changes))
        return {task: [json.loads(line) for line in (self.folder / out / f"{task}.jsonl").read_text().splitlines()] for task in TASKS}


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder, name = tmp_path_factory.mktemp(request.param), request.param
    model, world = tiny.make_files(folder, sft=2, train=2, test=3, family="qwen2_5_vl" if name == "internvl" else name)
    if name == "internvl":
        model = written(given.make_model(name, folder / name, head=HEAD), engine="vllm")
    (world / "images" / "test").mkdir(parents=True)
    rows: list[str] = []
    for item in [one for index in range(3) for one in items(0, "test", index)]:
        (world / item.row["image"]).write_bytes(png(item.pixels))
        rows.append(json.dumps(item.row))
    (world / "pictures.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "both.yaml").write_text(SUITE)
    suite = load_suite(folder / "both.yaml")
    theirs = VllmModel.load(model, device="cpu", tasks=suite.tasks)
    with pytest.MonkeyPatch.context() as patched:
        if name == "qwen3_5":
            delta_kernel.install(patched)
        yield Both(folder, world, suite, LocalModel.load(model, device="cpu"), theirs)
        theirs.close()


def test_greedy_answers_are_those_of_the_reference_engine(both: Both) -> None:
    ours, theirs = both.ask("hf", "hf"), both.ask("vllm", "vllm")
    for task in TASKS:
        assert len(theirs[task]) == 3
        assert {record["settings"].pop("engine") for record in theirs[task]} == {"vllm"}
        assert theirs[task] == ours[task]
    assert len({record["text"] for of in ours.values() for record in of}) > 1, "answers that are all the same would show nothing"
    assert (both.folder / "vllm" / "results.md").read_text() == (both.folder / "hf" / "results.md").read_text()


def test_a_comparison_names_the_engines(both: Both) -> None:
    both.ask("hf", "hf")
    both.ask("vllm", "vllm")
    with pytest.raises(Incomparable, match="engine hf against vllm"):
        compare_folders(both.folder / "hf", both.folder / "vllm")
    forced = compare_folders(both.folder / "hf", both.folder / "vllm", force=True)
    assert all(gap.difference == 0 for task in forced.tasks for gap in task.gaps.values())
    assert any("engine hf against vllm" in warning for warning in forced.warnings)


def test_answers_that_are_there_are_not_asked_again(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    first = both.ask("vllm", "vllm")
    monkeypatch.setattr(VllmModel, "started", lambda *a: pytest.fail("asked again"))
    assert both.ask("vllm", "vllm") == first


def test_sampled_answers_come_back_with_the_same_seed(both: Both) -> None:
    given = {"samples": 2, "temperature": 1.0, "limit": 2}
    first = both.ask("vllm", "first", seed=3, **given)
    again = both.ask("vllm", "again", seed=3, **given)
    other = both.ask("vllm", "other", seed=4, **given)
    texts = [[record["text"] for task in TASKS for record in of[task]] for of in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 8


def test_clips_are_refused_where_the_report_does_not_keep_them(both: Both) -> None:
    if both.hf.bundle.writer is None:
        pytest.skip("pixels go to vLLM as bytes, with no report")
    folder = shutil.copytree(both.vllm.folder, both.folder / "pictures_only")
    written(folder, red=("P18",), engine="vllm")
    theirs = VllmModel.load(folder, device="cpu", tasks=both.suite.tasks)
    with pytest.raises(ConfigError, match=r"'vllm' is not proven with videos of this model; take hf; .*does not keep P18"):
        evaluate_model(theirs, both.suite, both.folder / "refused", data_root=both.world)
    theirs.close()

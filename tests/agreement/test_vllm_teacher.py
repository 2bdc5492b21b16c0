"""A teacher on a real vLLM server, started by the command: its scores are those of a teacher in the trainer, and so are whole runs."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.faults.test_resume_distill import small
from tests.support import media_layouts, runs, served, tiny
from tests.unit.train.test_step import learner
from vlmrl.extras.distill.section import TeacherSection
from vlmrl.extras.distill.server import ServedTeacher, open_servers
from vlmrl.extras.distill.teacher import Teacher
from vlmrl.extras.distill.topk import Chosen
from vlmrl.extras.distill.view import TeacherView
from vlmrl.policy.load import load_policy
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.run.tracking import read_metrics

pytestmark = pytest.mark.slow

EQUAL = 1e-5
"""Nats by which two float32 kernels may differ here."""
FELT = 1e-2
"""Nats that other weights make, for a comparison to mean something."""
OPTIONS = ("--", "--kv-cache-memory-bytes", str(2**28), "--max-model-len", "1024", "--block-size", "32")
K = 5
BANNED = 3
"""An id that the policy could draw, and must not here."""
NEVER = "step.before_update@3:kill"


@dataclass
class Place:
    """A policy, and a teacher of other weights on a server."""

    folder: Path
    loaded: tiny.Tiny
    address: str
    token: Path

    @property
    def teacher(self) -> Path:
        return self.folder / "teacher" / "model"

    def section(self, address: str = "") -> dict[str, Any]:
        return {"weights": "server", "servers": [address or self.address], "token_file": str(self.token)}


def other_weights(model: Path, into: Path, seed: int) -> Path:
    """The same model with every weight moved."""
    import transformers

    shutil.copytree(model, into)
    made: Any = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * parameter.std().nan_to_num() * torch.randn_like(parameter))
    made.save_pretrained(into)
    return into


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("taught")
    loaded = media_layouts.make(folder, "qwen2_5_vl")
    model = other_weights(folder / "model", folder / "teacher" / "model", 1)
    with served.serving(model, more=OPTIONS) as server:
        yield Place(folder, loaded, server.address, server.token)


def rows_of(loaded: tiny.Tiny) -> list[Row]:
    """For each layout answers of one token and of many, two that are equal, and two that begin alike for more than a block."""
    draw = random.Random(0)
    allowed = sorted(set(range(len(loaded.bundle.tokenizer))) - {*loaded.bundle.special_ids, *loaded.bundle.forbidden_ids, BANNED})
    rows: list[Row] = []
    for group, prompt in enumerate(media_layouts.prompts(loaded).values()):
        long = draw.choices(allowed, k=70)
        answers = [draw.choices(allowed, k=1), draw.choices(allowed, k=9), long, long, long[:50] + draw.choices(allowed, k=20)]
        rows += [Row(index=len(rows) + n, group=group, prompt=prompt, response=tuple(one)) for n, one in enumerate(answers)]
    return rows


def test_scores_are_those_of_the_same_teacher_in_the_trainer(place: Place) -> None:
    loaded, rows = place.loaded, rows_of(place.loaded)
    one = learner(loaded, 10**6, "shared_prefix")
    one.temperature, one.forbidden = 0.7, tuple(sorted({*loaded.bundle.forbidden_ids, BANNED}))
    view = TeacherView(encoder=loaded.encoder, store=loaded.store, own=loaded.store)
    policy = load_policy(str(place.teacher), loaded.bundle, device="cpu", positions="max")
    here = Teacher(policy=policy, vision=VisionCache(loaded.store, budget_bytes=2**28), view=view)
    section = TeacherSection.model_validate(place.section() | {"servers": (place.address,)})
    servers, facts = open_servers(section, loaded.policy, loaded.store, stop=lambda: False)
    there = ServedTeacher(view=view, servers=servers)
    assert facts["architecture"] == type(loaded.policy.model).__name__
    draw = torch.Generator().manual_seed(0)
    allowed = torch.tensor([i for i in range(len(loaded.bundle.tokenizer)) if i not in one.forbidden])
    ids = {row.index: allowed[torch.rand(len(row.response), len(allowed), generator=draw).topk(K).indices] for row in rows}
    expected, found = (Chosen(k=K, ids=len(allowed), of_row=ids) for _ in range(2))
    ours = here.score(one, rows, {}, expected)
    policys = Teacher(policy=loaded.policy, vision=loaded.vision, view=view).score(one, rows, {}, None)
    assert float((policys - ours).abs().max()) > FELT
    for _ in range(2):  # the second time all prompts and answers are in the server's prefix cache
        theirs = there.score(one, rows, {}, found)
        assert torch.equal(theirs == 0, ours == 0)
        assert float((theirs - ours).abs().max()) < EQUAL
        assert max(float((found.told[n] - expected.told[n]).abs().max()) for n in ids) < EQUAL
        found.told.clear()
    servers.close()


def recipe(place: Place, root: Path, teacher: dict[str, Any], **stage: Any) -> dict[str, Any]:
    media = {"min_pixels": 12544, "max_pixels": 12544}
    config = small((place.folder / "model", place.folder / "world"), root, teacher={**teacher, "media": media}, **stage)
    config["model"]["positions"] = "max"
    (rl,) = config["stages"]
    rl["rollout"] |= {"prompts_per_step": 2, "num_generations": 3}
    return config


@pytest.mark.parametrize("reweight", [[{"name": "teacher_reverse_kl"}], []])
def test_a_run_learns_from_it_what_it_learns_from_the_folder(place: Place, tmp_path: Path, reweight: list[Any]) -> None:
    both = {"reweight": reweight, "auxiliary_losses": [{"name": "teacher_topk_kl", "k": 8}]}
    sides = [{"weights": str(place.teacher)}, place.section()]
    configs = [recipe(place, tmp_path / str(n), teacher, **both) for n, teacher in enumerate(sides)]
    for config in configs:
        assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    lines = [[line for line in read_metrics(runs.run_dir(config) / "metrics.jsonl") if "distill/gap" in line] for config in configs]
    assert [len(side) for side in lines] == [3, 3]
    for ours, theirs in zip(*lines, strict=True):
        for name in ("loss", "distill/gap", "auxiliary/teacher_topk_kl"):
            assert theirs[name] == pytest.approx(ours[name], abs=EQUAL), name
        assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-3)
        assert theirs["auxiliary/teacher_topk_kl"] > FELT
        assert theirs["distill/prompt_tokens/teacher"] == ours["distill/prompt_tokens/teacher"] > theirs["distill/prompt_tokens/student"]


def test_a_server_with_another_model_is_refused_when_the_run_goes_on(place: Place, tmp_path: Path) -> None:
    config = recipe(place, tmp_path, place.section())
    assert runs.run(config, NEVER) == -9
    other = other_weights(place.folder / "model", tmp_path / "other" / "model", 2)
    with served.serving(other, more=OPTIONS) as server:
        config["stages"][0]["teacher"] |= {"servers": [server.address], "token_file": str(server.token)}
        assert runs.run(config) != 0
    said = Path(config["run"]["root"], "error.txt").read_text()
    assert "teacher.weights: its files are not those that this run was begun with, here or on its servers" in said
    config["stages"][0]["teacher"] |= place.section()
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()


def test_a_server_with_another_tokenizer_is_refused(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other" / "model"
    shutil.copytree(place.folder / "model", other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<|one_more|>"})
    file.write_text(json.dumps(tokenizer))
    with served.serving(other, more=OPTIONS) as server:
        config = recipe(place, tmp_path, {"weights": "server", "servers": [server.address], "token_file": str(server.token)})
        assert runs.run(config) != 0
    said = Path(config["run"]["root"], "error.txt").read_text()
    assert f"its tokenizer has {last['id'] + 2} ids and that of model.path {last['id'] + 1}, and they do not mean the same" in said

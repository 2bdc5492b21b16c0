"""vLLM on a server of its own, started by the command: the same policy as the trainer's, at every version, and whole runs over it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.support import media_layouts, runs, served, tiny
from vlmrl.config.load import loaded as loaded_config
from vlmrl.config.schema import Config
from vlmrl.errors import RemoteError
from vlmrl.extras.vllm.client import RemoteVllmEngine
from vlmrl.extras.vllm.fleet import Fleet, Needed
from vlmrl.extras.vllm.remote import Remote
from vlmrl.extras.vllm.secret import read_token
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

pytestmark = pytest.mark.slow

GREEDY = GenerationSettings(max_new_tokens=12, temperature=0.0)
EQUAL = 1e-5
"""Nats by which two float32 kernels may differ here."""
FELT = 1e-4
"""Nats that a change of weights must make at least, for a comparison to mean something."""
ROOM = 1024


@dataclass
class Place:
    """A policy, and a server for its family in another process."""

    folder: Path
    loaded: tiny.Tiny
    process: subprocess.Popen[str]
    address: str
    token: Path
    prompts: dict[str, Prompt] = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = media_layouts.prompts(self.loaded)

    def engine(self, patience: float = 30.0) -> RemoteVllmEngine:
        policy = self.loaded.policy
        needed = Needed(architecture=type(policy.model).__name__, dtype="float32", length=ROOM)
        remote = Remote(self.address, token=read_token(self.token, "token"))
        return RemoteVllmEngine(Fleet([remote], needed, patience=patience), policy, self.loaded.store)

    def requests(self, *seeds: int) -> list[Request]:
        return [Request(prompt=prompt, seeds=seeds, ks=tuple(range(len(seeds)))) for prompt in self.prompts.values()]

    def hf(self) -> list[list[Rollout]]:
        vision = VisionCache(self.loaded.store, budget_bytes=2**28)
        return HFEngine(self.loaded.policy, vision).generate(self.requests(5), GREEDY)

    def changed(self) -> None:
        """An update of everything, the tower too."""
        policy = self.loaded.policy
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(0.05 * parameter.std().nan_to_num() * torch.randn_like(parameter))
        policy.vision_trains = True
        policy.version += 1
        policy.vision_version += 1


def recipe(folder: Path, **rollout: Any) -> dict[str, Any]:
    """Two supervised steps, then three RL steps in which everything trains."""
    config = runs.small_config(folder / "model", folder / "world", folder / "runs")
    first, second = config["stages"]
    first |= {"steps": 2, "batch": 2}
    second |= {
        "steps": 3,
        "freeze": [],
        "optim": {"lr": 3e-3},
        "rollout": {
            "engine": "vllm",
            "num_generations": 6,
            "prompts_per_step": 2,
            "generation_batch_size": 2,
            "max_new_tokens": 8,
            **rollout,
            "vllm": {"cache_bytes": 2**28, "max_model_len": ROOM, "block_size": 32, **rollout.get("vllm", {})},
        },
    }
    config["eval"] = {}
    config["model"]["positions"] = "max"
    return config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("served")
    loaded = media_layouts.make(folder, "qwen2_5_vl")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(folder)), encoding="utf-8")
    with served.serving(folder / "recipe.yaml") as server:
        yield Place(folder, loaded, server.process, server.address, server.token)


def apart(ours: list[list[Rollout]], theirs: list[list[Rollout]]) -> float:
    return max(abs(x - y) for a, b in zip(ours, theirs, strict=True) for x, y in zip(a[0].logprobs, b[0].logprobs, strict=True))


def test_greedy_answers_are_those_of_the_policy_at_every_version(place: Place) -> None:
    engine = place.engine()
    before = place.hf()
    for changes in range(3):
        if changes:
            place.changed()
        report = engine.sync()
        assert report is not None
        assert report.whole == (changes == 0)
        assert report.tensors == len(dict(place.loaded.policy.model.named_parameters()))
        ours, theirs = place.hf(), engine.generate(place.requests(5), GREEDY)
        for name, a, b in zip(place.prompts, ours, theirs, strict=True):
            assert (b[0].ids, b[0].text, b[0].finish) == (a[0].ids, a[0].text, a[0].finish), name
        assert apart(ours, theirs) < EQUAL
        assert {r.policy_version for group in theirs for r in group} == {place.loaded.policy.version}
    assert [group[0].logprobs for group in before] != [group[0].logprobs for group in place.hf()]
    engine.close()


def test_another_trainer_with_the_same_counts_finds_nothing_of_the_first(place: Place) -> None:
    """Its weights are others under the same version: keys, values and features of the first must not be found."""
    first = place.engine()
    first.sync()
    old = first.generate(place.requests(5), GREEDY)
    version = place.loaded.policy.version, place.loaded.policy.vision_version
    place.changed()
    place.loaded.policy.version, place.loaded.policy.vision_version = version
    second = place.engine()
    second.sync()
    assert second.version == first.version
    theirs, ours = second.generate(place.requests(5), GREEDY), place.hf()
    assert [group[0].ids for group in theirs] == [group[0].ids for group in ours]
    assert apart(ours, theirs) < EQUAL
    assert [group[0].logprobs[0] for group in old] != pytest.approx([group[0].logprobs[0] for group in theirs], abs=FELT)
    with pytest.raises(RemoteError, match="no rollout server holds the weights"):
        first.generate(place.requests(5), GREEDY)
    for engine in (first, second):
        engine.close()


def test_sampled_answers_have_seeds_of_their_own(place: Place) -> None:
    engine = place.engine()
    engine.sync()
    sampled = GenerationSettings(max_new_tokens=12, temperature=0.7)
    first = engine.generate(place.requests(1, 2, 3, 4), sampled)
    again = engine.generate(place.requests(1, 2, 3, 4)[::-1], sampled)[::-1]
    assert [[r.ids for r in group] for group in first] == [[r.ids for r in group] for group in again]
    assert len({r.ids for group in first for r in group}) > len(first)
    assert engine.counts["work/prefix_cached_tokens"]() > 0, "a prompt is computed once"
    engine.close()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_trains_on_what_the_server_samples(place: Place, tmp_path: Path, staleness: int) -> None:
    servers = {"servers": [place.address], "token_file": str(place.token)}
    raw = recipe(place.folder, vllm=servers, staleness=staleness, max_gap={"stop": 5.0})
    raw["run"] |= {"root": str(tmp_path), "name": f"k{staleness}"}
    raw["stages"][1]["importance_correction"] = {"name": "tis"}
    config = Config.model_validate(raw)
    train_from(loaded_config(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
    lines = [line for line in read_metrics(tmp_path / f"k{staleness}" / "metrics.jsonl") if "grad_norm" in line and line["stage"] == "rl"]
    assert len(lines) == 3
    for step, line in enumerate(lines):
        gap = line["sampling/logp_gap/video"]
        if min(step, staleness) == 0:
            assert 0 <= gap < EQUAL
        else:
            assert gap > FELT, "what the updates in between changed"
        assert line["work/asked_again"] == 0
    assert sum(line["work/synced_bytes"] for line in lines) > 0


def test_a_server_that_is_killed_ends_the_run_with_69(place: Place) -> None:
    engine = place.engine(patience=1.0)
    engine.sync()
    os.kill(place.process.pid, signal.SIGKILL)
    place.process.wait(30)
    with pytest.raises(RemoteError, match=r"no rollout server for 1 s .*connection") as raised:
        engine.generate(place.requests(5), GREEDY)
    assert raised.value.exit_code == 69
    engine.close()

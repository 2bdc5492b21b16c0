"""A whole run with `rollout.engine: vllm`: supervised, then RL, and what stops it when the engine is left with older weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")

from tests.faults.test_resume_families import small
from tests.support import delta_kernel, given, runs, tiny
from tests.support.episodes import family_episodes
from tests.support.reports import written
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.errors import EngineError
from vlmrl.extras.families.conform.engine import HEAD
from vlmrl.extras.vllm import stage as vllm_engine
from vlmrl.extras.vllm.engine import Core, CoreOptions
from vlmrl.extras.vllm.inputs import Version
from vlmrl.extras.vllm.sync import Sync, SyncReport
from vlmrl.policy.model import Policy
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui

pytestmark = pytest.mark.slow

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return tiny.make_files(tmp_path_factory.mktemp("files"), sft=8, train=12, test=4)


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[CoreOptions, Core]]:
    """Engines of the module by their options: starting one takes longer than a run."""
    cores: dict[CoreOptions, Core] = {}
    yield cores
    for core in cores.values():
        Core.close(core)


@pytest.fixture(autouse=True)
def _one_core(kept: dict[CoreOptions, Core], monkeypatch: pytest.MonkeyPatch) -> None:
    def core(options: CoreOptions) -> Core:
        if options not in kept:
            kept[options] = Core(options)
            monkeypatch.setattr(kept[options], "close", lambda: None)
        return kept[options]

    monkeypatch.setattr(vllm_engine, "Core", core)


def recipe(files: Files, root: Path, **rollout: Any) -> Config:
    """Two supervised steps, then three RL steps in which everything trains; the reward of a letter gives groups a signal."""
    config = runs.small_config(*files, root)
    first, second = config["stages"]
    first |= {"steps": 2, "batch": 2}
    second |= {
        "steps": 3,
        "freeze": [],
        "optim": {"lr": 3e-3},
        "rollout": {
            "engine": "vllm",
            "vllm": {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32, "sync_probe_every": 2},
            "num_generations": 6,
            "prompts_per_step": 2,
            "generation_batch_size": 2,
            "max_new_tokens": 8,
            **rollout,
        },
    }
    config["eval"] = {}
    config["model"]["positions"] = "max"
    return Config.model_validate(config)


def steps(config: Config) -> list[dict[str, Any]]:
    train_from(loaded(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
    lines = read_metrics(Path(config.run.root) / config.run.name / "metrics.jsonl")
    return [line for line in lines if "grad_norm" in line and line["stage"] == "rl"]


def test_a_run_trains_on_what_vllm_samples(files: Files, tmp_path: Path) -> None:
    lines = steps(recipe(files, tmp_path))
    assert len(lines) == 3
    for line in lines:
        assert line["grad_norm"] > 0
        assert line["work/synced_bytes"] > 0, "the weights of every step are sent"
        assert 0 <= line["sampling/logp_gap/video"] < 1e-5
        assert line["sampling/ratio/video"] == pytest.approx(1, abs=1e-5)
        assert line["work/asked_again"] == 0
        assert line["work/prefilled_tokens"] > 0


def test_qwen3_5_trains_on_what_vllm_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the recurrence of its delta nets in float32."""
    delta_kernel.install(monkeypatch)
    files = tiny.make_files(tmp_path, sft=8, train=12, test=4, family="qwen3_5")
    gaps = [line["sampling/logp_gap/video"] for line in steps(recipe(files, tmp_path))]
    print("qwen3_5", gaps)
    assert len(gaps) == 3
    assert max(gaps) < 1e-5


@pytest.mark.parametrize("name", ["internvl", "smolvlm"])
def test_other_families_train_on_what_vllm_samples(name: str, tmp_path: Path) -> None:
    """Through their own processor, admitted by the report beside the model."""
    world = given.make_rows(tmp_path / "world", video=name == "internvl", train=4, test=1)
    model = given.make_model(name, tmp_path / "model", head=HEAD)
    written(model, layouts=("repeat", "shared_prefix"), model_type=name, engine="vllm")
    config = small(model, world, tmp_path, forward="shared_prefix", choice="auto")
    config["eval"] = {}
    config["stages"][1]["steps"] = 3
    config["stages"][1]["rollout"] |= {"engine": "vllm", "vllm": {"cache_bytes": 2**28, "max_model_len": 1024, "block_size": 32}}
    lines = steps(Config.model_validate(config))
    assert len(lines) == 3
    for line in lines:
        print(name, {key: value for key, value in line.items() if "gap" in key or key in ("grad_norm", "work/synced_bytes")})
        assert line["grad_norm"] > 0
        assert line["work/synced_bytes"] > 0, "the weights of every step are sent"
        gaps = {key: value for key, value in line.items() if key.startswith("sampling/logp_gap")}
        assert gaps
        assert max(gaps.values()) < 1e-5
        assert line["work/asked_again"] == 0


def test_conversations_of_another_family_train_on_what_vllm_samples(tmp_path: Path) -> None:
    """Two turns with pictures, P14 and P17 in the report."""
    model = given.make_model("internvl", tmp_path / "model", head=HEAD)
    written(model, layouts=("repeat", "shared_prefix"), model_type="internvl", engine="vllm")
    config = family_episodes("internvl", model, tmp_path / "runs")
    (stage,) = config["stages"]
    stage["rollout"] |= {"engine": "vllm", "vllm": {"cache_bytes": 2**28, "max_model_len": 2048, "block_size": 32}}
    lines = steps(Config.model_validate(config))
    assert len(lines) == stage["steps"]
    for line in lines:
        assert line["grad_norm"] > 0
        assert max(line["sampling/turn_gap/0"], line["sampling/turn_gap/1"]) < 1e-5


def test_control_an_engine_with_older_weights_stops_the_run(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronisation that does nothing and says that all went well: what the checks of names and sums cannot see, the meter does."""
    real, sent = Sync.send, []

    def send(self: Sync, policy: Policy, version: Version, *, whole: bool) -> SyncReport:
        sent.append(version)
        if len(sent) > 1:
            return SyncReport(version=version, tensors=1, nbytes=1, compared=1, seconds=0.0, whole=whole)
        return real(self, policy, version, whole=whole)

    monkeypatch.setattr(Sync, "send", send)
    with pytest.raises(EngineError, match=r"stage 'rl', step 2: the sampler's log-probs are not the trainer's: mean gap .* behind a video"):
        steps(recipe(files, tmp_path, max_gap={"stop": 1e-4}))
    assert len(sent) == 2

"""Whole runs with `model.dtype: bfloat16`, supervised and RL, through every backend of the attention over packed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import kernels, runs, tiny
from vlmrl.config.load import loaded
from vlmrl.config.schema import Config
from vlmrl.extras.toy.model import ModelFamily
from vlmrl.policy import attention
from vlmrl.run import session
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.tracking import read_metrics
from vlmrl.run.ui import Ui

LORA = {"rank": 4, "alpha": 8.0}
GAP = 0.05
"""Most mean |trainer - sampler| log-prob of a step: eight bits of logits of a few units make about 0.005."""

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[ModelFamily, Files]:
    """Model and world folder by family, made when first asked for."""

    class Made(dict[ModelFamily, Files]):
        def __missing__(self, family: ModelFamily) -> Files:
            self[family] = tiny.make_files(tmp_path_factory.mktemp(family), sft=8, train=12, test=2, family=family)
            return self[family]

    return Made()


def recipe(files: Files, root: Path, *, model: dict[str, Any] | None = None, sft: dict[str, Any] | None = None, **rl: Any) -> Config:
    """Two supervised and two RL steps in bfloat16. The ground-truth row gives every group a signal."""
    config = runs.small_config(*files, root)
    del config["eval"]
    first, second = config["stages"]
    rollout = {"num_generations": 3, "prompts_per_step": 2, "generation_batch_size": 2, "max_new_tokens": 8}
    first |= {"steps": 2, "batch": 2} | (sft or {})
    second |= {"steps": 2, "rollout": rollout | {"strategy": {"name": "offpolicy_gt"}}} | rl
    config["model"] |= {"dtype": "bfloat16"} | (model or {})
    return Config.model_validate(config)


def steps(config: Config) -> list[dict[str, Any]]:
    """Train in this process; the logged steps."""
    train_from(loaded(config), Places(model=config.model.path, data=Path(config.data.root)), Ui(quiet=True))
    return [line for line in read_metrics(Path(config.run.root) / config.run.name / "metrics.jsonl") if "grad_norm" in line]


def check(lines: list[dict[str, Any]]) -> None:
    """Every update was applied and moved the weights, and the sampler's log-probs are the trainer's."""
    assert [line["stage"] for line in lines] == ["sft", "sft", "rl", "rl"]
    assert all(line["step/skipped"] == 0.0 and line["grad_norm"] > 0 for line in lines)
    gaps = [line["sampling/logp_gap"] for line in lines if line["stage"] == "rl"]
    assert all(0 < gap < GAP for gap in gaps), gaps


@pytest.mark.parametrize(
    ("backend", "family", "model", "rl"),
    [
        ("merge", "qwen2_5_vl", {}, {}),
        ("flash", "qwen3_vl", {"gradient_checkpointing": True}, {"freeze": []}),
        ("flex", "qwen2_5_vl", {"lora": LORA, "gradient_checkpointing": True}, {}),
    ],
    ids=["merge", "flash and checkpointing", "flex and lora"],
)
def test_a_run_in_bfloat16(backend, family, model, rl, files, tmp_path, monkeypatch) -> None:
    called = kernels.install(monkeypatch)
    check(steps(recipe(files[family], tmp_path, model={"prefix_backend": backend} | model, **rl)))
    assert set(called) == ({backend} & set(kernels.EMULATED))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("adapters", [None, LORA, LORA | {"vision": True}], ids=["weights", "lora", "lora with vision"])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("backend", [*attention._BACKENDS, "repeat"])
def test_every_backend_family_and_kind_of_weights_in_bfloat16(
    backend, family, adapters, checkpointing, files, tmp_path, monkeypatch
) -> None:
    called = kernels.install(monkeypatch)
    repeat = {"forward": "repeat"} if backend == "repeat" else {}
    model = {"prefix_backend": "auto" if repeat else backend, "lora": adapters, "gradient_checkpointing": checkpointing}
    check(steps(recipe(files[family], tmp_path, model=model, sft=repeat | {"freeze": []}, freeze=[], updates_per_step=2, **repeat)))
    assert set(called) == ({backend} & set(kernels.EMULATED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("media", "rl"),
    [
        ({}, {"freeze": [], "beta": 0.1, "kl": {"name": "k3"}}),
        ({"vision_cache_dir": "features"}, {"freeze": ["vision", "projector"]}),
        ({}, {"reward_shaping": [{"name": "care_consistency", "reward": "temporal_iou", "every": 1}], "beta": 0.0, "freeze": []}),
        (
            {},
            {
                "updates_per_step": 2,
                "importance_correction": {"name": "tis"},
                "auxiliary_losses": [{"name": "entropy_bonus", "weight": 0.01}],
            },
        ),
    ],
    ids=["reference with a tower of its own", "features on disk", "averaged reference", "gradient of the entropy"],
)
def test_what_lies_beside_the_policy_in_bfloat16(media, rl, files, tmp_path) -> None:
    media = {name: str(tmp_path / value) for name, value in media.items()}
    config = recipe(files["qwen2_5_vl"], tmp_path, sft={"freeze": rl.get("freeze", [])}, **rl)
    check(steps(config.model_copy(update={"media": config.media.model_copy(update=media)})))


def test_what_no_stage_trains_and_the_reference_are_kept_in_16_bits(files, tmp_path, monkeypatch) -> None:
    """The tower here; of a reference everything."""
    bytes_of: list[tuple[tuple[str, ...], float]] = []
    real = session.load_policy

    def spy(*args: Any, trains: tuple[str, ...], **options: Any) -> Any:
        policy = real(*args, trains=trains, **options)
        parameters = list(policy.model.parameters())
        bytes_of.append((tuple(trains), sum(p.nbytes for p in parameters) / sum(p.numel() for p in parameters)))
        return policy

    monkeypatch.setattr(session, "load_policy", spy)
    frozen = {"freeze": ["vision", "projector"]}
    check(steps(recipe(files["qwen2_5_vl"], tmp_path, sft=frozen, beta=0.1, kl={"name": "k3"}, **frozen)))
    (policy, whole), (reference, half) = bytes_of
    assert (policy, reference) == (("language",), ())
    assert 2 < half < 2.1 < 3 < whole < 4


def test_the_model_feeds_the_attention_two_types(files, tmp_path, monkeypatch) -> None:
    """What the kernels' checks stand for: rotary embeddings leave query and key in float32 beside a value in 16 bits."""
    seen: set[tuple[torch.dtype, ...]] = set()
    real = attention.one_type

    def spy(*three: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = real(*three)
        seen.add(tuple(x.dtype for x in three))
        assert {x.dtype for x in out} == {torch.bfloat16}
        return out

    monkeypatch.setattr(attention, "one_type", spy)
    steps(recipe(files["qwen2_5_vl"], tmp_path))
    assert seen == {(torch.float32, torch.float32, torch.bfloat16)}
